//! Runs: start, watch, steer.

use std::time::Duration;

use heddle_api::{
    Attempt, BatchItem, BatchResults, Bulk, BulkReport, ClearTask, List, LogLine, RerunOptions, Run, RunFilter,
    ScriptsChoice, StateOverride, Submission, TaskDetail, TaskOverride, TaskState,
};
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;

use crate::request::LONG_TIMEOUT;
use crate::{Client, Request, Result, ServerEvents};

/// How long one long poll asks the server to hold.
const POLL: Duration = Duration::from_secs(20);

impl Client {
    /// Starts a run of a group.
    pub async fn start_run(&self, group: &str, submission: &Submission) -> Result<Run> {
        self.post(&["v1", "groups", group, "runs"])
            .json(submission)
            .send()
            .await
    }

    /// Starts up to 10,000 runs of a group; results are in the order of the submissions.
    pub async fn start_runs(&self, group: &str, submissions: &[Submission]) -> Result<Vec<BatchItem>> {
        let body = json!({ "runs": submissions });
        let results: BatchResults = self
            .post(&["v1", "groups", group, "runs", "batch"])
            .json(&body)
            .send()
            .await?;
        Ok(results.items)
    }

    /// A run with its task runs.
    pub async fn run(&self, id: Uuid) -> Result<Run> {
        self.get(&["v1", "runs", &id.to_string()]).send().await
    }

    /// A run, once it has ended or `wait` has passed.
    pub async fn run_within(&self, id: Uuid, wait: Duration) -> Result<Run> {
        self.get(&["v1", "runs", &id.to_string()]).wait(wait).send().await
    }

    /// A run, once it has ended, however long that takes.
    pub async fn wait_for_run(&self, id: Uuid) -> Result<Run> {
        loop {
            let run = self.run_within(id, POLL).await?;
            if run.state.is_final() {
                return Ok(run);
            }
        }
    }

    /// One page of runs, newest first.
    pub async fn runs(&self, filter: &RunFilter, limit: Option<u32>, cursor: Option<&str>) -> Result<List<Run>> {
        self.get(&["v1", "runs"])
            .filter(filter)
            .query_if("limit", limit)
            .query_if("cursor", cursor)
            .send()
            .await
    }

    /// A new run like this one; see [`Client::control_run`] about `T`.
    pub async fn rerun<T: DeserializeOwned>(&self, id: Uuid, options: &RerunOptions) -> Result<T> {
        let request = self.post(&["v1", "runs", &id.to_string(), "rerun"]);
        request.json(options).send().await
    }

    /// `cancel`, `pause` or `resume`. The answer is the run: as a [`Run`], or as a [`serde_json::Value`] with all that the
    /// server says of it, which may be newer than this client.
    pub async fn control_run<T: DeserializeOwned>(&self, id: Uuid, action: &str) -> Result<T> {
        let request = self.post(&["v1", "runs", &id.to_string(), action]);
        request.json(&json!({})).send().await
    }

    /// Continues a run that has ended, where it failed; see [`Client::control_run`] about `T`.
    pub async fn restart_run<T: DeserializeOwned>(&self, id: Uuid, choice: &ScriptsChoice) -> Result<T> {
        let request = self.post(&["v1", "runs", &id.to_string(), "restart"]);
        request.json(choice).send().await
    }

    /// Sets a run's state: `succeeded` or `failed`; see [`Client::control_run`] about `T`.
    pub async fn set_run_state<T: DeserializeOwned>(&self, id: Uuid, set: &StateOverride) -> Result<T> {
        let request = self.put(&["v1", "runs", &id.to_string(), "state"]);
        request.json(set).send().await
    }

    /// Removes a run that has ended.
    pub async fn delete_run(&self, id: Uuid) -> Result<()> {
        self.delete(&["v1", "runs", &id.to_string()]).send_for_nothing().await
    }

    /// Does something to all runs that a filter finds.
    pub async fn control_runs(&self, bulk: &Bulk) -> Result<BulkReport> {
        self.post(&["v1", "runs", "bulk"])
            .json(bulk)
            .timeout(LONG_TIMEOUT)
            .send()
            .await
    }

    /// A task run with its attempts.
    pub async fn task(&self, id: Uuid, task: &str, item: Option<u32>) -> Result<TaskDetail> {
        self.get(&["v1", "runs", &id.to_string(), "tasks", task])
            .query_if("item", item)
            .send()
            .await
    }

    /// The attempts of a task run.
    pub async fn attempts(&self, id: Uuid, task: &str, item: Option<u32>) -> Result<Vec<Attempt>> {
        Ok(self.task(id, task, item).await?.attempts)
    }

    /// Sets a task run's state: `succeeded`, `failed` or `skipped`.
    pub async fn override_task(
        &self,
        id: Uuid,
        task: &str,
        item: Option<u32>,
        state: TaskState,
        reason: &str,
    ) -> Result<TaskDetail> {
        let body = TaskOverride {
            state,
            reason: reason.to_owned(),
            output: None,
        };
        self.put(&["v1", "runs", &id.to_string(), "tasks", task, "state"])
            .query_if("item", item)
            .json(&body)
            .send()
            .await
    }

    /// Retries a task run at once.
    pub async fn retry_task(&self, id: Uuid, task: &str, item: Option<u32>) -> Result<TaskDetail> {
        self.post(&["v1", "runs", &id.to_string(), "tasks", task, "retry"])
            .query_if("item", item)
            .json(&json!({}))
            .send()
            .await
    }

    /// Runs a task again within a run that has ended, and with `downstream` everything that depends on it.
    pub async fn clear_task(&self, id: Uuid, task: &str, item: Option<u32>, clear: &ClearTask) -> Result<TaskDetail> {
        self.post(&["v1", "runs", &id.to_string(), "tasks", task, "clear"])
            .query_if("item", item)
            .json(clear)
            .send()
            .await
    }

    /// What happens in a run, until it has ended.
    pub async fn run_events(&self, id: Uuid) -> Result<ServerEvents> {
        self.get(&["v1", "runs", &id.to_string(), "events"])
            .send_for_events()
            .await
    }

    /// A task's log from its beginning, one page.
    pub async fn logs(&self, id: Uuid, task: &str, item: Option<u32>, cursor: Option<&str>) -> Result<List<LogLine>> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "logs"];
        self.get(&path)
            .query_if("item", item)
            .query_if("cursor", cursor)
            .query("limit", 500)
            .send()
            .await
    }

    /// A task's log as it is written, until the task run is settled.
    pub async fn follow_logs(&self, id: Uuid, task: &str, item: Option<u32>) -> Result<ServerEvents> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "logs"];
        self.get(&path)
            .query_if("item", item)
            .query("follow", true)
            .send_for_events()
            .await
    }
}

impl Request {
    /// Puts a filter into the query of a list of runs.
    pub fn filter(self, filter: &RunFilter) -> Self {
        let RunFilter {
            group,
            state,
            trigger,
            label,
            labels,
            key,
            from,
            to,
            logical_from,
            logical_to,
            // Only bulk controls know ids.
            ids: _,
            queue,
            script,
            backfill,
        } = filter;
        let several = [
            ("group", group),
            ("state", state),
            ("trigger", trigger),
            ("label", label),
            ("queue", queue),
            ("script", script),
        ];
        let mut request = self;
        for (name, words) in several {
            for word in &words.0 {
                request = request.query(name, word);
            }
        }
        for (name, value) in labels {
            request = request.query("label", format_args!("{name}={value}"));
        }
        request
            .query_if("key", key.as_deref())
            .query_if("from", from.as_deref())
            .query_if("to", to.as_deref())
            .query_if("logical_from", logical_from.as_deref())
            .query_if("logical_to", logical_to.as_deref())
            .query_if("backfill", *backfill)
    }
}

#[cfg(test)]
mod tests {
    use heddle_api::ErrorKind;

    use super::*;

    #[test]
    fn a_run_as_the_contract_writes_it_is_read_and_what_is_new_is_passed_over() {
        let text = json!({
            "id": "0199f5a0-0000-7000-8000-000000000000", "group": "g", "revision": 1,
            "logical_time": "2026-11-20T00:00:00.000000Z",
            "data_interval": {"start": "2026-11-19T00:00:00.000000Z", "end": "2026-11-20T00:00:00.000000Z"},
            "trigger": "manual", "state": "failed", "params": {"a": 1}, "task_params": {}, "key": null, "priority": 0,
            "labels": {}, "waiting_for": [], "created_at": "2026-11-20T00:00:00.000000Z", "started_at": null,
            "finished_at": null, "error": null, "skipped": null, "added": 7,
            "tasks": [{"task": "t", "item": null, "state": "upstream_failed", "attempt": 0, "output": null,
                       "error": {"kind": "trap", "message": "m"}, "node": null, "progress": 0.5}],
        });
        let run: Run = serde_json::from_value(text).unwrap();
        let task = &run.tasks.as_ref().unwrap()[0];
        assert_eq!(task.error.as_ref().unwrap().kind, ErrorKind::Trap);
        assert_eq!(task.progress, Some(0.5));
    }

    #[test]
    fn an_empty_submission_says_nothing() {
        assert_eq!(serde_json::to_value(Submission::default()).unwrap(), json!({}));
    }

    #[test]
    fn a_filter_says_in_a_query_what_it_says_in_a_body() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let filter = RunFilter {
            group: ["a", "b"].into_iter().collect(),
            labels: [("team".to_owned(), "x".to_owned())].into(),
            key: Some("k".into()),
            ..RunFilter::default()
        };
        let url = client.get(&["v1", "runs"]).filter(&filter).url().to_string();
        assert!(url.ends_with("/v1/runs?group=a&group=b&label=team%3Dx&key=k"), "{url}");
    }
}
