//! This program's own runtimes.

use super::bundle::{RuntimeBundle, RuntimeId};
use super::language::Language;
use super::{python, runtime};
use std::sync::OnceLock;

impl RuntimeBundle {
    /// This program's runtime for a language. Python's is unpacked and linked for it, which may take a second: call
    /// this where that does no harm.
    pub fn own(language: Language) -> Result<Self, String> {
        match language.runs_as() {
            Language::Python => python::bundle(),
            _ => runtime::bundle(),
        }
    }
}

/// This program's runtime for a language: computed once; the first call is as slow as [`RuntimeBundle::own`].
pub fn own_runtime(language: Language) -> Result<&'static RuntimeId, String> {
    let known = own(language);
    match known.get() {
        Some(id) => Ok(id),
        None => RuntimeBundle::own(language).map(|bundle| known.get_or_init(|| bundle.id())),
    }
}

/// The same for a bundle that is this program's own: it determines the keys of scripts as long as the program runs.
pub(super) fn own_id(bundle: &RuntimeBundle) -> &'static RuntimeId {
    own(bundle.language()).get_or_init(|| bundle.id())
}

fn own(language: Language) -> &'static OnceLock<RuntimeId> {
    static JAVASCRIPT: OnceLock<RuntimeId> = OnceLock::new();
    static PYTHON: OnceLock<RuntimeId> = OnceLock::new();
    match language.runs_as() {
        Language::Python => &PYTHON,
        _ => &JAVASCRIPT,
    }
}
