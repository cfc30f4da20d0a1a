//! Assignments, as operators see them.

use heddle_api::{Assignment, List};
use heddle_domain::Time;
use heddle_domain::dispatch::bare_uid;
use heddle_store::StoreError;
use heddle_store::assignment::{AssignmentFilter, AssignmentRow};
use uuid::Uuid;

use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Route};

/// How far back from the last wanted one assignments are listed unless it is said.
const LISTED: chrono::TimeDelta = chrono::TimeDelta::days(7);

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/assignments", Access::View, "List assignments", list)
            .detail(
                "Newest first. Without `from`, only those of the last seven days, or of the seven days before `to`. A page \
                ends with the assignment with which it has more than 4 MiB of params and results. Then it has fewer \
                assignments than `limit`, and a `next_cursor`.",
            )
            .list()
            .query("uid", "Only assignments of this user.")
            .query(
                "gid",
                "Only assignments from offers to this user group, with or without `gid_`.",
            )
            .query("audience", "Only assignments from offers to this audience.")
            .query("offer", "Only assignments of this offer.")
            .query(
                "state",
                "Only assignments in these states: `assigned`, `completed`, `failed`, `revoked`, `expired`. For \
                several, repeat the parameter or use commas.",
            )
            .time(
                "from",
                "Only assignments that began at or after this time. Default: seven days ago, or seven days before `to`.",
            )
            .time("to", "Only assignments that began at or before this time.")
            .answers(200, of::<List<Assignment>>()),
        Route::new(
            Method::Get,
            "/v1/assignments/{id}",
            Access::View,
            "Get an assignment",
            get,
        )
        .answers(200, of::<Assignment>()),
        Route::new(
            Method::Post,
            "/v1/assignments/{id}/revoke",
            Access::Operate,
            "Revoke an assignment",
            revoke,
        )
        .detail("Its stock is free again. The next poll of the user returns something else.")
        .answers(200, of::<Assignment>())
        .problem(409, "The assignment has already ended."),
    ]
}

/// An assignment as the API shows it.
pub(super) fn shown(row: AssignmentRow, redo: bool) -> Result<Assignment, StoreError> {
    let result = |text: String| StoreError::json_in(&text, ("assignments", "result"), row.id);
    Ok(Assignment {
        assignment_id: row.id,
        offer: row.offer,
        uid: row.uid,
        audience: row.audience,
        occurrence: row.occurrence.into(),
        params: row.params,
        state: row.state,
        redo,
        assigned_at: row.assigned_at.into(),
        finished_at: row.finished_at.map(Into::into),
        result: row.result.map(result).transpose()?,
    })
}

async fn list(request: Request) -> Outcome {
    let audience = match (request.query("audience"), request.query("gid")) {
        (Some(audience), _) => Some(audience.to_owned()),
        (None, Some(gid)) if gid.starts_with("gid_") => Some(gid.to_owned()),
        (None, Some(gid)) => Some(format!("gid_{gid}")),
        (None, None) => None,
    };
    let from: Option<Time> = request.query_time("from")?;
    let to: Option<Time> = request.query_time("to")?;
    let newest = to.map_or(request.now, |to| to.min(request.now));
    let filter = AssignmentFilter {
        uid: request.query("uid").map(|uid| bare_uid(uid).unwrap_or(uid).to_owned()),
        audience,
        offer: request.query_name("offer"),
        states: request.words("state")?,
        from: Some(from.unwrap_or(newest - LISTED)),
        to,
    };
    let page = request
        .app
        .store
        .assignments(&filter, request.cursor_as()?, request.limit()?)
        .await?;
    let items = page.items.into_iter().map(|row| shown(row, false));
    ok(&List {
        items: items.collect::<Result<Vec<_>, _>>()?,
        next_cursor: page.next,
    })
}

async fn get(request: Request) -> Outcome {
    let id: Uuid = request.id("id", "assignment")?;
    let row = request.app.store.assignment(id).await?;
    let row = row.ok_or_else(|| Problem::not_found("assignment", &id.to_string()))?;
    ok(&shown(row, false)?)
}

async fn revoke(request: Request) -> Outcome {
    let id: Uuid = request.id("id", "assignment")?;
    if let Some(ended) = request.app.store.revoke_assignment(request.by(), id).await? {
        request.app.dispatcher.changed(&ended.offered_to);
        return ok(&shown(ended.assignment, false)?);
    }
    match request.app.store.assignment(id).await? {
        None => Err(Problem::not_found("assignment", &id.to_string())),
        Some(row) => Err(Problem::conflict(format!(
            "the assignment is already {}",
            row.state.as_str()
        ))),
    }
}
