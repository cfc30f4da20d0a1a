//! Runtimes of scripts that are text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Moment;

/// A runtime: the interpreter on which source scripts run until the runtime is retired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Runtime {
    /// The tag: the digest of the runtime, 16 hexadecimal digits.
    pub tag: String,
    /// The language. `javascript` is also for TypeScript.
    #[schemars(extend("enum" = ["javascript", "python"]))]
    pub language: String,
    /// The name and version of the interpreter.
    pub interpreter: String,
    /// `kept`: script versions run on it; `retired`: no script version runs on it, and it is removed after 30 days.
    pub state: RuntimeState,
    /// Whether it is the current runtime of the node that answers. Uploads to that node use it.
    pub current: bool,
    /// The number of script versions that use it.
    pub versions: i64,
    /// The number of scripts of these versions, including deleted scripts that existing runs use.
    pub scripts: i64,
    /// The version of the host interface that it needs. A node without this version runs the scripts on its current
    /// runtime.
    pub interface: i32,
    /// The stored size, in bytes.
    pub size: i64,
    /// When the first script was uploaded with it.
    pub created_at: Moment,
    /// When it was retired. null: it is not retired.
    pub retired_at: Option<Moment>,
}

/// The state of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeState {
    /// Script versions run on it.
    Kept,
    /// No script version runs on it.
    Retired,
}

/// The result of retiring a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetiredRuntime {
    /// The tag of the retired runtime.
    pub tag: String,
    /// The tag of the runtime on which its scripts run now.
    pub moved_to: String,
    /// The number of script versions that were moved.
    pub versions: u64,
    /// The result of the check of the script versions in use.
    pub scripts: Vec<RecheckedScript>,
}

/// The result of checking a script version with another runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecheckedScript {
    /// The name of the script.
    pub name: String,
    /// The number of the version.
    pub version: i32,
    /// `same`; `changes`: its description, defaults or schema change; `fails`: it is not accepted.
    #[schemars(extend("enum" = ["same", "changes", "fails"]))]
    pub result: String,
    /// What changes: `description`, `defaults`, `params_schema`.
    pub changed: Vec<String>,
    /// Why it is not accepted.
    pub error: Option<String>,
}
