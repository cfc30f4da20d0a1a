//! Digests of the sources that snapshots depend on. The names of what nodes keep contain them, so it is made anew when these
//! sources change. They are taken here, so that the program does not carry the sources themselves.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::Path;

/// Below `src/source`: what affects the snapshot of a text, or is stored in it.
const HOST: [&str; 14] = [
    "answer.rs",
    "attempt.rs",
    "calls.rs",
    "evaluate.rs",
    "image.rs",
    "load.rs",
    "pending.rs",
    "rejected.rs",
    "runtime.rs",
    "snapshot.rs",
    "wasi.rs",
    "python/change.rs",
    "python/mod.rs",
    "python/system.rs",
];

/// Below `src/source/python`: what makes this program's own Python of CPython's libraries.
const PYTHON: [&str; 9] = [
    "runtime.py",
    "glue.wat",
    "mod.rs",
    "archive.rs",
    "change.rs",
    "link.rs",
    "merge.rs",
    "part.rs",
    "system.rs",
];

/// How many hexadecimal digits of the host's digest are used.
const HOST_DIGITS: usize = 8;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // As Cargo says now, and not when this was compiled: a checkout that is moved takes its target directory along.
    let manifest_dir = std::env::var("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR");
    let source = Path::new(&manifest_dir).join("src/source");
    let (host, python) = (digest(&source, &HOST), digest(&source.join("python"), &PYTHON));
    println!("cargo::rustc-env=HOST_SOURCES={}", &host[..HOST_DIGITS]);
    println!("cargo::rustc-env=PYTHON_SOURCES={python}");
}

/// The SHA-256 of these files.
fn digest(directory: &Path, names: &[&str]) -> String {
    let mut digest = Sha256::new();
    for name in names {
        let path = directory.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        digest.update(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
    digest.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes it");
        text
    })
}
