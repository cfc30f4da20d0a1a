//! All runs, filtered by group, state, trigger, label, key and time; and controls of many of them at once.

use std::collections::BTreeMap;

use axum::http::Method;
use chrono::SecondsFormat;
use heddle_api::{BulkRefusal, BulkReport, List, Run, RunState, Trigger};
use heddle_domain::run::{Control, runs_again};
use heddle_store::run::{RunFilter, RunRow};
use maud::{Markup, html};
use serde_json::{Value, json};
use uuid::Uuid;

use super::answer::Answer;
use super::run::waits_for_what;
use crate::ctx::Beat;
use crate::elements::{
    ago, empty, group_link, group_or_topic, line, listed, parse, state, state_word, time, took, trigger_word, when,
    with_query,
};
use crate::form::field;
use crate::frame::Page;
use crate::words::{Arg, Lang, t};
use crate::{Ctx, Trouble, once};

/// The filters of the list.
const FILTERS: [&str; 12] = [
    "group",
    "state",
    "trigger",
    "label",
    "key",
    "param",
    "backfill",
    "from",
    "to",
    "logical_from",
    "logical_to",
    "cursor",
];
const ACTIONS: [(&str, Control); 5] = [
    ("cancel", Control::Cancel),
    ("pause", Control::Pause),
    ("resume", Control::Resume),
    ("restart", Control::Restart),
    ("rerun", Control::Rerun),
];
/// For how many runs a preview says why they would not change.
const REFUSED_SHOWN: usize = 20;
/// The field of a preview with the time up to which runs are repeated: those that it has counted, and none that it makes.
const UNTIL: &str = "until";

/// The actions that runs of these groups may allow; those that are possible for runs in this state come first.
fn actions_for(state: Option<&str>, groups: Option<&str>) -> Vec<&'static str> {
    let again = groups.is_none_or(|groups| groups.split(',').any(|group| runs_again(group.trim())));
    let fits: &[&str] = match state {
        Some("failed" | "cancelled") => &["restart", "rerun"],
        Some("succeeded") => &["rerun"],
        Some("paused") => &["resume", "cancel"],
        _ => &[],
    };
    let allowed = ACTIONS.iter().filter(|(_, control)| again || !control.is_again());
    let mut actions: Vec<&str> = allowed.map(|(action, _)| *action).collect();
    actions.sort_by_key(|action| fits.iter().position(|one| one == action).unwrap_or(fits.len()));
    actions
}

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let runs: List<Run> = ctx.get(&format!("/v1/runs?{}", ctx.asks(50, &FILTERS))).await?;
    let groups: Vec<&str> = runs.items.iter().map(|run| run.group.as_str()).collect();
    ctx.know_topics(&groups).await?;
    let title = t!(ctx, "nav-runs");
    let by_param = ctx.q("param").is_some();
    let filtered = FILTERS.iter().any(|name| *name != "cursor" && ctx.q(name).is_some());
    let shown = html! {
        (list(ctx, &runs.items))
        @if by_param && runs.next_cursor.is_some() { p.muted { (t!(ctx, "param-looked")) } }
    };
    let body = html! {
        div.heading { div.grow { h1 { (title) } } }
        (filters(ctx, None))
        (listed(ctx, "runs", shown, runs.next_cursor.as_deref()))
        // There are no controls without a filter, because nobody wants the same for all runs; nor with a filter that
        // searches a part of the runs at a time, because it does not find all of them.
        @if ctx.viewer.operates() && !by_param {
            div.for-rows { @if filtered { (bulk_form(ctx)) } @else { p.muted { (t!(ctx, "bulk-filter-first")) } } }
        }
    };
    Answer::page(Page::new("runs", title, body))
}

fn at(ctx: &Ctx, name: &str) -> Option<heddle_domain::Time> {
    ctx.q(name).and_then(parse)
}

/// The form of the filters. `of`: the list is that of a group, on the page of the group, and stays there.
pub(super) fn filters(ctx: &Ctx, of: Option<&str>) -> Markup {
    let select = |name: &'static str, all: String, among: Vec<(&'static str, String)>| -> Markup {
        html! {
            label.hidden for=(name) { (all) }
            select id=(name) name=(name) {
                option value="" { (all) }
                @for (value, word) in among { option value=(value) selected[ctx.q(name) == Some(value)] { (word) } }
            }
        }
    };
    let states = RunState::ALL
        .iter()
        .map(|one| (one.as_str(), state_word(ctx, one)))
        .collect();
    let triggers = Trigger::ALL
        .iter()
        .map(|one| (one.as_str(), trigger_word(ctx, *one)))
        .collect();
    html! {
        section.panel {
            form.filters.many method="get" action="/runs" role="search" aria-label=(t!(ctx, "filter")) {
                @if let Some(group) = of { input type="hidden" name="group" value=(group); }
                @else {
                    label.hidden for="group" { (t!(ctx, "group")) }
                    input #group type="search" name="group" value=[ctx.q("group")] placeholder=(t!(ctx, "group"));
                }
                (select("state", t!(ctx, "all-states"), states))
                (select("trigger", t!(ctx, "all-triggers"), triggers))
                label.hidden for="label" { (t!(ctx, "label")) }
                input #label type="search" name="label" value=[ctx.q("label")] placeholder=(t!(ctx, "label-hint"));
                label.hidden for="key" { (t!(ctx, "key")) }
                input #key type="search" name="key" value=[ctx.q("key")] placeholder=(t!(ctx, "key"));
                label.hidden for="param" { (t!(ctx, "params")) }
                input #param type="search" name="param" value=[ctx.q("param")] placeholder=(t!(ctx, "param-hint"));
                (when(ctx, "from")) (when(ctx, "to"))
                @if let Some(id) = ctx.q("backfill") {
                    span.tag { (t!(ctx, "backfill")) (ctx.lang.colon()) code { (id.chars().take(13).collect::<String>()) "…" } " " a.remove href=(with_query(ctx, &[("backfill", None)])) aria-label=(t!(ctx, "remove-filter")) { "×" } }
                    input type="hidden" name="backfill" value=(id);
                }
                // A day from a calendar, or a span that was marked in a picture.
                @if let (Some(from), Some(to)) = (at(ctx, "logical_from"), at(ctx, "logical_to")) {
                    span.tag { (t!(ctx, "logical-time")) (ctx.lang.colon()) (time(ctx, from)) " – " (time(ctx, to)) " " a.remove href=(with_query(ctx, &[("logical_from", None), ("logical_to", None)])) aria-label=(t!(ctx, "remove-filter")) { "×" } }
                    input type="hidden" name="logical_from" value=[ctx.q("logical_from")];
                    input type="hidden" name="logical_to" value=[ctx.q("logical_to")];
                }
                button type="submit" { (t!(ctx, "filter")) }
            }
        }
    }
}

pub(super) fn list(ctx: &Ctx, runs: &[Run]) -> Markup {
    html! {
        section.panel {
            @if runs.is_empty() { (empty(&t!(ctx, if ctx.filters() { "no-runs" } else { "no-runs-at-all" }))) }
            @else {
                table.cards.steady {
                    colgroup { col.of-group; col.of-time; col.of-state; col.of-trigger; col.of-span; col.of-ago; col; }
                    thead { tr { th { (t!(ctx, "group")) } th { (t!(ctx, "logical-time")) } th { (t!(ctx, "state")) } th.trigger { (t!(ctx, "trigger")) } th.num { (t!(ctx, "took")) } th { (t!(ctx, "created")) } th { (t!(ctx, "what-it-says")) } } }
                    tbody { @for run in runs { (row(ctx, run)) } }
                }
            }
        }
    }
}

fn row(ctx: &Ctx, run: &Run) -> Markup {
    html! {
        tr {
            td { (group_or_topic(ctx, &run.group)) }
            td.tight.side { a href={ "/runs/" (run.id) } data-main { (time(ctx, run.logical_time)) } }
            td.tight { (state(ctx, run.state)) }
            td.tight.muted.side.trigger { (trigger_word(ctx, run.trigger)) }
            td.num data-label=(t!(ctx, "took")) { @if let Some(from) = run.at_work_since() { (took(ctx, from, run.finished_at)) } }
            td.tight.muted.side { (ago(ctx, run.created_at)) }
            td.wide {
                @if let Some(error) = &run.error { span.error title=(error.message) { (line(&error.message)) } }
                @if run.state == RunState::Waiting { (waits_for_what(ctx, &run.waiting_for)) }
                @if let Some(key) = run.key.as_deref().filter(|key| !once::is_ours(key)) { " " span.tag { (t!(ctx, "key-is")) (ctx.lang.colon()) (key) } }
                @for (name, value) in &run.labels { " " span.tag { (name) "=" (value) } }
            }
        }
    }
}

/// Controls all runs that the filter finds, after saying how many these are.
fn bulk_form(ctx: &Ctx) -> Markup {
    html! {
        section.panel {
            h2 { (t!(ctx, "bulk-title")) }
            form.filters method="post" action="/runs/bulk" {
                @for name in FILTERS.into_iter().filter(|name| *name != "cursor") { @if let Some(value) = ctx.q(name) { input type="hidden" name=(name) value=(value); } }
                label.hidden for="action" { (t!(ctx, "action")) }
                select #action name="action" { @for action in actions_for(ctx.q("state"), ctx.q("group")) { option value=(action) { (t!(ctx, action)) } } }
                button type="submit" name="do" value="preview" { (t!(ctx, "preview")) }
                span.muted { (t!(ctx, "bulk-hint")) }
            }
        }
    }
}

pub(super) async fn bulk(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let mut filter = json!({});
    for name in FILTERS.into_iter().filter(|name| *name != "cursor") {
        if let Some(value) = field(&form, name) {
            filter[name] = json!(ctx.said_for_api(name, value));
        }
    }
    let action = field(&form, "action").unwrap_or_default();
    let starts = field(&form, "do") == Some("start");
    let until = until(ctx, &form, action, starts);
    if let Some(until) = &until {
        keep_until(&mut filter, until);
    }
    let mut body = json!({ "filter": filter, "action": action, "dry_run": !starts });
    let key = once::of(&form).filter(|_| starts && action == "rerun");
    if let Some(key) = key {
        body["key"] = json!(key);
    }
    let report: BulkReport = ctx.ask(Method::POST, "/v1/runs/bulk", &body).await?;
    // Back to the list with the same filter, to see the result.
    let to = same_filter(&form);
    if starts {
        let said = match key {
            Some(_) => said_reruns(ctx.lang, &report),
            None => said_bulk(ctx.lang, &report),
        };
        return Ok(Answer::Go { said: Some(said), to });
    }
    let matched = report.matched as i64;
    let (refused, refusals) = (&report.refused, report.refusals() as i64);
    let named = named(ctx, refused).await?;
    let changes = matched > refusals;
    let title = t!(ctx, "bulk-title");
    let body = html! {
        div.heading { h1 { (title) } }
        section.panel.stack {
            p { (would(ctx.lang, &t!(ctx, action), matched, refusals)) }
            @if !refused.is_empty() {
                table.cards {
                    thead { tr { th { (t!(ctx, "group")) } th { (t!(ctx, "logical-time")) } th { (t!(ctx, "state")) } th { (t!(ctx, "bulk-why-not")) } } }
                    tbody { @for one in refused.iter().take(REFUSED_SHOWN) { (refused_row(ctx, one, named.get(&one.id))) } }
                }
                @if refusals > REFUSED_SHOWN as i64 { p.muted { (t!(ctx, "and-more", n = refusals - REFUSED_SHOWN as i64)) } }
            }
            form.row method="post" action="/runs/bulk" {
                @for (name, value) in form.iter().filter(|(name, _)| !["do", UNTIL, once::FIELD].contains(&name.as_str())) { input type="hidden" name=(name) value=(value); }
                @if let Some(until) = &until { input type="hidden" name=(UNTIL) value=(until); (once::field(ctx, once::NEW)) }
                button.primary type="submit" name="do" value="start" disabled[!changes] { (t!(ctx, action)) }
                a.button href=(to) { (t!(ctx, "cancel-form")) }
            }
        }
    };
    Answer::page(
        Page::new("runs", title.clone(), body).crumbs(vec![(t!(ctx, "nav-runs"), Some("/runs".into())), (title, None)]),
    )
}

/// Up to which time of their creation runs are repeated: what the preview says, which is now. Other actions find what there is.
fn until(ctx: &Ctx, form: &[(String, String)], action: &str, starts: bool) -> Option<String> {
    match action {
        "rerun" if starts => field(form, UNTIL).map(str::to_owned),
        "rerun" => Some(ctx.now.to_rfc3339_opts(SecondsFormat::Micros, true)),
        _ => None,
    }
}

/// Leaves out the runs that were created after a time. An empty filter stays empty, and is refused.
fn keep_until(filter: &mut Value, until: &str) {
    let is_empty = filter.as_object().is_none_or(serde_json::Map::is_empty);
    let is_narrower = filter["to"]
        .as_str()
        .is_some_and(|to| parse(to).zip(parse(until)).is_none_or(|(to, until)| to <= until));
    if !is_empty && !is_narrower {
        filter["to"] = json!(until);
    }
}

/// How many runs a bulk control would find, and how many of these it would not change, if any.
fn would(lang: Lang, action: &str, matched: i64, refused: i64) -> String {
    let matching = lang.t("bulk-would", &[("action", action.into()), ("matched", matched.into())]);
    match refused {
        0 => matching,
        // The second sentence brings its own space, if the language has one.
        refused => format!("{matching}{}", lang.t("bulk-would-not", &[("n", refused.into())])),
    }
}

/// The result of a bulk control.
pub(super) fn said_bulk(lang: Lang, report: &BulkReport) -> String {
    let (changed, matched) = (report.changed as i64, report.matched as i64);
    lang.t("said-bulk", &[("changed", changed.into()), ("matched", matched.into())])
}

/// The result of a form that repeats runs: also how many of them it has repeated before, and why the first of the others is
/// not repeated.
fn said_reruns(lang: Lang, report: &BulkReport) -> String {
    let mut said = said_bulk(lang, report);
    let before = report.refused.iter().filter(|one| one.existing.is_some()).count() as i64;
    if before > 0 {
        // Only the first of many refusals are named.
        let more = report.refusals() > report.refused.len() as u64;
        said += &lang.t("said-bulk-before", &[("n", Arg::at_least(before, more))]);
    }
    if let Some(other) = report.refused.iter().find(|one| one.existing.is_none()) {
        said += &lang.t("said-bulk-why-not", &[("why", other.detail.as_str().into())]);
    }
    said
}

/// The list with the filter that a form carries.
fn same_filter(form: &[(String, String)]) -> String {
    let kept = form.iter().filter(|(name, _)| FILTERS.contains(&name.as_str()));
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(kept)
        .finish();
    format!("/runs?{query}")
}

/// The runs that a report names, up to the maximum that is shown.
async fn named(ctx: &Ctx, refused: &[BulkRefusal]) -> Result<BTreeMap<Uuid, RunRow>, Trouble> {
    let ids: Vec<Uuid> = refused.iter().take(REFUSED_SHOWN).map(|one| one.id).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let limit = ids.len() as i64;
    let filter = RunFilter {
        ids,
        ..RunFilter::default()
    };
    let found = ctx.store().runs(&filter, limit).await?;
    Ok(found.items.into_iter().map(|run| (run.id, run)).collect())
}

fn refused_row(ctx: &Ctx, one: &BulkRefusal, run: Option<&RunRow>) -> Markup {
    html! {
        tr {
            td { @if let Some(run) = run { (group_link(&run.group_name)) } }
            td.tight.side { a href={ "/runs/" (one.id) } data-main { @match run { Some(run) => (time(ctx, run.terms.logical_time)), None => code { (one.id) } } } }
            td.tight { @if let Some(run) = run { (state(ctx, run.state)) } }
            td.wide { (one.detail) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_that_fits_the_state_comes_first() {
        for (state, first) in [
            (None, "cancel"),
            (Some("running"), "cancel"),
            (Some("failed"), "restart"),
            (Some("succeeded"), "rerun"),
            (Some("paused"), "resume"),
        ] {
            for groups in [None, Some("weather"), Some("_topic-7, weather")] {
                let actions = actions_for(state, groups);
                assert_eq!(actions[0], first, "{state:?}");
                assert!(ACTIONS.iter().all(|(action, _)| actions.contains(action)), "{state:?}");
            }
            // Batches of messages do not run again.
            let of_batches = actions_for(state, Some("_topic-7"));
            assert_eq!(of_batches.len(), 3, "{state:?}");
            assert!(
                ["cancel", "pause", "resume"]
                    .iter()
                    .all(|action| of_batches.contains(action))
            );
        }
    }

    #[test]
    fn a_preview_says_how_many_would_change() {
        let said = |matched, refused| would(Lang::En, "Restart", matched, refused);
        assert_eq!(said(1, 0), "Restart: 1 run matches.");
        assert_eq!(said(12, 0), "Restart: 12 runs match.");
        assert_eq!(said(1_200, 2), "Restart: 1,200 runs match. 2 of them would not change.");
        let said = would(Lang::Zh, "取消", 12, 2);
        assert_eq!(said, "取消：符合 12 次运行。其中 2 次不会更改。");
    }

    #[test]
    fn a_form_that_has_repeated_runs_before_says_so() {
        let report = |changed: u64, refused: Vec<BulkRefusal>, refused_total: u64| BulkReport {
            matched: changed + refused_total,
            changed,
            ids: Vec::new(),
            refused,
            refused_total,
            dry_run: false,
        };
        let refused = |detail: &str, existing: Option<Uuid>| BulkRefusal {
            id: Uuid::nil(),
            detail: detail.into(),
            existing,
        };
        let before = || refused("run 1 already has this key", Some(Uuid::max()));
        let other = || refused("it cannot be read", None);
        let en = |report: &BulkReport| said_reruns(Lang::En, report);
        assert_eq!(en(&report(3, vec![], 0)), "3 of 3 runs changed.");
        assert_eq!(
            en(&report(0, vec![before(), before()], 2)),
            "0 of 2 runs changed. This form has already started 2 of them. To start them again, open the form again."
        );
        assert_eq!(
            en(&report(1, vec![before(), other(), other()], 3)),
            "1 of 4 runs changed. This form has already started 1 of them. To start it again, open the form again. Not \
             changed: it cannot be read"
        );
        let many = en(&report(0, vec![before()], 1_200));
        assert!(many.contains("already started 1+ of them"), "{many}");
        let zh = said_reruns(Lang::Zh, &report(0, vec![before(), other()], 2));
        assert!(
            zh.contains("已启动了其中 1 次") && zh.ends_with("it cannot be read"),
            "{zh}"
        );
    }

    #[test]
    fn runs_are_repeated_up_to_a_time() {
        let until = "2026-11-27T12:00:00.000001Z";
        let kept = |mut filter: Value| {
            keep_until(&mut filter, until);
            filter
        };
        assert_eq!(kept(json!({})), json!({}), "all runs are not a filter");
        assert_eq!(kept(json!({"group": "a"})), json!({"group": "a", "to": until}));
        for (to, kept_to) in [
            ("2026-11-27T12:00:00Z", "2026-11-27T12:00:00Z"),
            ("2026-11-28T00:00:00Z", until),
            ("soon", "soon"),
        ] {
            assert_eq!(kept(json!({ "to": to })), json!({ "to": kept_to }), "{to}");
        }
    }

    #[test]
    fn one_comes_back_to_the_runs_that_were_meant() {
        let form = [
            ("group", "a b"),
            ("action", "cancel"),
            ("do", "start"),
            ("state", "failed"),
        ];
        let form = form.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(same_filter(&form), "/runs?group=a+b&state=failed");
    }
}
