//! Lets the linker make the program smaller, where it can: one copy of functions with equal machine code (generic code
//! has many), and a packed list of the positions of addresses (bits instead of 24 bytes each).
//!
//! rustc's own linker for Linux on x86-64, LLD, supports both; for others the first is an error, and a glibc before
//! 2.36 cannot load the second. Build scripts are not told which linker a user's rustc uses. So a small program is
//! linked with each option and run, as a test. The resulting program needs the glibc of this machine, or a newer one.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const OPTIONS: [&str; 2] = ["-Wl,--icf=all", "-Wl,-z,pack-relative-relocs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program for another machine cannot be run here.
    if variable("PROFILE") == "release" && variable("HOST") == variable("TARGET") {
        for option in OPTIONS.into_iter().filter(|option| works(option)) {
            println!("cargo::rustc-link-arg-bins={option}");
        }
    }
}

/// Whether a program that was linked with this option runs.
fn works(option: &str) -> bool {
    let out = PathBuf::from(variable("OUT_DIR"));
    let (source, program) = (out.join("empty.rs"), out.join("empty"));
    if std::fs::write(&source, "fn main() {}").is_err() {
        return false;
    }
    let mut command = Command::new(variable("RUSTC"));
    command
        .arg(&source)
        .args(["--target", &variable("TARGET"), "-o"])
        .arg(&program);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        command.arg(format!("-Clinker={linker}"));
    }
    // The user's own flags for rustc, which may name another linker.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    command.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    command.arg(format!("-Clink-arg={option}"));
    succeeds(&mut command) && succeeds(&mut Command::new(&program))
}

fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("Cargo sets {name} for build scripts: {error}"))
}
