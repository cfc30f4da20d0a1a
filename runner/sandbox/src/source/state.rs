//! What a store keeps for a text script.

use super::under_way::Pending;
use std::collections::BTreeMap;
use std::sync::Arc;
use wasmtime::{Memory, TypedFunc};

/// The module with which everything begins.
pub(super) const MAIN: &str = "heddle:main";
/// The module that scripts may import.
pub(super) const TASK: &str = "heddle:task";

/// A runtime's own modules, by name.
pub(crate) struct Modules(BTreeMap<String, String>);

impl Modules {
    pub fn new(texts: BTreeMap<String, String>) -> Result<Self, String> {
        match [MAIN, TASK].into_iter().find(|name| !texts.contains_key(*name)) {
            Some(missing) => Err(format!("its module `{missing}` is missing")),
            None => Ok(Self(texts)),
        }
    }

    /// The module with which everything begins.
    pub fn main(&self) -> &str {
        self.0.get(MAIN).map_or("", String::as_str)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// A store's part for a text script.
#[derive(Default)]
pub(crate) struct SourceState {
    pub memory: Option<Memory>,
    pub realloc: Option<TypedFunc<(u32, u32, u32, u32), u32>>,
    /// The modules of the runtime on which the script runs.
    pub modules: Option<Arc<Modules>>,
    /// The text whose top level is being evaluated, and the name of its module.
    pub loading: Option<(Arc<str>, &'static str)>,
    /// How the script ended: JSON.
    pub ended: Option<String>,
    /// The interpreter writes the output now, as JSON. It recurses for this without looking at its stack.
    pub writes_output: bool,
    /// What the script says about itself (`Described`), as JSON.
    pub description: Option<String>,
    pub pending: Pending,
    pub python: super::python::State,
    /// The answer that the guest takes next.
    pub(super) answer: Vec<u8>,
    pub(super) last_nanos: u64,
}
