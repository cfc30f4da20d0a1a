//! The table of pages, and one module for each.

pub(crate) mod answer;
mod backfills;
mod compare;
mod dispatch;
mod drawing;
pub(crate) mod gone;
mod group;
mod groups;
mod message_errors;
mod notifications;
mod overview;
mod picture;
mod pools;
mod preferences;
mod queues;
mod retention;
mod run;
mod runs;
mod script_text;
mod scripts;
mod search;
pub(crate) mod sign_in;
mod system;
mod topics;

use crate::{Ctx, Trouble};
use answer::Answer;

pub(crate) use retention::LastCount;
pub(crate) use run::view::EndedRuns;

/// Runs that have ended, as their pages have them: none yet.
pub(crate) fn ended_runs() -> EndedRuns {
    EndedRuns::new(run::view::TASK_RUNS_KEPT)
}

/// First segments of the paths that are pages.
const FIRST: [&str; 15] = [
    "",
    "backfills",
    "dispatch",
    "groups",
    "live",
    "notifications",
    "preferences",
    "queues",
    "runs",
    "scripts",
    "search",
    "sign-in",
    "sign-out",
    "system",
    "topics",
];

/// Whether there may be a page at this path. For other paths, programs get a problem, and people get a page that says
/// that nothing is there.
pub(crate) fn exists(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    FIRST.contains(&first)
}

/// The page of a request.
pub(crate) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    let decoded: Vec<String> = ctx
        .path
        .trim_matches('/')
        .split('/')
        .map(|segment| {
            percent_encoding::percent_decode_str(segment)
                .decode_utf8()
                .map(|text| text.into_owned())
        })
        .collect::<Result<_, _>>()
        .map_err(|_| Trouble::not_found())?;
    let path: Vec<&str> = decoded.iter().map(String::as_str).collect();
    match path.as_slice() {
        [""] => overview::page(ctx).await,
        ["search"] => search::page(ctx).await,
        ["preferences"] => preferences::page(ctx).await,
        ["sign-in"] | ["sign-in", _] => sign_in::page(ctx, false).await,
        ["sign-out"] => sign_in::out(ctx).await,
        ["groups"] => groups::page(ctx).await,
        ["groups", "set"] if ctx.posts() => groups::set(ctx).await,
        ["groups", name, rest @ ..] => group::page(ctx, name, rest).await,
        ["runs"] => runs::page(ctx).await,
        ["runs", "bulk"] if ctx.posts() => runs::bulk(ctx).await,
        ["runs", "compare"] => compare::page(ctx).await,
        ["runs", id, rest @ ..] => run::page(ctx, id, rest).await,
        ["backfills"] => backfills::list(ctx).await,
        ["backfills", id, rest @ ..] => backfills::page(ctx, id, rest).await,
        ["scripts"] if ctx.q("write").is_some() => script_text::write(ctx).await,
        ["scripts", "write"] if ctx.posts() => script_text::write(ctx).await,
        ["scripts"] => scripts::list(ctx).await,
        ["scripts", "upload"] if ctx.posts() => scripts::upload(ctx).await,
        // A refused form is shown under this address; whoever loads it again gets the page of that form.
        ["scripts", "upload"] if ctx.q("of").is_some() => {
            scripts::page(ctx, ctx.q("of").unwrap_or_default(), &[]).await
        }
        ["scripts", name, rest @ ..] => scripts::page(ctx, name, rest).await,
        ["queues"] => queues::list(ctx).await,
        ["queues", name, rest @ ..] => queues::page(ctx, name, rest).await,
        ["dispatch"] => dispatch::page(ctx).await,
        ["dispatch", "as"] => dispatch::peek(ctx).await,
        ["dispatch", "audiences", name] => dispatch::audience(ctx, name).await,
        ["dispatch", "assignments", id, "revoke"] if ctx.posts() => dispatch::revoke(ctx, id).await,
        ["topics"] => topics::list(ctx).await,
        ["topics", name, rest @ ..] => topics::page(ctx, name, rest).await,
        ["notifications"] => notifications::list(ctx).await,
        ["notifications", "channels", name, "test"] if ctx.posts() => notifications::test(ctx, name).await,
        ["notifications", id, "resend"] if ctx.posts() => notifications::resend(ctx, id).await,
        ["system"] => system::page(ctx, "").await,
        ["system", "pools"] if ctx.posts() => pools::put(ctx).await,
        ["system", "tokens"] if ctx.posts() => system::make_token(ctx).await,
        ["system", "tokens", name, "revoke"] if ctx.posts() => system::revoke_token(ctx, name).await,
        ["system", "sessions", actor, "end"] if ctx.posts() => system::end_sessions(ctx, actor).await,
        ["system", tab] => system::page(ctx, tab).await,
        _ => Err(Trouble::not_found()),
    }
}
