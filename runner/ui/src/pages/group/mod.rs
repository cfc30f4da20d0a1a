//! A group: its runs by task, its graph, its schedules, its spec; runs and backfills are begun here.

mod backfill;
mod calendar;
pub(in crate::pages) mod graph;
mod grid;
mod run_form;
mod runs;
mod schedules;
mod spec;
mod state;

use std::sync::Arc;

use axum::http::Method;
use heddle_domain::Time;
use heddle_domain::state::RunState;
use heddle_store::pages::group::GroupRunRow;
use maud::{Markup, html};
use serde_json::json;

use super::answer::Answer;
use crate::ctx::{Beat, segment};
use crate::elements::{self, Button, ago, button, group_link, tabs};
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble};

/// What every page of a group needs.
pub(super) struct Here {
    pub(super) name: String,
    pub(super) group: Arc<heddle_engine::Group>,
}

impl Here {
    fn address(&self, tab: &str) -> String {
        let base = format!("/groups/{}", segment(&self.name));
        if tab.is_empty() { base } else { format!("{base}/{tab}") }
    }

    fn api(&self, rest: &str) -> String {
        format!("/v1/groups/{}{rest}", segment(&self.name))
    }
}

pub(super) async fn page(ctx: &Ctx, name: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    if name == "new" && rest.is_empty() {
        return spec::new(ctx).await;
    }
    let Some(group) = ctx.ui.engine.catalog().group(name).await? else {
        return Err(Trouble::not_found());
    };
    let here = Here {
        name: name.to_owned(),
        group,
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

/// A tab's page: header, tabs, and what is under them.
fn framed(ctx: &Ctx, here: &Here, tab: &str, inside: Markup) -> Page {
    let group = &here.group;
    let spec = &group.revision.plan.spec;
    let depends: Vec<String> = spec.depends_on.iter().map(|one| one.group().to_string()).collect();
    let next = group
        .enabled
        .then(|| group.revision.calendar.next_after(ctx.now))
        .flatten();
    let may = ctx.viewer.operates();
    let head = html! {
        div.heading {
            div.grow {
                h1 { bdi { (here.name) } @if !group.enabled { (elements::state(ctx, "disabled")) } }
                p {
                    @if let Some(text) = &spec.description { bdi dir="auto" { (text) } br; }
                    (t!(ctx, "revision-n", n = i64::from(group.revision.number)))
                    @if !depends.is_empty() { " · " (t!(ctx, "waits-for")) " " @for (index, name) in depends.iter().enumerate() { @if index > 0 { ", " } (group_link(name)) } }
                    // This one is last, because its length changes as time passes.
                    @if let Some(at) = next { " · " (t!(ctx, "next-is")) " " (ago(ctx, at)) }
                }
            }
            @if may {
                div.actions {
                    a class=(if group.enabled { "button primary" } else { "button" }) href=(here.address("run")) title=[(!group.enabled).then(|| t!(ctx, "group-disabled"))] { (t!(ctx, "run-now")) }
                    @if spec.history { a.button href=(here.address("backfill")) { (t!(ctx, "backfill")) } }
                    @if group.enabled {
                        (button(Button::new(here.address("disable"), t!(ctx, "disable"), t!(ctx, "disable-will"))))
                    } @else {
                        (button(Button::new(here.address("enable"), t!(ctx, "enable"), t!(ctx, "enable-will"))))
                    }
                }
            }
        }
        (tabs(&here.name, tab, &[
            (String::new(), here.address(""), t!(ctx, "tab-grid")),
            ("graph".into(), here.address("graph"), t!(ctx, "tab-graph")),
            ("runs".into(), here.address("runs"), t!(ctx, "tab-runs")),
            ("calendar".into(), here.address("calendar"), t!(ctx, "tab-calendar")),
            ("schedules".into(), here.address("schedules"), t!(ctx, "tab-schedules")),
            ("spec".into(), here.address("spec"), t!(ctx, "tab-spec")),
            ("state".into(), here.address("state"), t!(ctx, "tab-state")),
        ]))
    };
    let category = group.category.clone();
    let mut crumbs = vec![(t!(ctx, "nav-groups"), Some("/groups".to_owned()))];
    if let Some(category) = category {
        crumbs.push((
            category.clone(),
            Some(format!("/groups?category={}", segment(&category))),
        ));
    }
    let word = match tab {
        "graph" => Some(t!(ctx, "tab-graph")),
        "runs" => Some(t!(ctx, "tab-runs")),
        "calendar" => Some(t!(ctx, "tab-calendar")),
        "state" => Some(t!(ctx, "tab-state")),
        "schedules" => Some(t!(ctx, "tab-schedules")),
        "spec" => Some(t!(ctx, "tab-spec")),
        "run" => Some(t!(ctx, "run-title")),
        "backfill" => Some(t!(ctx, "backfill")),
        _ => None,
    };
    let own = (!tab.is_empty()).then(|| here.address(""));
    crumbs.push((here.name.clone(), own));
    let title = match &word {
        Some(word) => format!("{} · {word}", here.name),
        None => here.name.clone(),
    };
    crumbs.extend(word.map(|word| (word, None)));
    ctx.beats_with(Beat::Cluster);
    Page::new("groups", title, html! { (head) (inside) }).crumbs(crumbs)
}

/// Since when a run has been running: since its start, or since an ended run went on. The time in between was no work, and
/// a run that waits does none.
fn begun(run: &GroupRunRow) -> Option<Time> {
    let since = run.started_at.max(run.reopened_at);
    since.filter(|_| run.state != RunState::Waiting)
}

/// How long a run took, if it has ended.
fn millis(run: &GroupRunRow) -> Option<i64> {
    Some((run.finished_at? - begun(run).unwrap_or(run.created_at)).num_milliseconds())
}

/// The median duration of runs that succeeded without being continued after an end.
pub(super) fn median(runs: &[GroupRunRow]) -> Option<i64> {
    let whole = |run: &&GroupRunRow| run.state == RunState::Succeeded && run.reopened_at.is_none();
    let mut spans: Vec<i64> = runs.iter().filter(whole).filter_map(millis).collect();
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use heddle_domain::state::Trigger;

    use super::*;

    #[test]
    fn a_run_that_stood_still_for_days_did_not_take_days() {
        let at = |second: i64| Time::from_timestamp(second, 0).unwrap();
        let run = |reopened: Option<i64>, to: i64| GroupRunRow {
            id: uuid::Uuid::nil(),
            revision_id: 1,
            state: RunState::Succeeded,
            trigger: Trigger::Manual,
            logical_time: at(0),
            created_at: at(0),
            started_at: Some(at(0)),
            finished_at: Some(at(to)),
            error: None,
            progress: Vec::new(),
            reopened_at: reopened.map(at),
            waiting_for: None,
        };
        assert_eq!(millis(&run(None, 10)), Some(10_000));
        assert_eq!(millis(&run(Some(872), 874)), Some(2_000));
        assert_eq!(median(&[run(Some(872), 874), run(None, 10)]), Some(10_000));
    }
}
