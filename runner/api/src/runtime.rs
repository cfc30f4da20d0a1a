//! Runtimes of scripts that are text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Moment;

/// What scripts in a language are checked with, and run on until it is retired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Runtime {
    /// The digest of its bytes: 16 hexadecimal digits.
    pub tag: String,
    /// For which language: `javascript` is for TypeScript as well.
    #[schemars(extend("enum" = ["javascript", "python"]))]
    pub language: String,
    /// The interpreter in it, and its version.
    pub interpreter: String,
    /// `kept`: the versions that name it run on it; `retired`: none names it any more, and it is removed after 30 days.
    pub state: RuntimeState,
    /// Whether it is the one of the program that answers: what uploads are checked with there.
    pub current: bool,
    /// How many versions name it.
    pub versions: i64,
    /// Of how many scripts, deleted ones included, which kept runs know.
    pub scripts: i64,
    /// Which version of the host's interface it asks for: a program that does not have it runs its scripts on its own runtime.
    pub interface: i32,
    /// How many bytes are kept of it.
    pub size: i64,
    /// When the first script was checked with it.
    pub created_at: Moment,
    /// When it was retired.
    pub retired_at: Option<Moment>,
}

/// Whether scripts run on a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeState {
    /// The versions that name it run on it.
    Kept,
    /// No version names it any more.
    Retired,
}

/// What came of retiring a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetiredRuntime {
    /// The runtime.
    pub tag: String,
    /// What its scripts run on now: the tag of the program that answers.
    pub moved_to: String,
    /// How many versions were moved.
    pub versions: u64,
    /// Those of them that are in use, each as the other runtime found it.
    pub scripts: Vec<RecheckedScript>,
}

/// What another runtime makes of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecheckedScript {
    /// The script.
    pub name: String,
    /// Its version.
    pub version: i32,
    /// `same`; `changes`: it says something else of itself; `fails`: it is not accepted.
    #[schemars(extend("enum" = ["same", "changes", "fails"]))]
    pub result: String,
    /// What it says otherwise: `description`, `defaults`, `params_schema`.
    pub changed: Vec<String>,
    /// Why it is not accepted.
    pub error: Option<String>,
}
