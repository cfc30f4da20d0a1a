//! `heddle script build`: runs the toolchain of the script's language.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::done;
use crate::exit::usage;
use crate::output::Format;

/// `heddle script build`
#[derive(Args, Debug)]
pub struct Build {
    /// The script's sources
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Where the wasm goes; default where the toolchain puts it
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// What a script is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Rust,
    Python,
    JavaScript,
    C,
}

pub(crate) fn run(options: &Build, format: Format) -> Result<ExitCode> {
    let wasm = build(&options.dir, options.to.as_deref())?;
    let bytes = wasm.metadata().map(|found| found.len()).unwrap_or(0);
    format.print(&json!({"file": wasm, "bytes": bytes}), |_| {
        format!("built {} ({bytes} bytes)", wasm.display())
    })?;
    done()
}

/// Builds a directory; answers where the wasm is.
pub(crate) fn build(dir: &Path, to: Option<&Path>) -> Result<PathBuf> {
    let dir = dir
        .canonicalize()
        .map_err(|error| usage(format!("{}: {error}", dir.display())))?;
    let language = detect(&dir)?;
    let built = match language {
        Language::Rust => rust(&dir)?,
        Language::Python => python(&dir)?,
        Language::JavaScript => javascript(&dir)?,
        Language::C => c(&dir)?,
    };
    match to {
        None => Ok(built),
        Some(to) => {
            std::fs::copy(&built, to).with_context(|| format!("cannot write {}", to.display()))?;
            Ok(to.to_owned())
        }
    }
}

fn detect(dir: &Path) -> Result<Language> {
    let has = |name: &str| dir.join(name).is_file();
    if has("Cargo.toml") {
        Ok(Language::Rust)
    } else if has("package.json") {
        Ok(Language::JavaScript)
    } else if has("app.py") {
        Ok(Language::Python)
    } else if !c_sources(dir).is_empty() {
        Ok(Language::C)
    } else {
        Err(usage(format!(
            "{} holds none of Cargo.toml (Rust), app.py (Python), package.json (JavaScript), *.c (C); \
             `heddle script new` writes a beginning",
            dir.display()
        )))
    }
}

fn rust(dir: &Path) -> Result<PathBuf> {
    const TARGET: &str = "wasm32-wasip2";
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--target", TARGET])
        .current_dir(dir);
    check(
        &mut command,
        "Rust (https://rustup.rs) and `rustup target add wasm32-wasip2`",
    )?;
    // Where the target directory is, and what the artefact is called, Cargo knows.
    let mut command = Command::new("cargo");
    command
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(dir);
    let found = command.output().context("cargo metadata")?;
    let found: Value = serde_json::from_slice(&found.stdout).context("cargo metadata gave no JSON")?;
    let target_dir = found["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    let manifest = dir.join("Cargo.toml");
    let package = found["packages"].as_array().into_iter().flatten().find(|package| {
        package["manifest_path"]
            .as_str()
            .is_some_and(|path| Path::new(path) == manifest)
    });
    let targets = package
        .and_then(|package| package["targets"].as_array())
        .into_iter()
        .flatten();
    let release = Path::new(target_dir).join(TARGET).join("release");
    for target in targets {
        let name = target["name"].as_str().unwrap_or_default();
        for stem in [name.replace('-', "_"), name.to_owned()] {
            let file = release.join(stem).with_extension("wasm");
            if file.is_file() {
                return Ok(file);
            }
        }
    }
    bail!(
        "cargo built no wasm in {}: is the crate's type `cdylib`, or a binary?",
        release.display()
    )
}

fn python(dir: &Path) -> Result<PathBuf> {
    let (wit, wasm) = (write_wit(dir)?, output_file(dir));
    let own = dir.join(".venv/bin/componentize-py");
    let mut command = Command::new(if own.is_file() {
        own.as_path()
    } else {
        Path::new("componentize-py")
    });
    command
        .arg("-d")
        .arg(wit)
        .args(["-w", "task", "componentize", "app", "-o"])
        .arg(&wasm)
        .current_dir(dir);
    check(
        &mut command,
        "componentize-py: `python3 -m venv .venv && .venv/bin/pip install -r requirements.txt`",
    )?;
    Ok(wasm)
}

fn javascript(dir: &Path) -> Result<PathBuf> {
    write_wit(dir)?;
    const NEEDED: &str = "Node.js with npm, and in package.json a script `build` that writes a .wasm file";
    if !dir.join("node_modules").is_dir() {
        check(Command::new("npm").arg("install").current_dir(dir), NEEDED)?;
    }
    check(Command::new("npm").args(["run", "build"]).current_dir(dir), NEEDED)?;
    // The package's own script says what the file is called: the newest one it is.
    let files = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let modified = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
    files
        .filter(|path| path.extension().is_some_and(|ext| ext == "wasm"))
        .max_by_key(modified)
        .with_context(|| format!("`npm run build` wrote no .wasm file into {}", dir.display()))
}

/// C by the WASI SDK, by Zig (installed, or from PyPI in the directory's own environment), or by a clang that has a
/// sysroot for WASI.
fn c(dir: &Path) -> Result<PathBuf> {
    let wasm = output_file(dir);
    let sdk = std::env::var_os("WASI_SDK_PATH")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from("/opt/wasi-sdk")));
    let clang = sdk.map(|sdk| sdk.join("bin/clang")).filter(|clang| clang.is_file());
    let python = dir.join(".venv/bin/python");
    let mut command = match clang {
        Some(clang) => target(Command::new(clang), "wasm32-wasip1"),
        None if answers("zig", "version") => target(with(Command::new("zig"), &["cc"]), "wasm32-wasi"),
        None if python.is_file() => target(with(Command::new(python), &["-m", "ziglang", "cc"]), "wasm32-wasi"),
        None => target(Command::new("clang"), "wasm32-wasi"),
    };
    command
        .args(["-Os", "-s", "-o"])
        .arg(&wasm)
        .args(c_sources(dir))
        .current_dir(dir);
    check(
        &mut command,
        "the WASI SDK (its directory in WASI_SDK_PATH), or Zig, also by \
         `python3 -m venv .venv && .venv/bin/pip install ziglang`, or clang with lld and wasi-libc",
    )?;
    Ok(wasm)
}

fn with(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

fn target(command: Command, target: &str) -> Command {
    with(command, &[&format!("--target={target}")])
}

/// Whether a tool is there.
fn answers(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// `<directory's name>.wasm` in the directory.
fn output_file(dir: &Path) -> PathBuf {
    let name = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|| "script".into());
    dir.join(format!("{name}.wasm"))
}

fn c_sources(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut sources: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect();
    sources.sort();
    sources
}

/// The contract beside the sources, unless they bring their own.
fn write_wit(dir: &Path) -> Result<PathBuf> {
    let wit = dir.join("wit");
    if !wit.is_dir() {
        std::fs::create_dir(&wit).with_context(|| format!("cannot create {}", wit.display()))?;
        std::fs::write(wit.join("task.wit"), heddle_scripts::TASK_WIT).context("cannot write wit/task.wit")?;
    }
    Ok(wit)
}

/// Runs a tool with our own output; if it is not there, says what to install.
fn check(command: &mut Command, needed: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    // Standard output is for the answer.
    match command.stdout(std::io::stderr()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("{program} failed ({status}); its messages are above. Needed: {needed}"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("`{program}` is not installed. Needed: {needed}")
        }
        Err(error) => Err(error).with_context(|| format!("cannot run {program}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_told_by_their_files() {
        for (file, wanted) in [
            ("Cargo.toml", Language::Rust),
            ("app.py", Language::Python),
            ("package.json", Language::JavaScript),
            ("task.c", Language::C),
        ] {
            let dir = tempfile::tempdir().unwrap();
            assert!(detect(dir.path()).is_err());
            std::fs::write(dir.path().join(file), "").unwrap();
            assert_eq!(detect(dir.path()).unwrap(), wanted);
        }
    }
}
