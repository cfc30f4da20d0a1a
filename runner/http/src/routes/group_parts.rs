//! Changes of a part of a group: a merge patch of its spec, enabling or disabling a schedule. Each is a change of the
//! spec, with a new revision unless nothing changes. A patch is checked like a PUT of the whole. A switch is not: whoever
//! stops a schedule must not have to mend the rest of the spec first.

use axum::http::StatusCode;
use heddle_api::{Group, GroupPatch};
use heddle_domain::merge::merge_patch;
use heddle_store::group::{GroupRow, IfMatch, ScheduleSwitch};
use serde_json::Value;

use super::groups::{answer, find, next_of, put_spec, stale};
use crate::access::Access;
use crate::adapter;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request};
use crate::table::{Method, Route};

pub(crate) fn routes() -> Vec<Route> {
    let switch = |path, summary, enabled| {
        Route::new(Method::Post, path, Access::Operate, summary, move |request| {
            switch(request, enabled)
        })
        .detail(
            "Changes `enabled` of the schedule in the group's spec. This creates a new revision, unless `enabled` \
            already has this value. Nothing else of the spec is checked. Instants during the disabled time are never \
            made up.",
        )
        .answers(200, of::<Group>())
        .problem(412, "`If-Match` names another revision.")
    };
    vec![
        Route::new(
            Method::Patch,
            "/v1/groups/{name}",
            Access::Operate,
            "Change a part of a group",
            patch,
        )
        .detail(
            "The body is a JSON merge patch (RFC 7396) of the spec: an object changes fields, null removes a \
                field, any other value replaces the field. `enabled` is allowed, as with PUT. The whole result is \
                checked. If it is the same as the current spec, no revision is created. Send `If-Match` with the \
                revision to refuse the patch if somebody has changed the group since; without it, the patch is \
                applied to the current spec.",
        )
        .takes_spec(of::<GroupPatch>())
        .optional()
        .answers(200, of::<Group>())
        .problem(
            409,
            "The group is internal to a topic. Or the patch enables a schedule that fires only once and has fired, and \
            does not change it.",
        )
        .problem(412, "`If-Match` names another revision.")
        .problem(422, "The result is not valid; `errors` has each error with its place."),
        switch(
            "/v1/groups/{name}/schedules/{schedule}/enable",
            "Enable a schedule",
            true,
        )
        .problem(
            409,
            "The schedule fires only once, and it has fired. Or the group is internal to a topic.",
        )
        .problem(422, "The schedule would never fire: its last instant is in the past."),
        switch(
            "/v1/groups/{name}/schedules/{schedule}/disable",
            "Disable a schedule",
            false,
        )
        .problem(409, "The group is internal to a topic."),
    ]
}

/// Puts the result of `change` on the group's spec. The change is repeated if somebody else was faster, unless the caller
/// has named the revision by `If-Match`.
async fn change(request: &Request, change: impl Fn(&GroupRow, &mut Value) -> Result<(), Problem>) -> Outcome {
    let if_match = request.if_match()?;
    let mut lost = 0;
    loop {
        let row = find(request).await?;
        let mut spec = row.spec.clone();
        change(&row, &mut spec)?;
        // The change is made to this revision. If the caller did not name it, the change is refused with a message.
        let current = if_match.as_ref().is_none_or(|wanted| wanted.is_met_by(row.revision));
        let guard = match &if_match {
            Some(wanted) if !current => wanted.clone(),
            _ => IfMatch::Revisions(vec![row.revision]),
        };
        let name = request.name("name", "group")?;
        match put_spec(request, &name, spec, Some(guard)).await {
            // If the caller named this revision, the next check reports it.
            Err(problem) if problem.status == StatusCode::PRECONDITION_FAILED && current => {
                request.once_more(&mut lost).await?;
            }
            answer => return answer,
        }
    }
}

async fn patch(mut request: Request) -> Outcome {
    let patch = request.spec().await?;
    if !patch.is_object() {
        return Err(Problem::invalid_at("", "the patch of a group must be an object"));
    }
    refuse_fired(&request, &patch).await?;
    change(&request, |_, spec| {
        merge_patch(spec, patch.clone());
        Ok(())
    })
    .await
}

/// Refuses a patch that enables a schedule that has fired for the only time, and does not change it: nothing would happen.
async fn refuse_fired(request: &Request, patch: &Value) -> Result<(), Problem> {
    let schedules = patch.get("schedules").and_then(Value::as_object);
    let enables = |(_, given): &(&String, &Value)| given["enabled"] == Value::Bool(true);
    let enabled: Vec<&String> = (schedules.into_iter().flatten().filter(enables))
        .map(|(name, _)| name)
        .collect();
    if enabled.is_empty() {
        return Ok(());
    }
    let row = find(request).await?;
    let fired = next_of(request, &row, 0).await?.fired;
    let mut after = row.spec.clone();
    merge_patch(&mut after, patch.clone());
    let unchanged = |name: &String| {
        let written = |spec: &Value| {
            let mut schedule = spec["schedules"][name.as_str()].clone();
            if let Value::Object(fields) = &mut schedule {
                fields.retain(|field, _| !["enabled", "next", "fired_at"].contains(&field.as_str()));
            }
            schedule
        };
        written(&row.spec) == written(&after)
    };
    match enabled
        .into_iter()
        .find(|name| fired.contains_key(*name) && unchanged(name))
    {
        Some(name) => Err(has_fired(name)),
        None => Ok(()),
    }
}

async fn switch(request: Request, enabled: bool) -> Outcome {
    let group = request.name("name", "group")?;
    let name = request.name("schedule", "schedule")?;
    let if_match = request.if_match()?;
    adapter::not_of_topic(&request.app.engine, &group).await?;
    let switched = request
        .app
        .store
        .set_schedule_enabled(request.by(), &group, &name, enabled, if_match);
    match switched.await? {
        ScheduleSwitch::Done(row) => answer(&request, &row).await,
        ScheduleSwitch::MissingGroup => Err(Problem::not_found("group", &group)),
        ScheduleSwitch::Missing => Err(Problem::not_found("schedule", &format!("{group}/{name}"))),
        ScheduleSwitch::Stale(revision) => Err(stale(&group, revision)),
        ScheduleSwitch::Fired => Err(has_fired(&name)),
        ScheduleSwitch::NeverFires(fault) => Err(Problem::invalid(fault)),
    }
}

/// A schedule that fires only once cannot be enabled again.
fn has_fired(schedule: &str) -> Problem {
    Problem::conflict(format!(
        "the schedule `{schedule}` has already fired, and it fires only once; give it another instant"
    ))
}
