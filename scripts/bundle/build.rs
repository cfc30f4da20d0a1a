//! Builds the scripts to wasm, so that whoever depends on this crate has them embedded.
//!
//! A nested Cargo builds them, with a target directory of its own: in the outer one's it would wait for the lock that
//! the outer one holds. That directory (`guests` in the outer target directory) is shared by all profiles and outlives
//! changes of this file, so a script is compiled again only when it or the SDK has changed.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../runner/runtimes/nested_cargo.rs"]
mod nested_cargo;
use nested_cargo::{nested, outer_target_dir, variable};

/// A component by `heddle-sdk`.
const SDK: &str = "wasm32-wasip2";

/// What is built: the script's name, its target, whether it is a library, and whether the program carries it. The others
/// are for tests: they are built with the feature `all`.
struct Guest {
    name: &'static str,
    target: &'static str,
    is_library: bool,
    is_carried: bool,
}

/// A script of the demo.
const fn demo(name: &'static str) -> Guest {
    Guest {
        name,
        target: SDK,
        is_library: true,
        is_carried: true,
    }
}

/// A script that tests alone need.
const fn component(name: &'static str) -> Guest {
    Guest {
        is_carried: false,
        ..demo(name)
    }
}

const GUESTS: &[Guest] = &[
    component("echo"),
    component("fetch"),
    demo("fib"),
    demo("flaky"),
    demo("greetings"),
    demo("hello"),
    Guest {
        name: "hello-wasi",
        target: "wasm32-wasip1",
        is_library: false,
        is_carried: false,
    },
    Guest {
        name: "hello-wasi-p2",
        target: "wasm32-wasip2",
        is_library: false,
        is_carried: false,
    },
    component("hostile"),
    component("postbox"),
    component("query"),
    component("sign-in"),
    demo("sleep"),
    component("stateful"),
    demo("sum"),
    demo("weather-extract"),
    demo("weather-precipitation"),
    demo("weather-report"),
    demo("weather-temperature"),
    demo("yearly-summary"),
];

fn main() {
    let bundle = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let root = bundle
        .join("../..")
        .canonicalize()
        .expect("the workspace's root exists");

    watch(&root);
    let target_dir = outer_target_dir(&out).join("guests");
    for target in ["wasm32-wasip1", "wasm32-wasip2"] {
        build(&root, &target_dir, target);
    }
    fs::write(out.join("guests.rs"), embed_guests(&target_dir, &out)).expect("OUT_DIR is writable");
    fs::write(out.join("templates.rs"), embed_templates(&root, &out)).expect("OUT_DIR is writable");
}

/// Says what, when it changes, makes Cargo run this again.
fn watch(root: &Path) {
    for guest in GUESTS {
        println!(
            "cargo::rerun-if-changed={}",
            root.join("scripts").join(guest.name).display()
        );
    }
    let others = [
        "guest-sdk/src",
        "guest-sdk/wit",
        "guest-sdk/macros",
        "guest-sdk/templates",
        "guest-sdk/Cargo.toml",
        "guest-sdk/README.md",
        "Cargo.toml",
        "Cargo.lock",
        "scripts/bundle/build.rs",
        "runner/runtimes/nested_cargo.rs",
    ];
    for path in others {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
}

/// The scripts that are asked for: those of the program, and with the feature `all` those of tests, too.
fn wanted() -> impl Iterator<Item = &'static Guest> {
    let all = env::var_os("CARGO_FEATURE_ALL").is_some();
    GUESTS.iter().filter(move |guest| all || guest.is_carried)
}

fn build(root: &Path, target_dir: &Path, target: &str) {
    let guests: Vec<&Guest> = wanted().filter(|guest| guest.target == target).collect();
    if guests.is_empty() {
        return;
    }
    let mut cargo = nested("cargo", root);
    cargo
        .args([
            "build",
            "--locked",
            "--profile",
            "guest",
            "--target",
            target,
            "--target-dir",
        ])
        .arg(target_dir);
    for guest in &guests {
        cargo.args(["--package", &package(guest)]);
    }
    if run(&mut cargo) {
        return;
    }
    // The likeliest reason is cured here; if it was another one, the second try says it again.
    add_target(root, target);
    let mut again = nested("cargo", root);
    again.args(cargo.get_args());
    assert!(
        run(&mut again),
        "\n\nThe scripts in `scripts/` could not be built for {target}: see the messages above.\n\
         If the target is missing (\"can't find crate for `core`\" or `std`), install it:\n\n    \
         rustup target add wasm32-wasip2 wasm32-wasip1\n\n\
         If crates are missing because this machine is offline, run `cargo fetch --locked` once with a network.\n"
    );
}

/// Asks rustup for the target. Without rustup, the distribution has to provide it: the message after the second try says
/// so.
fn add_target(root: &Path, target: &str) {
    let mut list = nested("rustup", root);
    let installed = list.args(["target", "list", "--installed"]).output();
    if installed.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .any(|line| line == target)
    }) {
        return;
    }
    let mut add = nested("rustup", root);
    run(add.args(["target", "add", "wasm32-wasip2", "wasm32-wasip1"]));
}

fn run(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn package(guest: &Guest) -> String {
    format!("heddle-script-{}", guest.name)
}

/// Copies the modules, because the shared directory may change under a compiler that reads them, and writes the
/// constants.
fn embed_guests(target_dir: &Path, out: &Path) -> String {
    let mut code = String::from("static PACKED: &[(&str, &[u8])] = &[\n");
    for guest in wanted() {
        let package = package(guest);
        let file = if guest.is_library {
            package.replace('-', "_")
        } else {
            package
        };
        let built = target_dir.join(guest.target).join("guest").join(format!("{file}.wasm"));
        let packed = out.join(format!("{}.wasm.zlib", guest.name));
        pack(&built, &packed).unwrap_or_else(|error| panic!("cannot pack {}: {error}", built.display()));
        writeln!(code, "    ({:?}, include_bytes!({packed:?})),", guest.name).expect("a String takes it");
    }
    let carried: Vec<&str> = GUESTS
        .iter()
        .filter(|guest| guest.is_carried)
        .map(|guest| guest.name)
        .collect();
    writeln!(code, "];\nstatic CARRIED: &[&str] = &{carried:?};").expect("a String takes it");
    code
}

/// Wasm packs to less than a half, and the program needs it once, when it loads the demo.
fn pack(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut packer = ZlibEncoder::new(fs::File::create(to)?, Compression::best());
    packer.write_all(&fs::read(from)?)?;
    packer.finish().map(drop)
}

fn embed_templates(root: &Path, out: &Path) -> String {
    let sdk = root.join("guest-sdk");
    let templates = sdk.join("templates");
    let mut rows = String::new();
    for directory in entries(&templates) {
        let language = relative(&directory, &templates);
        for file in files(&directory) {
            let path = relative(&file, &directory);
            // A manifest with placeholders would trouble Cargo and Go, which read all that they find in a repository.
            let path = path.strip_suffix(".template").unwrap_or(&path);
            row(&mut rows, &language, path, &file);
        }
        // Tools of these languages read the contract itself.
        if ["javascript-component", "python-component"].contains(&language.as_str()) {
            row(&mut rows, &language, "wit/task.wit", &sdk.join("wit/task.wit"));
        }
        if language == "rust" {
            for (part, manifest) in [("Cargo.toml", "sdk.toml"), ("macros/Cargo.toml", "macros.toml")] {
                let alone = out.join(manifest);
                fs::write(&alone, without_workspace(&sdk.join(part), &root.join("Cargo.toml")))
                    .expect("OUT_DIR is writable");
                row(&mut rows, &language, &format!("heddle-sdk/{part}"), &alone);
            }
            let sources = ["src", "macros/src", "wit"].map(|part| files(&sdk.join(part)));
            for file in sources.into_iter().flatten().chain([sdk.join("README.md")]) {
                row(
                    &mut rows,
                    &language,
                    &format!("heddle-sdk/{}", relative(&file, &sdk)),
                    &file,
                );
            }
        }
    }
    format!("&[\n{rows}]\n")
}

fn row(rows: &mut String, language: &str, path: &str, file: &Path) {
    writeln!(rows, "    ({language:?}, {path:?}, include_str!({file:?})),").expect("a String takes it");
}

fn relative(file: &Path, directory: &Path) -> String {
    let path = file.strip_prefix(directory).expect("found below it");
    path.to_string_lossy().replace('\\', "/")
}

/// A member's manifest, as it stands for itself: what it inherits is written out, and our lints and what our tests need stay
/// here.
fn without_workspace(manifest: &Path, workspace: &Path) -> String {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let inherited = read(workspace);
    let inherited = inherited
        .split("[workspace.package]")
        .nth(1)
        .expect("the workspace has a package");
    let mut text = String::new();
    let mut is_for_tests = false;
    for line in read(manifest).lines() {
        if line.starts_with('[') {
            is_for_tests = line == "[dev-dependencies]";
        }
        if is_for_tests {
            continue;
        }
        match line.strip_suffix(".workspace = true") {
            None if line == "[lints]" || line == "workspace = true" => {}
            None => writeln!(text, "{line}").expect("a String takes it"),
            Some(key) => {
                let is_it = |line: &&str| line.split_once(" = ").is_some_and(|(found, _)| found == key);
                let found = inherited.lines().find(is_it);
                let found = found.unwrap_or_else(|| panic!("the workspace has no {key}"));
                writeln!(text, "{found}").expect("a String takes it");
            }
        }
    }
    text
}

/// What lies in a directory, in order.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable directory").path())
        .collect();
    paths.sort();
    paths
}

/// All files below a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let paths = entries(directory).into_iter();
    paths
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}
