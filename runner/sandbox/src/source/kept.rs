//! The runtimes that other programs have kept, as far as they are in memory.

use super::linked::Interpreter;
use super::python::Python;
use super::runtime::Runtime;
use chrono::TimeDelta;
use heddle_domain::Time;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The pause before a runtime that could not be loaded is tried again.
pub(super) const AGAIN_AFTER: TimeDelta = TimeDelta::minutes(10);

/// The runtimes that others have kept.
#[derive(Default)]
pub(crate) struct Kept(Mutex<HashMap<String, Known>>);

/// What is known of one of them.
enum Known {
    JavaScript(Weak<Runtime>),
    Python(Weak<Python>),
    /// It could not be loaded, and is not tried again before that.
    Not(Time),
}

impl Kept {
    /// `None`: nothing is known of it, or not any more.
    pub(super) fn get(&self, tag: &str, now: Time) -> Option<Option<Interpreter>> {
        match self.0.lock().get(tag)? {
            Known::JavaScript(runtime) => Some(Some(Interpreter::JavaScript(runtime.upgrade()?))),
            Known::Python(python) => Some(Some(Interpreter::Python(python.upgrade()?))),
            Known::Not(until) => (now < *until).then_some(None),
        }
    }

    pub(super) fn put(&self, tag: &str, interpreter: Option<&Interpreter>, now: Time) {
        let known = match interpreter {
            Some(Interpreter::JavaScript(runtime)) => Known::JavaScript(Arc::downgrade(runtime)),
            Some(Interpreter::Python(python)) => Known::Python(Arc::downgrade(python)),
            None => Known::Not(now + AGAIN_AFTER),
        };
        let mut all = self.0.lock();
        all.retain(|_, known| match known {
            Known::JavaScript(runtime) => runtime.strong_count() > 0,
            Known::Python(python) => python.strong_count() > 0,
            Known::Not(until) => now < *until,
        });
        all.insert(tag.to_owned(), known);
    }
}
