//! Queues: task runs that workers outside Heddle do.

use std::time::Duration;

use heddle_domain::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{Client, More, Page, Result};

/// What a worker asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The worker's name.
    pub worker: String,
    /// How many at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// For how long, unless extended by a heartbeat; such as `30s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// What the worker can do.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tags: Vec<String>,
}

/// A task run that the worker holds until its lease expires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The claim's id.
    pub id: Uuid,
    /// Proves that the claim is still ours.
    pub token: String,
    /// The run.
    #[serde(default)]
    pub run: Value,
    /// Its group.
    #[serde(default)]
    pub group: String,
    /// The task.
    #[serde(default)]
    pub task: String,
    /// Which item of a mapped task.
    #[serde(default)]
    pub item: Option<i64>,
    /// From 1.
    #[serde(default)]
    pub attempt: i64,
    /// What to do it with.
    #[serde(default)]
    pub params: Value,
    /// What a script would learn from `context`.
    #[serde(default)]
    pub context: Value,
    /// When the token becomes old.
    #[serde(default)]
    pub lease_expires_at: Option<Time>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: More,
}

/// What a claim call gives; fewer than asked for, or none, is no error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// The claimed task runs.
    pub items: Vec<Claim>,
}

/// A queue as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Depth, oldest, workers.
    #[serde(flatten)]
    pub more: More,
}

impl Client {
    /// Claims task runs, waiting up to `wait` for the first.
    pub async fn claim(&self, queue: &str, request: &ClaimRequest, wait: Duration) -> Result<Vec<Claim>> {
        let mut body = serde_json::to_value(request).unwrap_or_default();
        body["wait"] = json!(format!("{}ms", wait.as_millis()));
        let request = self.post(&["v1", "queues", queue, "claims"]).json(&body);
        let claims: Claims = request.timeout(Duration::from_secs(60) + wait).send().await?;
        Ok(claims.items)
    }

    /// Extends a claim's lease.
    pub async fn heartbeat(&self, claim: &Claim) -> Result<Value> {
        self.on_claim(claim, "heartbeat", json!({})).await
    }

    /// Reports success.
    pub async fn complete(&self, claim: &Claim, output: &Value) -> Result<Value> {
        self.on_claim(claim, "complete", json!({ "output": output })).await
    }

    /// Reports a failure: `error` is a message, or an object with one. A fatal one is not tried again.
    pub async fn fail(&self, claim: &Claim, error: &Value, fatal: bool) -> Result<Value> {
        self.on_claim(claim, "fail", json!({ "error": error, "fatal": fatal }))
            .await
    }

    /// Gives a claim back undone.
    pub async fn release(&self, claim: &Claim) -> Result<Value> {
        self.on_claim(claim, "release", json!({})).await
    }

    async fn on_claim(&self, claim: &Claim, action: &str, mut body: Value) -> Result<Value> {
        body["token"] = json!(claim.token);
        let request = self.post(&["v1", "claims", &claim.id.to_string(), action]).json(&body);
        Ok(request.send_for_option().await?.unwrap_or(Value::Null))
    }

    /// All queues.
    pub async fn queues(&self, cursor: Option<&str>) -> Result<Page<Queue>> {
        self.get(&["v1", "queues"]).query_if("cursor", cursor).send().await
    }

    /// `pause` or `resume`.
    pub async fn control_queue(&self, queue: &str, action: &str) -> Result<Value> {
        let request = self.post(&["v1", "queues", queue, action]).json(&json!({}));
        Ok(request.send_for_option().await?.unwrap_or(Value::Null))
    }
}
