//! Offers: work that users poll for.

use std::time::Duration;

use heddle_domain::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, Lines, List, More, Result};

/// One user's hold on one occurrence of an offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Its id.
    pub assignment_id: String,
    /// The offer.
    #[serde(default)]
    pub offer: String,
    /// The user.
    #[serde(default)]
    pub uid: String,
    /// `uid_x` or `gid_x`.
    #[serde(default)]
    pub audience: String,
    /// The due instant.
    #[serde(default)]
    pub occurrence: Option<Time>,
    /// What to do.
    #[serde(default)]
    pub params: Value,
    /// `assigned`, `completed`, `failed`, `revoked` or `expired`.
    pub state: String,
    /// Whether it had been handed out before.
    #[serde(default)]
    pub redo: bool,
    /// When it was handed out first.
    #[serde(default)]
    pub assigned_at: Option<Time>,
    /// When it was done.
    #[serde(default)]
    pub finished_at: Option<Time>,
    /// What the user reported.
    #[serde(default)]
    pub result: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: More,
}

/// What a user reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Which assignment.
    pub assignment_id: String,
    /// `completed` or `failed`.
    pub status: String,
    /// Whatever is worth keeping.
    #[serde(default)]
    pub result: Value,
}

impl Client {
    /// What a user (the bare id) has to do now, waiting up to `wait` for it; `None` if there is nothing.
    pub async fn next_assignment(&self, uid: &str, wait: Duration) -> Result<Option<Assignment>> {
        let body = json!({ "wait": format!("{}ms", wait.as_millis()) });
        let request = self.post(&["v1", "dispatch", uid, "next"]).json(&body);
        request.timeout(Duration::from_secs(60) + wait).send_for_option().await
    }

    /// Reports what became of an assignment.
    pub async fn complete_assignment(&self, uid: &str, completion: &Completion) -> Result<Assignment> {
        self.post(&["v1", "dispatch", uid, "complete"])
            .json(completion)
            .send()
            .await
    }

    /// Takes an assignment back.
    pub async fn revoke_assignment(&self, assignment_id: &str) -> Result<Value> {
        let request = self
            .post(&["v1", "assignments", assignment_id, "revoke"])
            .json(&json!({}));
        Ok(request.send_for_option().await?.unwrap_or(Value::Null))
    }

    /// Makes or changes an offer.
    pub async fn put_offer(&self, id: &str, offer: &Value) -> Result<Value> {
        self.put(&["v1", "offers", id]).json(offer).send().await
    }

    /// One page of offers.
    pub async fn offers(&self, cursor: Option<&str>) -> Result<List<Value>> {
        self.get(&["v1", "offers"]).query_if("cursor", cursor).send().await
    }

    /// Replaces an audience's members (`gid_team`).
    pub async fn put_members(&self, audience: &str, members: &[&str]) -> Result<Value> {
        let request = self
            .put(&["v1", "audiences", audience, "members"])
            .json(&json!({ "members": members }));
        Ok(request.send_for_option().await?.unwrap_or(Value::Null))
    }

    /// Adds and removes members.
    pub async fn patch_members(&self, audience: &str, add: &[&str], remove: &[&str]) -> Result<Value> {
        let request = self.request(crate::Method::PATCH, &["v1", "audiences", audience, "members"]);
        let request = request.json(&json!({ "add": add, "remove": remove }));
        Ok(request.send_for_option().await?.unwrap_or(Value::Null))
    }

    /// Events after a cursor, of the kinds named (none: all); ends at the newest unless `follow`.
    pub async fn events(&self, after: Option<&str>, kinds: &[&str], follow: bool) -> Result<Lines> {
        let kinds = (!kinds.is_empty()).then(|| kinds.join(","));
        let request = self
            .get(&["v1", "events"])
            .query_if("after", after)
            .query_if("kinds", kinds);
        request.query("follow", follow).send_for_lines().await
    }
}
