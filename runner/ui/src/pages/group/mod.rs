//! A group: its runs by task, its graph, its schedules, its spec; runs and backfills are begun here.

mod backfill;
mod calendar;
mod graph;
mod grid;
mod here;
mod recurrence;
mod run_form;
mod runs;
mod schedules;
mod spec;
mod state;
pub(super) mod times;

use axum::http::Method;
use serde_json::json;

use super::answer::Answer;
use crate::ctx::segment;
use crate::words::t;
use crate::{Ctx, Trouble};
use here::Here;

pub(super) async fn page(ctx: &Ctx, name: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    if name == "new" && rest.is_empty() {
        return spec::new(ctx).await;
    }
    let Some(group) = ctx.ui.engine.catalog().group(name).await? else {
        return Err(Trouble::not_found());
    };
    let is_tab = !ctx.posts() || matches!(rest, ["run" | "backfill" | "spec"]);
    let newest = match is_tab && *rest != ["cell"] {
        true => ctx.store().page_group_runs(group.id, None, 1).await?.into_iter().next(),
        false => None,
    };
    ctx.know_topics(&[name]).await?;
    let here = Here {
        name: name.to_owned(),
        group,
        newest,
    };
    ctx.in_zone_of(here.group.revision.plan.zone);
    match rest {
        [] => grid::page(ctx, &here).await,
        ["cell"] => grid::cell(ctx, &here).await,
        ["graph"] => graph::page(ctx, &here).await,
        ["runs"] => runs::page(ctx, &here).await,
        ["calendar"] => calendar::page(ctx, &here).await,
        ["state"] => state::page(ctx, &here).await,
        ["schedules"] => schedules::page(ctx, &here).await,
        ["schedules", schedule, verb @ ("enable" | "disable")] if ctx.posts() => {
            let target = here.api(&format!("/schedules/{}/{verb}", segment(schedule)));
            ctx.send(Method::POST, &target, &json!({})).await?;
            Answer::back(
                ctx,
                Some(t!(
                    ctx,
                    if *verb == "enable" {
                        "said-enabled"
                    } else {
                        "said-disabled"
                    }
                )),
            )
        }
        ["run"] => run_form::page(ctx, &here).await,
        ["backfill"] => backfill::page(ctx, &here).await,
        ["spec"] => spec::page(ctx, &here).await,
        ["enable"] if ctx.posts() => {
            ctx.send(Method::POST, &here.api("/enable"), &json!({})).await?;
            Answer::back(ctx, Some(t!(ctx, "said-enabled")))
        }
        ["disable"] if ctx.posts() => {
            ctx.send(Method::POST, &here.api("/disable"), &json!({ "mode": "drain" }))
                .await?;
            Answer::back(ctx, Some(t!(ctx, "said-disabled")))
        }
        _ => Err(Trouble::not_found()),
    }
}
