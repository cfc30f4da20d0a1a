//! The bindings in `src/bindings/` are what `wit-bindgen` generates from `wit/task.wit`. They are generated here, and not by
//! its macro in each build, because the macro would have every author of a script compile a parser and a generator of
//! bindings first: half of a script's first build.
//!
//! After a change of the WIT or of the version of `wit-bindgen`, write them again:
//! `HEDDLE_WRITE_BINDINGS=1 cargo test -p heddle-sdk --test bindings`

use std::path::{Path, PathBuf};

use wit_bindgen_core::WorldGenerator as _;
use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_rust::{Opts, WithOption};

/// What the worlds `task` and `consumer` import is generated once, as the world `imports`.
const SHARED: &[&str] = &[
    "types", "context", "upstream", "log", "progress", "state", "enqueue", "notify", "secret", "sql",
];

fn options(world: &str) -> Opts {
    let shared = SHARED.iter().map(|name| {
        let path = format!("crate::bindings::imports::{name}");
        (format!("heddle:task/{name}@1.0.0"), WithOption::Path(path))
    });
    match world {
        "imports" => Opts {
            format: true,
            generate_unused_types: true,
            ..Opts::default()
        },
        world => Opts {
            format: true,
            pub_export_macro: true,
            export_macro_name: Some(format!("export_{world}")),
            with: shared.collect(),
            ..Opts::default()
        },
    }
}

fn generated(root: &Path, world: &str) -> String {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(root.join("wit")).expect("the WIT is valid");
    let id = resolve
        .select_world(&[package], Some(world))
        .expect("the WIT has the world");
    let mut files = Default::default();
    let mut generator = options(world).build();
    generator
        .generate(&mut resolve, id, &mut files)
        .expect("it has bindings");
    let mut files = files.iter();
    let (_, text) = files.next().expect("a file is generated");
    assert!(files.next().is_none(), "one file");
    String::from_utf8(text.to_vec()).expect("Rust is UTF-8")
}

#[test]
fn bindings_are_those_of_the_wit() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    for world in ["imports", "task", "consumer"] {
        let path = root.join(format!("src/bindings/{world}.rs"));
        let text = generated(&root, world);
        if std::env::var_os("HEDDLE_WRITE_BINDINGS").is_some() {
            std::fs::write(&path, text).expect("the sources are writable");
            continue;
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == text,
            "{} is not what wit-bindgen generates from wit/task.wit; write it again:\n\
             HEDDLE_WRITE_BINDINGS=1 cargo test -p heddle-sdk --test bindings",
            path.display()
        );
    }
}
