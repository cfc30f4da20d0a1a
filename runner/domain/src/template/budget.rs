//! What one rendering may make and look at.
//!
//! minijinja's fuel counts instructions, and one instruction may make a hundred megabytes, or compare two values that
//! share their parts so often that no node would live to see the end. So every value that can be larger than what it
//! is made of is charged here, before it is made where that can be told, else right after: the bytes that a rendering
//! makes are added up, not those that it holds, and its values are counted each time that all of one is looked at.
//! [`super::weigh`] writes the filters of this module into a template's source; templates may not name them.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Environment, Error, State, Value, filters};

use super::OUTPUT_MAX_BYTES;
use super::value::{invalid, too_large};

/// Bytes of strings and lists that one rendering may make on its way to the result.
pub const MADE_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Values that one rendering may look at as parts of others, as in a comparison; 64 bytes of a string count as one.
pub const LOOKS_MAX: usize = 10_000_000;
/// What an entry of a list takes.
const ENTRY_BYTES: usize = 24;
/// The name under which templates' filters find the budget; no template can write it.
pub(super) const NAME: &str = " budget";

/// What is left.
#[derive(Debug)]
pub(super) struct Budget {
    made: AtomicUsize,
    looks: AtomicUsize,
    /// Left sides of `*` whose right sides are being evaluated.
    factors: Mutex<Vec<Factor>>,
}

/// One side of a `*`.
#[derive(Clone, Copy, Debug)]
enum Factor {
    Number(Option<u64>),
    /// What takes so many bytes, and may be repeated.
    Bytes(usize),
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            made: AtomicUsize::new(MADE_MAX_BYTES),
            looks: AtomicUsize::new(LOOKS_MAX),
            factors: Mutex::default(),
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
        "the template makes more than {MADE_MAX_BYTES} bytes on its way"
    ))
}

fn too_many() -> Error {
    invalid(format!("the template looks at more than {LOOKS_MAX} values"))
}

fn take(left: &AtomicUsize, amount: usize, error: fn() -> Error) -> Result<(), Error> {
    // A rendering has one thread.
    let rest = left.load(Ordering::Relaxed).checked_sub(amount).ok_or_else(error)?;
    left.store(rest, Ordering::Relaxed);
    Ok(())
}

impl Budget {
    /// The rendering's; a state that is none's has one of its own.
    fn of(state: &State<'_, '_>) -> Arc<Self> {
        let found = state.lookup(NAME).and_then(|value| value.downcast_object::<Self>());
        found.unwrap_or_default()
    }

    fn make(&self, bytes: usize) -> Result<(), Error> {
        take(&self.made, bytes, too_much)
    }

    fn look(&self, values: usize) -> Result<(), Error> {
        take(&self.looks, values, too_many)
    }

    /// Looks at all of a value, and gives the bytes that it takes as text, at least: not more than `max`.
    fn walk(&self, value: &Value, bytes: &mut usize, max: usize) -> Result<(), Error> {
        /// Numbers, instants and the like are shorter; each level of a list or map adds its brackets.
        const PLAIN_BYTES: usize = 24;
        let length = value.as_str().map(str::len);
        self.look(1 + length.unwrap_or(0) / 64)?;
        *bytes = bytes.saturating_add(length.map_or(PLAIN_BYTES, |length| length + 2));
        if *bytes > max {
            return Err(too_much());
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.walk(&item, bytes, max)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.walk(&key, bytes, max)?;
                    self.walk(&value.get_item(&key)?, bytes, max)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Before a value becomes text that is `times` as long at most.
    fn text(&self, value: &Value, times: usize) -> Result<(), Error> {
        let mut bytes = 0;
        let left = self.made.load(Ordering::Relaxed) / times;
        match value.as_str() {
            Some(text) => bytes = text.len(),
            None => self.walk(value, &mut bytes, left)?,
        }
        self.make(bytes.saturating_mul(times))
    }

    /// The bytes of a list's or map's entries, or of a string.
    fn size(&self, value: &Value) -> Result<usize, Error> {
        let left = self.made.load(Ordering::Relaxed);
        match value.kind() {
            ValueKind::String => Ok(value.as_str().map_or(0, str::len)),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                let mut bytes = 0;
                for _ in value.try_iter()? {
                    self.look(1)?;
                    bytes += ENTRY_BYTES;
                    if bytes > left {
                        return Err(too_much());
                    }
                }
                Ok(bytes)
            }
            _ => Ok(0),
        }
    }

    fn factor(&self, value: &Value) -> Result<Factor, Error> {
        Ok(match value.kind() {
            ValueKind::String | ValueKind::Seq | ValueKind::Iterable => Factor::Bytes(self.size(value)?),
            _ => Factor::Number(value.as_i64().map(i64::unsigned_abs)),
        })
    }

    fn product(&self, left: Factor, right: Factor) -> Result<Factor, Error> {
        let (bytes, times) = match (left, right) {
            (Factor::Number(Some(left)), Factor::Number(Some(right))) => {
                return Ok(Factor::Number(left.checked_mul(right)));
            }
            (Factor::Number(_), Factor::Number(_)) => return Ok(Factor::Number(None)),
            (Factor::Bytes(bytes), Factor::Number(times)) | (Factor::Number(times), Factor::Bytes(bytes)) => {
                (bytes, times)
            }
            (Factor::Bytes(_), Factor::Bytes(_)) => return Err(invalid("`*` of two values that are no numbers")),
        };
        let times = times.and_then(|times| usize::try_from(times).ok());
        let bytes = times.and_then(|times| bytes.checked_mul(times));
        let bytes = bytes.filter(|bytes| *bytes <= OUTPUT_MAX_BYTES).ok_or_else(too_large)?;
        self.make(bytes)?;
        Ok(Factor::Bytes(bytes))
    }

    fn factors(&self) -> std::sync::MutexGuard<'_, Vec<Factor>> {
        self.factors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Before two values are compared, or one is looked for in the other.
pub(super) fn compared(state: &State<'_, '_>, left: &Value, right: &Value) -> Result<(), Error> {
    let budget = Budget::of(state);
    for value in [left, right] {
        budget.walk(value, &mut 0, usize::MAX)?;
    }
    Ok(())
}

/// After text has been made whose bounds are told otherwise.
pub(super) fn made(state: &State<'_, '_>, text: String) -> Result<String, Error> {
    Budget::of(state).make(text.len()).map(|()| text)
}

/// The bytes that a value takes as text, at least.
pub(super) fn text_bytes(state: &State<'_, '_>, value: &Value) -> Result<usize, Error> {
    let mut bytes = 0;
    Budget::of(state).walk(value, &mut bytes, OUTPUT_MAX_BYTES)?;
    Ok(bytes)
}

/// Before a value becomes text.
pub(super) fn printed(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    Budget::of(state).text(value, 1)
}

pub(super) fn install(env: &mut Environment<'_>) {
    // Each gives back what it is given.
    env.add_filter("_text", |state: &State, value: Value, times: Option<usize>| {
        Budget::of(state).text(&value, times.unwrap_or(1)).map(|()| value)
    });
    env.add_filter("_made", |state: &State, value: Value| -> Result<Value, Error> {
        let budget = Budget::of(state);
        budget.make(budget.size(&value)?)?;
        Ok(value)
    });
    env.add_filter("_items", |state: &State, value: Value| -> Result<Value, Error> {
        let budget = Budget::of(state);
        budget.walk(&value, &mut 0, usize::MAX)?;
        // A string's items are its characters.
        let times = if value.as_str().is_some() { ENTRY_BYTES } else { 1 };
        budget.make(budget.size(&value)?.saturating_mul(times))?;
        Ok(value)
    });
    env.add_filter("_looked", |state: &State, value: Value| {
        let budget = Budget::of(state);
        budget.walk(&value, &mut 0, usize::MAX).map(|()| value)
    });
    env.add_filter("_number", |value: Value| match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable => Err(invalid(
            "beside `/`, `//`, `%` and `**`, the two sides of a `*` are numbers",
        )),
        _ => Ok(value),
    });
    env.add_filter("_left", |state: &State, value: Value| -> Result<Value, Error> {
        let budget = Budget::of(state);
        let factor = budget.factor(&value)?;
        budget.factors().push(factor);
        Ok(value)
    });
    env.add_filter(
        "_right",
        |state: &State, value: Value, again: Option<bool>| -> Result<Value, Error> {
            let budget = Budget::of(state);
            let right = budget.factor(&value)?;
            let left = budget.factors().pop().unwrap_or(Factor::Number(None));
            let product = budget.product(left, right)?;
            if again == Some(true) {
                budget.factors().push(product);
            }
            Ok(value)
        },
    );
    env.add_filter("split", split);
    env.add_filter("lines", lines);
    env.add_filter("pprint", pprint);
}

fn split(state: &State, value: Value, separator: Option<String>, most: Option<i64>) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let pieces = match separator.as_deref() {
            Some(separator) => text.matches(separator).count() + 1,
            None => text.split_whitespace().count(),
        };
        Budget::of(state).make(text.len().saturating_add(pieces.saturating_mul(ENTRY_BYTES)))?;
    }
    filters::split(&value, separator.map(Arc::from), most)
}

fn lines(state: &State, value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let pieces = text.lines().count();
        Budget::of(state).make(text.len().saturating_add(pieces.saturating_mul(ENTRY_BYTES)))?;
    }
    filters::lines(&value)
}

fn pprint(state: &State, value: Value) -> Result<String, Error> {
    struct Page {
        text: String,
    }
    impl Write for Page {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            if self.text.len() + text.len() > OUTPUT_MAX_BYTES {
                return Err(fmt::Error);
            }
            self.text.push_str(text);
            Ok(())
        }
    }
    let budget = Budget::of(state);
    budget.walk(&value, &mut 0, usize::MAX)?;
    let mut page = Page { text: String::new() };
    write!(page, "{value:#?}").map_err(|_| too_large())?;
    budget.make(page.text.len())?;
    Ok(page.text)
}
