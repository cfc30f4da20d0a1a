//! A run's graph, with the states of its tasks.

use std::collections::BTreeMap;

use heddle_api::{Run, TaskState};
use maud::{Markup, html};

use super::timeline::{critical, dependencies};
use crate::elements::{TASK_STATES, legend};
use crate::pages::group::graph::{draw, is_drawn, zoom_buttons};
use crate::words::t;
use crate::{Ctx, Trouble};

pub(super) async fn inside(ctx: &Ctx, run: &Run) -> Result<Markup, Trouble> {
    let row = ctx
        .store()
        .run(heddle_domain::id::RunId(run.id))
        .await?
        .ok_or_else(Trouble::not_found)?;
    let revision = ctx.ui.engine.catalog().revision(row.revision_id).await?;
    let states: BTreeMap<String, TaskState> = run.wholes().map(|task| (task.task.clone(), task.state)).collect();
    // Only of a run that has ended: until then another chain may become the longest.
    let chain = if run.finished_at.is_some() {
        critical(run, &dependencies(&revision.plan))
    } else {
        Vec::new()
    };
    let picture = draw(
        ctx,
        &revision.plan,
        &states,
        &chain,
        Some(&format!("/runs/{}/log", run.id)),
    );
    Ok(html! {
        section.panel aria-label=(t!(ctx, "tab-graph")) {
            div.row { p.muted.grow { @if !chain.is_empty() { (t!(ctx, "graph-critical")) } } @if is_drawn(&revision.plan) { (legend(ctx, &TASK_STATES)) (zoom_buttons(ctx)) } }
            (ctx.live("graph", picture))
        }
    })
}
