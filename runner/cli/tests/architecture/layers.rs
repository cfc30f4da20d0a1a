//! The layers use each other as ARCHITECTURE.md says, and none of them passes another one on as a whole.

use crate::source::{code, read, root};

/// The crates below `runner/`, and which of them each may use. The command line puts all of them together.
const LAYERS: [(&str, &[&str]); 10] = [
    ("domain", &[]),
    ("api", &["domain"]),
    ("store", &["domain"]),
    ("postgres", &[]),
    ("runtimes", &[]),
    ("sandbox", &["domain", "runtimes"]),
    ("engine", &["domain", "store", "sandbox"]),
    // The sandbox is the engine's: what they need of it has a name in the engine.
    ("http", &["api", "domain", "store", "engine"]),
    ("ui", &["api", "domain", "store", "engine"]),
    ("client", &["api", "domain"]),
];

/// The crates of this workspace that a crate uses, its tests left out.
fn used_by(manifest: &str) -> Vec<&str> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.strip_prefix("heddle-"));
    names.filter_map(|line| line.split(['.', ' ']).next()).collect()
}

#[test]
fn what_a_crate_uses_is_found() {
    let manifest = "[package]\nname = \"heddle-x\"\n\n[dependencies]\nheddle-a.workspace = true\nserde = \"1\"\n\
                    heddle-b = { path = \"b\" }\n\n[dev-dependencies]\nheddle-c.workspace = true\n";
    assert_eq!(used_by(manifest), ["a", "b"]);
}

#[test]
fn layers_use_only_those_that_they_may_use() {
    let runner = root().join("runner");
    let mut faults = Vec::new();
    for (layer, may) in LAYERS {
        let manifest = read(&runner.join(layer).join("Cargo.toml"));
        let others = used_by(&manifest).into_iter().filter(|used| !may.contains(used));
        faults.extend(others.map(|used| format!("{layer} uses {used}")));
    }
    assert!(faults.is_empty(), "{faults:#?}");
    for entry in std::fs::read_dir(&runner).expect("runner/ is there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_crate = entry.path().join("Cargo.toml").is_file();
        let is_known = name == "cli" || LAYERS.iter().any(|(layer, _)| *layer == name);
        assert!(!is_crate || is_known, "which crates may `{name}` use?");
    }
}

/// A crate that shows another one as a whole lets its users pass the border between them.
#[test]
fn no_layer_passes_another_one_on() {
    let runner = root().join("runner");
    for (layer, _) in LAYERS {
        let shown = code(&runner.join(layer).join("src/lib.rs"));
        let whole = shown.lines().find(|line| {
            let name = line.strip_prefix("pub use heddle_").unwrap_or_default();
            name.ends_with(';') && !name.contains("::")
        });
        assert_eq!(whole, None, "runner/{layer}/src/lib.rs");
    }
}
