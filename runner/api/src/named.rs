//! Things that are put by name: categories, templates, secrets, connections, pools.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Moment;

/// A category, under which groups are listed. Secrets and connections can be granted to a category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Category {
    /// The name, 1 to 63 characters.
    pub name: String,
    /// A description of its purpose.
    pub description: String,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// The spec of a category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CategorySpec {
    /// A description of its purpose, at most 10,000 characters.
    pub description: String,
}

fn json_schema_of_schemas(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "boolean"], "description": "A JSON Schema."})
}

/// A template: a JSON Schema with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Template {
    /// The name, 1 to 63 characters.
    pub name: String,
    /// The JSON Schema of the template.
    #[schemars(schema_with = "json_schema_of_schemas")]
    pub schema: Value,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// The spec of a template: the JSON Schema itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(rename = "JsonSchema")]
pub struct TemplateSpec(#[schemars(schema_with = "json_schema_of_schemas")] pub Value);

/// A secret that scripts can read, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// The name, 1 to 63 characters.
    pub name: String,
    /// The groups and topics that may use it; `*` means all.
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it; `*` means all.
    pub categories: Vec<String>,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// The spec of a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretSpec {
    /// The value, 1 byte to 64 KiB. Write-only: it is never shown again.
    pub value: String,
    /// The groups and topics that may use it, at most 1,000; `*` means all. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it, at most 1,000; `*` means all. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
}

/// How much was encrypted again with the current key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RotatedKeys {
    /// The fingerprint of the current key.
    pub key_id: String,
    /// The number of secrets.
    pub secrets: u64,
    /// The number of connections.
    pub connections: u64,
    /// The number of channels.
    pub channels: u64,
}

/// A connection: an SQL database that scripts can use, without its URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// The name, 1 to 63 characters.
    pub name: String,
    /// The groups and topics that may use it; `*` means all.
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it; `*` means all.
    pub categories: Vec<String>,
    /// The maximum number of database connections of one node, 1 to 100. Default: 4.
    #[schemars(range(min = 1, max = 100))]
    pub max_connections: i32,
    /// Whether scripts can only read. Default: false.
    pub read_only: bool,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// The spec of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSpec {
    /// The URL, `postgres://user:password@host/database`. Write-only. Required for a new connection; default: the
    /// stored URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The groups and topics that may use it, at most 1,000; `*` means all. Default: none.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The categories whose groups and topics may use it, at most 1,000; `*` means all. Default: none.
    #[serde(default)]
    pub categories: Vec<String>,
    /// The maximum number of database connections of one node, 1 to 100. Default: 4.
    #[serde(default = "connections_default")]
    #[schemars(range(min = 1, max = 100))]
    pub max_connections: i32,
    /// Whether scripts can only read. Default: false.
    #[serde(default)]
    pub read_only: bool,
}

fn connections_default() -> i32 {
    4
}

/// A pool: slots that limit how many attempts run at the same time in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// The name, 1 to 63 characters.
    pub name: String,
    /// The number of slots.
    pub slots: i32,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// The spec of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// The number of slots, at least 0.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub slots: i64,
}
