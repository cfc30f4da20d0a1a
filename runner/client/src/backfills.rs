//! Backfills: runs for instants of the past.

use heddle_api::{Backfill, BackfillRequest, BackfillStarted};
use serde_json::json;
use uuid::Uuid;

use crate::{Client, Result};

impl Client {
    /// Starts a backfill; with `dry_run` the answer is a plan, and nothing is made.
    pub async fn backfill_group(&self, group: &str, request: &BackfillRequest) -> Result<BackfillStarted> {
        self.post(&["v1", "groups", group, "backfills"])
            .json(request)
            .send()
            .await
    }

    pub async fn backfill(&self, id: Uuid) -> Result<Backfill> {
        self.get(&["v1", "backfills", &id.to_string()]).send().await
    }

    /// `cancel`, `pause` or `resume`.
    pub async fn control_backfill(&self, id: Uuid, action: &str) -> Result<Backfill> {
        self.post(&["v1", "backfills", &id.to_string(), action])
            .json(&json!({}))
            .send()
            .await
    }
}
