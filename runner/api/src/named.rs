//! Things that are put by name: categories, templates, secrets, connections, pools.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Moment;

/// What groups are listed under, and may be granted things by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Category {
    /// Its name.
    pub name: String,
    /// What it is for, in words.
    pub description: String,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A category as it is put.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CategorySpec {
    /// What it is for, in words: up to 10,000 characters.
    pub description: String,
}

/// A JSON Schema.
fn json_schema_of_schemas(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "boolean"], "description": "A JSON Schema."})
}

/// A JSON Schema under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// The schema.
    #[schemars(schema_with = "json_schema_of_schemas")]
    pub schema: Value,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A template as it is put: the bare schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(rename = "JsonSchema")]
pub struct TemplateSpec(#[schemars(schema_with = "json_schema_of_schemas")] pub Value);

/// What scripts may read, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// The groups and topics that may use it; `*`: all.
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it; `*`: all.
    pub categories: Vec<String>,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A secret as it is put.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretSpec {
    /// Write only: up to 64 KiB.
    pub value: String,
    /// The groups and topics that may use it, up to 1,000; `*`: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it, up to 1,000; `*`: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
}

/// What was sealed anew with the current key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resealed {
    /// Which key that is.
    pub key_id: String,
    /// How many secrets.
    pub secrets: u64,
    /// How many connections.
    pub connections: u64,
    /// How many channels.
    pub channels: u64,
}

/// An SQL database that scripts may use, without its URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// Its name.
    pub name: String,
    /// The groups and topics that may use it; `*`: all.
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it; `*`: all.
    pub categories: Vec<String>,
    /// How many sessions a node keeps to it at most.
    pub max_connections: i32,
    /// Whether scripts may only read.
    pub read_only: bool,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A connection as it is put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSpec {
    /// Write only: `postgres://user:password@host/database`; left out, what was put before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The groups and topics that may use it, up to 1,000; `*`: all.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it, up to 1,000; `*`: all.
    #[serde(default)]
    pub categories: Vec<String>,
    /// How many sessions a node keeps to it at most.
    #[serde(default = "connections_default")]
    pub max_connections: i32,
    /// Whether scripts may only read.
    #[serde(default)]
    pub read_only: bool,
}

fn connections_default() -> i32 {
    4
}

/// Slots that attempts share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// How many slots it has.
    pub slots: i32,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A pool as it is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// How many slots it has, from 0.
    pub slots: i64,
}
