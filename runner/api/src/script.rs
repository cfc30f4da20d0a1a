//! Scripts.

use std::collections::BTreeMap;

use heddle_domain::Span;
use heddle_domain::state::AttemptState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Failure, Moment};

/// What a script may be.
pub const WORLDS: [&str; 7] = [
    "heddle:task/task",
    "heddle:task/consumer",
    "wasi:cli/command@p1",
    "wasi:cli/command@p2",
    "source/javascript",
    "source/typescript",
    "source/python",
];

/// A version of a script, which never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScriptVersion {
    /// The script's name.
    pub name: String,
    /// From 1.
    pub version: i32,
    /// SHA-256 of the bytes as they were uploaded, in hexadecimal.
    pub digest: String,
    /// What it is: a component, a WASI command, or text.
    #[schemars(extend("enum" = WORLDS))]
    pub world: String,
    /// The interpreter that a text was checked with; null for wasm.
    pub runtime: Option<String>,
    /// The tag of the runtime that a text runs on, until it is retired; null for wasm, and for a text that was uploaded
    /// before there were runtimes, which runs on that of the program.
    #[serde(default)]
    pub runtime_tag: Option<String>,
    /// Which functions it has that Heddle calls: `run` for tasks, `handle` for the messages of a topic; null for a text that
    /// a build without this field uploaded, until a node has looked.
    #[serde(default)]
    pub exports: Option<Vec<String>>,
    /// A JSON Schema for its params, if it says so.
    pub params_schema: Option<Value>,
    /// Params that it takes where a task gives none: an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub defaults: Value,
    /// What it says of itself.
    pub description: String,
    /// How many bytes were uploaded.
    pub size: i64,
    /// Whether the script's name alone means this version.
    pub active: bool,
    /// When it was uploaded.
    pub created_at: Moment,
    /// What a component imports, by name; only of a single version, and where the node that answers has compiled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imports: Option<Vec<String>>,
    /// How long it took to check and compile it, in milliseconds; only when it has just been uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_ms: Option<i64>,
}

/// A script, and what its active version (the newest while none is active) says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Script {
    /// The version that its name alone means.
    pub active_version: Option<i32>,
    /// The version that was uploaded last.
    pub latest_version: i32,
    /// When a version was last uploaded or activated.
    pub updated_at: Moment,
    /// The active version.
    #[serde(flatten)]
    pub version: ScriptVersion,
}

/// A call of a script without a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvokeRequest {
    /// Its params, over the script's defaults.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Which version; default the active one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    /// How long it may take, up to 5m; default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

/// What a script did without a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Invocation {
    /// How the attempt ended.
    pub state: AttemptState,
    /// What it returned: any JSON.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// What it logged.
    pub logs: Vec<InvocationLog>,
    /// How long it took, in milliseconds.
    pub duration_ms: f64,
    /// The most memory that it had, in bytes.
    pub memory_bytes: u64,
}

/// A line that an invocation logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InvocationLog {
    /// `trace`, `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// What it says.
    pub message: String,
    /// What else it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Value>,
}

/// Which version a script's name alone is to mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActivateRequest {
    /// A version that there is.
    pub version: i32,
}

/// Where a node is to get a script from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchRequest {
    /// An address that the outbound policy allows.
    pub url: String,
    /// What has to come from there: 64 hexadecimal digits, with or without `sha256:` before them.
    pub sha256: String,
}
