//! Backfills: starting, reading, controls.

use std::collections::BTreeMap;

use heddle_api::{Backfill, BackfillPlan, BackfillRequest, BackfillStarted, List};
use heddle_domain::backfill::{self, Order, Scripts};
use heddle_domain::state::RunState;
use heddle_domain::{Name, Span};
use heddle_engine::{ControlError, Engine, Started};
use heddle_store::StoreError;
use heddle_store::backfill::{BackfillAction, BackfillRow};
use serde_json::Value;
use uuid::Uuid;

use super::Refusal;
use super::not_found;

type Counts = BTreeMap<RunState, i64>;

pub(crate) async fn start(
    engine: &Engine,
    group: Name,
    request: BackfillRequest,
    asked: Value,
    actor: String,
) -> Result<BackfillStarted, Refusal> {
    Ok(match engine.start_backfill(&group, request, &asked, &actor).await? {
        Started::Planned(instants) => BackfillStarted::Planned(BackfillPlan {
            total: instants.len(),
            instants: instants.into_iter().map(Into::into).collect(),
        }),
        Started::Made(id) => BackfillStarted::Made(Box::new(get(engine, id).await?)),
    })
}

pub(crate) async fn get(engine: &Engine, id: Uuid) -> Result<Backfill, Refusal> {
    let found = engine.store().backfill_counted(id).await?;
    let (row, counts) = found.ok_or_else(|| not_found("backfill", id))?;
    view(row, counts)
}

pub(crate) async fn list(
    engine: &Engine,
    groups: Vec<String>,
    cursor: Option<Uuid>,
    limit: i64,
) -> Result<List<Backfill>, Refusal> {
    let page = engine.store().backfills_counted(&groups, cursor, limit).await?;
    Ok(List {
        items: page
            .items
            .into_iter()
            .map(|(row, counts)| view(row, counts))
            .collect::<Result<_, _>>()?,
        next_cursor: page.next,
    })
}

pub(crate) async fn change(
    engine: &Engine,
    id: Uuid,
    action: BackfillAction,
    actor: String,
) -> Result<Backfill, Refusal> {
    engine
        .change_backfill(id, action, &actor)
        .await
        .map_err(|error| match error {
            ControlError::NotFound(what) => not_found(what, id),
            other => other.into(),
        })?;
    get(engine, id).await
}

fn view(row: BackfillRow, counts: Counts) -> Result<Backfill, Refusal> {
    let on_existing = row.on_existing()?;
    // The state follows from its runs at this moment: one that failed may have been restarted since.
    let state = match RunState::from_number(row.state) {
        Some(RunState::Succeeded | RunState::Failed) => backfill::ended(&counts).as_str(),
        _ => row.state_word()?,
    };
    // All expected runs were created or turned out not to be needed, unless it was cancelled.
    let worked_off = row.finished_at.is_some() && row.state != RunState::Cancelled.number();
    let total = if worked_off {
        row.made
    } else {
        row.expected.max(row.made)
    };
    let mut by_state: BTreeMap<String, i64> = counts
        .into_iter()
        .map(|(state, count)| (state.as_str().to_owned(), count))
        .collect();
    if total > row.made && matches!(state, "running" | "paused") {
        by_state.insert("pending".into(), total - row.made);
    }
    Ok(Backfill {
        id: row.id,
        group: row.group_name,
        state: state.to_owned(),
        from: row.from_at.into(),
        to: row.to_at.map(Into::into),
        step: row
            .step_micros
            .map(|step| Span::from_micros(step.unsigned_abs()).to_string()),
        order: if row.descending { Order::Desc } else { Order::Asc },
        max_active: row.max_active,
        on_existing,
        include_downstream: row.include_downstream,
        scripts: if row.pinned { Scripts::Pinned } else { Scripts::Active },
        priority: row.priority,
        params: StoreError::json_in(&row.params, ("backfills", "params"), row.id)?,
        total,
        counts: by_state,
        skipped: row.skipped,
        position: row.position.map(Into::into),
        note: row.note,
        created_at: row.created_at.into(),
        created_by: row.created_by,
        finished_at: row.finished_at.map(Into::into),
    })
}
