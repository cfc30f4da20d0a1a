//! Runs: start, watch, steer.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_domain::Time;
use heddle_domain::state::{AttemptState, ErrorKind, RunState, TaskState, Trigger};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{Client, Error, More, Page, Result, ServerEvents};

/// How long one long poll asks the server to hold.
const POLL: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Submission {
    /// Params for all tasks.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Params for one task each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub task_params: BTreeMap<String, Map<String, Value>>,
    /// Which instant the run is for; default now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_time: Option<Time>,
    /// Unique per group for as long as the run is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `params` or `params_kept`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<String>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// What the run can be found by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A channel's name or a URL that is told of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Start although the group is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// One execution of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: Uuid,
    /// Its group.
    pub group: String,
    /// The group's revision that it is pinned to.
    #[serde(default)]
    pub revision: i64,
    /// The instant that it is for.
    #[serde(default)]
    pub logical_time: Option<Time>,
    /// From the previous instant to this one.
    #[serde(default)]
    pub data_interval: Option<DataInterval>,
    /// Why it was made.
    pub trigger: Trigger,
    /// Where it stands.
    pub state: RunState,
    /// The params that it was started with.
    #[serde(default)]
    pub params: Value,
    /// Its key.
    #[serde(default)]
    pub key: Option<String>,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i16,
    /// What it can be found by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What a `waiting` run waits for.
    #[serde(default)]
    pub waiting_for: Value,
    /// Why it was never begun: `overlap` or `max_waiting`.
    #[serde(default)]
    pub skipped: Option<String>,
    /// When it was made.
    #[serde(default)]
    pub created_at: Option<Time>,
    /// When its first task started.
    #[serde(default)]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default)]
    pub finished_at: Option<Time>,
    /// Why it failed.
    #[serde(default)]
    pub error: Value,
    /// The state that an operator set by hand, while it stands; lists of runs leave it out.
    #[serde(default, rename = "override")]
    pub set_by_hand: Option<Override>,
    /// Its task runs; lists of runs leave them out.
    #[serde(default)]
    pub tasks: Vec<TaskRun>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: More,
}

/// A state that an operator set by hand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Override {
    /// The state.
    pub state: TaskState,
    /// Why.
    pub reason: String,
    /// Who.
    pub actor: String,
    /// When.
    pub at: Time,
}

/// The span of time that a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInterval {
    /// Inclusive.
    pub start: Time,
    /// Exclusive: the logical time.
    pub end: Time,
}

/// One task within a run, or one item of a mapped task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRun {
    /// The task.
    pub task: String,
    /// Which item of a mapped task.
    #[serde(default)]
    pub item: Option<i64>,
    /// Where it stands.
    pub state: TaskState,
    /// How many attempts were begun.
    #[serde(default)]
    pub attempt: Option<i64>,
    /// When a `retrying` one is tried again.
    #[serde(default)]
    pub next_attempt_at: Option<Time>,
    /// What a `ready` one waits for.
    #[serde(default)]
    pub waiting_for: Option<TaskWait>,
    /// When the last attempt began.
    #[serde(default)]
    pub started_at: Option<Time>,
    /// When it was settled.
    #[serde(default)]
    pub finished_at: Option<Time>,
    /// What it gave.
    #[serde(default)]
    pub output: Value,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<Failure>,
    /// Where it ran last.
    #[serde(default)]
    pub node: Option<String>,
    /// The worker that claimed its last attempt.
    #[serde(default)]
    pub worker: Option<String>,
    /// The state that an operator set by hand, while it stands.
    #[serde(default, rename = "override")]
    pub set_by_hand: Option<Override>,
    /// Fields that this version does not know: progress, counts of items.
    #[serde(flatten)]
    pub more: More,
}

/// What a task run waits for that is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskWait {
    /// `pool`, `rate_limit`, `queue_paused` or `worker`.
    pub reason: String,
    /// The pools whose slots it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// The queue whose worker it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Not before then, where that is known.
    #[serde(default)]
    pub until: Option<Time>,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// In words.
    #[serde(default)]
    pub message: String,
    /// Where in the script.
    #[serde(default)]
    pub trace: Option<String>,
}

/// One try of a task run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1.
    pub attempt: i64,
    /// How it stands or ended.
    pub state: AttemptState,
    /// Where.
    #[serde(default)]
    pub node: Option<String>,
    /// The worker that claimed it.
    #[serde(default)]
    pub worker: Option<String>,
    /// From when.
    #[serde(default)]
    pub started_at: Option<Time>,
    /// Until when.
    #[serde(default)]
    pub finished_at: Option<Time>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<Failure>,
    /// The most memory that the script held.
    #[serde(default)]
    pub memory_bytes: Option<i64>,
    /// Processor time.
    #[serde(default)]
    pub cpu_ms: Option<f64>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: More,
}

/// Which runs are meant; what is `None` or empty does not matter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFilter {
    /// Of this group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Made for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// With this label, `name=value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// From this instant (inclusive), RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// To this instant (exclusive), RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// For lists: also runs that have left the hot view. (Bulk actions see them anyway.)
    #[serde(skip)]
    pub history: bool,
}

/// What became of one submission of a batch: a run, or the problem with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchItem(pub Value);

impl BatchItem {
    /// The id of the run that was made, or that was there before.
    pub fn run_id(&self) -> Option<Uuid> {
        ["/id", "/run/id", "/existing", "/error/existing"]
            .iter()
            .find_map(|at| self.0.pointer(at)?.as_str()?.parse().ok())
    }
}

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
        let page: Page<BatchItem> = self
            .post(&["v1", "groups", group, "runs", "batch"])
            .json(&body)
            .send()
            .await?;
        Ok(page.items)
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
    pub async fn runs(&self, filter: &RunFilter, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<Run>> {
        filter
            .apply(self.get(&["v1", "runs"]))
            .query_if("limit", limit)
            .query_if("cursor", cursor)
            .send()
            .await
    }

    /// `cancel`, `pause`, `resume`, `restart` or `rerun`; the last gives a new run. `scripts` (`pinned` or `active`) is
    /// for the last two.
    pub async fn control_run(&self, id: Uuid, action: &str, scripts: Option<&str>) -> Result<Run> {
        let request = self.post(&["v1", "runs", &id.to_string(), action]);
        match scripts {
            Some(scripts) => request.json(&json!({ "scripts": scripts })).send().await,
            None => request.json(&json!({})).send().await,
        }
    }

    /// Cancels a run.
    pub async fn cancel_run(&self, id: Uuid) -> Result<Run> {
        self.control_run(id, "cancel", None).await
    }

    /// Removes a run that has ended.
    pub async fn delete_run(&self, id: Uuid) -> Result<()> {
        self.delete(&["v1", "runs", &id.to_string()]).send_for_nothing().await
    }

    /// Does something to all runs that a filter finds; the answer counts them.
    pub async fn control_runs(&self, filter: &RunFilter, action: &str, dry_run: bool) -> Result<Value> {
        let body = json!({ "filter": filter, "action": action, "dry_run": dry_run });
        self.post(&["v1", "runs", "bulk"]).json(&body).send().await
    }

    /// The same with more to say than the action's name, as in `{"task": "load", "downstream": true}` for `clear`.
    pub async fn control_runs_with(
        &self,
        filter: &RunFilter,
        action: &str,
        dry_run: bool,
        more: &Map<String, Value>,
    ) -> Result<Value> {
        let mut body = json!({ "filter": filter, "action": action, "dry_run": dry_run });
        if let Some(body) = body.as_object_mut() {
            body.extend(more.clone());
        }
        self.post(&["v1", "runs", "bulk"]).json(&body).send().await
    }

    /// The attempts of a task run.
    pub async fn attempts(&self, id: Uuid, task: &str, item: Option<i64>) -> Result<Vec<Attempt>> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task];
        let answer: Value = self.get(&path).query_if("item", item).send().await?;
        let list = ["attempts", "items"]
            .iter()
            .find_map(|name| answer.get(name))
            .cloned()
            .unwrap_or(answer);
        serde_json::from_value(list).map_err(|error| Error::Unexpected {
            url: path.join("/"),
            detail: error.to_string(),
        })
    }

    /// Sets a task run's state: `succeeded`, `failed` or `skipped`.
    pub async fn override_task(
        &self,
        id: Uuid,
        task: &str,
        item: Option<i64>,
        state: TaskState,
        reason: &str,
    ) -> Result<Value> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "state"];
        self.put(&path)
            .query_if("item", item)
            .json(&json!({ "state": state, "reason": reason }))
            .send()
            .await
    }

    /// Tries a task run again at once.
    pub async fn retry_task(&self, id: Uuid, task: &str, item: Option<i64>) -> Result<Value> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "retry"];
        self.post(&path).query_if("item", item).json(&json!({})).send().await
    }

    /// Runs a task again within a run that has ended, and with `downstream` everything that depends on it.
    pub async fn clear_task(
        &self,
        id: Uuid,
        task: &str,
        item: Option<i64>,
        downstream: bool,
        reason: &str,
    ) -> Result<Value> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "clear"];
        self.post(&path)
            .query_if("item", item)
            .json(&json!({ "downstream": downstream, "reason": reason }))
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
    pub async fn logs(&self, id: Uuid, task: &str, item: Option<i64>, cursor: Option<&str>) -> Result<Page<Value>> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "logs"];
        self.get(&path)
            .query_if("item", item)
            .query_if("cursor", cursor)
            .query("limit", 500)
            .send()
            .await
    }

    /// A task's log as it is written, until the task run is settled.
    pub async fn follow_logs(&self, id: Uuid, task: &str, item: Option<i64>) -> Result<ServerEvents> {
        let path = ["v1", "runs", &id.to_string(), "tasks", task, "logs"];
        self.get(&path)
            .query_if("item", item)
            .query("follow", true)
            .send_for_events()
            .await
    }
}

impl RunFilter {
    /// Puts the filter into a query.
    pub fn apply(&self, request: crate::Request) -> crate::Request {
        request
            .query_if("group", self.group.as_deref())
            .query_if("state", self.state.as_deref())
            .query_if("trigger", self.trigger.as_deref())
            .query_if("label", self.label.as_deref())
            .query_if("from", self.from.as_deref())
            .query_if("to", self.to.as_deref())
            .query_if("history", self.history.then_some("true"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_as_the_contract_writes_it_is_read_and_added_fields_are_kept() {
        let text = json!({
            "id": "0199f5a0-0000-7000-8000-000000000000", "group": "g", "revision": 1,
            "logical_time": "2026-11-20T00:00:00.000000Z",
            "data_interval": {"start": "2026-11-19T00:00:00.000000Z", "end": "2026-11-20T00:00:00.000000Z"},
            "trigger": "manual", "state": "failed", "params": {"a": 1}, "key": null, "priority": 0, "labels": {},
            "waiting_for": null, "created_at": "2026-11-20T00:00:00.000000Z", "started_at": null, "finished_at": null,
            "error": null, "added": 7,
            "tasks": [{"task": "t", "item": null, "state": "upstream_failed", "attempt": 0, "output": null,
                       "error": {"kind": "trap", "message": "m"}, "node": null, "progress": {"fraction": 0.5}}],
        });
        let run: Run = serde_json::from_value(text).unwrap();
        assert_eq!(run.more["added"], 7);
        assert_eq!(run.tasks[0].error.as_ref().unwrap().kind, ErrorKind::Trap);
        assert_eq!(run.tasks[0].more["progress"]["fraction"], 0.5);
    }

    #[test]
    fn an_empty_submission_says_nothing() {
        assert_eq!(serde_json::to_value(Submission::default()).unwrap(), json!({}));
    }
}
