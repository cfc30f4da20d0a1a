//! The output about one run for people: what it is, and its tasks.

use std::process::ExitCode;

use anyhow::Result;
use heddle_client::{TaskWait, TaskWaitReason};
use serde_json::Value;
use uuid::Uuid;

use super::watch;
use crate::exit::done;
use crate::output::{Rows, cell, items};
use crate::session::Session;

pub(super) async fn show(session: &Session, id: Uuid) -> Result<ExitCode> {
    let run: Value = session.client.get(&["v1", "runs", &id.to_string()]).send().await?;
    let run = session.output.with_kind("run", run);
    session.output.print(&run, |run| {
        let mut text = String::new();
        for (title, pointer) in [
            ("run", "/id"),
            ("group", "/group"),
            ("revision", "/revision"),
            ("state", "/state"),
            ("skipped", "/skipped"),
            ("waiting for", "/waiting_for"),
            ("trigger", "/trigger"),
            ("created by", "/created_by"),
            ("logical time", "/logical_time"),
            ("key", "/key"),
            ("params", "/params_error|/params"),
            ("created", "/created_at"),
            ("started", "/started_at"),
            ("continued", "/reopened_at"),
            ("finished", "/finished_at"),
            ("error", "/error/message|/error"),
            ("set by", "/override/actor"),
            ("because", "/override/reason"),
        ] {
            let value = cell(run, pointer);
            if value != "-" {
                text.push_str(&format!("{:<14}{value}\n", format!("{title}:")));
            }
        }
        text.push_str(&format!(
            "{:<14}{}\n",
            "page:",
            session.page(&["runs", &id.to_string()])
        ));
        let mut rows = Rows::new(["TASK", "ITEM", "STATE", "ATTEMPT", "STARTED", "TOOK", "RESULT"]).of_text();
        for task in items(&run["tasks"]) {
            let result = match (&task["override"], &task["next_attempt_at"]) {
                (Value::Object(fields), _) => {
                    let of = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or("-");
                    format!("set by {}: {}", of("actor"), of("reason"))
                }
                (_, Value::String(at)) => format!("retry at {at}: {}", cell(task, "/error/message")),
                _ if task["waiting_for"].is_object() => waits(&task["waiting_for"]),
                _ if task["output_omitted"] == true && task["error"].is_null() => {
                    "an output too large for a list".into()
                }
                _ => cell(task, "/error/message|/output"),
            };
            rows.add([
                cell(task, "/task"),
                cell(task, "/item"),
                cell(task, "/state"),
                cell(task, "/attempt"),
                cell(task, "/started_at"),
                watch::took(&task["started_at"], &task["finished_at"]),
                // A row is a line.
                result.lines().map(str::trim).collect::<Vec<_>>().join(" "),
            ]);
        }
        format!("{text}\n{rows}")
    })?;
    done()
}

/// What a ready task run waits for, in words.
fn waits(wait: &Value) -> String {
    // A newer server may give a reason that this version does not know.
    let Ok(known) = serde_json::from_value::<TaskWait>(wait.clone()) else {
        return format!("waits: {wait}");
    };
    let queue = known.queue.as_deref().unwrap_or("-");
    match known.reason {
        TaskWaitReason::Pool => {
            let pools = known.pools.as_deref().unwrap_or_default();
            format!("waits for slots of {}", pools.join(", "))
        }
        TaskWaitReason::RateLimit => format!("waits for the rate limit of {queue}, until {}", cell(wait, "/until")),
        TaskWaitReason::QueuePaused => format!("waits: {queue} is paused"),
        TaskWaitReason::Worker => format!("waits for a worker of {queue}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_wait_of_a_task_run_has_its_words() {
        for (wait, words) in [
            (
                json!({"reason": "pool", "pools": ["db", "gpu"], "slots": {"db": 2, "gpu": 1}, "until": null}),
                "waits for slots of db, gpu",
            ),
            (
                json!({"reason": "rate_limit", "queue": "post", "until": "2026-11-25T10:05:00.000000Z"}),
                "waits for the rate limit of post, until 2026-11-25 10:05:00Z",
            ),
            (
                json!({"reason": "queue_paused", "queue": "post", "until": null}),
                "waits: post is paused",
            ),
            (
                json!({"reason": "worker", "queue": "post", "until": null}),
                "waits for a worker of post",
            ),
            (json!({"reason": "moon"}), "waits: {\"reason\":\"moon\"}"),
        ] {
            assert_eq!(waits(&wait), words);
        }
    }
}
