//! What one rendering may make and read.
//!
//! minijinja's fuel counts instructions, and one instruction may make a hundred megabytes, or compare two values that
//! share their parts so often that it would practically never end. So an operation whose result can be larger than its
//! operands is charged here, before it runs: the bytes that a rendering makes are added up (not those that it holds),
//! and values are counted each time that a value is read completely. Nothing else changes: within the budget, the
//! result is minijinja's.
//!
//! | what may grow | where it is charged |
//! |---|---|
//! | `+`, `~`, `*`, spread items, slices, keys | [`super::operators`], written into the source by [`super::rewrite`] |
//! | comparisons, `in` | [`super::compare`] |
//! | filters and tests | [`super::charged`], around minijinja's own; [`super::filters`], ours |
//! | the output | the bound on a template's output |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Error, State, Value};

use super::value::invalid;

/// Bytes of strings and lists that one rendering may make on its way to the result.
pub const MADE_MAX_BYTES: usize = 16 * 1024 * 1024;
/// How many values one rendering may read as parts of others, as in a comparison: some tenths of a second of work. A
/// list or a map counts as several, and a number of a string's bytes as one.
pub const EXAMINED_MAX: usize = 20_000_000;
/// The same for a rendering in this process: a fraction of a millisecond of work.
const LIGHT_MADE_MAX_BYTES: usize = 64 * 1024;
const LIGHT_EXAMINED_MAX: usize = 20_000;
const EXAMINED_PER_LIST: usize = 8;
const EXAMINED_BYTES: usize = 256;
/// The size of an entry of a list.
pub(super) const ENTRY_BYTES: usize = 24;
/// The name under which filters find the budget; no template can write it.
pub(super) const NAME: &str = " budget";

#[derive(Debug)]
pub(super) struct Budget {
    made: AtomicUsize,
    examined: AtomicUsize,
    exceeded: AtomicBool,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            made: AtomicUsize::new(MADE_MAX_BYTES),
            examined: AtomicUsize::new(EXAMINED_MAX),
            exceeded: AtomicBool::new(false),
        }
    }
}

impl Object for Budget {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

fn too_much() -> Error {
    invalid(format!(
        "the template creates more than {MADE_MAX_BYTES} bytes of intermediate values"
    ))
}

fn too_many() -> Error {
    invalid(format!("the template examines more than {EXAMINED_MAX} values"))
}

fn take(left: &AtomicUsize, amount: usize) -> Option<()> {
    // A rendering has one thread.
    let rest = left.load(Ordering::Relaxed).checked_sub(amount)?;
    left.store(rest, Ordering::Relaxed);
    Some(())
}

impl Budget {
    /// The budget of a rendering in this process.
    pub(super) fn light() -> Self {
        Self {
            made: AtomicUsize::new(LIGHT_MADE_MAX_BYTES),
            examined: AtomicUsize::new(LIGHT_EXAMINED_MAX),
            exceeded: AtomicBool::new(false),
        }
    }

    /// Whether more was asked for than there was.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// The rendering's budget; a state outside of a rendering has its own.
    pub(super) fn of(state: &State<'_, '_>) -> Arc<Self> {
        let found = state.lookup(NAME).and_then(|value| value.downcast_object::<Self>());
        found.unwrap_or_default()
    }

    fn exceed(&self, error: fn() -> Error) -> Error {
        self.exceeded.store(true, Ordering::Relaxed);
        error()
    }

    /// Before so many bytes are made.
    pub(super) fn make(&self, bytes: usize) -> Result<(), Error> {
        take(&self.made, bytes).ok_or_else(|| self.exceed(too_much))
    }

    /// Call it before reading this many values.
    pub(super) fn examine(&self, values: usize) -> Result<(), Error> {
        take(&self.examined, values).ok_or_else(|| self.exceed(too_many))
    }

    /// Before a text is read from its beginning to its end.
    pub(super) fn read(&self, text: &str) -> Result<(), Error> {
        self.examine(1 + text.len() / EXAMINED_BYTES)
    }

    /// Looks at all of a value, and gives the bytes that it takes as text, at least: not more than `max`.
    pub(super) fn walk(&self, value: &Value, max: usize) -> Result<usize, Error> {
        let mut bytes = 0;
        self.walk_below(value, &mut bytes, max)?;
        Ok(bytes)
    }

    fn walk_below(&self, value: &Value, bytes: &mut usize, max: usize) -> Result<(), Error> {
        /// Numbers, instants and the like are shorter; each level of a list or map adds its brackets.
        const PLAIN_BYTES: usize = 24;
        match value.as_str() {
            Some(text) => {
                self.read(text)?;
                *bytes = bytes.saturating_add(text.len() + 2);
            }
            None => {
                self.examine(if value.as_object().is_some() {
                    EXAMINED_PER_LIST
                } else {
                    1
                })?;
                *bytes = bytes.saturating_add(PLAIN_BYTES);
            }
        }
        if *bytes > max {
            return Err(self.exceed(too_much));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.walk_below(&item, bytes, max)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.walk_below(&key, bytes, max)?;
                    self.walk_below(&value.get_item(&key)?, bytes, max)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Call it before reading a value completely.
    pub(super) fn examine_value(&self, value: &Value) -> Result<(), Error> {
        self.walk(value, usize::MAX).map(drop)
    }

    /// Before a value becomes text that is `times` as long at most.
    pub(super) fn text(&self, value: &Value, times: usize) -> Result<(), Error> {
        let left = self.made.load(Ordering::Relaxed) / times.max(1);
        let bytes = match value.as_str() {
            Some(text) => text.len(),
            None => self.walk(value, left)?,
        };
        self.make(bytes.saturating_mul(times))
    }

    /// How many items a value has: characters of a string, keys of a map. They are counted one by one, since lists that
    /// are made of others while they are read know it no better.
    pub(super) fn count(&self, value: &Value) -> Result<usize, Error> {
        match value.kind() {
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                self.read(text)?;
                Ok(text.chars().count())
            }
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                let mut count = 0;
                for _ in value.try_iter()? {
                    self.examine(1)?;
                    count += 1;
                }
                Ok(count)
            }
            _ => Ok(0),
        }
    }

    /// Before a list is made with an entry for each item of a value; answers how many.
    pub(super) fn entries(&self, value: &Value) -> Result<usize, Error> {
        let count = self.count(value)?;
        self.make(count.saturating_mul(ENTRY_BYTES))?;
        Ok(count)
    }

    /// Before a part of a value is copied: bytes of a string, entries of a list.
    pub(super) fn copied(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.make(text.len()),
            None => self.entries(value).map(drop),
        }
    }
}
