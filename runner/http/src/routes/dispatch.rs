//! Polls and completions of users.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use heddle_api::{Assignment, Completion, CompletionStatus, Given, OfferToUser, Peek, Poll, PollWindow};
use heddle_domain::Time;
use heddle_domain::dispatch::{AssignmentState, bare_uid};
use heddle_engine::{DispatchError, Next};
use uuid::Uuid;

use super::assignments::shown;
use crate::access::Access;
use crate::adapter::Refusal;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Pace, Route};

/// `Retry-After` is at least and at most this many seconds.
const RETRY_SECONDS: std::ops::RangeInclusive<i64> = 1..=60;

/// How many bytes a result may have as JSON.
const RESULT_BYTES_MAX: usize = 256 * 1024;

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Post,
            "/v1/dispatch/{uid}/next",
            Access::Work,
            "Poll: get the work that a user has to do now",
            next,
        )
        .detail(
            "If the user has an unfinished assignment, the poll returns it again, with `redo: true`. With `wait`, the \
            answer comes as soon as there is something, or after this time. 204 means that there is nothing; its \
            header `Retry-After` is the number of seconds to wait before the next poll.",
        )
        .query(
            "wait",
            "The same as `wait` in the body. If both are given, the body counts.",
        )
        .takes(of::<Poll>())
        .optional()
        .answers(200, of::<Assignment>())
        .answers_empty(204)
        .problem(403, "The token is for other users.")
        .pace(Pace::Waits),
        Route::new(
            Method::Get,
            "/v1/dispatch/{uid}/peek",
            Access::View,
            "Show what a poll would return to a user now",
            peek,
        )
        .detail(
            "Nothing is assigned. The answer also has the result for each offer to this user, and the reason. It is \
            valid only at this moment: a later poll can return something else. The call is meant for people, not for \
            programs: a node does two of them at the same time.",
        )
        .problem(429, "Too many of these calls at the same time.")
        .answers(200, of::<Peek>()),
        Route::new(
            Method::Post,
            "/v1/dispatch/{uid}/complete",
            Access::Work,
            "Finish a user's assignment",
            complete,
        )
        .detail("If you repeat the call with the same status, you get the same answer.")
        .takes(of::<Completion>())
        .answers(200, of::<Assignment>())
        .answers_little()
        .problem(403, "The token is for other users.")
        .problem(
            409,
            "It is not the current assignment of this user. Nothing has changed.",
        )
        .pace(Pace::Waits),
    ]
}

/// The user of the path, if the caller may poll for them.
fn user(request: &Request) -> Result<&str, Problem> {
    let given = request.part("uid");
    let uid = bare_uid(given).map_err(|detail| Problem::invalid_at("", detail))?;
    if !request.caller.may_poll(uid) {
        return Err(Problem::forbidden(format!(
            "this token may not act for the user `{uid}`"
        )));
    }
    Ok(uid)
}

fn problem(error: DispatchError) -> Problem {
    match error {
        DispatchError::Overloaded | DispatchError::Peeks => Problem::overloaded(error.to_string(), 1),
        DispatchError::Unavailable => Problem::unavailable(error.to_string(), 1),
        DispatchError::Conflict(detail) => Problem::conflict(detail),
        DispatchError::Store(error) => error.into(),
    }
}

/// 204, with the seconds to what comes due next; without a candidate, the most.
fn nothing(next: Option<Time>, now: Time) -> Response {
    let millis = next.map_or(i64::MAX / 2, |next| (next - now).num_milliseconds());
    let seconds = (millis / 1_000 + i64::from(millis % 1_000 > 0)).clamp(*RETRY_SECONDS.start(), *RETRY_SECONDS.end());
    let mut response = StatusCode::NO_CONTENT.into_response();
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

async fn next(mut request: Request) -> Outcome {
    user(&request)?;
    let mut wait = request.wait()?;
    let empty = request
        .headers
        .get(header::CONTENT_LENGTH)
        .is_none_or(|length| length == "0")
        && !request.headers.contains_key(header::TRANSFER_ENCODING);
    if !empty {
        let poll: Poll = request.body().await?;
        if poll.wait.is_some() {
            wait = request.bounded_wait(poll.wait)?;
        }
        request.forget_body();
    }
    let (uid, dispatcher) = (user(&request)?, &request.app.dispatcher);
    // Most polls by far end here: nothing is copied for them.
    if wait == Duration::ZERO
        && let Some(next) = dispatcher.quiet(uid, request.now)
    {
        return Ok(nothing(next, request.now));
    }
    match dispatcher.next(uid, wait).await.map_err(problem)? {
        Next::Given(row, redo) => ok(&shown(*row, redo)?),
        Next::Nothing(next) => Ok(nothing(next, dispatcher.now())),
    }
}

async fn peek(request: Request) -> Outcome {
    let uid = bare_uid(request.part("uid")).map_err(|detail| Problem::invalid_at("", detail))?;
    let peek = request.app.dispatcher.peek(uid).await.map_err(problem)?;
    let gives = peek.given.map(|(row, redo)| Given {
        offer: row.offer,
        audience: row.audience,
        occurrence: row.occurrence.into(),
        params: row.params,
        redo,
        assignment_id: redo.then_some(row.id),
        assigned_at: redo.then_some(row.assigned_at.into()),
    });
    let offers = peek.offers.into_iter().map(|one| OfferToUser {
        offer: one.offer,
        audience: one.audience,
        why: one.why,
        occurrence: one.occurrence.map(Into::into),
        next_at: one.next.map(Into::into),
    });
    ok(&Peek {
        uid: uid.to_owned(),
        gives,
        next_at: peek.next.map(Into::into),
        window: PollWindow {
            from: peek.window.from.into(),
            to: peek.window.to.into(),
        },
        audiences: peek.audiences,
        offers: offers.collect(),
        more: peek.more,
    })
}

async fn complete(mut request: Request) -> Outcome {
    let uid = user(&request)?.to_owned();
    let body: Completion = request.body().await?;
    let result = if body.result.is_null() {
        None
    } else {
        Some(body.result.to_string())
    };
    if result.as_ref().is_some_and(|result| result.len() > RESULT_BYTES_MAX) {
        let (what, bytes_max) = ("`result`", RESULT_BYTES_MAX);
        return Err(Refusal::TooLarge { what, bytes_max }.into());
    }
    let Ok(id) = body.assignment_id.parse::<Uuid>() else {
        return Err(Problem::conflict("the user does not hold this assignment"));
    };
    let state = match body.status {
        CompletionStatus::Completed => AssignmentState::Completed,
        CompletionStatus::Failed => AssignmentState::Failed,
    };
    let row = request
        .app
        .dispatcher
        .complete(&uid, id, state, result)
        .await
        .map_err(problem)?;
    ok(&shown(row, false)?)
}
