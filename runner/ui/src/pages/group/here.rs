//! What the pages of a group share: the group, and the head above each tab.

use std::sync::Arc;

use heddle_store::pages::group::GroupRunRow;
use maud::{Markup, html};

use super::recurrence;
use crate::Ctx;
use crate::ctx::{Beat, segment};
use crate::elements::{self, Button, ago, button, group_link, tabs};
use crate::frame::Page;
use crate::words::t;

/// What every page of a group needs.
pub(super) struct Here {
    pub(super) name: String,
    pub(super) group: Arc<heddle_engine::Group>,
    /// The group's newest run, whatever its state; `None`: it has never had one.
    pub(super) newest: Option<GroupRunRow>,
}

impl Here {
    pub(super) fn address(&self, tab: &str) -> String {
        let base = format!("/groups/{}", segment(&self.name));
        if tab.is_empty() { base } else { format!("{base}/{tab}") }
    }

    pub(super) fn api(&self, rest: &str) -> String {
        format!("/v1/groups/{}{rest}", segment(&self.name))
    }
}

/// Tabs in which somebody writes. They are not kept up to date.
const WRITTEN: [&str; 2] = ["run", "backfill"];

/// Up to how many schedules the head says when they are due.
const SCHEDULES_SAID: usize = 2;

/// When it runs by itself.
fn by_itself(ctx: &Ctx, here: &Here) -> Markup {
    let revision = &here.group.revision;
    let written = &revision.plan.spec.schedules;
    let due: Vec<Markup> = revision
        .schedules
        .iter()
        .filter(|(_, one)| one.enabled())
        .filter_map(|(name, one)| recurrence::shown(ctx.lang, written.get(name.as_str())?, one.zone().name()))
        .collect();
    html! {
        @if due.len() > SCHEDULES_SAID { " · " a href=(here.address("schedules")) { (t!(ctx, "schedules-count", n = due.len())) } }
        @else { @for one in &due { " · " (one) } }
    }
}

/// The state of its newest run. It is kept up to date if the content below it is.
fn newest(ctx: &Ctx, here: &Here, tab: &str) -> Markup {
    let shown = html! {
        @if let Some(run) = &here.newest { a href={ "/runs/" (run.id) } { span.hidden { (t!(ctx, "newest-run")) " " } (elements::state(ctx, run.state)) } }
    };
    if matches!(tab, "" | "graph" | "runs" | "calendar" | "state") {
        ctx.live("newest", shown)
    } else {
        shown
    }
}

/// The parameter of the address of an open spec that says which revision it shows.
pub(super) const SHOWN: &str = "shown";

/// Somebody has saved a revision since the spec was opened, which shows the one that was the newest then: a link to the newest.
/// Who asked for a certain revision has it.
fn newer(ctx: &Ctx, here: &Here) -> Markup {
    let number = here.group.revision.number;
    let shown = ctx.q(SHOWN).and_then(|n| n.parse::<i32>().ok());
    let is_newer = ctx.is_open && ctx.q("revision").is_none() && shown.is_some_and(|shown| shown != number);
    html! {
        @if is_newer { " · " a href=(here.address("spec")) { (t!(ctx, "revision-newer", n = i64::from(number))) } }
    }
}

/// A tab's page: header, tabs, and what is under them.
pub(super) fn framed(ctx: &Ctx, here: &Here, tab: &str, inside: Markup) -> Page {
    let beat = if WRITTEN.contains(&tab) {
        Beat::Still
    } else {
        Beat::Cluster
    };
    framed_with(ctx, here, tab, beat, inside)
}

/// The same, where the tab says when the page is made again.
pub(super) fn framed_with(ctx: &Ctx, here: &Here, tab: &str, beat: Beat, inside: Markup) -> Page {
    let group = &here.group;
    let spec = &group.revision.plan.spec;
    let depends: Vec<String> = spec.depends_on.iter().map(|one| one.group().to_string()).collect();
    let next = group
        .enabled
        .then(|| group.revision.calendar.next_after(ctx.now))
        .flatten();
    // The API refuses to change a group that Heddle keeps for a topic, and to submit runs to it.
    let may = ctx.viewer.operates() && ctx.topic_of(&here.name).is_none();
    let head = html! {
        div.heading {
            div.grow {
                div.row { h1 { bdi { (here.name) } @if !group.enabled { (elements::state(ctx, "disabled")) } } (newest(ctx, here, tab)) }
                p {
                    @if let Some(text) = &spec.description { bdi dir="auto" { (text) } br; }
                    (t!(ctx, "revision-n", n = i64::from(group.revision.number)))
                    @if tab == "spec" { (newer(ctx, here)) }
                    (by_itself(ctx, here))
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
    };
    let is_live = beat != Beat::Still;
    ctx.beats_with(beat);
    let head = html! {
        @if is_live { (ctx.live("group-head", head)) } @else { (head) }
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
    Page::new("groups", title, html! { (head) (inside) }).crumbs(crumbs)
}
