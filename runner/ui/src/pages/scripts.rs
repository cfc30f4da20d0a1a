//! Scripts: the list, uploads, versions, and a console to try them.

mod console;
mod files;
mod needs;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use axum::http::Method;
use heddle_api::{AttemptState, List, Script, ScriptVersion};
use heddle_domain::schema::changes::{Change, SchemaChange, changes, short};
use heddle_store::pages::group::AttemptEnd;
use maud::{Markup, html};
use serde_json::json;
use uuid::Uuid;

use super::answer::Answer;
use super::script_text;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, group_link, line, listed, millis, prose, state_of, tabs, time};
use crate::form::whole_given;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, span, yaml};
use files::upload_form;

pub(super) use files::upload;

/// Groups and topics that use a script and are listed, of each.
const USERS_MAX: i64 = 50;
/// Versions that are listed.
const VERSIONS: usize = 100;
/// Up to this number of changes, the changes of a version's params are shown unfolded.
const CHANGES_OPEN: usize = 6;
/// How many attempts show how a script does, and in how many of the newest runs of its groups these are searched.
const ATTEMPTS: usize = 1_000;
const GROUPS_LOOKED_AT: usize = 10;
const RUNS_LOOKED_AT: i64 = 100;
const ATTEMPTS_READ: i64 = 10_000;

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let cursor = ctx
        .q("cursor")
        .map(|cursor| format!("&cursor={}", segment(cursor)))
        .unwrap_or_default();
    let found: List<Script> = ctx.get(&format!("/v1/scripts?limit=100{cursor}")).await?;
    let title = t!(ctx, "nav-scripts");
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, "no-scripts"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "script")) } th { (t!(ctx, "active-version")) } th { (t!(ctx, "world")) } th.num { (t!(ctx, "size")) } th { (t!(ctx, "changed")) } th { (t!(ctx, "description")) } } }
                    tbody { @for one in &found.items { (row(ctx, one)) } }
                }
            }
        }
    };
    let body = html! {
        div.heading {
            div.grow { h1 { (title) } }
            @if ctx.viewer.authors() { a.button href="/scripts?write=typescript" { (t!(ctx, "write-script")) } }
        }
        @if ctx.viewer.authors() { (upload_form(ctx, "")) }
        (listed(ctx, "scripts", shown, found.next_cursor.as_deref()))
    };
    Answer::page(Page::new("scripts", title, body))
}

fn row(ctx: &Ctx, one: &Script) -> Markup {
    let version = &one.version;
    html! {
        tr {
            td { strong { a href={ "/scripts/" (segment(&version.name)) } { bdi { (version.name) } } } }
            td.tight.side { @match one.active_version { Some(n) => { "@" (n) }, None => span.muted { "–" } } @if one.active_version != Some(one.latest_version) { " " span.muted { (t!(ctx, "newest-is", n = i64::from(one.latest_version))) } } }
            td.tight { span.tag { (version.world) } }
            td.num.side { (span::bytes(version.size)) }
            td.tight.muted { (ago(ctx, one.updated_at)) }
            td.wide dir="auto" { (prose(&line(&version.description))) }
        }
    }
}

pub(super) async fn page(ctx: &Ctx, name: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let api = format!("/v1/scripts/{}", segment(name));
    if let (["activate"], true) = (rest, ctx.posts()) {
        let version = whole_given(ctx.lang, &ctx.form(), "version")?;
        ctx.send(Method::PUT, &format!("{api}/active"), &json!({ "version": version }))
            .await?;
        return Answer::back(ctx, Some(t!(ctx, "said-activated", n = version)));
    }
    let script: Script = ctx.get(&api).await?;
    let mut status = 200;
    let (tab, inside) = match rest {
        [] => {
            ctx.beats_with(Beat::Audited);
            ("", versions(ctx, name, &script, &api).await?)
        }
        ["console"] => ("console", console::console(ctx, name, &script, &api).await?),
        ["source"] => match script_text::tab(ctx, name, &script, &api).await? {
            script_text::Tab::Gone(answer) => return Ok(answer),
            script_text::Tab::Shown(inside, with) => {
                status = with;
                ("source", inside)
            }
        },
        _ => return Err(Trouble::not_found()),
    };
    let version = &script.version;
    let base = format!("/scripts/{}", segment(name));
    let mut all = vec![(String::new(), base.clone(), t!(ctx, "versions"))];
    if script_text::is_text(&version.world) {
        all.push(("source".into(), format!("{base}/source"), t!(ctx, "script-source")));
    }
    if ctx.viewer.tries() {
        all.push(("console".into(), format!("{base}/console"), t!(ctx, "console")));
    }
    let head = html! {
        div.heading { div.grow {
            h1 { bdi { (name) } span.tag title=[version.runtime.as_deref()] { (version.world) } }
            p dir="auto" { (prose(&version.description)) }
        } }
    };
    let body = html! {
        @if tab.is_empty() { (ctx.live("script-head", head)) } @else { (head) }
        (tabs(name, tab, &all))
        (inside)
    };
    let page = Page::new("scripts", name, body).crumbs(vec![
        (t!(ctx, "nav-scripts"), Some("/scripts".into())),
        (name.to_owned(), None),
    ]);
    Answer::page(Page { status, ..page })
}

async fn versions(ctx: &Ctx, name: &str, script: &Script, api: &str) -> Result<Markup, Trouble> {
    let found: List<ScriptVersion> = ctx.get(&format!("{api}/versions?limit={VERSIONS}")).await?;
    let items = found.items;
    let uses = ctx.store().page_script_uses(name, USERS_MAX).await?;
    let topics = ctx.store().page_script_topics(name, USERS_MAX).await?;
    let lately = lately(ctx, name, &uses).await?;
    let active: Option<ScriptVersion> = match script.active_version {
        Some(n) => ctx.get(&format!("{api}/versions/{n}")).await.ok(),
        None => None,
    };
    let imported = active.and_then(|active| active.imports);
    let shown = html! {
        div.stack {
            (lately_shown(ctx, &lately))
            div.two {
                section.panel {
                    h2 { (t!(ctx, "versions")) }
                    table.cards {
                        thead { tr { th { (t!(ctx, "version")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "size")) } th { (t!(ctx, "created")) } th { (t!(ctx, "digest")) } th { span.hidden { (t!(ctx, "action")) } } } }
                        tbody { @for (index, one) in items.iter().enumerate() { (version_row(ctx, name, one, items.get(index + 1))) } }
                    }
                }
                div.stack {
                    @if let Some(names) = &imported { (needs::imports(ctx, names)) }
                    section.panel {
                        h2 { (t!(ctx, "used-by")) }
                        @if uses.is_empty() && topics.is_empty() { (empty(&t!(ctx, "used-by-nobody"))) }
                        ul {
                            @for group in &uses { li { (group_link(group)) } }
                            @for topic in &topics { li { a href={ "/topics/" (segment(topic)) } { (t!(ctx, "topic-named", name = topic)) } } }
                        }
                    }
                    section.panel {
                        h2 { (t!(ctx, "params-schema")) }
                        @match &script.version.params_schema { Some(schema) => (yaml::highlighted(&yaml::text(schema))), None => (empty(&t!(ctx, "none"))) }
                    }
                }
            }
        }
    };
    Ok(html! {
        @if ctx.viewer.authors() { (upload_form(ctx, name)) }
        (ctx.live("versions", shown))
    })
}

/// How attempts of a script ended lately, and how long they took.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lately {
    attempts: usize,
    failed: usize,
    timed_out: usize,
    median_ms: i64,
    longest_ms: i64,
}

impl Lately {
    fn of(ends: &[AttemptEnd]) -> Self {
        let mut spans: Vec<i64> = ends
            .iter()
            .map(|one| (one.finished_at - one.started_at).num_milliseconds().max(0))
            .collect();
        spans.sort_unstable();
        let count = |state: AttemptState| ends.iter().filter(|one| one.state == state).count();
        Self {
            attempts: ends.len(),
            failed: count(AttemptState::Failed),
            timed_out: count(AttemptState::TimedOut),
            median_ms: spans.get(spans.len() / 2).copied().unwrap_or_default(),
            longest_ms: spans.last().copied().unwrap_or_default(),
        }
    }
}

async fn lately(ctx: &Ctx, script: &str, uses: &[String]) -> Result<Lately, Trouble> {
    let catalog = ctx.ui.engine.catalog();
    let mut groups = Vec::new();
    for group in uses.iter().take(GROUPS_LOOKED_AT) {
        groups.extend(catalog.group(group).await?.map(|group| group.id));
    }
    let runs: BTreeMap<Uuid, i64> = ctx
        .store()
        .page_newest_runs(&groups, RUNS_LOOKED_AT)
        .await?
        .into_iter()
        .collect();
    // The tasks of a revision that use the script.
    let mut tasks: BTreeMap<i64, Vec<bool>> = BTreeMap::new();
    for revision in runs.values() {
        if let Entry::Vacant(entry) = tasks.entry(*revision) {
            let plan = &catalog.revision(*revision).await?.plan;
            let of = plan.tasks.iter().map(|task| {
                let named = task.spec.script.as_deref().unwrap_or_default();
                named.split('@').next() == Some(script)
            });
            entry.insert(of.collect());
        }
    }
    let ids: Vec<Uuid> = runs.keys().copied().collect();
    let mut ends = ctx.store().page_attempts(&ids, ATTEMPTS_READ).await?;
    ends.retain(|one| {
        let of = runs.get(&one.run).and_then(|revision| tasks.get(revision));
        of.and_then(|of| of.get(usize::try_from(one.task).ok()?))
            .copied()
            .unwrap_or_default()
    });
    ends.sort_by_key(|one| std::cmp::Reverse(one.finished_at));
    ends.truncate(ATTEMPTS);
    Ok(Lately::of(&ends))
}

fn lately_shown(ctx: &Ctx, lately: &Lately) -> Markup {
    let bad = lately.failed + lately.timed_out;
    html! {
        @if lately.attempts > 0 {
            section.panel {
                h2 { (t!(ctx, "script-lately", n = lately.attempts)) }
                dl.stats {
                    div { dd { b { (millis(ctx, lately.median_ms)) } } dt { span { (t!(ctx, "median")) } } }
                    div { dd { b { (millis(ctx, lately.longest_ms)) } } dt { span { (t!(ctx, "longest")) } } }
                    div.s-failed[bad > 0] { dd { b { (span::number(lately.failed as i64)) } } dt { span { (t!(ctx, "state-failed")) } } }
                    div.s-failed[lately.timed_out > 0] { dd { b { (span::number(lately.timed_out as i64)) } } dt { span { (t!(ctx, "state-timed_out")) } } }
                }
            }
        }
    }
}

/// A change of a script's params in the viewer's language, as `heddle script diff` says it in English.
fn change_in_words(ctx: &Ctx, one: &SchemaChange) -> Markup {
    let words = match &one.change {
        Change::Added { required: true } => t!(ctx, "schema-added-required"),
        Change::Added { required: false } => t!(ctx, "schema-added"),
        Change::Removed => t!(ctx, "schema-removed"),
        Change::Required => t!(ctx, "schema-required"),
        Change::Optional => t!(ctx, "schema-optional"),
        Change::Keyword { keyword, from, to } => match (from, to) {
            (Some(from), Some(to)) => t!(
                ctx,
                "schema-keyword",
                keyword = keyword,
                from = short(from),
                to = short(to)
            ),
            (None, Some(to)) => t!(ctx, "schema-keyword-new", keyword = keyword, to = short(to)),
            (from, None) => {
                let from = from.as_ref().map(short).unwrap_or_default();
                t!(ctx, "schema-keyword-gone", keyword = keyword, from = from)
            }
        },
    };
    html! {
        @if one.field.is_empty() { (t!(ctx, "params")) } @else { code { bdi { (one.field) } } }
        @if !words.starts_with([':', '：']) { " " }
        (prose(&words))
    }
}

/// How the params differ from those of the version before.
fn params_changed(ctx: &Ctx, one: &ScriptVersion, before: &ScriptVersion) -> Markup {
    let schema = |version: &ScriptVersion| version.params_schema.clone().unwrap_or_default();
    let changed = changes(&schema(before), &schema(one));
    html! {
        @if !changed.is_empty() {
            @let title = t!(ctx, "params-changed", n = changed.len());
            details #{ "changes-" (one.version) } open[changed.len() <= CHANGES_OPEN] {
                summary { (title) }
                ul.changes { @for change in &changed { li { (change_in_words(ctx, change)) } } }
            }
        }
    }
}

fn version_row(ctx: &Ctx, name: &str, one: &ScriptVersion, before: Option<&ScriptVersion>) -> Markup {
    let (active, n) = (one.active, one.version);
    let source = script_text::is_text(&one.world);
    let what = if source { "source" } else { "wasm" };
    html! {
        tr {
            td.tight { @if source { a href={ "/scripts/" (segment(name)) "/source?version=" (n) } { "@" (n) } } @else { "@" (n) } }
            td.tight.side { @if active { (state_of(ctx, "version", "active")) } }
            td.num { (span::bytes(one.size)) }
            td.tight.side { (time(ctx, one.created_at)) }
            td.wide { code title=(one.digest) { (one.digest.chars().take(12).collect::<String>()) } " " a href={ "/v1/scripts/" (segment(name)) "/versions/" (n) "/" (what) } download { (t!(ctx, "download")) } @if let Some(before) = before { (params_changed(ctx, one, before)) } }
            td.tight.side { @if !active && ctx.viewer.authors() { (button(Button { kind: "small", fields: vec![("version", n.to_string())], ..Button::new(format!("/scripts/{}/activate", segment(name)), t!(ctx, "activate"), t!(ctx, "activate-will")) })) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_script_does_is_shown_in_four_numbers() {
        let begins = heddle_domain::Time::UNIX_EPOCH;
        let ends = |state: AttemptState, millis: i64| AttemptEnd {
            run: Uuid::nil(),
            task: 0,
            state,
            started_at: begins,
            finished_at: begins + chrono::TimeDelta::milliseconds(millis),
        };
        assert_eq!(Lately::of(&[]), Lately::default());
        let all = [
            ends(AttemptState::Succeeded, 30),
            ends(AttemptState::Failed, 10),
            ends(AttemptState::TimedOut, 900),
        ];
        let expected = Lately {
            attempts: 3,
            failed: 1,
            timed_out: 1,
            median_ms: 30,
            longest_ms: 900,
        };
        assert_eq!(Lately::of(&all), expected);
    }
}
