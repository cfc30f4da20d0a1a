//! Scripts, their versions, and runs of a script alone (invocations).

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_domain::Span;
use heddle_domain::state::AttemptState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Failure, Moment};

/// The worlds: the kinds of scripts.
pub const WORLDS: [&str; 7] = [
    "heddle:task/task",
    "heddle:task/consumer",
    "wasi:cli/command@p1",
    "wasi:cli/command@p2",
    "source/javascript",
    "source/typescript",
    "source/python",
];

/// How long an invocation may take at most, as its `timeout` says.
pub const INVOKE_TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// A version of a script. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScriptVersion {
    /// The name of the script.
    pub name: String,
    /// The number of the version, counted from 1.
    pub version: i32,
    /// The SHA-256 digest of the upload, in hexadecimal.
    pub digest: String,
    /// The kind of script: a component, a WASI command, or source text.
    #[schemars(extend("enum" = WORLDS))]
    pub world: String,
    /// For source text: the interpreter with which it was checked. null: it is wasm.
    pub runtime: Option<String>,
    /// For source text: the tag of the runtime on which it runs until that is retired. null: it is wasm, or it runs on
    /// the current runtime of each node.
    #[serde(default)]
    pub runtime_tag: Option<String>,
    /// Which functions it has that Heddle calls: `run` for tasks, `handle` for the messages of a topic. null: a build
    /// without this field uploaded the text, and no node has looked yet.
    #[serde(default)]
    pub exports: Option<Vec<String>>,
    /// The JSON Schema of its params. null: it has none.
    pub params_schema: Option<Value>,
    /// The default params, an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub defaults: Value,
    /// The description that the script gives.
    pub description: String,
    /// The size of the upload, in bytes.
    pub size: i64,
    /// Whether this is the active version, which the script's name alone means.
    pub active: bool,
    /// When it was uploaded.
    pub created_at: Moment,
    /// The imports of a component. Only in the answer about a single version, and only if the node that answers has
    /// compiled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imports: Option<Vec<String>>,
    /// How long checking and compiling took, in milliseconds. Only in the answer to the upload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_ms: Option<i64>,
}

/// A script with its active version, or its newest version if none is active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Script {
    /// The active version, which its name alone means. null: none.
    pub active_version: Option<i32>,
    /// The number of the newest version.
    pub latest_version: i32,
    /// When a version was last uploaded or activated.
    pub updated_at: Moment,
    /// The active version, or the newest if none is active.
    #[serde(flatten)]
    pub version: ScriptVersion,
}

/// The request to run a script without a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvokeRequest {
    /// The params; the script's defaults apply to missing ones.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// The version. Default: the active one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    /// The timeout, at most 5m. Default: 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

/// The result of a script without a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Invocation {
    /// The final state of the attempt.
    pub state: AttemptState,
    /// The output, any JSON.
    pub output: Option<Value>,
    /// The error, if it failed.
    pub error: Option<Failure>,
    /// The lines that the script logged.
    pub logs: Vec<InvocationLog>,
    /// The duration, in milliseconds.
    pub duration_ms: f64,
    /// The maximum memory that it used, in bytes.
    pub memory_bytes: u64,
}

/// A log line of an invocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InvocationLog {
    /// The level: `trace`, `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text of the line.
    pub message: String,
    /// Additional fields: an object, or its text if a masked secret was a number in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Value>,
}

/// The request to activate a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActivateRequest {
    /// The number of an existing version.
    pub version: i32,
}

/// The request to upload a script from a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchRequest {
    /// The URL. The outbound policy of the node must allow it.
    pub url: String,
    /// The expected SHA-256 digest: 64 hexadecimal digits, with or without `sha256:` before them.
    pub sha256: String,
}
