//! A Cargo that a build script starts. This package's build script uses it, and that of `scripts/bundle`.

use std::env;
use std::path::Path;
use std::process::Command;

/// Of the environment that Cargo gives build scripts, what a nested Cargo needs; the rest (flags, wrappers, the outer
/// package's name and features) would change what it builds, or how often.
const KEPT: &[&str] = &[
    "CARGO_HOME",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
];

/// `OUT_DIR` is `<target directory>[/<target>]/<profile>/build/<package>/out`; Cargo marks the first with a tag.
pub fn outer_target_dir(out: &Path) -> &Path {
    let tagged = out
        .ancestors()
        .filter(|directory| directory.join("CACHEDIR.TAG").is_file())
        .last();
    tagged.unwrap_or(out)
}

/// A command whose environment knows nothing of the outer Cargo.
pub fn nested(program: &str, directory: &Path) -> Command {
    let program = if program == "cargo" {
        variable("CARGO")
    } else {
        program.to_owned()
    };
    let mut command = Command::new(program);
    command.current_dir(directory);
    for (name, _) in env::vars_os() {
        let leaks = name.to_str().is_some_and(|name| {
            let is_outer = [
                "CARGO",
                "RUSTC",
                "RUSTDOC",
                "RUSTFLAGS",
                "CLIPPY_",
                "MAKEFLAGS",
                "MFLAGS",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix));
            let is_build_script_input =
                ["TARGET", "HOST", "OPT_LEVEL", "PROFILE", "DEBUG", "NUM_JOBS", "OUT_DIR"].contains(&name);
            (is_outer || is_build_script_input) && !KEPT.iter().any(|kept| name.starts_with(kept))
        });
        if leaks {
            command.env_remove(name);
        }
    }
    command
}

/// A variable that Cargo sets for build scripts.
pub fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name}"))
}
