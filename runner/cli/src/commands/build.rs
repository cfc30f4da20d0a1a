//! `heddle script build`: runs the toolchain of the script's language.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::tools::{self, answers};
use crate::exit::{done, usage};
use crate::output::Format;

/// The options of `heddle script build`.
#[derive(Args, Debug)]
pub struct Build {
    /// The directory with the sources of the script
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The wasm file to write [default: where the toolchain writes it]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// What a script is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Rust,
    Python,
    JavaScript,
    Go,
    Zig,
    C,
}

/// The size of the stack of scripts in C and Zig. The default of Zig's linker is 16 MiB, which each run would have to
/// allocate; that of the WASI SDK is 64 KiB, which a few arrays fill.
const STACK_BYTES: u32 = 256 << 10;
/// `heddle.zig` is written for this version of Zig; the language still changes with each version.
const ZIG_SERIES: &str = "0.17.";

pub(crate) fn run(options: &Build, format: Format) -> Result<ExitCode> {
    let source = source_in(&options.dir)?;
    if let (Some(source), Some(to)) = (&source, &options.to) {
        return Err(usage(format!(
            "--to {}: {} is source, and needs no build: `heddle script push` uploads it as it is",
            to.display(),
            source.display()
        )));
    }
    let is_source = source.is_some();
    let file = match source {
        Some(source) => source,
        None => build(&options.dir, options.to.as_deref())?,
    };
    let bytes = file.metadata().map(|found| found.len()).unwrap_or(0);
    format.print(&json!({"file": file, "bytes": bytes}), |_| match is_source {
        true => format!(
            "nothing to build: {} ({bytes} bytes) is source, and `heddle script push` uploads it as it is",
            file.display()
        ),
        false => format!("built {} ({bytes} bytes)", file.display()),
    })?;
    done()
}

/// The file with a script. A file is taken as it is. For a directory, it is the source file if that needs no build, or else
/// the wasm that is built from it.
pub(super) fn script_of(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    match source_in(path)? {
        Some(source) => Ok(source),
        None => build(path, None),
    }
}

/// Whether an argument names a script by its directory. One without a script counts too if no script can have its name.
pub(super) fn is_script_dir(name: &str) -> bool {
    let dir = Path::new(name);
    let holds_script = || detect(dir).is_ok() || !matches!(source_in(dir), Ok(None));
    dir.is_dir() && (heddle_domain::Name::new(name).is_err() || holds_script())
}

/// Builds a directory, and returns the path of the wasm.
fn build(dir: &Path, to: Option<&Path>) -> Result<PathBuf> {
    let dir = dir
        .canonicalize()
        .map_err(|error| usage(format!("{}: {error}", dir.display())))?;
    let language = detect(&dir)?;
    let built = match language {
        Language::Rust => rust(&dir)?,
        Language::Python => python(&dir)?,
        Language::JavaScript => javascript(&dir)?,
        Language::Go => go(&dir)?,
        Language::Zig => zig(&dir)?,
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

/// The script of a directory without anything to build: its only source file, or of several, the one with the name of
/// the directory.
fn source_in(dir: &Path) -> Result<Option<PathBuf>> {
    if detect(dir).is_ok() {
        return Ok(None);
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut sources: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && path.to_str().is_some_and(is_source))
        .collect();
    if sources.len() > 1 {
        let name = dir
            .canonicalize()
            .ok()
            .and_then(|dir| Some(dir.file_name()?.to_owned()));
        sources.retain(|path| path.file_stem() == name.as_deref());
    }
    let Some(source) = sources.pop().filter(|_| sources.is_empty()) else {
        return Ok(None);
    };
    if source.extension().is_some_and(|end| end == "py") && tools::requires_packages(dir)?.is_some() {
        return Err(usage(format!(
            "requirements.txt names packages, and {} is source, which has none: a script with packages is a component, with \
             the class `WitWorld` in app.py; `heddle script new --lang python-component` writes a beginning",
            source.display()
        )));
    }
    Ok(Some(source))
}

/// Whether a file is a script by itself, as text.
pub(super) fn is_source(file: &str) -> bool {
    !file.ends_with(".d.ts") && heddle_sandbox::Language::of_file(file).is_some()
}

fn detect(dir: &Path) -> Result<Language> {
    let has = |name: &str| dir.join(name).is_file();
    if has("Cargo.toml") {
        Ok(Language::Rust)
    } else if has("package.json") {
        Ok(Language::JavaScript)
    } else if is_component(&dir.join("app.py")) {
        Ok(Language::Python)
    } else if has("go.mod") {
        Ok(Language::Go)
    } else if has("main.zig") {
        Ok(Language::Zig)
    } else if !c_sources(dir).is_empty() {
        Ok(Language::C)
    } else {
        Err(usage(format!(
            "{} contains none of Cargo.toml (Rust), package.json (JavaScript, AssemblyScript), app.py with the class \
            `WitWorld` (Python), go.mod (Go), main.zig (Zig), *.c (C), nor a single source (.js, .ts, .py); `heddle script \
            new` creates a project",
            dir.display()
        )))
    }
}

/// Whether Python is the source of a component: a script called `app` has the same file, and is no component.
fn is_component(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.contains("WitWorld") || text.contains("wit_world"))
}

fn rust(dir: &Path) -> Result<PathBuf> {
    const TARGET: &str = "wasm32-wasip2";
    let installed = tools::said(Path::new("rustup"), &["target", "list", "--installed"]);
    if installed.is_some_and(|targets| targets.lines().all(|target| target != TARGET)) {
        check(Command::new("rustup").args(["target", "add", TARGET]), "rustup")?;
    }
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--target", TARGET])
        .current_dir(dir);
    check(&mut command, "Rust (https://rustup.rs)")?;
    // Cargo says where the target directory is, and how the artefact is called.
    let mut command = Command::new("cargo");
    command
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(dir);
    let found = command.output().context("cargo metadata")?;
    let found: Value = serde_json::from_slice(&found.stdout).context("cargo metadata did not return JSON")?;
    let target_dir = found["target_directory"]
        .as_str()
        .context("cargo metadata did not return a target directory")?;
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
        "cargo built no wasm in {}; the crate must be a `cdylib` or a binary",
        release.display()
    )
}

/// The packages that the script imports are named in its `requirements.txt`. If that names componentize-py, this
/// version of it is used.
fn python(dir: &Path) -> Result<PathBuf> {
    let app = dir.join("app.py");
    let text = std::fs::read_to_string(&app).with_context(|| format!("cannot read {}", app.display()))?;
    // componentize-py would show the trace of a Python that looks for it.
    if !text.contains("WitWorld") {
        return Err(usage(format!(
            "{} has no class `WitWorld`, which is the script; `heddle script new NAME --lang python-component` creates a \
             project that has one",
            app.display()
        )));
    }
    let (wit, wasm) = (write_wit(dir)?, output_file(dir));
    let environment = tools::requirements(dir)?;
    let tool = &tools::COMPONENTIZE_PY;
    let program = match tool.beside(dir) {
        Some(own) => own,
        None if answers(tool.package, &["--version"]) => PathBuf::from(tool.package),
        None => tool.program()?,
    };
    let mut command = Command::new(program);
    command
        .arg("-d")
        .arg(wit)
        .args(["-w", "task", "componentize", "app", "-o"])
        .arg(&wasm)
        .current_dir(dir);
    match environment {
        // The variable names the environment in which it searches packages.
        Some(environment) => command.env("VIRTUAL_ENV", environment),
        None => command.env_remove("VIRTUAL_ENV"),
    };
    check(&mut command, "componentize-py")?;
    Ok(wasm)
}

/// Builds JavaScript, AssemblyScript, or anything else that npm builds.
fn javascript(dir: &Path) -> Result<PathBuf> {
    const NEEDED: &str = "Node.js with npm";
    let manifest = dir.join("package.json");
    let wanted = std::fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    // Before anything is installed or written.
    if serde_json::from_str(&wanted).is_ok_and(|manifest: Value| !manifest["scripts"]["build"].is_string()) {
        return Err(usage(format!(
            "{} has no script `build`, which has to write a .wasm file; `heddle script new NAME --lang \
             javascript-component` creates a project that has one",
            manifest.display()
        )));
    }
    // AssemblyScript makes a WASI command, which has no use for the contract.
    if !dir.join("asconfig.json").is_file() {
        write_wit(dir)?;
    }
    // If this program has installed the packages, it installs them again when the manifest has changed. It leaves packages
    // alone that somebody else has installed.
    let modules = dir.join("node_modules");
    let installed = modules.join(".heddle-installed.json");
    let is_stale = std::fs::read_to_string(&installed).is_ok_and(|found| found != wanted);
    if is_stale || !modules.is_dir() {
        let mut install = npm(dir, &["install", "--no-audit", "--no-fund"]);
        check(&mut install, NEEDED)?;
        std::fs::create_dir_all(&modules)
            .and_then(|()| std::fs::write(&installed, &wanted))
            .context("cannot write into node_modules")?;
    }
    // npm's own messages are suppressed, because the compiler reports what is wrong.
    check(&mut npm(dir, &["run", "--silent", "build"]), NEEDED)?;
    // The script of the package chooses the name of the file. So the newest wasm file is taken.
    let files = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let modified = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
    files
        .filter(|path| path.extension().is_some_and(|ext| ext == "wasm"))
        .max_by_key(modified)
        .with_context(|| {
            format!(
                "`npm run build` wrote no .wasm file into {}; the script `build` of package.json has to",
                dir.display()
            )
        })
}

fn npm(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(arguments).current_dir(dir);
    command
}

/// Builds a WASI command with the installed Go, or with a pinned one.
fn go(dir: &Path) -> Result<PathBuf> {
    let wasm = output_file(dir);
    let mut command = match tools::GO.beside(dir) {
        Some(own) => Command::new(own),
        None if answers("go", &["version"]) => Command::new("go"),
        None => {
            let mut command = Command::new(tools::GO.program()?);
            // The variable names the directory of another Go.
            command.env_remove("GOROOT");
            command
        }
    };
    command
        .env("GOOS", "wasip1")
        .env("GOARCH", "wasm")
        // Without the paths of this machine, symbols and debugging information, the file has half the size.
        .args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
        .arg(&wasm)
        .arg(".")
        .current_dir(dir);
    check(&mut command, "Go")?;
    Ok(wasm)
}

/// Builds a WASI command with the installed Zig if it has the version of `heddle.zig`, otherwise with a pinned one.
fn zig(dir: &Path) -> Result<PathBuf> {
    let wasm = output_file(dir);
    let fits = tools::said(Path::new("zig"), &["version"]).is_some_and(|version| version.starts_with(ZIG_SERIES));
    let program = match tools::ZIG.beside(dir) {
        Some(own) => own,
        None if fits => PathBuf::from("zig"),
        None => tools::ZIG.program()?,
    };
    let mut command = Command::new(program);
    command
        .args([
            "build-exe",
            "main.zig",
            "-target",
            "wasm32-wasi",
            "-O",
            "ReleaseSmall",
            "--stack",
        ])
        .arg(STACK_BYTES.to_string())
        .arg(format!("-femit-bin={}", wasm.display()))
        .current_dir(dir);
    check(&mut command, "Zig")?;
    Ok(wasm)
}

/// Builds C with the WASI SDK, with Zig, with a clang that has a C library for WASI, or with our own Zig.
fn c(dir: &Path) -> Result<PathBuf> {
    let wasm = output_file(dir);
    let sdk = std::env::var_os("WASI_SDK_PATH")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from("/opt/wasi-sdk")));
    let clang = sdk.map(|sdk| sdk.join("bin/clang")).filter(|clang| clang.is_file());
    let zig = |program: PathBuf| target(with(Command::new(program), &["cc"]), "wasm32-wasi");
    let mut command = match (clang, tools::ZIG.beside(dir)) {
        (Some(clang), _) => with(target(Command::new(clang), "wasm32-wasip1"), &[STACK_FIRST]),
        (None, Some(own)) => zig(own),
        (None, None) if answers("zig", &["version"]) => zig("zig".into()),
        (None, None) if clang_knows_wasi() => with(target(Command::new("clang"), "wasm32-wasi"), &[STACK_FIRST]),
        (None, None) => zig(tools::ZIG.program()?),
    };
    command
        .args(["-Os", "-s"])
        .arg(format!("-Wl,-z,stack-size={STACK_BYTES}"))
        .arg("-o")
        .arg(&wasm)
        .args(c_sources(dir))
        .current_dir(dir);
    check(&mut command, "a C compiler for WASI")?;
    Ok(wasm)
}

/// Puts the stack below all data, so that its overflow is a trap and overwrites no data. Zig's linker does this by
/// default.
const STACK_FIRST: &str = "-Wl,--stack-first";

/// Whether clang is installed and finds a C library for WASI (Debian: wasi-libc). If so, it prints a path.
fn clang_knows_wasi() -> bool {
    let library = tools::said(Path::new("clang"), &["--target=wasm32-wasi", "-print-file-name=libc.a"]);
    library.is_some_and(|path| Path::new(&path).is_file() && Path::new(&path).is_absolute())
}

fn with(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

fn target(command: Command, target: &str) -> Command {
    with(command, &[&format!("--target={target}")])
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

/// The WIT contract, copied next to the sources unless they have one.
fn write_wit(dir: &Path) -> Result<PathBuf> {
    let wit = dir.join("wit");
    if !wit.is_dir() {
        std::fs::create_dir(&wit).with_context(|| format!("cannot create {}", wit.display()))?;
        std::fs::write(wit.join("task.wit"), heddle_scripts::TASK_WIT).context("cannot write wit/task.wit")?;
    }
    Ok(wit)
}

/// Runs a tool, which prints to our own output. If it fails, it has said why. If it is not installed, the error says
/// what to install.
fn check(command: &mut Command, needed: &str) -> Result<()> {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Standard output is reserved for our own answer.
    match command.stdout(std::io::stderr()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("the build failed: {program} ended with {status}"),
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
    fn languages_are_known_by_their_files() {
        for (file, text, wanted) in [
            ("Cargo.toml", "", Language::Rust),
            ("app.py", "from wit_world import WitWorld\n", Language::Python),
            ("package.json", "", Language::JavaScript),
            ("go.mod", "", Language::Go),
            ("main.zig", "", Language::Zig),
            ("task.c", "", Language::C),
        ] {
            let dir = tempfile::tempdir().unwrap();
            assert!(detect(dir.path()).is_err());
            std::fs::write(dir.path().join(file), text).unwrap();
            assert_eq!(detect(dir.path()).unwrap(), wanted);
        }
    }

    #[test]
    fn what_has_no_build_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |wanted: &str| {
            let said = build(dir.path(), None).unwrap_err();
            assert_eq!(crate::exit::code(&said), crate::exit::USAGE, "{said}");
            assert!(said.to_string().contains(wanted), "{said}");
            std::fs::read_dir(dir.path()).unwrap().count()
        };
        std::fs::write(dir.path().join("app.py"), "from wit_world.imports import log\n").unwrap();
        assert_eq!(refused("no class `WitWorld`"), 1);
        std::fs::write(
            dir.path().join("package.json"),
            r#"{"dependencies": {"left-pad": "1"}}"#,
        )
        .unwrap();
        assert_eq!(refused("no script `build`"), 2);
    }

    #[test]
    fn a_directory_may_hold_source_that_is_not_built() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("tally");
        std::fs::create_dir(&dir).unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
        assert_eq!(source_in(&dir).unwrap(), None);
        for file in ["heddle.d.ts", "tally.test.json", "words.ts"] {
            write(file, "");
        }
        assert_eq!(source_in(&dir).unwrap(), Some(dir.join("words.ts")));
        assert_eq!(script_of(&dir).unwrap(), dir.join("words.ts"));
        let mut options = Build {
            dir: dir.clone(),
            to: None,
        };
        run(&options, Format::Table).unwrap();
        options.to = Some(dir.join("words.wasm"));
        let said = run(&options, Format::Table).unwrap_err().to_string();
        assert!(said.contains("words.ts is source, and needs no build"), "{said}");
        // Of several the one that is called as the directory is.
        write("other.js", "");
        assert_eq!(source_in(&dir).unwrap(), None);
        write("tally.py", "");
        assert_eq!(source_in(&dir).unwrap(), Some(dir.join("tally.py")));
        // Packages that it cannot have.
        write("requirements.txt", "# none\n");
        assert!(source_in(&dir).is_ok());
        write("requirements.txt", "python-slugify==8.0.4\n");
        let said = source_in(&dir).unwrap_err().to_string();
        assert!(said.contains("a script with packages is a component"), "{said}");
        // What is to be built is no source.
        write("app.py", "class WitWorld: ...\n");
        assert_eq!(source_in(&dir).unwrap(), None);
    }

    #[test]
    fn a_script_may_be_called_app() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("app");
        std::fs::create_dir(&dir).unwrap();
        let name = dir.to_str().unwrap();
        assert!(is_script_dir(name) && !is_script_dir(&format!("{name}/none")));
        std::fs::write(dir.join("app.py"), "def run(params, ctx):\n    return 1\n").unwrap();
        assert_eq!(script_of(&dir).unwrap(), dir.join("app.py"));
        assert!(is_script_dir(name));
    }
}
