//! What people do to runs: one at a time, or many by a filter, to stop the bleeding.

use axum::http::StatusCode;
use heddle_api::{
    Bulk, BulkAction, BulkReport, REASON_CHARS_MAX, RerunOptions, Run, Scripts, ScriptsChoice, StateOverride,
};
use heddle_domain::Faults;
use heddle_domain::fault::one_of;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use heddle_engine::Clear;

use super::run_filter;
use super::runs::located;
use crate::access::Access;
use crate::adapter;
use crate::adapter::runs::Control;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, no_content, ok};
use crate::table::{Method, Route};

/// What each route is called, takes and answers.
#[expect(clippy::too_many_lines, reason = "a list: an entry for each route")]
pub(crate) fn routes() -> Vec<Route> {
    let control = |path, summary, control: Control| {
        Route::new(Method::Post, path, Access::Operate, summary, move |request| {
            simple(request, control.clone())
        })
        .answers(200, of::<Run>())
        .problem(409, "The state of the run does not allow it.")
    };
    vec![
        control(
            "/v1/runs/{id}/cancel",
            "Cancel a run and interrupt its running attempts",
            Control::Cancel,
        ),
        control(
            "/v1/runs/{id}/pause",
            "Pause a run: no new task run starts",
            Control::Pause,
        ),
        control("/v1/runs/{id}/resume", "Resume a paused run", Control::Resume),
        Route::new(
            Method::Post,
            "/v1/runs/{id}/restart",
            Access::Operate,
            "Restart a run from where it failed",
            restart,
        )
        .detail(
            "Only for failed or cancelled runs. Task runs that succeeded are kept. `scripts`: `pinned` \
                (default: the script versions recorded on the run) or `active`.",
        )
        .takes(of::<ScriptsChoice>())
        .optional()
        .answers(200, of::<Run>())
        .problem(
            409,
            "The run is not failed or cancelled, it carries a batch of messages, or its group has been deleted.",
        ),
        Route::new(
            Method::Post,
            "/v1/runs/{id}/rerun",
            Access::Operate,
            "Create a new run with the same params and logical time",
            rerun,
        )
        .detail(
            "`scripts`: `pinned` (default: the script versions recorded on the run) or `active`. With a `key`, the call can \
                be repeated after a lost answer: it creates one run. If the group has been deleted, the answer is 404.",
        )
        .takes(of::<RerunOptions>())
        .optional()
        .answers(202, of::<Run>())
        .problem(
            409,
            "The group is disabled, and `force` is not `true`; or the run carries a batch of messages; or a run of the \
                group has the `key`, and `existing` is its id.",
        )
        .problem(
            422,
            "With `scripts: active`: the params do not fit a script that is active now; `errors` has each error with \
                its place.",
        ),
        Route::new(
            Method::Put,
            "/v1/runs/{id}/state",
            Access::Operate,
            "Override a run's state",
            set_state,
        )
        .takes(of::<StateOverride>())
        .answers(200, of::<Run>())
        .problem(
            409,
            "The state of the run does not allow it, or it carries a batch of messages.",
        ),
        Route::new(
            Method::Delete,
            "/v1/runs/{id}",
            Access::Operate,
            "Delete a run that has ended",
            delete,
        )
        .answers_empty(204)
        .problem(409, "The run has not ended."),
        Route::new(
            Method::Post,
            "/v1/runs/bulk",
            Access::Operate,
            "Control all runs that match a filter",
            bulk,
        )
        .detail(
            "`action`: `cancel`, `pause`, `resume`, `restart`, `rerun`, `state` (or `override`; with `state` \
                and `reason`), `clear` (with `task`; optionally `item`, `downstream` and `reason`, as for one run) or \
                `delete`. `restart` and `rerun` accept `scripts`, `rerun` also accepts `key`. A field that means nothing for the action is refused. \
                `dry_run: true` changes nothing and answers what would happen: `refused` has the runs that \
                the action would not change.",
        )
        .takes(of::<Bulk>())
        .answers(200, of::<BulkReport>())
        .problem(
            422,
            "The filter is empty, the action is unknown, or a field means nothing for it.",
        ),
    ]
}

async fn control(request: &Request, control: Control) -> Result<Run, Problem> {
    let id = request.id("id", "run")?;
    Ok(adapter::runs::control(&request.app.engine, RunId(id), control, request.caller.actor.clone()).await?)
}

async fn simple(request: Request, what: Control) -> Outcome {
    ok(&control(&request, what).await?)
}

async fn restart(mut request: Request) -> Outcome {
    let body: ScriptsChoice = request.body().await?;
    ok(&control(&request, Control::Restart(body.scripts)).await?)
}

async fn rerun(mut request: Request) -> Outcome {
    let options: RerunOptions = request.body().await?;
    located(StatusCode::ACCEPTED, &control(&request, Control::Rerun(options)).await?)
}

fn override_to(state: RunState, reason: &str) -> Result<Control, Problem> {
    if !RunState::OVERRIDES.contains(&state) {
        let states = one_of(&RunState::OVERRIDES.map(RunState::as_str));
        return Err(Problem::invalid_at(
            "/state",
            format!("a run can be overridden to {states}"),
        ));
    }
    Ok(Control::Override {
        state,
        reason: checked_reason(reason)?,
    })
}

/// A reason that says something, and is not a novel.
pub(crate) fn checked_reason(reason: &str) -> Result<String, Problem> {
    let reason = reason.trim();
    if reason.is_empty() || reason.chars().count() > REASON_CHARS_MAX {
        return Err(Problem::invalid_at(
            "/reason",
            format!("an override needs a `reason` of 1 to {REASON_CHARS_MAX} characters"),
        ));
    }
    Ok(reason.to_owned())
}

/// A reason where none is needed.
pub(crate) fn bounded_reason(reason: &str) -> Result<String, Problem> {
    let reason = reason.trim();
    if reason.chars().count() > REASON_CHARS_MAX {
        let detail = format!("`reason` must have at most {REASON_CHARS_MAX} characters");
        return Err(Problem::invalid_at("/reason", detail));
    }
    Ok(reason.to_owned())
}

async fn set_state(mut request: Request) -> Outcome {
    let body: StateOverride = request.body().await?;
    ok(&control(&request, override_to(body.state, &body.reason)?).await?)
}

async fn delete(request: Request) -> Outcome {
    control(&request, Control::Delete).await?;
    no_content()
}

/// The fields that mean something for an action, in addition to `filter` and `dry_run`, which all of them have.
fn fields_of(action: BulkAction) -> &'static [&'static str] {
    match action {
        BulkAction::Cancel | BulkAction::Pause | BulkAction::Resume | BulkAction::Delete => &[],
        BulkAction::Restart => &["scripts"],
        BulkAction::Rerun => &["scripts", "key"],
        BulkAction::State | BulkAction::Override => &["state", "reason"],
        BulkAction::Clear => &["task", "item", "downstream", "reason"],
    }
}

/// Refuses fields that mean nothing for the action: whoever sends one expects something that would not happen. An empty
/// reason and the default of `scripts` say nothing, and older clients write them for each action.
fn check_fields(body: &Bulk) -> Result<(), Problem> {
    let known = fields_of(body.action);
    let mut faults = Faults::default();
    for (field, given) in [
        ("scripts", body.scripts != Scripts::default()),
        ("key", body.key.is_some()),
        ("state", body.state.is_some()),
        ("reason", !body.reason.trim().is_empty()),
        ("task", body.task.is_some()),
        ("item", body.item.is_some()),
        ("downstream", body.downstream.is_some()),
    ] {
        if given && !known.contains(&field) {
            let action = body.action.as_str();
            faults.add(
                format!("/{field}"),
                format!("the action `{action}` does not accept `{field}`"),
            );
        }
    }
    faults.or(()).map_err(Problem::invalid)
}

async fn bulk(mut request: Request) -> Outcome {
    let body: Bulk = request.body().await?;
    check_fields(&body)?;
    let filter = run_filter::of_body(body.filter)?;
    let control = match body.action {
        BulkAction::Cancel => Control::Cancel,
        BulkAction::Pause => Control::Pause,
        BulkAction::Resume => Control::Resume,
        BulkAction::Restart => Control::Restart(body.scripts),
        BulkAction::Rerun => Control::Rerun(RerunOptions {
            scripts: body.scripts,
            force: false,
            key: body.key,
        }),
        BulkAction::Delete => Control::Delete,
        BulkAction::Clear => Control::Clear(Clear {
            task: body
                .task
                .ok_or_else(|| Problem::invalid_at("/task", "the action `clear` needs `task`, the name of a task"))?,
            item: body.item,
            downstream: body.downstream.unwrap_or(true),
            reason: bounded_reason(&body.reason)?,
        }),
        BulkAction::State | BulkAction::Override => {
            let state = body
                .state
                .ok_or_else(|| Problem::invalid_at("/state", "the action `state` needs `state`"))?;
            override_to(state, &body.reason)?
        }
    };
    ok(&adapter::runs::bulk(
        &request.app.engine,
        filter,
        control,
        body.dry_run,
        request.caller.actor.clone(),
    )
    .await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The pointers of the fields that a bulk control with these fields refuses.
    fn refused(body: &serde_json::Value) -> Vec<String> {
        let mut body = body.clone();
        body["filter"] = json!({"group": "g"});
        let body: Bulk = serde_json::from_value(body).unwrap();
        let Err(problem) = check_fields(&body) else {
            return Vec::new();
        };
        let action = format!("`{}`", body.action.as_str());
        assert!(problem.errors.iter().all(|error| error.detail.contains(&action)));
        problem.errors.into_iter().map(|error| error.pointer).collect()
    }

    #[test]
    fn a_field_without_a_meaning_for_the_action_is_refused() {
        let all = json!({
            "scripts": "active", "key": "k", "state": "failed", "reason": "why", "task": "a", "item": 1, "downstream": false,
        });
        for (action, accepted) in [
            ("cancel", vec![]),
            ("pause", vec![]),
            ("resume", vec![]),
            ("delete", vec![]),
            ("restart", vec!["/scripts"]),
            ("rerun", vec!["/scripts", "/key"]),
            ("state", vec!["/state", "/reason"]),
            ("override", vec!["/state", "/reason"]),
            ("clear", vec!["/reason", "/task", "/item", "/downstream"]),
        ] {
            let mut body = all.clone();
            body["action"] = json!(action);
            let expected: Vec<&str> = ["/scripts", "/key", "/state", "/reason", "/task", "/item", "/downstream"]
                .into_iter()
                .filter(|field| !accepted.contains(field))
                .collect();
            assert_eq!(refused(&body), expected, "{action}");
            // What older clients write for each action.
            let older = json!({"action": action, "scripts": "pinned", "reason": ""});
            assert_eq!(refused(&older), [""; 0], "{action}");
        }
    }

    #[test]
    fn an_override_has_a_reason_and_ends_the_run() {
        assert!(override_to(RunState::Succeeded, "checked by hand").is_ok());
        assert_eq!(
            override_to(RunState::Succeeded, " ").unwrap_err().errors[0].pointer,
            "/reason"
        );
        assert_eq!(
            override_to(RunState::Running, "x").unwrap_err().errors[0].pointer,
            "/state"
        );
    }
}
