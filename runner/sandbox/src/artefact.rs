//! Compiled artefacts on disk, by the digest of the script and their engine.
//!
//! A file consists of `magic`, the SHA-256 of all that follows, the kind of the script, and wasmtime's code. The code
//! is executed unchanged, so a file that does not match its checksum is treated as absent. Files are written under
//! another name and renamed, so a crash leaves no half file. Only the node's user can read or write them: scripts
//! belong to their authors.

use crate::bounds::Kind;
use crate::compiler::Artefact;
use heddle_domain::hex;
use sha2::{Digest, Sha256};
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const MAGIC: &[u8; 8] = b"heddle\x00\x01";
const CHECKSUM_BYTES: usize = 32;
const HEADER_BYTES: usize = MAGIC.len() + CHECKSUM_BYTES + 1;

/// A directory of artefacts for one engine.
pub(crate) struct ArtefactCache {
    directory: PathBuf,
    written: AtomicU64,
}

impl ArtefactCache {
    /// Opens the cache for this engine; creates its directory.
    pub fn open(root: &Path, engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let directory = root.join(format!("{:016x}", hasher.finish()));
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        // Others could read the directories that an earlier version created.
        for directory in [root, &directory] {
            std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        }
        Ok(Self {
            directory,
            written: AtomicU64::new(0),
        })
    }

    /// The artefact of a script, if it is there and complete.
    pub fn read(&self, digest: &str) -> Option<Artefact> {
        let mut file = std::fs::read(self.path(digest)?).ok()?;
        let rest = file.strip_prefix(MAGIC)?;
        let (checksum, content) = rest.split_at_checked(CHECKSUM_BYTES)?;
        if Sha256::digest(content).as_slice() != checksum {
            tracing::warn!(digest, "a compiled script in the cache is damaged; compiling it again");
            return None;
        }
        let kind = match content.first()? {
            0 => Kind::Module,
            1 => Kind::Component,
            2 => Kind::Image,
            _ => return None,
        };
        file.drain(..HEADER_BYTES);
        Some(Artefact { kind, code: file })
    }

    /// Whether there is an artefact, complete or not.
    pub fn has(&self, digest: &str) -> bool {
        self.path(digest).is_some_and(|path| path.exists())
    }

    pub fn write(&self, digest: &str, artefact: &Artefact) -> std::io::Result<()> {
        let path = self.path(digest).ok_or_else(|| std::io::Error::other("not a digest"))?;
        let kind = [match artefact.kind {
            Kind::Module => 0,
            Kind::Component => 1,
            Kind::Image => 2,
        }];
        let mut checksum = Sha256::new();
        checksum.update(kind);
        checksum.update(&artefact.code);
        let aside = self.directory.join(format!(
            ".{}-{}-{}",
            path.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
            std::process::id(),
            self.written.fetch_add(1, Relaxed)
        ));
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&aside)?;
            file.write_all(MAGIC)?;
            file.write_all(&checksum.finalize())?;
            file.write_all(&kind)?;
            file.write_all(&artefact.code)?;
            std::fs::rename(&aside, &path)
        };
        write().inspect_err(|_| {
            let _ = std::fs::remove_file(&aside);
        })
    }

    fn path(&self, digest: &str) -> Option<PathBuf> {
        let name = digest.strip_prefix("sha256:")?;
        // After the digest of a text come its language and the interpreter that evaluated it.
        let (digest, rest) = name.split_once('.').unwrap_or((name, ""));
        let plain = digest.len() == 64
            && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        plain.then(|| self.directory.join(name))
    }
}

/// The digest of an uploaded script: `sha256:` and hexadecimal digits.
pub fn digest_of(wasm: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(wasm)[..]))
}
