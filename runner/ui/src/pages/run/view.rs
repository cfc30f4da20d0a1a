//! A run as its pages need it, from the API's answers. For an ended run it is kept: a viewer of one of its pages soon
//! looks at another.

use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::Control;
use heddle_domain::state::RunState;
use heddle_engine::Ended;
use heddle_store::run::RunDetail;
use serde_json::Value;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::elements::parse;
use crate::{Ctx, Trouble};

pub(in crate::pages) struct Run {
    pub(in crate::pages) id: Uuid,
    pub(in crate::pages) group: String,
    pub(in crate::pages) revision: i64,
    pub(in crate::pages) state: String,
    pub(in crate::pages) trigger: String,
    pub(in crate::pages) logical_time: Time,
    pub(in crate::pages) created_at: Time,
    pub(in crate::pages) started_at: Option<Time>,
    pub(in crate::pages) finished_at: Option<Time>,
    pub(in crate::pages) tasks: Vec<Task>,
    /// The whole answer of the API.
    pub(in crate::pages) raw: Value,
}

/// Runs that have ended, as their pages have them.
pub(crate) type EndedRuns = Ended<Whole>;

/// So many task runs of them are kept, with their attempts.
pub(in crate::pages) const TASK_RUNS_KEPT: usize = 10_000;

/// A run, and what some of its pages need beside what the API says.
pub(crate) struct Whole {
    pub(in crate::pages) run: Run,
    detail: OnceCell<RunDetail>,
}

impl Whole {
    pub(in crate::pages) async fn read(ctx: &Ctx, id: Uuid) -> Result<Arc<Self>, Trouble> {
        let mark = ctx.store().ended_mark(RunId(id)).await?;
        if let Some(mark) = &mark
            && let Some(kept) = ctx.ui.ended.find(RunId(id), mark)
        {
            return Ok(kept);
        }
        let whole = Arc::new(Self {
            run: Run::read(ctx, id).await?,
            detail: OnceCell::new(),
        });
        if let Some(mark) = mark {
            let weight = whole.run.tasks.len();
            ctx.ui.ended.keep(RunId(id), mark, weight, whole.clone());
        }
        Ok(whole)
    }

    /// Its attempts, among others.
    pub(in crate::pages) async fn detail(&self, ctx: &Ctx) -> Result<&RunDetail, Trouble> {
        let read = async || {
            let detail = ctx.store().run_detail(RunId(self.run.id)).await?;
            detail.ok_or_else(Trouble::not_found)
        };
        self.detail.get_or_try_init(read).await
    }
}

pub(in crate::pages) struct Task {
    pub(in crate::pages) name: String,
    pub(in crate::pages) item: Option<i64>,
    pub(in crate::pages) state: String,
    pub(in crate::pages) attempt: i64,
    pub(in crate::pages) started_at: Option<Time>,
    pub(in crate::pages) finished_at: Option<Time>,
    pub(in crate::pages) next_attempt_at: Option<Time>,
    pub(in crate::pages) waits: Option<Waits>,
    pub(in crate::pages) error: Option<(String, String)>,
    /// Of a mapped task as a whole: how many items there are in each state.
    pub(in crate::pages) items: Vec<(String, i64)>,
    pub(in crate::pages) progress: Option<f64>,
    pub(in crate::pages) note: Option<String>,
    pub(in crate::pages) node: Option<String>,
    /// Who set its state by hand, and why.
    pub(in crate::pages) by_hand: Value,
}

fn at(value: &Value) -> Option<Time> {
    value.as_str().and_then(parse)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Run {
    pub(in crate::pages) async fn read(ctx: &Ctx, id: Uuid) -> Result<Self, Trouble> {
        let raw = ctx.get(&format!("/v1/runs/{id}")).await?;
        let tasks = raw["tasks"].as_array().into_iter().flatten().map(Task::of).collect();
        Ok(Self {
            id,
            group: text(&raw["group"]),
            revision: raw["revision"].as_i64().unwrap_or_default(),
            state: text(&raw["state"]),
            trigger: text(&raw["trigger"]),
            logical_time: at(&raw["logical_time"]).unwrap_or(ctx.now),
            created_at: at(&raw["created_at"]).unwrap_or(ctx.now),
            started_at: at(&raw["started_at"]),
            finished_at: at(&raw["finished_at"]),
            tasks,
            raw,
        })
    }

    /// Whether its state allows a control.
    pub(in crate::pages) fn allows(&self, control: Control) -> bool {
        self.state
            .parse()
            .is_ok_and(|state: RunState| control.is_allowed(state))
    }

    /// Its tasks, without the items of those that are mapped.
    pub(in crate::pages) fn wholes(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.item.is_none())
    }
}

impl Task {
    fn of(value: &Value) -> Self {
        let items = value["items"].as_object().into_iter().flatten();
        let failure = &value["error"];
        Self {
            name: text(&value["task"]),
            item: value["item"].as_i64(),
            state: text(&value["state"]),
            attempt: value["attempt"].as_i64().unwrap_or_default(),
            started_at: at(&value["started_at"]),
            finished_at: at(&value["finished_at"]),
            next_attempt_at: at(&value["next_attempt_at"]),
            waits: Waits::of(&value["waiting_for"]),
            error: failure["message"]
                .as_str()
                .map(|message| (text(&failure["kind"]), message.to_owned())),
            items: items
                .map(|(state, count)| (state.clone(), count.as_i64().unwrap_or_default()))
                .collect(),
            progress: value["progress"].as_f64(),
            note: value["note"].as_str().map(str::to_owned),
            node: value["node"].as_str().map(str::to_owned),
            by_hand: value["override"].clone(),
        }
    }
}

/// What a ready task waits for.
#[derive(Clone, Debug)]
pub(in crate::pages) struct Waits {
    /// The key of the words for it.
    pub(in crate::pages) key: &'static str,
    /// The pools or the queue.
    pub(in crate::pages) of: String,
    pub(in crate::pages) until: Option<Time>,
}

impl Waits {
    fn of(value: &Value) -> Option<Self> {
        let key = match value["reason"].as_str()? {
            "pool" => "waits-pool",
            "rate_limit" => "waits-rate-limit",
            "queue_paused" => "waits-queue-paused",
            _ => "waits-worker",
        };
        let pools: Vec<&str> = value["pools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        Some(Self {
            key,
            of: value["queue"].as_str().map_or_else(|| pools.join(", "), str::to_owned),
            until: at(&value["until"]),
        })
    }
}
