//! Groups and their revisions.

use heddle_api::{Detached, DisableMode, DisableRequest, Graph, Group, List, NextInstants, Revision, Validation};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Client, Result};

impl Client {
    /// Makes or changes a group. With `revision`, only if it still is at that one.
    pub async fn put_group(&self, name: &str, spec: &Value, revision: Option<i32>) -> Result<Group> {
        let request = self.put(&["v1", "groups", name]).json(spec);
        match revision {
            Some(revision) => request.if_match(revision).send().await,
            None => request.send().await,
        }
    }

    pub async fn group(&self, name: &str) -> Result<Group> {
        self.get(&["v1", "groups", name]).send().await
    }

    /// One page of groups.
    pub async fn groups(&self, category: Option<&str>, cursor: Option<&str>) -> Result<List<Group>> {
        self.get(&["v1", "groups"])
            .query_if("category", category)
            .query_if("cursor", cursor)
            .send()
            .await
    }

    /// Deletes a group that has no upstreams; answers which groups no longer have it as theirs.
    pub async fn delete_group(&self, name: &str, force: bool) -> Result<Detached> {
        let request = self.delete(&["v1", "groups", name]);
        let request = if force { request.query("force", true) } else { request };
        request.send().await
    }

    /// Checks a spec without keeping it.
    pub async fn validate_group(&self, name: &str, spec: &Value) -> Result<Validation> {
        self.post(&["v1", "groups", name, "validate"]).json(spec).send().await
    }

    /// A group's revisions, newest first, one page.
    pub async fn revisions(&self, name: &str, cursor: Option<&str>) -> Result<List<Revision>> {
        self.get(&["v1", "groups", name, "revisions"])
            .query_if("cursor", cursor)
            .send()
            .await
    }

    pub async fn graph(&self, name: &str) -> Result<Graph> {
        self.get(&["v1", "groups", name, "graph"]).send().await
    }

    /// Lets schedules and upstreams start runs again. The answer is the group: as a [`Group`], or as a
    /// [`serde_json::Value`] with all that the server says of it, which may be newer than this client.
    pub async fn enable_group<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.post(&["v1", "groups", name, "enable"])
            .json(&json!({}))
            .send()
            .await
    }

    /// Stops schedules and upstreams; see [`Client::enable_group`] about `T`.
    pub async fn disable_group<T: DeserializeOwned>(&self, name: &str, mode: DisableMode) -> Result<T> {
        self.post(&["v1", "groups", name, "disable"])
            .json(&DisableRequest { mode })
            .send()
            .await
    }

    /// The next instants of a group's schedules.
    pub async fn next_instants(&self, name: &str, count: u32) -> Result<NextInstants> {
        self.get(&["v1", "groups", name, "next"])
            .query("count", count)
            .send()
            .await
    }
}
