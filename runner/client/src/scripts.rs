//! Scripts and their versions.

use std::time::Duration;

use bytes::Bytes;
use heddle_api::{
    ActivateRequest, FetchRequest, INVOKE_TIMEOUT_MAX, Invocation, InvokeRequest, List, RetiredRuntime, Runtime,
    Script, ScriptVersion,
};

use crate::request::LONG_TIMEOUT;
use crate::{Client, Request, Result};

/// A compilation may take an hour (`--compile-timeout`), after the upload has waited for its turn.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(4_200);
/// How much longer than the script the answer to an invocation may take: the script may have to wait before it starts, and
/// the answer is about its timeout too.
const INVOKE_SPARE: Duration = Duration::from_secs(30);

impl Client {
    /// Uploads wasm as a script's next version, and activates it unless `activate` is false.
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
    pub async fn scripts(&self, cursor: Option<&str>) -> Result<List<Script>> {
        self.get(&["v1", "scripts"]).query_if("cursor", cursor).send().await
    }

    pub async fn script(&self, name: &str) -> Result<Script> {
        self.get(&["v1", "scripts", name]).send().await
    }

    /// A script's versions, one page.
    pub async fn script_versions(&self, name: &str, cursor: Option<&str>) -> Result<List<ScriptVersion>> {
        self.get(&["v1", "scripts", name, "versions"])
            .query_if("cursor", cursor)
            .send()
            .await
    }

    /// One page of the runtimes that scripts which are text were checked with.
    pub async fn runtimes(&self, cursor: Option<&str>) -> Result<List<Runtime>> {
        self.get(&["v1", "runtimes"]).query_if("cursor", cursor).send().await
    }

    /// Has the scripts of a runtime run on that of the program that answers; with `force` also those that would change, or not
    /// be accepted any more.
    pub async fn retire_runtime(&self, tag: &str, force: bool) -> Result<RetiredRuntime> {
        self.post(&["v1", "runtimes", tag, "retire"])
            .query_if("force", force.then_some("true"))
            .timeout(LONG_TIMEOUT)
            .send()
            .await
    }

    pub async fn script_wasm(&self, name: &str, version: i32) -> Result<Bytes> {
        self.get(&["v1", "scripts", name, "versions", &version.to_string(), "wasm"])
            .send_for_bytes()
            .await
    }

    pub async fn script_source(&self, name: &str, version: i32) -> Result<Bytes> {
        self.get(&["v1", "scripts", name, "versions", &version.to_string(), "source"])
            .send_for_bytes()
            .await
    }

    /// Runs a script without making a run.
    pub async fn invoke(&self, name: &str, invocation: &InvokeRequest) -> Result<Invocation> {
        self.invocation(name, invocation).send().await
    }

    fn invocation(&self, name: &str, invocation: &InvokeRequest) -> Request {
        self.post(&["v1", "scripts", name, "invoke"])
            .json(invocation)
            .timeout(INVOKE_TIMEOUT_MAX + INVOKE_SPARE)
    }

    /// Makes a version the active one.
    pub async fn activate_script(&self, name: &str, version: i32) -> Result<Script> {
        self.put(&["v1", "scripts", name, "active"])
            .json(&ActivateRequest { version })
            .send()
            .await
    }

    /// Has the server upload wasm from an address.
    pub async fn fetch_script(&self, name: &str, url: &str, sha256: &str) -> Result<ScriptVersion> {
        let body = FetchRequest {
            url: url.to_owned(),
            sha256: sha256.to_owned(),
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_ends_before_the_request_is_given_up() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let request = client.invocation("slow", &InvokeRequest::default());
        assert!(request.timeout > Some(INVOKE_TIMEOUT_MAX));
    }
}
