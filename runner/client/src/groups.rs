//! Groups and their revisions.

use heddle_domain::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, List, More, Result};

/// A group as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its newest revision.
    pub revision: i64,
    /// Whether schedules and upstreams start runs of it.
    #[serde(default)]
    pub enabled: bool,
    /// Its category.
    #[serde(default)]
    pub category: Option<String>,
    /// When it was made.
    #[serde(default)]
    pub created_at: Option<Time>,
    /// When it was changed last.
    #[serde(default)]
    pub updated_at: Option<Time>,
    /// Its spec: schedules, tasks and so on.
    #[serde(flatten)]
    pub spec: More,
}

/// A revision of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// From 1.
    pub revision: i64,
    /// Who made it, when, and its spec.
    #[serde(flatten)]
    pub more: More,
}

/// A group's tasks and edges, or its place among other groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph(pub Value);

impl Client {
    /// Makes or changes a group. With `revision`, only if it still is at that one.
    pub async fn put_group(&self, name: &str, spec: &Value, revision: Option<i64>) -> Result<Group> {
        let request = self.put(&["v1", "groups", name]).json(spec);
        match revision {
            Some(revision) => request.if_match(revision).send().await,
            None => request.send().await,
        }
    }

    /// A group.
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
    pub async fn delete_group(&self, name: &str, force: bool) -> Result<Value> {
        let request = self.delete(&["v1", "groups", name]);
        let request = if force { request.query("force", true) } else { request };
        Ok(request.send_for_option().await?.unwrap_or(Value::Null))
    }

    /// Checks a spec without keeping it.
    pub async fn validate_group(&self, name: &str, spec: &Value) -> Result<Value> {
        Ok(self
            .post(&["v1", "groups", name, "validate"])
            .json(spec)
            .send_for_option()
            .await?
            .unwrap_or(Value::Null))
    }

    /// A group's revisions, newest first, one page.
    pub async fn revisions(&self, name: &str, cursor: Option<&str>) -> Result<List<Revision>> {
        self.get(&["v1", "groups", name, "revisions"])
            .query_if("cursor", cursor)
            .send()
            .await
    }

    /// A group's graph.
    pub async fn graph(&self, name: &str) -> Result<Graph> {
        self.get(&["v1", "groups", name, "graph"]).send().await
    }

    /// Lets schedules and upstreams start runs again.
    pub async fn enable_group(&self, name: &str) -> Result<Group> {
        self.post(&["v1", "groups", name, "enable"])
            .json(&json!({}))
            .send()
            .await
    }

    /// Stops schedules and upstreams; `mode` is `drain` or `stop`.
    pub async fn disable_group(&self, name: &str, mode: &str) -> Result<Group> {
        self.post(&["v1", "groups", name, "disable"])
            .json(&json!({ "mode": mode }))
            .send()
            .await
    }

    /// The next instants of a group's schedules.
    pub async fn next_instants(&self, name: &str, count: u32) -> Result<Value> {
        self.get(&["v1", "groups", name, "next"])
            .query("count", count)
            .send()
            .await
    }
}
