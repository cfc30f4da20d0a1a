//! A runtime as one bundle of bytes: all with which texts in a language are checked, evaluated and run, except for the
//! host's part.
//!
//! A script keeps the runtime with which it was checked, even if a program with another runtime replaces the program
//! that checked it. So a runtime is stored in the database; a program that finds another one than its own named there
//! loads it from these bytes. A program's own runtime is loaded in the same way: there is no other.
//!
//! The bytes: [`MAGIC`], the number of the form, the length of the head, the head (JSON), and the parts one after the
//! other. Their digest is the runtime's *tag*. They are stored packed by zstd.
//!
//! Two numbers tell whether a program can load a bundle. The *form* is its format. The *interface* is what it needs
//! from the host (imports, operations and their meaning), and what the host needs from it (exports, events, texts that
//! it sends). Whoever changes one of these raises the number; a test compares the lists with the stored ones.

use super::language::Language;
use bytes::Bytes;
use heddle_domain::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::RangeInclusive;

const MAGIC: &[u8; 8] = b"heddle\0r";
/// The format of a bundle.
const FORM: u32 = 1;
/// What this program's own runtimes need from the host.
const INTERFACE: u32 = 4;
/// What this program's host supports. If a host supports all that it did before, and more, its range is longer.
const INTERFACES: RangeInclusive<u32> = 1..=INTERFACE;
/// Before the head: magic, form, length.
const FIXED_BYTES: usize = MAGIC.len() + 8;
/// How many hexadecimal digits distinguish runtimes.
const TAG_DIGITS: usize = 16;
/// The largest bundle that is unpacked. Python's has some 50 MiB.
const MAX_BYTES: u64 = 256 << 20;

/// The identity of a runtime, in words: with which a script was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeId {
    /// JavaScript, which is TypeScript's as well, or Python.
    pub language: Language,
    /// The interpreter in it, and its version.
    pub interpreter: String,
    /// The digest of its bytes, cut to 16 digits.
    pub tag: String,
    /// The version of the host's interface that it needs.
    pub interface: u32,
}

impl std::fmt::Display for RuntimeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.interpreter, self.tag)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Head {
    interface: u32,
    language: Language,
    interpreter: String,
    /// Addresses in its memory.
    numbers: BTreeMap<String, u32>,
    /// The names and lengths of its parts, in order.
    parts: Vec<(String, u64)>,
}

/// A runtime, as it is stored.
#[derive(Clone, Debug)]
pub struct RuntimeBundle {
    head: Head,
    parts: Vec<Bytes>,
}

impl RuntimeBundle {
    pub(super) fn new(
        language: Language,
        numbers: impl IntoIterator<Item = (&'static str, u32)>,
        parts: impl IntoIterator<Item = (String, Bytes)>,
    ) -> Self {
        let (names, parts): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .map(|(name, part)| ((name, part.len() as u64), part))
            .unzip();
        Self {
            head: Head {
                interface: INTERFACE,
                language,
                interpreter: language.interpreter().to_owned(),
                numbers: numbers
                    .into_iter()
                    .map(|(name, number)| (name.to_owned(), number))
                    .collect(),
                parts: names,
            },
            parts,
        }
    }

    /// The bytes, in pieces.
    fn pieces(&self) -> impl Iterator<Item = Bytes> {
        let head = serde_json::to_vec(&self.head).unwrap_or_default();
        let mut fixed = MAGIC.to_vec();
        for number in [FORM, head.len() as u32] {
            fixed.extend_from_slice(&number.to_le_bytes());
        }
        [fixed, head]
            .into_iter()
            .map(Bytes::from)
            .chain(self.parts.iter().cloned())
    }

    /// The digest of its bytes, which names it.
    fn tag(&self) -> String {
        let mut digest = Sha256::new();
        self.pieces().for_each(|piece| digest.update(&piece));
        tag_of(digest)
    }

    pub(super) fn language(&self) -> Language {
        self.head.language
    }

    pub fn id(&self) -> RuntimeId {
        RuntimeId {
            language: self.head.language,
            interpreter: self.head.interpreter.clone(),
            tag: self.tag(),
            interface: self.head.interface,
        }
    }

    /// The stored form of its bytes.
    pub fn pack(&self) -> Vec<u8> {
        let reader = self
            .pieces()
            .map(std::io::Cursor::new)
            .fold(Box::new(std::io::empty()) as Box<dyn Read>, |before, piece| {
                Box::new(before.chain(piece))
            });
        ruzstd::encoding::compress_to_vec(reader, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// Reads what [`Self::pack`] wrote, if it matches the tag, and this program can load it.
    pub fn unpack(packed: &[u8], tag: &str) -> Result<Self, String> {
        let bytes = unpacked(packed, MAX_BYTES).map_err(|error| format!("its data is damaged: {error}"))?;
        let mut digest = Sha256::new();
        digest.update(&bytes);
        let found = tag_of(digest);
        if found != tag {
            return Err(format!("its data is damaged: it has the digest {found}"));
        }
        Self::read(&Bytes::from(bytes))
    }

    fn read(bytes: &Bytes) -> Result<Self, String> {
        let number = |at: usize| {
            let word = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(word.try_into().ok()?))
        };
        let fixed = bytes.starts_with(MAGIC).then(|| number(8).zip(number(12))).flatten();
        let (form, length) = fixed.ok_or("its data is not a runtime")?;
        if form != FORM {
            return Err(format!(
                "it has format {form}, but this version of Heddle reads format {FORM}. {}",
                what_to_do(form > FORM)
            ));
        }
        let end = FIXED_BYTES + length as usize;
        let head = bytes.get(FIXED_BYTES..end).ok_or("its data is incomplete")?;
        let head: Head = serde_json::from_slice(head).map_err(|error| format!("its header cannot be read: {error}"))?;
        if let Some(why) = lacks_interface(head.interface, &INTERFACES) {
            return Err(why);
        }
        let (mut parts, mut at) = (Vec::with_capacity(head.parts.len()), end);
        for (_, length) in &head.parts {
            let end = usize::try_from(*length)
                .ok()
                .and_then(|length| at.checked_add(length))
                .filter(|end| *end <= bytes.len())
                .ok_or("its data is incomplete")?;
            parts.push(bytes.slice(at..end));
            at = end;
        }
        Ok(Self { head, parts })
    }

    /// The part with this name.
    pub(super) fn part(&self, name: &str) -> Result<Bytes, String> {
        let found = self.head.parts.iter().zip(&self.parts);
        let found = found
            .filter(|((known, _), _)| known == name)
            .map(|(_, part)| part.clone());
        found.last().ok_or_else(|| format!("its `{name}` is missing"))
    }

    pub(super) fn text(&self, name: &str) -> Result<String, String> {
        let part = self.part(name)?;
        String::from_utf8(part.into()).map_err(|error| format!("its `{name}` is not text: {error}"))
    }

    /// The parts whose names begin so: the rest of their names, and their texts.
    pub(super) fn texts(&self, prefix: &str) -> Result<BTreeMap<String, String>, String> {
        let names = self.head.parts.iter().filter_map(|(name, _)| name.strip_prefix(prefix));
        names
            .map(|name| Ok((name.to_owned(), self.text(&format!("{prefix}{name}"))?)))
            .collect()
    }

    pub(super) fn number(&self, name: &str) -> Result<u32, String> {
        let number = self.head.numbers.get(name).copied();
        number.ok_or_else(|| format!("its `{name}` is missing"))
    }

    /// The memory before anything ran, if it is valid: whole pages, with the stack at its bottom.
    pub(super) fn memory(&self) -> Result<Bytes, String> {
        let memory = self.part("memory")?;
        let whole = memory.len().is_multiple_of(super::image::PAGE_BYTES as usize);
        match whole && self.number("stack")? as usize <= memory.len() {
            true => Ok(memory),
            false => Err("its memory has an odd length".into()),
        }
    }

    /// The bundle of another build, for tests: with a text after one of its parts.
    #[doc(hidden)]
    pub fn with_more(mut self, name: &str, more: &str) -> Self {
        for ((known, length), part) in self.head.parts.iter_mut().zip(&mut self.parts) {
            if known == name {
                *part = [part, more.as_bytes()].concat().into();
                *length = part.len() as u64;
            }
        }
        self
    }

    /// The bundle of another build, for tests: it needs another version of the host's interface.
    #[doc(hidden)]
    pub fn with_interface(mut self, interface: u32) -> Self {
        self.head.interface = interface;
        self
    }
}

fn tag_of(digest: Sha256) -> String {
    let mut tag = hex(&digest.finalize()[..]);
    tag.truncate(TAG_DIGITS);
    tag
}

/// Unpacks zstd, up to a maximum of bytes.
pub(super) fn unpacked(packed: &[u8], max_bytes: u64) -> Result<Vec<u8>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|error| text(&error))?;
    let mut bytes = Vec::new();
    let read = decoder.take(max_bytes + 1).read_to_end(&mut bytes);
    match read.map_err(|error| text(&error))? as u64 > max_bytes {
        true => Err(format!("it has more than the maximum of {max_bytes} bytes")),
        false => Ok(bytes),
    }
}

/// Whether this program's host supports this version of the interface.
pub fn has_interface(interface: u32) -> bool {
    INTERFACES.contains(&interface)
}

/// Whether only a newer program's host supports this version of the interface: then the reason.
pub fn needs_newer_program(interface: u32) -> Option<String> {
    let why = lacks_interface(interface, &INTERFACES);
    why.filter(|_| interface > *INTERFACES.end())
}

/// Why a host with these versions of the interface cannot run what needs this one, and what to do; `None`: it can.
fn lacks_interface(interface: u32, known: &RangeInclusive<u32>) -> Option<String> {
    if known.contains(&interface) {
        return None;
    }
    let range = match (known.start(), known.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first} to {last}"),
    };
    Some(format!(
        "it needs version {interface} of the host interface, but this version of Heddle has {range}. {}",
        what_to_do(interface > *known.end())
    ))
}

/// What to do about a runtime that this program does not support.
fn what_to_do(of_newer_program: bool) -> &'static str {
    match of_newer_program {
        true => "A newer version of Heddle stored it: replace this node by that version",
        false => "An older version of Heddle stored it: retire it with `heddle runtime retire`",
    }
}

#[cfg(test)]
mod tests;
