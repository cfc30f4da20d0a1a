//! Queues: task runs that workers outside Heddle do.

use std::time::Duration;

use heddle_api::{
    Claim, ClaimAnswer, ClaimAnswers, ClaimFailure, ClaimOutput, ClaimRequest, ClaimToken, Claims, Heartbeat, Items,
    OfClaim, Queue, ReportLine,
};
use heddle_domain::Span;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Client, List, Request, Result};

/// What a worker reports of a claim while it works on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// 0 to 1; shown with the task run.
    pub progress: Option<f64>,
    /// In words, up to 1,000 characters.
    pub note: Option<String>,
    /// Lines for the attempt's log, up to 1,000 at a time.
    pub log: Vec<ReportLine>,
}

impl Client {
    /// Claims task runs, waiting up to `wait` for the first.
    pub async fn claim(&self, queue: &str, request: &ClaimRequest, wait: Duration) -> Result<Vec<Claim>> {
        let request = ClaimRequest {
            wait: Some(Span::from_std(wait)),
            ..request.clone()
        };
        let request = self.post(&["v1", "queues", queue, "claims"]).json(&request);
        let claims: Claims = request.timeout(Duration::from_secs(60) + wait).send().await?;
        Ok(claims.items)
    }

    /// Extends a claim's lease.
    pub async fn heartbeat(&self, claim: &Claim) -> Result<ClaimAnswer> {
        self.report(claim, &Report::default()).await
    }

    /// The same, but waits no longer than `timeout` for the answer: a call that hangs must not cost the lease.
    pub(crate) async fn heartbeat_within(&self, claim: &Claim, timeout: Duration) -> Result<ClaimAnswer> {
        self.word_of_claim(claim, "heartbeat", &heartbeat(claim, &Report::default()))
            .timeout(timeout)
            .send()
            .await
    }

    /// Extends a claim's lease and tells how far the work has come.
    pub async fn report(&self, claim: &Claim, report: &Report) -> Result<ClaimAnswer> {
        self.word_of_claim(claim, "heartbeat", &heartbeat(claim, report))
            .send()
            .await
    }

    pub async fn complete(&self, claim: &Claim, output: &Value) -> Result<ClaimAnswer> {
        self.completion(claim, output).send().await
    }

    /// The request of [`Client::complete`].
    pub(crate) fn completion(&self, claim: &Claim, output: &Value) -> Request {
        self.word_of_claim(claim, "complete", &done(claim, output))
    }

    /// Reports a failure: `error` is a message, or an object with one. A fatal one is not tried again.
    pub async fn fail(&self, claim: &Claim, error: &Value, fatal: bool) -> Result<ClaimAnswer> {
        self.failure(claim, error, fatal).send().await
    }

    /// The request of [`Client::fail`].
    pub(crate) fn failure(&self, claim: &Claim, error: &Value, fatal: bool) -> Request {
        let word = ClaimFailure {
            token: claim.token.clone(),
            error: error.clone(),
            fatal,
            retry_after: None,
        };
        self.word_of_claim(claim, "fail", &word)
    }

    /// Gives a claim back undone.
    pub async fn release(&self, claim: &Claim) -> Result<ClaimAnswer> {
        self.releasing(claim).send().await
    }

    /// The request of [`Client::release`].
    pub(crate) fn releasing(&self, claim: &Claim) -> Request {
        self.word_of_claim(claim, "release", &token(claim))
    }

    /// Reports many successes in one call, which answers for each.
    pub async fn complete_all(&self, all: &[(&Claim, &Value)]) -> Result<Vec<ClaimAnswer>> {
        let words = all.iter().map(|(claim, output)| of(claim, done(claim, output)));
        self.on_claims("complete", words.collect()).await
    }

    /// Extends many claims in one call, which answers for each.
    pub async fn heartbeat_all(&self, claims: &[&Claim]) -> Result<Vec<ClaimAnswer>> {
        let words = claims.iter().map(|claim| of(claim, token(claim)));
        self.on_claims("heartbeat", words.collect()).await
    }

    /// Gives many claims back in one call, which answers for each.
    pub async fn release_all(&self, claims: &[&Claim]) -> Result<Vec<ClaimAnswer>> {
        let words = claims.iter().map(|claim| of(claim, token(claim)));
        self.on_claims("release", words.collect()).await
    }

    async fn on_claims<T: Serialize>(&self, action: &str, items: Vec<OfClaim<T>>) -> Result<Vec<ClaimAnswer>> {
        let request = self.post(&["v1", "claims", action]).json(&Items { items });
        let answers: ClaimAnswers = request.send().await?;
        Ok(answers.items)
    }

    fn word_of_claim(&self, claim: &Claim, action: &str, word: &impl Serialize) -> Request {
        self.post(&["v1", "claims", &claim.id.to_string(), action]).json(word)
    }

    /// A queue, with its workers.
    pub async fn queue(&self, queue: &str) -> Result<Queue> {
        self.get(&["v1", "queues", queue]).send().await
    }

    pub async fn queues(&self, cursor: Option<&str>) -> Result<List<Queue>> {
        self.get(&["v1", "queues"]).query_if("cursor", cursor).send().await
    }

    /// `action` is `pause` or `resume`.
    pub async fn control_queue(&self, queue: &str, action: &str) -> Result<Queue> {
        self.post(&["v1", "queues", queue, action])
            .json(&json!({}))
            .send()
            .await
    }
}

fn token(claim: &Claim) -> ClaimToken {
    ClaimToken {
        token: claim.token.clone(),
    }
}

fn heartbeat(claim: &Claim, report: &Report) -> Heartbeat {
    Heartbeat {
        token: claim.token.clone(),
        lease: None,
        progress: report.progress,
        note: report.note.clone(),
        log: report.log.clone(),
    }
}

fn done(claim: &Claim, output: &Value) -> ClaimOutput {
    ClaimOutput {
        token: claim.token.clone(),
        output: output.clone(),
    }
}

fn of<T>(claim: &Claim, word: T) -> OfClaim<T> {
    OfClaim { id: claim.id, word }
}
