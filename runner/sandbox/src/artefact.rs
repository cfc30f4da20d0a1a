//! Compiled artefacts on disk, by the digest of the script and their engine.
//!
//! A file consists of wasmtime's code, a note, and a trailer: the kind of the script, the length of the note, the SHA-256
//! of all that, and `MAGIC`. The code comes first because it is not read but mapped: a page of it takes memory once it is
//! executed, and the system may drop it again. If the system does not execute mapped files (the mount option `noexec`),
//! the code is read.
//!
//! The code is executed unchanged, so a file that does not match its checksum is treated as absent. Files are written
//! under another name and renamed, so a crash leaves no half file; they are never changed afterwards, so what is mapped
//! stays what was checked. Only the node's user can read or write them: scripts belong to their authors.

use crate::bounds::Kind;
use heddle_domain::hex;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

/// The last byte is the version of the format. Files of version 1, which began with this, are treated as absent.
const MAGIC: &[u8; 8] = b"heddle\x00\x02";
const CHECKSUM_BYTES: usize = 32;
/// The kind and the length of the note.
const FACTS_BYTES: usize = 1 + size_of::<u32>();
const TRAILER_BYTES: usize = FACTS_BYTES + CHECKSUM_BYTES + MAGIC.len();
/// How much of a file is in memory while it is checked or copied.
const READ_AT_ONCE: usize = 64 << 10;
/// Code that comes in parts goes to a file when it has more bytes than this. Most scripts have less; CPython has 60 MiB.
const HELD_BYTES: usize = 1 << 20;

/// A compiled script, or the memory of one.
pub(crate) struct Artefact {
    pub kind: Kind,
    /// What is known of it.
    pub note: Vec<u8>,
    pub code: Code,
}

/// The code that Wasmtime has compiled: in memory, or in a file.
pub(crate) enum Code {
    Held(Vec<u8>),
    /// The first bytes of a file that was checked, or that nobody else can open.
    Filed {
        file: File,
        bytes: u64,
    },
}

impl Code {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Held(code) => code.len() as u64,
            Self::Filed { bytes, .. } => *bytes,
        }
    }

    /// All its bytes, in memory.
    pub fn read(&self) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Self::Held(code) => Ok(Cow::Borrowed(code)),
            Self::Filed { file, bytes } => {
                let length = usize::try_from(*bytes).map_err(io::Error::other)?;
                let mut code = vec![0; length];
                file.read_exact_at(&mut code, 0)?;
                Ok(Cow::Owned(code))
            }
        }
    }

    /// Its bytes in order, a part at a time.
    fn each_part(&self, each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Held(code) => {
                let mut each = each;
                each(code)
            }
            Self::Filed { file, bytes } => each_part_of(file, *bytes, each),
        }
    }

    /// The code with a part added at its end. Large code goes to a file without a name in this directory; if that cannot
    /// be written, for example because the disk is full, the code stays in memory.
    pub fn extended(self, part: &[u8], directory: &Path) -> io::Result<Self> {
        match self {
            Self::Held(mut code) => {
                // Code that is larger already could not be written.
                let becomes_large = code.len() <= HELD_BYTES && code.len() + part.len() > HELD_BYTES;
                let file = || {
                    let mut file = tempfile::tempfile_in(directory)?;
                    file.write_all(&code)?;
                    file.write_all(part)?;
                    Ok::<_, io::Error>(file)
                };
                if becomes_large && let Ok(file) = file() {
                    let bytes = (code.len() + part.len()) as u64;
                    return Ok(Self::Filed { file, bytes });
                }
                code.extend_from_slice(part);
                Ok(Self::Held(code))
            }
            Self::Filed { file, bytes } => {
                if file.write_all_at(part, bytes).is_ok() {
                    let bytes = bytes + part.len() as u64;
                    return Ok(Self::Filed { file, bytes });
                }
                let mut code = Self::Filed { file, bytes }.read()?.into_owned();
                code.extend_from_slice(part);
                Ok(Self::Held(code))
            }
        }
    }

    /// Its digest, as [`digest_of`] forms it.
    pub fn digest(&self) -> io::Result<String> {
        match self {
            Self::Held(code) => Ok(digest_of(code)),
            Self::Filed { file, bytes } => Ok(named(sum_of(file, *bytes)?)),
        }
    }

    /// # Safety
    ///
    /// It must come from our compiler, unchanged, and its file must stay unchanged: its code will be executed.
    pub unsafe fn module(&self, engine: &Engine) -> wasmtime::Result<Module> {
        self.loaded(
            // SAFETY: the caller's promise.
            |file| unsafe { Module::deserialize_file(engine, file) },
            // SAFETY: the same.
            |code| unsafe { Module::deserialize(engine, code) },
        )
    }

    /// # Safety
    ///
    /// As [`Self::module`].
    pub unsafe fn component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        self.loaded(
            // SAFETY: the caller's promise.
            |file| unsafe { Component::deserialize_file(engine, file) },
            // SAFETY: the same.
            |code| unsafe { Component::deserialize(engine, code) },
        )
    }

    /// Mapped if possible. A file may have another name by now, or none, so it is opened through its descriptor.
    fn loaded<T>(
        &self,
        map: impl FnOnce(&Path) -> wasmtime::Result<T>,
        load: impl FnOnce(&[u8]) -> wasmtime::Result<T>,
    ) -> wasmtime::Result<T> {
        if let Self::Filed { file, .. } = self
            && let Ok(mapped) = map(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
        {
            return Ok(mapped);
        }
        load(&self.read()?)
    }
}

/// A directory of artefacts for one engine.
pub(crate) struct ArtefactCache {
    directory: PathBuf,
    written: AtomicU64,
}

impl ArtefactCache {
    /// Opens the cache for this engine; creates its directory.
    pub fn open(root: &Path, engine: &wasmtime::Engine) -> io::Result<Self> {
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

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The artefact of a script, if it is there and complete.
    pub fn read(&self, digest: &str) -> Option<Artefact> {
        let file = File::open(self.path(digest)?).ok()?;
        let length = file.metadata().ok()?.len();
        let trailer_at = length.checked_sub(TRAILER_BYTES as u64)?;
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact_at(&mut trailer, trailer_at).ok()?;
        let (facts, rest) = trailer.split_first_chunk::<FACTS_BYTES>()?;
        let checksum = rest.strip_suffix(MAGIC)?;
        let sum = sum_of(&file, trailer_at + FACTS_BYTES as u64).ok()?;
        if sum != checksum {
            tracing::warn!(digest, "a compiled script in the cache is damaged; compiling it again");
            return None;
        }
        let [kind, note @ ..] = *facts;
        let kind = match kind {
            0 => Kind::Module,
            1 => Kind::Component,
            2 => Kind::Image,
            _ => return None,
        };
        let note_bytes = u32::from_le_bytes(note);
        let bytes = trailer_at.checked_sub(note_bytes.into())?;
        let mut note = vec![0; note_bytes as usize];
        file.read_exact_at(&mut note, bytes).ok()?;
        Some(Artefact {
            kind,
            note,
            code: Code::Filed { file, bytes },
        })
    }

    /// Writes an artefact, and returns it as it is on the disk; if it cannot be written, as it is.
    pub fn keep(&self, digest: &str, artefact: Artefact) -> Artefact {
        match self.write(digest, &artefact) {
            Ok(()) => self.read(digest).unwrap_or(artefact),
            Err(error) => {
                tracing::warn!(digest, %error, "cannot store what was compiled on disk; it is compiled again after a \
                    restart");
                artefact
            }
        }
    }

    /// Whether there is an artefact, complete or not.
    pub fn has(&self, digest: &str) -> bool {
        self.path(digest).is_some_and(|path| path.exists())
    }

    pub fn write(&self, digest: &str, artefact: &Artefact) -> io::Result<()> {
        let path = self.path(digest).ok_or_else(|| io::Error::other("not a digest"))?;
        let kind = match artefact.kind {
            Kind::Module => 0,
            Kind::Component => 1,
            Kind::Image => 2,
        };
        let note_bytes = u32::try_from(artefact.note.len()).map_err(io::Error::other)?;
        let mut facts = vec![kind];
        facts.extend_from_slice(&note_bytes.to_le_bytes());
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
            let mut sum = Sha256::new();
            let mut put = |part: &[u8]| {
                sum.update(part);
                file.write_all(part)
            };
            artefact.code.each_part(&mut put)?;
            put(&artefact.note)?;
            put(&facts)?;
            file.write_all(&sum.finalize())?;
            file.write_all(MAGIC)?;
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

/// A file's first bytes in order, a part at a time.
fn each_part_of(file: &File, bytes: u64, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut part = vec![0; READ_AT_ONCE];
    let mut at = 0;
    while at < bytes {
        let wanted = usize::try_from(bytes - at).map_or(part.len(), |left| left.min(part.len()));
        file.read_exact_at(&mut part[..wanted], at)?;
        each(&part[..wanted])?;
        at += wanted as u64;
    }
    Ok(())
}

/// The SHA-256 of a file's first bytes.
fn sum_of(file: &File, bytes: u64) -> io::Result<[u8; CHECKSUM_BYTES]> {
    let mut sum = Sha256::new();
    each_part_of(file, bytes, |part| {
        sum.update(part);
        Ok(())
    })?;
    Ok(sum.finalize().into())
}

/// The digest of an uploaded script: `sha256:` and hexadecimal digits.
pub fn digest_of(wasm: &[u8]) -> String {
    named(Sha256::digest(wasm).into())
}

fn named(sum: [u8; CHECKSUM_BYTES]) -> String {
    format!("sha256:{}", hex(&sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000ff";

    struct Case {
        root: tempfile::TempDir,
        engine: Engine,
        cache: ArtefactCache,
    }

    impl Case {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let engine = Engine::default();
            let cache = ArtefactCache::open(root.path(), &engine).unwrap();
            Self { root, engine, cache }
        }

        fn keep(&self) -> Artefact {
            let code = self
                .engine
                .precompile_module(br#"(module (func (export "f")))"#)
                .unwrap();
            let artefact = Artefact {
                kind: Kind::Module,
                note: b"a note".to_vec(),
                code: Code::Held(code),
            };
            self.cache.keep(NAME, artefact)
        }

        fn file(&self) -> PathBuf {
            self.cache.path(NAME).unwrap()
        }
    }

    fn exports(module: &Module) -> Vec<String> {
        module.exports().map(|export| export.name().to_owned()).collect()
    }

    fn is_mapped(file: &Path) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let root = file.parent().unwrap().to_str().unwrap();
        maps.lines()
            .any(|line| line.contains(" r-xp ") && line.contains(root) && line.contains(name))
    }

    #[test]
    fn what_is_kept_is_mapped() {
        let case = Case::new();
        let kept = case.keep();
        assert_eq!((kept.kind, &kept.note[..]), (Kind::Module, &b"a note"[..]));
        assert!(matches!(kept.code, Code::Filed { .. }));
        // SAFETY: wasmtime made it.
        let module = unsafe { kept.code.module(&case.engine) }.unwrap();
        assert_eq!(exports(&module), ["f"]);
        assert!(is_mapped(&case.file()));
        assert_eq!(kept.code.digest().unwrap(), digest_of(&kept.code.read().unwrap()));
        assert_eq!(kept.code.bytes(), kept.code.read().unwrap().len() as u64);
    }

    /// A file that is gone by then, or that another one has replaced, is still the one that was checked.
    #[test]
    fn what_was_checked_is_what_is_loaded() {
        let case = Case::new();
        let kept = case.keep();
        std::fs::remove_file(case.file()).unwrap();
        std::fs::write(case.file(), "something else").unwrap();
        // SAFETY: wasmtime made it.
        let module = unsafe { kept.code.module(&case.engine) }.unwrap();
        assert_eq!(exports(&module), ["f"]);
    }

    /// As on a file system that is mounted with `noexec`.
    #[test]
    fn code_that_cannot_be_mapped_is_read() {
        let case = Case::new();
        let kept = case.keep();
        let module = kept.code.loaded(
            |_| wasmtime::bail!("not permitted"),
            // SAFETY: wasmtime made it.
            |code| unsafe { Module::deserialize(&case.engine, code) },
        );
        assert_eq!(exports(&module.unwrap()), ["f"]);
    }

    #[test]
    fn what_is_damaged_is_absent() {
        let case = Case::new();
        drop(case.keep());
        let whole = std::fs::read(case.file()).unwrap();
        let length = whole.len();
        for at in [
            0,
            length / 2,
            length - TRAILER_BYTES - 1,
            length - TRAILER_BYTES,
            length - 1,
        ] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(case.file(), damaged).unwrap();
            assert!(case.cache.read(NAME).is_none(), "byte {at} of {length}");
        }
        for cut in [0, 1, TRAILER_BYTES - 1, TRAILER_BYTES, length - 1] {
            std::fs::write(case.file(), &whole[..cut]).unwrap();
            assert!(case.cache.read(NAME).is_none(), "{cut} of {length} bytes");
        }
        let mut earlier = b"heddle\x00\x01".to_vec();
        earlier.extend_from_slice(&whole);
        std::fs::write(case.file(), &earlier[..length]).unwrap();
        assert!(case.cache.read(NAME).is_none(), "a file of version 1");
        assert!(case.keep().note == b"a note", "it is written again");
    }

    /// Code that comes in parts, as from a compiler, with these bytes in each.
    fn in_parts(directory: &Path, sizes: &[usize]) -> (Code, Vec<u8>) {
        let mut whole = Vec::new();
        let mut code = Code::Held(Vec::new());
        for (number, size) in sizes.iter().enumerate() {
            let part = vec![number as u8 + 1; *size];
            whole.extend_from_slice(&part);
            code = code.extended(&part, directory).unwrap();
        }
        (code, whole)
    }

    #[test]
    fn large_code_in_parts_goes_to_a_file() {
        let case = Case::new();
        let directory = &case.cache.directory;
        for (sizes, is_filed) in [
            (&[][..], false),
            (&[HELD_BYTES - 1, 1], false),
            (&[HELD_BYTES - 1, 1, 1, 7], true),
            (&[HELD_BYTES + 1], true),
            (&[HELD_BYTES, 3 * HELD_BYTES, READ_AT_ONCE + 1], true),
        ] {
            let (code, whole) = in_parts(directory, sizes);
            assert_eq!(matches!(code, Code::Filed { .. }), is_filed, "{sizes:?}");
            assert_eq!(code.bytes(), whole.len() as u64, "{sizes:?}");
            assert!(*code.read().unwrap() == whole, "{sizes:?}");
            // It has no name, and is kept under one as other code is.
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "{sizes:?}");
            let artefact = Artefact {
                kind: Kind::Component,
                note: b"a note".to_vec(),
                code,
            };
            let kept = case.cache.keep(NAME, artefact);
            assert!(matches!(kept.code, Code::Filed { .. }), "{sizes:?}");
            assert_eq!(kept.note, b"a note", "{sizes:?}");
            assert_eq!(kept.code.digest().unwrap(), digest_of(&whole), "{sizes:?}");
            std::fs::remove_file(case.file()).unwrap();
        }
    }

    /// Without a directory, and on a full disk in the middle of the code.
    #[test]
    fn large_code_that_cannot_be_written_stays_in_memory() {
        let (code, whole) = in_parts(Path::new("/nowhere"), &[HELD_BYTES, 1, HELD_BYTES]);
        assert!(matches!(&code, Code::Held(held) if *held == whole));
        let file = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        let code = Code::Filed { file, bytes: 3 };
        let code = code.extended(b"rest", Path::new("/nowhere")).unwrap();
        assert!(matches!(&code, Code::Held(held) if held == b"\0\0\0rest"));
    }

    #[test]
    fn what_cannot_be_kept_is_used() {
        let case = Case::new();
        std::fs::remove_dir_all(case.root.path()).unwrap();
        assert!(matches!(case.keep().code, Code::Held(_)));
    }
}
