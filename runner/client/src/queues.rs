//! Queues: task runs that workers outside Heddle do.

use std::time::Duration;

use heddle_domain::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
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

/// What a worker tells of a claim while it works on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// 0 to 1; shown with the task run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Lines for the attempt's log, up to 1,000 at a time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<ReportLine>,
}

/// A line for an attempt's log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportLine {
    /// The text.
    pub message: String,
    /// `trace`, `debug`, `info`, `warn` or `error`; default `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// What else there is to say.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

/// What became of one claim of many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimAnswer {
    /// The claim.
    pub id: Uuid,
    /// What the call about this claim alone would answer: 200, or 409 for an old token.
    pub status: u16,
    /// Why it was refused.
    #[serde(default)]
    pub detail: Option<String>,
    /// When the token becomes old, after a heartbeat.
    #[serde(default)]
    pub lease_expires_at: Option<Time>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: More,
}

#[derive(Deserialize)]
struct ClaimAnswers {
    items: Vec<ClaimAnswer>,
}

/// A queue as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Task runs that may be claimed.
    #[serde(default)]
    pub depth: i64,
    /// The depth was counted; that of a queue of more than 100,000 is an estimate.
    #[serde(default)]
    pub depth_exact: bool,
    /// Since when the oldest of them waits.
    #[serde(default)]
    pub oldest: Option<Time>,
    /// Task runs that workers hold.
    #[serde(default)]
    pub claimed: i64,
    /// Workers that are connected.
    #[serde(default)]
    pub workers: i64,
    /// Nothing is handed out.
    #[serde(default)]
    pub paused: bool,
    /// The rest.
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

    /// Extends a claim's lease and tells how far the work has come.
    pub async fn report(&self, claim: &Claim, report: &Report) -> Result<Value> {
        let body = serde_json::to_value(report).unwrap_or_default();
        self.on_claim(claim, "heartbeat", body).await
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

    /// Reports many successes in one call, which answers for each.
    pub async fn complete_all(&self, done: &[(&Claim, &Value)]) -> Result<Vec<ClaimAnswer>> {
        let word = |(claim, output): &(&Claim, &Value)| json!({"id": claim.id, "token": claim.token, "output": output});
        self.on_claims("complete", done.iter().map(word).collect()).await
    }

    /// Extends many claims in one call, which answers for each.
    pub async fn heartbeat_all(&self, claims: &[&Claim]) -> Result<Vec<ClaimAnswer>> {
        self.on_claims(
            "heartbeat",
            claims
                .iter()
                .map(|claim| json!({"id": claim.id, "token": claim.token}))
                .collect(),
        )
        .await
    }

    /// Gives many claims back in one call, which answers for each.
    pub async fn release_all(&self, claims: &[&Claim]) -> Result<Vec<ClaimAnswer>> {
        self.on_claims(
            "release",
            claims
                .iter()
                .map(|claim| json!({"id": claim.id, "token": claim.token}))
                .collect(),
        )
        .await
    }

    async fn on_claims(&self, action: &str, items: Vec<Value>) -> Result<Vec<ClaimAnswer>> {
        let request = self.post(&["v1", "claims", action]).json(&json!({"items": items}));
        let answers: ClaimAnswers = request.send().await?;
        Ok(answers.items)
    }

    /// A queue, with its workers.
    pub async fn queue(&self, queue: &str) -> Result<Queue> {
        self.get(&["v1", "queues", queue]).send().await
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
