//! Scripts and their versions.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, More, Page, Result};

/// Compiling a large component takes the server its time.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(300);

/// A version of a script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptVersion {
    /// The script's name.
    #[serde(default)]
    pub name: String,
    /// From 1.
    pub version: i64,
    /// SHA-256 of the wasm.
    #[serde(default)]
    pub digest: String,
    /// What it exports: `heddle:task/task`, a consumer, or a WASI command.
    #[serde(default)]
    pub world: String,
    /// A JSON Schema for its params.
    #[serde(default)]
    pub params_schema: Value,
    /// Fields that this version of the client does not know.
    #[serde(flatten)]
    pub more: More,
}

/// A script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// Its name.
    pub name: String,
    /// The rest: its active version, description.
    #[serde(flatten)]
    pub more: More,
}

/// A call of a script without a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    /// Its params.
    pub params: Value,
    /// Which version; default the active one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Such as `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// What such a call gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InvocationResult {
    /// As an attempt's.
    pub state: String,
    /// What it returned.
    #[serde(default)]
    pub output: Value,
    /// Why it failed.
    #[serde(default)]
    pub error: Value,
    /// What it logged.
    #[serde(default)]
    pub logs: Value,
    /// How long it took.
    #[serde(default)]
    pub duration_ms: f64,
    /// The most memory that it held.
    #[serde(default)]
    pub memory_bytes: i64,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: More,
}

impl Client {
    /// Uploads wasm as a script's next version, and activates it unless told not to.
    pub async fn put_script(&self, name: &str, wasm: impl Into<Bytes>, activate: bool) -> Result<ScriptVersion> {
        self.put_script_as(name, "application/wasm", wasm, activate).await
    }

    /// The same of a script of any kind: source has the media type of its language (`text/javascript`).
    pub async fn put_script_as(
        &self,
        name: &str,
        media_type: &'static str,
        script: impl Into<Bytes>,
        activate: bool,
    ) -> Result<ScriptVersion> {
        let request = self
            .put(&["v1", "scripts", name])
            .bytes(media_type, script)
            .timeout(UPLOAD_TIMEOUT);
        let request = if activate {
            request
        } else {
            request.query("activate", false)
        };
        request.send().await
    }

    /// One page of scripts.
    pub async fn scripts(&self, cursor: Option<&str>) -> Result<Page<Script>> {
        self.get(&["v1", "scripts"]).query_if("cursor", cursor).send().await
    }

    /// A script.
    pub async fn script(&self, name: &str) -> Result<Script> {
        self.get(&["v1", "scripts", name]).send().await
    }

    /// A script's versions, one page.
    pub async fn script_versions(&self, name: &str, cursor: Option<&str>) -> Result<Page<ScriptVersion>> {
        self.get(&["v1", "scripts", name, "versions"])
            .query_if("cursor", cursor)
            .send()
            .await
    }

    /// A version's wasm.
    pub async fn script_wasm(&self, name: &str, version: i64) -> Result<Bytes> {
        self.get(&["v1", "scripts", name, "versions", &version.to_string(), "wasm"])
            .send_for_bytes()
            .await
    }

    /// A version's source.
    pub async fn script_source(&self, name: &str, version: i64) -> Result<Bytes> {
        self.get(&["v1", "scripts", name, "versions", &version.to_string(), "source"])
            .send_for_bytes()
            .await
    }

    /// Runs a script without making a run.
    pub async fn invoke(&self, name: &str, invocation: &Invocation) -> Result<InvocationResult> {
        self.post(&["v1", "scripts", name, "invoke"])
            .json(invocation)
            .timeout(UPLOAD_TIMEOUT)
            .send()
            .await
    }

    /// Makes a version the active one.
    pub async fn activate_script(&self, name: &str, version: i64) -> Result<Value> {
        self.put(&["v1", "scripts", name, "active"])
            .json(&json!({ "version": version }))
            .send()
            .await
    }

    /// Has the server upload wasm from an address.
    pub async fn fetch_script(&self, name: &str, url: &str, sha256: &str) -> Result<ScriptVersion> {
        let body = json!({ "url": url, "sha256": sha256 });
        self.post(&["v1", "scripts", name, "fetch"])
            .json(&body)
            .timeout(UPLOAD_TIMEOUT)
            .send()
            .await
    }

    /// Deletes a script that nothing uses.
    pub async fn delete_script(&self, name: &str) -> Result<()> {
        self.delete(&["v1", "scripts", name]).send_for_nothing().await
    }
}
