//! Nodes, tokens, secrets, connections, pools, and things that are put by name.

use heddle_api::Node;
use heddle_domain::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, List, More, Result};

/// A token to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewToken {
    /// What it is for.
    pub name: String,
    /// `viewer`, `operator`, `author`, `worker` or `admin`.
    pub role: String,
    /// For a worker: the queues that it may claim from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// For a worker: the users that it may poll for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uids: Option<Vec<String>>,
    /// Until when it is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// A token; the secret itself is shown once, when it is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// What it is for.
    pub name: String,
    /// What it may do.
    pub role: String,
    /// The secret.
    #[serde(default)]
    pub token: Option<String>,
    /// The rest.
    #[serde(flatten)]
    pub more: More,
}

impl Client {
    /// All nodes.
    pub async fn nodes(&self) -> Result<List<Node>> {
        self.get(&["v1", "nodes"]).send().await
    }

    /// Makes a token.
    pub async fn create_token(&self, token: &NewToken) -> Result<Token> {
        self.post(&["v1", "tokens"]).json(token).send().await
    }

    /// Sets a secret, which nobody can read back, for the scripts of these groups (`*`: of all).
    pub async fn put_secret(&self, name: &str, value: &str, groups: &[String]) -> Result<()> {
        let body = json!({ "value": value, "groups": groups });
        self.put_named("secrets", name, &body).await.map(drop)
    }

    /// Seals secrets, connections and channels with the current key: the last step of changing it.
    pub async fn reseal_secrets(&self) -> Result<Value> {
        self.post(&["v1", "secrets-key", "reseal"])
            .json(&json!({}))
            .send()
            .await
    }

    /// Who the client's token says that it is: `{actor, role, queues, uids, expires_at}`.
    pub async fn session(&self) -> Result<Value> {
        self.get(&["v1", "session"]).send().await
    }

    /// How long what is kept.
    pub async fn retention(&self) -> Result<Value> {
        self.get(&["v1", "retention"]).send().await
    }

    /// Changes how long what is kept; what is left out takes its default. With `dry_run` nothing changes, and the answer
    /// says what would be removed now.
    pub async fn put_retention(&self, retention: &Value, dry_run: bool) -> Result<Value> {
        let flag = dry_run.then_some("true");
        self.put(&["v1", "retention"])
            .query_if("dry_run", flag)
            .json(retention)
            .send()
            .await
    }

    /// Removes now what is due, or says what would be.
    pub async fn prune(&self, dry_run: bool) -> Result<Value> {
        self.post(&["v1", "retention", "prune"])
            .json(&json!({"dry_run": dry_run}))
            .send()
            .await
    }

    /// Names an SQL database that scripts of these groups (`*`: of all) may use.
    pub async fn put_connection(&self, name: &str, url: &str, groups: &[String]) -> Result<()> {
        let body = json!({ "url": url, "groups": groups });
        self.put_named("connections", name, &body).await.map(drop)
    }

    /// Sets how many slots a pool has.
    pub async fn put_pool(&self, name: &str, slots: u32) -> Result<()> {
        self.put_named("pools", name, &json!({ "slots": slots }))
            .await
            .map(drop)
    }

    /// Whether migrations (and the demo, if there is one) are in and requests are served.
    pub async fn is_ready(&self) -> bool {
        self.get(&["readyz"]).send_for_nothing().await.is_ok()
    }

    /// Puts a thing of a kind that is known by name: `categories`, `templates`, `channels`, `topics`, `pools`, ...
    pub async fn put_named(&self, kind: &str, name: &str, body: &Value) -> Result<Value> {
        Ok(self
            .put(&["v1", kind, name])
            .json(body)
            .send_for_option()
            .await?
            .unwrap_or(Value::Null))
    }

    /// One thing of a kind.
    pub async fn get_named(&self, kind: &str, name: &str) -> Result<Value> {
        self.get(&["v1", kind, name]).send().await
    }

    /// One page of the things of a kind.
    pub async fn list_named(&self, kind: &str, cursor: Option<&str>) -> Result<List<Value>> {
        self.get(&["v1", kind]).query_if("cursor", cursor).send().await
    }

    /// Deletes one thing of a kind.
    pub async fn delete_named(&self, kind: &str, name: &str) -> Result<()> {
        self.delete(&["v1", kind, name]).send_for_nothing().await
    }
}
