//! All groups: how they went lately, when they are due, on and off.

use std::collections::BTreeMap;

use axum::http::Method;
use chrono::TimeDelta;
use heddle_api::RunState;
use heddle_domain::name::composed;
use heddle_store::pages::group::{GroupLine, GroupsAsked};
use heddle_store::pages::overview::BarRow;
use maud::{Markup, html};
use serde_json::json;

use super::answer::Answer;
use super::picture;
use crate::chart::strip;
use crate::ctx::{Beat, segment};
use crate::elements::{
    ago, choice, empty, group_link, group_or_topic, listed, millis, named, number, state, with_query,
};
use crate::frame::{Page, means};
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many groups a page shows.
const LINES: i64 = 50;
/// How many runs of each group are read; the last thirty are drawn.
const RUNS_EACH: i64 = 60;
const STRIP: usize = 30;
/// How many categories are listed, and up to how many are shown unfolded.
const CATEGORIES_MAX: i64 = 500;
const CATEGORIES_OPEN: usize = 12;
/// The rate and the median are computed from the runs of this span before now.
const LATELY: TimeDelta = TimeDelta::days(7);

/// How a group's runs went lately.
struct Lately {
    /// The state and the duration of each of the last runs, oldest first.
    bars: Vec<(RunState, Option<i64>)>,
    rate: Option<f64>,
    median_ms: Option<i64>,
}

impl Lately {
    /// Computes it from runs, the newest first.
    fn of(ctx: &Ctx, runs: &[BarRow]) -> Self {
        let millis = |run: &BarRow| Some((run.finished_at? - run.at_work_since()).num_milliseconds());
        let bars = runs
            .iter()
            .take(STRIP)
            .rev()
            .map(|run| (run.state, millis(run)))
            .collect();
        let recent: Vec<&BarRow> = runs
            .iter()
            .filter(|run| run.finished_at.is_some_and(|at| at > ctx.now - LATELY))
            .collect();
        let good = recent.iter().filter(|run| run.state == RunState::Succeeded).count();
        let decided = recent.iter().filter(|run| run.state != RunState::Cancelled).count();
        let mut spans: Vec<i64> = recent
            .iter()
            .filter(|run| run.state == RunState::Succeeded && run.reopened_at.is_none())
            .filter_map(|run| millis(run))
            .collect();
        spans.sort_unstable();
        Self {
            bars,
            rate: (decided > 0).then(|| good as f64 / decided as f64),
            median_ms: spans.get(spans.len() / 2).copied(),
        }
    }
}

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let asked = GroupsAsked {
        text: ctx.q("q").map(composed),
        category: ctx.q("category").map(str::to_owned),
        enabled: match ctx.q("enabled") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        },
        after: ctx.q("cursor").map(str::to_owned),
    };
    let mut lines = ctx.store().page_groups(&asked, LINES + 1).await?;
    let next = (lines.len() as i64 > LINES).then(|| lines[LINES as usize - 1].name.clone());
    lines.truncate(LINES as usize);
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    ctx.know_topics(&names).await?;
    let ids: Vec<i64> = lines.iter().map(|line| line.id).collect();
    let mut runs: BTreeMap<i64, Vec<BarRow>> = BTreeMap::new();
    // How far back runs are read for the strip: a monthly group has thirty runs in three years.
    for bar in ctx
        .store()
        .page_bars(&ids, heddle_domain::Time::UNIX_EPOCH, RUNS_EACH)
        .await?
    {
        runs.entry(bar.group_id).or_default().push(bar);
    }
    let categories = ctx.store().page_categories(CATEGORIES_MAX).await?;
    let title = t!(ctx, "nav-groups");
    let graph = ctx.q("view") == Some("graph");
    let lately: Vec<(GroupLine, Lately)> = lines
        .into_iter()
        .map(|line| {
            let lately = Lately::of(ctx, runs.get(&line.id).map(Vec::as_slice).unwrap_or_default());
            (line, lately)
        })
        .collect();
    let body = html! {
        div.heading {
            div.grow { h1 { (title) } }
            (choice(ctx, &t!(ctx, "view"), "view", if graph { "graph" } else { "" }, &[("", t!(ctx, "view-list")), ("graph", t!(ctx, "tab-graph"))]))
            @if ctx.viewer.operates() { div.actions { a.button.primary href="/groups/new" { (t!(ctx, "new-group")) } } }
        }
        section.panel {
            form.filters method="get" action="/groups" role="search" aria-label=(t!(ctx, "filter")) data-at-once {
                @if graph { input type="hidden" name="view" value="graph"; }
                label.hidden for="filter" { (t!(ctx, "filter-name")) }
                input #filter type="search" name="q" value=[asked.text.as_deref()] placeholder=(t!(ctx, "filter-name"));
                @if let Some(category) = &asked.category { input type="hidden" name="category" value=(category); }
                label.hidden for="enabled" { (t!(ctx, "state")) }
                select #enabled name="enabled" {
                    option value="" { (t!(ctx, "all-states")) }
                    option value="true" selected[asked.enabled == Some(true)] { (t!(ctx, "enabled")) }
                    option value="false" selected[asked.enabled == Some(false)] { (t!(ctx, "disabled")) }
                }
                button type="submit" { (t!(ctx, "filter")) }
            }
            (tree(ctx, &categories, asked.category.as_deref()))
        }
        @if graph { (picture::shown(ctx).await?) }
        @else {
            (listed(ctx, "groups", list(ctx, &lately), next.as_deref()))
            @if ctx.viewer.operates() { (many(ctx)) }
        }
    };
    Answer::page(Page::new("groups", title, body))
}

/// The categories, each with its groups counted, to look into one of them. Many of them are folded until they are wanted.
fn tree(ctx: &Ctx, categories: &[(String, i64)], chosen: Option<&str>) -> Markup {
    let address = |category: Option<&str>| with_query(ctx, &[("category", category), ("cursor", None)]);
    let inside = html! {
        ul.tree {
            li { a href=(address(None)) aria-current=[chosen.is_none().then_some("true")] { (t!(ctx, "all-categories")) } }
            @for (name, count) in categories {
                li { a href=(address(Some(name.as_str()))) aria-current=[(chosen == Some(name.as_str())).then_some("true")] { bdi { (name) } " " span.muted { (number(*count)) } } }
            }
        }
    };
    html! {
        @if !categories.is_empty() {
            nav.under aria-label=(t!(ctx, "category")) {
                @if categories.len() <= CATEGORIES_OPEN { (inside) }
                @else { details open[chosen.is_some()] { summary { (t!(ctx, "categories-count", n = categories.len())) } (inside) } }
            }
        }
    }
}

/// Enables or disables those that are ticked.
fn many(ctx: &Ctx) -> Markup {
    html! {
        form #many.row.for-rows method="post" action="/groups/set" data-picks {
            span.muted { (t!(ctx, "many-ticked")) }
            button type="submit" name="enable" value="true" title=(t!(ctx, "enable-will")) data-confirm=(t!(ctx, "many-enable-sure")) { (t!(ctx, "enable")) }
            button type="submit" name="enable" value="false" title=(t!(ctx, "disable-will")) data-confirm=(t!(ctx, "many-disable-sure")) { (t!(ctx, "disable")) }
        }
    }
}

fn list(ctx: &Ctx, lines: &[(GroupLine, Lately)]) -> Markup {
    let may = ctx.viewer.operates();
    html! {
        section.panel {
            @if lines.is_empty() { (empty(&t!(ctx, if ctx.filters() { "no-groups" } else { "no-groups-yet" }))) }
            @else {
                table.cards.steady.groups {
                    colgroup { @if may { col.of-pick; } col; col.of-strip; col.of-rate; col.of-median; col.of-next; col.of-follows; col class=(if may { "of-switch" } else { "of-state" }); }
                    thead { tr {
                        @if may { th.pick { input type="checkbox" data-all="group" aria-label=(t!(ctx, "choose-all")); } }
                        th { (t!(ctx, "group")) } th { (t!(ctx, "last-runs")) } th.num { (t!(ctx, "rate")) } th.num { (t!(ctx, "median")) }
                        th { (t!(ctx, "next")) } th.follows { (t!(ctx, "follows")) } th { (t!(ctx, "enabled")) }
                    } }
                    tbody {
                        @for (line, lately) in lines {
                            @let topic = ctx.topic_of(&line.name);
                            // What Heddle keeps for a topic is not switched here.
                            @let own = topic.is_none();
                            tr {
                                @if may { td.pick { @if own { input type="checkbox" name="group" value=(line.name) form="many" data-pick aria-label=(t!(ctx, "choose-named", name = &line.name)); } } }
                                td { strong { (group_or_topic(ctx, &line.name)) }
                                    @if let Some(category) = &line.category { br; a.tag href=(with_query(ctx, &[("category", Some(category)), ("cursor", None)])) { (category) } } }
                                td.wide.no-bars[lately.bars.is_empty()] {
                                    a.of-runs href={ "/groups/" (segment(&line.name)) "/runs" } { (strip(&lately.bars, &strip_label(ctx, lately))) }
                                    // The state of the newest run is also shown as a word, not only as the colour of
                                    // its bar.
                                    @if let Some((newest, _)) = lately.bars.last() { span.newest title=(t!(ctx, "newest-run")) { (state(ctx, newest)) } }
                                }
                                td.num data-label=(t!(ctx, "rate")) { @if let Some(rate) = lately.rate { (format!("{:.0} %", (rate * 100.0).floor())) } @else { span.muted { "–" } } }
                                td.num.side data-label=(t!(ctx, "median")) { @if let Some(median) = lately.median_ms { (millis(ctx, median)) } @else { span.muted { "–" } } }
                                td.tight data-label=(t!(ctx, "next")) { @match (line.enabled, line.next_at) { (true, Some(at)) => (ago(ctx, at)), _ => span.muted { "–" } } }
                                td.drop.follows data-label=(t!(ctx, "follows")) { @for (index, name) in line.depends_on.iter().enumerate() { @if index > 0 { ", " } (group_link(name)) } }
                                td.tight.side { @if may && own { (switch(ctx, line)) } @else { (state(ctx, if line.enabled { "enabled" } else { "disabled" })) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn strip_label(ctx: &Ctx, lately: &Lately) -> String {
    let failed = lately.bars.iter().filter(|bar| bar.0 == RunState::Failed).count();
    t!(ctx, "strip-label", runs = lately.bars.len(), failed = failed)
}

/// On or off; a switch for those who may.
fn switch(ctx: &Ctx, line: &GroupLine) -> Markup {
    let label = t!(ctx, "enabled-named", name = &line.name);
    let on = if line.enabled { "true" } else { "false" };
    html! {
        form.switch method="post" action="/groups/set" {
            input type="hidden" name="group" value=(line.name);
            input type="hidden" name="enable" value=(if line.enabled { "false" } else { "true" });
            button type="submit" role="switch" aria-checked=(on) aria-label=(label) {}
        }
    }
}

/// How many groups were changed, which were not, and why the first of these was not.
fn said_in_part(ctx: &Ctx, all: usize, failed: &[(&str, Trouble)]) -> String {
    let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
    let why = failed.first().map(|(_, trouble)| match trouble.said(ctx.lang) {
        nothing if nothing.is_empty() => means(ctx, trouble.status).1,
        said => said,
    });
    let (done, why) = (all - failed.len(), why.unwrap_or_default());
    let said = t!(
        ctx,
        "said-set-in-part",
        n = done,
        all = all,
        names = named(&names),
        why = why
    );
    format!("!{said}")
}

/// Enables or disables groups: each for which that is possible, whatever becomes of the others.
pub(super) async fn set(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let field = |name: &str| {
        form.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    };
    let enable = field("enable") == Some("true");
    let names: Vec<&String> = form
        .iter()
        .filter(|(key, _)| key == "group")
        .map(|(_, name)| name)
        .collect();
    if names.is_empty() {
        return Err(Trouble::new(422, t!(ctx, "many-none")));
    }
    let (verb, body) = match enable {
        true => ("enable", json!({})),
        false => ("disable", json!({ "mode": field("mode").unwrap_or("drain") })),
    };
    let mut failed: Vec<(&str, Trouble)> = Vec::new();
    for name in &names {
        let target = format!("/v1/groups/{}/{verb}", segment(name));
        if let Err(trouble) = ctx.send(Method::POST, &target, &body).await {
            failed.push((name.as_str(), trouble));
        }
    }
    match failed.pop() {
        Some((_, trouble)) if names.len() == 1 => return Err(trouble),
        Some(last) => {
            failed.push(last);
            return Answer::back(ctx, Some(said_in_part(ctx, names.len(), &failed)));
        }
        None => {}
    }
    Answer::back(
        ctx,
        Some(match (names.len(), enable) {
            (1, true) => t!(ctx, "said-enabled"),
            (1, false) => t!(ctx, "said-disabled"),
            (n, true) => t!(ctx, "said-enabled-many", n = n),
            (n, false) => t!(ctx, "said-disabled-many", n = n),
        }),
    )
}
