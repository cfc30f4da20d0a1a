//! Fetches the interpreters, and builds the checker.
//!
//! QuickJS-ng is written in C, and a C compiler for WebAssembly is nothing that everybody has. The package
//! `componentize-qjs` on crates.io carries it compiled (`prebuilt/runtime-sync.wasm`), but as a dependency it would bring
//! a second wasmtime along, minutes of building for a file of 1.5 MB. So Cargo is asked for the package's files alone: a
//! project of its own, made here, whose only dependency it is, with everything that *it* depends on patched to empty
//! packages. Nothing of it is compiled or run. The lock file pins the package, and the file's digest is checked.
//!
//! What checks texts before an interpreter sees them (`typescript`) is ours, and built to wasm like the example scripts: by
//! a nested Cargo with a target directory of its own.

use sha2::{Digest, Sha256};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "componentize-qjs";
const VERSION: &str = "0.4.5";
const FILE: &str = "prebuilt/runtime-sync.wasm";
const SHA256: &str = "25703f010b80efb806f9c35daf9ee6524ad60320c9781b0bae4e234264f8dac5";
/// The interpreter in it, by `prebuilt/runtime-sync.wasm.cdx.json` (rquickjs-sys 0.12).
const QUICKJS: &str = "0.15.0";

/// What the package depends on: name, a version that satisfies it, and the features that it asks for.
const STUBS: &[(&str, &str, &[&str])] = &[
    ("anyhow", "1.0.0", &[]),
    ("bytes", "1.0.0", &[]),
    ("indexmap", "2.0.0", &[]),
    ("oxc_resolver", "11.21.0", &[]),
    ("tempfile", "3.0.0", &[]),
    ("tokio", "1.0.0", &["rt", "macros"]),
    ("wasi-preview1-component-adapter-provider", "47.0.0", &[]),
    ("wasm-compose", "0.258.0", &[]),
    ("wasmtime", "47.0.0", &["component-model", "async"]),
    ("wasmtime-wasi", "47.0.0", &["p2", "p3"]),
    ("wasmtime-wizer", "47.0.0", &["component-model", "wasmtime"]),
    ("wit-component", "0.258.0", &["dummy-module"]),
    ("wit-dylib", "0.258.0", &[]),
    ("wit-parser", "0.258.0", &[]),
    ("flate2", "1.1.0", &[]),
    ("glob", "0.3.0", &[]),
    ("tar", "0.4.0", &[]),
    ("ureq", "3.0.0", &[]),
];

/// Of the environment that Cargo gives build scripts, what a nested Cargo needs.
const KEPT: &[&str] = &[
    "CARGO_HOME",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
];

const CHECKER: &str = "heddle-source-checker";
const TARGET: &str = "wasm32-wasip1";

fn main() {
    for path in [
        "build.rs",
        "fetch/quickjs.lock",
        "typescript/src",
        "typescript/Cargo.toml",
        "typescript/Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let project = out.join("quickjs");
    write_project(&project);
    let wasm = fs::read(package_directory(&project).join(FILE)).expect("the package has the file");
    let digest = Sha256::digest(&wasm).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes it");
        text
    });
    assert_eq!(
        digest, SHA256,
        "{PACKAGE} {VERSION} has another {FILE} than the one that was checked"
    );
    let copy = out.join("quickjs.wasm");
    fs::write(&copy, &wasm).expect("OUT_DIR is writable");
    let id = format!("quickjs-ng {QUICKJS} ({PACKAGE} {VERSION})");
    let checker = build_checker(&out);
    let code = format!(
        "const QUICKJS_ID: &str = {id:?};\nconst QUICKJS_WASM: &[u8] = include_bytes!({copy:?});\n\
         const CHECKER_WASM: &[u8] = include_bytes!({checker:?});\n"
    );
    fs::write(out.join("runtimes.rs"), code).expect("OUT_DIR is writable");
}

fn write_project(project: &Path) {
    let write = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("OUT_DIR is writable");
        fs::write(path, text).expect("OUT_DIR is writable");
    };
    let mut manifest = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [workspace]\n\n[dependencies]\n{PACKAGE} = \"={VERSION}\"\n\n[patch.crates-io]\n"
    );
    write(project.join("lib.rs"), "");
    for (name, version, features) in STUBS {
        writeln!(manifest, "{name} = {{ path = \"stubs/{name}\" }}").expect("a String takes it");
        let mut stub = format!(
            "[package]\nname = \"{name}\"\nversion = \"{version}\"\n\n[lib]\npath = \"lib.rs\"\n\n[features]\n"
        );
        for feature in *features {
            writeln!(stub, "{feature} = []").expect("a String takes it");
        }
        write(project.join("stubs").join(name).join("Cargo.toml"), &stub);
        write(project.join("stubs").join(name).join("lib.rs"), "");
    }
    write(project.join("Cargo.toml"), &manifest);
    write(project.join("Cargo.lock"), include_str!("fetch/quickjs.lock"));
}

/// Where Cargo keeps the package's files, after it has fetched them if need be.
fn package_directory(project: &Path) -> PathBuf {
    let mut cargo = nested(&variable("CARGO"), project);
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    let output = cargo.output().expect("Cargo can be started");
    assert!(
        output.status.success(),
        "\n\nThe package {PACKAGE} {VERSION}, which carries the JavaScript interpreter, could not be fetched:\n\n{}\n\
         If this machine is offline, build once with a network: Cargo keeps the package.\n",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata = String::from_utf8(output.stdout).expect("Cargo writes UTF-8");
    let end = format!("{PACKAGE}-{VERSION}/Cargo.toml");
    let path = metadata
        .split('"')
        .find(|text| text.replace("\\\\", "/").ends_with(&end))
        .unwrap_or_else(|| panic!("Cargo does not say where {PACKAGE} {VERSION} is"));
    let path = PathBuf::from(path.replace("\\\\", "\\"));
    path.parent().expect("a file has a directory").to_owned()
}

/// The checker as a WASI command.
fn build_checker(out: &Path) -> PathBuf {
    let directory = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("typescript");
    let target_dir = outer_target_dir(out).join("checker");
    let build = || {
        let mut cargo = nested(&variable("CARGO"), &directory);
        cargo
            .args(["build", "--locked", "--release", "--target", TARGET, "--target-dir"])
            .arg(&target_dir);
        cargo.status().is_ok_and(|status| status.success())
    };
    if !build() {
        // The likeliest reason is cured here; if it was another one, the second try says it again.
        let _ = nested("rustup", &directory).args(["target", "add", TARGET]).status();
        assert!(
            build(),
            "\n\nThe checker of scripts in {} could not be built for {TARGET}: see the messages above.\n\
             If the target is missing, install it: rustup target add {TARGET}\n",
            directory.display()
        );
    }
    // A copy, because the directory may change under a compiler that reads it.
    let copy = out.join("checker.wasm");
    let built = target_dir.join(TARGET).join("release").join(format!("{CHECKER}.wasm"));
    fs::copy(&built, &copy).unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
    copy
}

/// `OUT_DIR` is `<target directory>[/<target>]/<profile>/build/<package>/out`; Cargo marks the first with a tag.
fn outer_target_dir(out: &Path) -> &Path {
    let tagged = out
        .ancestors()
        .filter(|directory| directory.join("CACHEDIR.TAG").is_file())
        .last();
    tagged.unwrap_or(out)
}

/// A command whose environment knows nothing of the outer Cargo.
fn nested(program: &str, directory: &Path) -> Command {
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

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name}"))
}
