//! `URLSearchParams` of source scripts: its pairs of names and values, read from a text and written as one.
//!
//! A text of 16 MiB can have eight million pairs. So one pair after the other becomes a part of the answer: none is kept
//! apart from it, their number has a bound, and what is written counts as memory of the attempt.

use crate::memory::Held;
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use std::fmt;
use std::io;
use url::form_urlencoded::{byte_serialize, parse};

/// How many pairs are read from one text, or written as one.
const MAX_PAIRS: usize = 100_000;
/// In which steps a text that is written is held.
const STEP_BYTES: usize = 16 << 10;

/// The pairs of a text: a JSON array of arrays of two.
pub(super) fn read(text: &str, held: &mut Held) -> Result<String, String> {
    held.grow(text.len())?;
    let mut to = Written::new(held);
    to.push(b"[")?;
    for (index, pair) in parse(text.as_bytes()).enumerate() {
        if index == MAX_PAIRS {
            return Err(too_many());
        }
        if index > 0 {
            to.push(b",")?;
        }
        // The error of the writer is the text that it was made of.
        serde_json::to_writer(&mut to, &pair).map_err(|error| error.to_string())?;
    }
    to.push(b"]")?;
    to.finish()
}

/// The text of pairs that are a JSON array of arrays of two.
pub(super) fn write(pairs: &str, held: &mut Held) -> Result<String, String> {
    held.grow(pairs.len())?;
    let mut to = Written::new(held);
    let mut refused = None;
    let mut from = serde_json::Deserializer::from_str(pairs);
    let writer = PairWriter {
        to: &mut to,
        refused: &mut refused,
    };
    let done = from.deserialize_seq(writer).and_then(|()| from.end());
    // The parser would add a place in the text that it reads, which the script's author does not see.
    if let Some(why) = refused {
        return Err(why);
    }
    done.map_err(|error| error.to_string())?;
    to.finish()
}

fn too_many() -> String {
    format!("a URLSearchParams may have at most {MAX_PAIRS} pairs of a name and a value")
}

/// A text that counts as memory of the attempt while it is written.
struct Written<'a> {
    text: Vec<u8>,
    held: &'a mut Held,
    held_bytes: usize,
}

impl<'a> Written<'a> {
    fn new(held: &'a mut Held) -> Self {
        Self {
            text: Vec::new(),
            held,
            held_bytes: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.text.len() + bytes.len() > self.held_bytes {
            let more = bytes.len().max(STEP_BYTES);
            self.held.grow(more)?;
            self.held_bytes += more;
        }
        self.text.extend_from_slice(bytes);
        Ok(())
    }

    /// The whole text. It counts a second time: the answer contains it once more.
    fn finish(self) -> Result<String, String> {
        self.held.grow(self.text.len())?;
        String::from_utf8(self.text).map_err(|error| error.to_string())
    }
}

impl io::Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes each pair as soon as it is read.
struct PairWriter<'a, 'h> {
    to: &'a mut Written<'h>,
    /// Why the rest is not read.
    refused: &'a mut Option<String>,
}

impl PairWriter<'_, '_> {
    fn pair(&mut self, index: usize, name: &str, value: &str) -> Result<(), String> {
        if index == MAX_PAIRS {
            return Err(too_many());
        }
        if index > 0 {
            self.to.push(b"&")?;
        }
        for part in byte_serialize(name.as_bytes()) {
            self.to.push(part.as_bytes())?;
        }
        self.to.push(b"=")?;
        for part in byte_serialize(value.as_bytes()) {
            self.to.push(part.as_bytes())?;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for PairWriter<'_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an array of pairs")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut pairs: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some((name, value)) = pairs.next_element::<(String, String)>()? {
            if let Err(why) = self.pair(index, &name, &value) {
                *self.refused = Some(why);
                return Err(A::Error::custom("refused"));
            }
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBudget, MemoryGuard, MemoryMeter, tells_of_memory};
    use serde_json::json;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use url::form_urlencoded::Serializer;

    /// An attempt that may hold so much.
    fn guard_of(limit_bytes: u64) -> (MemoryGuard, Arc<MemoryBudget>) {
        let budget = Arc::new(MemoryBudget {
            limit_bytes: u64::MAX,
            used_bytes: AtomicU64::new(0),
        });
        let guard = MemoryGuard::new(limit_bytes, Arc::new(MemoryMeter::default()), Arc::clone(&budget));
        (guard, budget)
    }

    #[test]
    fn pairs_are_read_and_written_as_by_the_standard() {
        let (guard, _) = guard_of(1 << 30);
        for text in [
            "",
            "&&",
            "=",
            "a",
            "a=1&b=2&a=3",
            "a=b=c",
            "+%2B%20%00%ff%c3%a4=\u{1}\"\\\u{e4}\u{1f600}&%zz=%",
        ] {
            let pairs: Vec<_> = parse(text.as_bytes()).collect();
            let as_json = json!(pairs).to_string();
            let found = read(text, &mut guard.hold_nothing());
            assert_eq!(found.as_ref(), Ok(&as_json), "{text}");
            let expect = Serializer::new(String::new()).extend_pairs(&pairs).finish();
            assert_eq!(write(&as_json, &mut guard.hold_nothing()), Ok(expect), "{text}");
        }
        for wrong in [
            "",
            "1",
            "[1]",
            r#"[["a"]]"#,
            r#"[["a","b","c"]]"#,
            r#"[["a","b"]] 1"#,
            r#"[["a","b"]"#,
        ] {
            let found = write(wrong, &mut guard.hold_nothing());
            assert!(found.is_err(), "{wrong}: {found:?}");
        }
    }

    #[test]
    fn the_number_of_pairs_is_bounded() {
        let (guard, _) = guard_of(1 << 30);
        for (count, good) in [(MAX_PAIRS, true), (MAX_PAIRS + 1, false)] {
            let found = read(&"a&".repeat(count), &mut guard.hold_nothing());
            let pairs = format!("[{}]", vec![r#"["a",""]"#; count].join(","));
            let written = write(&pairs, &mut guard.hold_nothing());
            if good {
                assert_eq!(found, Ok(pairs));
                assert_eq!(written.map(|text| text.len()), Ok(3 * count - 1));
            } else {
                let expect = "a URLSearchParams may have at most 100000 pairs of a name and a value";
                assert_eq!(found, Err(expect.into()));
                assert_eq!(written, Err(expect.into()));
            }
        }
    }

    #[test]
    fn what_is_made_counts_as_memory() {
        let (guard, budget) = guard_of(1 << 30);
        let text = "%01".repeat(1 << 20);
        let mut held = guard.hold_nothing();
        let pairs = read(&text, &mut held).unwrap();
        // The text, what was read, and the answer.
        let least = (text.len() + 2 * pairs.len()) as u64;
        let counted = budget.used_bytes.load(Relaxed);
        assert!(counted >= least && counted <= least + STEP_BYTES as u64, "{counted}");
        drop(held);
        let mut held = guard.hold_nothing();
        let written = write(&pairs, &mut held).unwrap();
        assert_eq!(written, format!("{text}="));
        let least = (pairs.len() + 2 * written.len()) as u64;
        let counted = budget.used_bytes.load(Relaxed);
        assert!(counted >= least && counted <= least + STEP_BYTES as u64, "{counted}");
        drop(held);
        assert_eq!(budget.used_bytes.load(Relaxed), 0);
        // Refused before it is made.
        let (guard, _) = guard_of(text.len() as u64 + (1 << 20));
        for refused in [
            read(&text, &mut guard.hold_nothing()),
            write(&pairs, &mut guard.hold_nothing()),
        ] {
            let said = refused.unwrap_err();
            assert!(tells_of_memory(&said) && said.ends_with("has not read"), "{said}");
        }
    }
}
