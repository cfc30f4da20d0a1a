//! Nodes, tokens, secrets, connections, pools, and things that are put by name.

use heddle_api::{
    Connection, List, MadeToken, NewToken, Node, Pool, PoolSpec, Prune, Pruned, Retention, RetentionOrPruned,
    RotatedKeys, Secret, SecretSpec, SessionsEnded,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::request::LONG_TIMEOUT;
use crate::{Client, Result};

impl Client {
    pub async fn nodes(&self) -> Result<List<Node>> {
        self.get(&["v1", "nodes"]).send().await
    }

    /// The answer has the token's value, this once.
    pub async fn create_token(&self, token: &NewToken) -> Result<MadeToken> {
        self.post(&["v1", "tokens"]).json(token).send().await
    }

    /// Sets a secret, which nobody can read back, for the scripts of these groups (`*`: of all).
    pub async fn put_secret(&self, name: &str, value: &str, groups: &[String]) -> Result<Secret> {
        let spec = SecretSpec {
            value: value.to_owned(),
            groups: groups.to_vec(),
            categories: Vec::new(),
        };
        self.put(&["v1", "secrets", name]).json(&spec).send().await
    }

    /// Seals secrets, connections and channels with the current key: the last step of changing it.
    pub async fn rotate_keys(&self) -> Result<RotatedKeys> {
        self.post(&["v1", "secrets-key", "rotate"])
            .json(&json!({}))
            .send()
            .await
    }

    /// The identity of the client's token: `{actor, role, queues, uids, expires_at}`.
    pub async fn session(&self) -> Result<Value> {
        self.get(&["v1", "session"]).send().await
    }

    /// Ends all sessions of a token or of a person, by the name that the audit has. `subject`: only of the person with
    /// this id at the provider, if several people have the name.
    pub async fn end_sessions(&self, actor: &str, subject: Option<&str>) -> Result<SessionsEnded> {
        let request = self.delete(&["v1", "sessions", actor]);
        request.query_if("subject", subject).send().await
    }

    /// How long things are kept.
    pub async fn retention(&self) -> Result<Retention> {
        self.get(&["v1", "retention"]).send().await
    }

    /// Changes how long things are kept; a field that is left out gets its default. With `dry_run` nothing changes, and
    /// the answer says what would be removed now.
    pub async fn put_retention(&self, retention: &impl Serialize, dry_run: bool) -> Result<RetentionOrPruned> {
        let flag = dry_run.then_some("true");
        self.put(&["v1", "retention"])
            .query_if("dry_run", flag)
            .json(retention)
            .timeout(LONG_TIMEOUT)
            .send()
            .await
    }

    /// Removes what is due now, or says what would be.
    pub async fn prune(&self, dry_run: bool) -> Result<Pruned> {
        self.post(&["v1", "retention", "prune"])
            .json(&Prune { dry_run })
            .timeout(LONG_TIMEOUT)
            .send()
            .await
    }

    /// Names an SQL database that scripts of these groups (`*`: of all) may use.
    pub async fn put_connection(&self, name: &str, url: &str, groups: &[String]) -> Result<Connection> {
        let body = json!({ "url": url, "groups": groups });
        self.put(&["v1", "connections", name]).json(&body).send().await
    }

    /// Sets how many slots a pool has.
    pub async fn put_pool(&self, name: &str, slots: u32) -> Result<Pool> {
        let spec = PoolSpec { slots: slots.into() };
        self.put(&["v1", "pools", name]).json(&spec).send().await
    }

    /// Whether migrations (and the demo, if there is one) are in and requests are served.
    pub async fn is_ready(&self) -> bool {
        self.get(&["readyz"]).send_for_nothing().await.is_ok()
    }

    /// Puts a thing of a kind that is known by name: `categories`, `templates`, `channels`, `topics`, `pools`, ...
    pub async fn put_named(&self, kind: &str, name: &str, body: &Value) -> Result<Value> {
        self.put(&["v1", kind, name]).json(body).send_for_object().await
    }

    /// One thing of a kind.
    pub async fn get_named(&self, kind: &str, name: &str) -> Result<Value> {
        self.get(&["v1", kind, name]).send_for_object().await
    }
}
