//! Work offered to people: offers with their stock, audiences, assignments; what somebody would be given.

mod members;

use std::collections::BTreeMap;

use axum::http::Method;
use chrono::TimeDelta;
use heddle_api::{Assignment, AssignmentState, Audience, List, Occurrence, Offer, OfferTerms, Peek};
use heddle_domain::Time;
use heddle_domain::dispatch::{Offer as Terms, OfferKind, OfferSpec, Why};
use heddle_domain::id::RunId;
use heddle_domain::run::offer_name::run_of_name;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::answer::Answer;
use crate::chart::{Axis, hours};
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, first_only, line, listed, number, state, state_word, time, when};
use crate::frame::Page;
use crate::words::{Arg, Lang, t};
use crate::{Ctx, Trouble};

pub(super) use members::audience;

/// The filters of the list of assignments.
const ASKED: [&str; 7] = ["uid", "gid", "offer", "state", "from", "to", "cursor"];
/// States of an assignment, in the order in which they are offered.
const STATES: [AssignmentState; 5] = [
    AssignmentState::Assigned,
    AssignmentState::Completed,
    AssignmentState::Failed,
    AssignmentState::Expired,
    AssignmentState::Revoked,
];

/// How far ahead occurrences are drawn, and of how many offers they are computed at most.
const AHEAD: TimeDelta = TimeDelta::days(7);
const AHEAD_OFFERS_MAX: i64 = 1_000;
/// How many occurrences of an offer are drawn; if there are more, one line is drawn.
const AHEAD_EACH: usize = 60;
/// How many offers have a line in the picture.
const LINES_MAX: usize = 20;

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let query = ctx.asks(50, &ASKED);
    let assigned = format!("/v1/assignments?{query}");
    let (offers, occurrences, ahead, audiences, assignments) = futures::join!(
        ctx.get::<List<Offer>>("/v1/offers?limit=100"),
        ctx.get::<List<Occurrence>>("/v1/offers/occurrences?limit=50"),
        ahead(ctx),
        ctx.get::<List<Audience>>("/v1/audiences?limit=100"),
        ctx.get::<List<Assignment>>(&assigned),
    );
    let (offers, ahead, audiences, assignments) = (offers?, ahead?, audiences?, assignments?);
    // If the API lists no occurrences, the page shows none of them, and everything else.
    let occurrences = occurrences.unwrap_or_else(|_| none());
    let title = t!(ctx, "nav-dispatch");
    let body = html! {
        div.heading { h1 { (title) } }
        (poll_as(ctx, None))
        (ctx.live("offers", offers_table(ctx, &offers)))
        (ctx.live("ahead", upcoming(ctx, &ahead)))
        div.two {
            (ctx.live("occurrences", occurrences_table(ctx, &occurrences)))
            (ctx.live("audiences", audiences_table(ctx, &audiences)))
        }
        section.panel {
            form.filters.many method="get" role="search" aria-label=(t!(ctx, "filter")) {
                label.hidden for="uid" { (t!(ctx, "user")) } input #uid type="search" name="uid" value=[ctx.q("uid")] placeholder=(t!(ctx, "user"));
                label.hidden for="offer" { (t!(ctx, "offer")) } input #offer type="search" name="offer" value=[ctx.q("offer")] placeholder=(t!(ctx, "offer"));
                label.hidden for="state" { (t!(ctx, "state")) }
                select #state name="state" {
                    option value="" { (t!(ctx, "all-states")) }
                    @for one in STATES { option value=(one.as_str()) selected[ctx.q("state") == Some(one.as_str())] { (state_word(ctx, one)) } }
                }
                (when(ctx, "from")) (when(ctx, "to"))
                button type="submit" { (t!(ctx, "filter")) }
            }
            @if ctx.q("from").is_none() { p.muted { (t!(ctx, "assignments-of-week")) } }
        }
        (listed(ctx, "assignments", assignments_table(ctx, &assignments.items), assignments.next_cursor.as_deref()))
    };
    Answer::page(Page::new("dispatch", title, body))
}

/// The form that asks for a user.
fn poll_as(ctx: &Ctx, user: Option<&str>) -> Markup {
    html! {
        section.panel {
            h2 { (t!(ctx, "poll-as")) }
            p.muted { (t!(ctx, "poll-as-text")) }
            form.filters method="get" action="/dispatch/as" {
                label.hidden for="as" { (t!(ctx, "user")) }
                input #as type="text" name="uid" value=[user] placeholder=(t!(ctx, "user")) autocomplete="off" spellcheck="false" required;
                button type="submit" { (t!(ctx, "poll-as-look")) }
            }
        }
    }
}

/// What a user would get now, and what the user was given before. This part is not kept up to date: a peek executes a
/// take in the database, which is too much for each change.
pub(super) async fn peek(ctx: &Ctx) -> Result<Answer, Trouble> {
    let Some(uid) = ctx.q("uid").map(str::trim).filter(|uid| !uid.is_empty()) else {
        return Ok(Answer::Go {
            to: "/dispatch".into(),
            said: None,
        });
    };
    let (api, given) = (
        format!("/v1/dispatch/{}/peek", segment(uid)),
        format!("/v1/assignments?limit=20&uid={}", segment(uid)),
    );
    let (peek, given) = futures::join!(ctx.get::<Peek>(&api), ctx.get::<List<Assignment>>(&given));
    let given = given.unwrap_or_else(|_| none());
    let bare = uid.strip_prefix("uid_").unwrap_or(uid);
    let title = t!(ctx, "poll-as-title", user = bare);
    let body = html! {
        div.heading { h1 { (title) } }
        (poll_as(ctx, Some(uid)))
        section.panel { h2 { (t!(ctx, "poll-as-now")) } (peeked(ctx, &peek)) }
        div.stack {
            (assignments_table(ctx, &given.items))
            (first_only(ctx, given.items.len(), given.next_cursor.as_deref()))
        }
    };
    Answer::page(Page::new("dispatch", title, body).crumbs(vec![
        (t!(ctx, "nav-dispatch"), Some("/dispatch".into())),
        (bare.to_owned(), None),
    ]))
}

/// What a poll of a user would return, and the verdict on each offer to the user.
fn peeked(ctx: &Ctx, peek: &Result<Peek, Trouble>) -> Markup {
    let peek = match peek {
        Ok(peek) => peek,
        Err(trouble) => return html! { p.error role="alert" { (trouble.said(ctx.lang)) } },
    };
    html! {
        @if let Some(gives) = &peek.gives {
            p.verdict {
                (state(ctx, if gives.redo { "assigned" } else { "ready" }))
                " "
                @if gives.redo { (t!(ctx, "peek-redo")) } @else { (t!(ctx, "peek-gives")) }
                " " strong { bdi { (gives.offer) } }
                ", " (time(ctx, gives.occurrence))
            }
            @if gives.params.as_object().is_some_and(|params| !params.is_empty()) { pre.code { (gives.params.to_string()) } }
        } @else {
            p.verdict {
                (state(ctx, "waiting")) " " (t!(ctx, "peek-nothing")) " "
                @if let Some(at) = peek.next_at { (t!(ctx, "peek-next")) " " (time(ctx, at)) }
                @else { (t!(ctx, "peek-never")) }
            }
        }
        p.muted.params {
            (t!(ctx, "peek-audiences")) (ctx.lang.colon())
            @for (n, audience) in peek.audiences.iter().enumerate() {
                @if n > 0 { (ctx.lang.comma()) }
                bdi { (audience) }
            }
            (ctx.lang.stop()) (t!(ctx, "peek-window")) (ctx.lang.colon()) (time(ctx, peek.window.from)) " – " (time(ctx, peek.window.to))
        }
        @if peek.offers.is_empty() { (empty(&t!(ctx, "peek-no-offers"))) }
        @else {
            table.cards {
                thead { tr { th { (t!(ctx, "offer")) } th { (t!(ctx, "audience")) } th { (t!(ctx, "peek-why")) } th { (t!(ctx, "occurrence")) } th { (t!(ctx, "next")) } } }
                tbody { @for one in &peek.offers {
                    tr {
                        td { a href={ "/dispatch?offer=" (segment(&one.offer)) } { bdi { (one.offer) } } }
                        td.side { bdi { (one.audience) } }
                        td.wide { @if one.why == Why::Given { strong { (why_in_words(ctx, one.why)) } } @else { (why_in_words(ctx, one.why)) } }
                        td.tight data-label=(t!(ctx, "occurrence")) { @if let Some(at) = one.occurrence { (time(ctx, at)) } @else { span.muted { "–" } } }
                        td.tight.side data-label=(t!(ctx, "next")) { @if let Some(at) = one.next_at { (time(ctx, at)) } @else { span.muted { "–" } } }
                    }
                } }
            }
            @if peek.more { p.muted { (t!(ctx, "peek-more")) } }
        }
    }
}

fn why_in_words(ctx: &Ctx, why: Why) -> String {
    match why {
        Why::Given => t!(ctx, "peek-given"),
        Why::Behind => t!(ctx, "peek-behind"),
        Why::Had => t!(ctx, "peek-had"),
        Why::Exhausted => t!(ctx, "peek-used-up"),
        Why::NotDue => t!(ctx, "peek-not-due"),
        Why::Passed => t!(ctx, "peek-passed"),
        Why::Disabled => t!(ctx, "peek-disabled"),
    }
}

/// When an offer is due, but for its first time: `every 1 h`, `daily at 09:30`.
fn due_word(lang: Lang, terms: &OfferTerms) -> String {
    match (terms.kind, terms.every, terms.at.as_deref()) {
        (OfferKind::Once, ..) => lang.t("offer-once", &[]),
        (OfferKind::Interval, Some(every), _) => {
            let every = crate::span::span(lang, every.chrono().num_milliseconds());
            lang.t("offer-every", &[("span", Arg::from(every))])
        }
        (OfferKind::Interval, None, _) => lang.t("offer-interval", &[]),
        (OfferKind::Daily, _, Some(at)) => match terms.every_days {
            Some(days @ 2..) => lang.t(
                "offer-days-at",
                &[("n", Arg::from(i64::from(days))), ("at", Arg::from(at))],
            ),
            _ => lang.t("offer-daily-at", &[("at", Arg::from(at))]),
        },
        (OfferKind::Daily, _, None) => lang.t("offer-daily", &[]),
    }
}

/// The stock of each occurrence: a number, or the word for one to each member.
fn stock_word(ctx: &Ctx, times: &Value) -> String {
    match (times.as_i64(), times.is_null()) {
        (Some(times), _) => number(times),
        (None, true) => "–".to_owned(),
        (None, false) => t!(ctx, "stock-each"),
    }
}

fn offers_table(ctx: &Ctx, found: &List<Offer>) -> Markup {
    let offers = &found.items;
    html! {
        section.panel {
            h2 { (t!(ctx, "offers")) }
            @if offers.is_empty() { (empty(&t!(ctx, "no-offers"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "offer")) } th { (t!(ctx, "kind")) } th { (t!(ctx, "audience")) } th { (t!(ctx, "starts")) } th.num { (t!(ctx, "stock")) } th { (t!(ctx, "enabled")) } } }
                    tbody { @for one in offers {
                        @let terms = &one.terms;
                        tr {
                            td { a href={ "/dispatch?offer=" (segment(&one.id)) } { bdi { (one.id) } } }
                            td.side { span.tag { (due_word(ctx.lang, terms)) } @if let Some(zone) = &terms.timezone { " " span.muted { (zone) } } }
                            td { bdi { (terms.audience) } }
                            td.tight.side data-label=(t!(ctx, "starts")) { @if let Some(at) = terms.starts_at.or(terms.anchor) { (time(ctx, at)) } }
                            td.num data-label=(t!(ctx, "stock")) { (stock_word(ctx, &terms.dispatch_times)) }
                            td.tight.side { (state(ctx, if terms.enabled { "enabled" } else { "disabled" })) }
                        }
                    } }
                }
            }
            (first_only(ctx, offers.len(), found.next_cursor.as_deref()))
        }
    }
}

/// The offers that are due in the days to come, by name, and when: computed for each offer by itself, so that one that is
/// due every minute hides no other.
async fn ahead(ctx: &Ctx) -> Result<BTreeMap<String, Vec<Time>>, Trouble> {
    let to = ctx.now + AHEAD;
    let rows = ctx.store().offers_due(None, (ctx.now, to), 0, AHEAD_OFFERS_MAX).await?;
    let lines = rows.into_iter().filter_map(|row| {
        let spec: OfferSpec = serde_json::from_value(row.spec).ok()?;
        let times = due(&Terms::compile(spec, row.starts_at).ok()?, ctx.now, to);
        (!times.is_empty()).then_some((row.name, times))
    });
    Ok(lines.collect())
}

/// When an offer is due in some time; one more than is drawn.
fn due(offer: &Terms, from: Time, to: Time) -> Vec<Time> {
    std::iter::successors(offer.first_from(from), |at| offer.next_after(*at))
        .take_while(|at| *at <= to)
        .take(AHEAD_EACH + 1)
        .collect()
}

/// When each offer is due in the days to come, on a line.
fn upcoming(ctx: &Ctx, lines: &BTreeMap<String, Vec<Time>>) -> Markup {
    let axis = Axis {
        from: ctx.now,
        to: ctx.now + AHEAD,
        width: 1_000.0,
    };
    if lines.is_empty() {
        return html! {};
    }
    let days = hours(ctx.zone, axis.from, axis.to, 24);
    let is_dense = |times: &[Time]| times.len() > AHEAD_EACH;
    let count = |times: &[Time]| match is_dense(times) {
        true => format!("{AHEAD_EACH}+"),
        false => times.len().to_string(),
    };
    html! {
        section.panel {
            h2 { (t!(ctx, "offers-ahead")) }
            div.lanes {
                @for (offer, times) in lines.iter().take(LINES_MAX) {
                    div.lane.lane-name { a href={ "/dispatch?offer=" (segment(offer)) } { bdi { (offer) } } }
                    svg.lane.picture viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" aria-label=(t!(ctx, "offer-line", name = offer, n = count(times))) {
                        @for day in &days { line.axis vector-effect="non-scaling-stroke" x1=(format!("{:.1}", axis.x(*day))) x2=(format!("{:.1}", axis.x(*day))) y1="0" y2="26" {} }
                        @if is_dense(times) {
                            @let first = axis.x(times[0]);
                            rect.density x=(format!("{first:.1}")) y="12" width=(format!("{:.1}", 1_000.0 - first)) height="2" { title { (t!(ctx, "offer-line", name = offer, n = count(times))) } }
                        } @else {
                            @for at in times { rect.due x=(format!("{:.1}", axis.x(*at) - 2.0)) y="8" width="4" height="10" rx="1" { title { (crate::span::moment(ctx.lang, ctx.zone, *at, ctx.now, false)) } } }
                        }
                    }
                }
            }
            div.lanes aria-hidden="true" {
                div {}
                svg.picture.scale { @for day in &days {
                    @let x = axis.x(*day);
                    @if x > 30.0 && x < 970.0 { text x=(format!("{:.2}%", x / 10.0)) y="14" text-anchor="middle" { (crate::span::day(ctx.lang, ctx.zone, *day, ctx.now)) } }
                } }
            }
            @if lines.values().take(LINES_MAX).any(|times| is_dense(times)) { p.muted { (t!(ctx, "offers-dense", n = AHEAD_EACH)) } }
            @if lines.len() > LINES_MAX { p.muted { (t!(ctx, "and-more", n = lines.len() - LINES_MAX)) } }
        }
    }
}

/// A list of nothing, in place of one that the API does not give.
fn none<T>() -> List<T> {
    List {
        items: Vec::new(),
        next_cursor: None,
    }
}

fn occurrences_table(ctx: &Ctx, found: &List<Occurrence>) -> Markup {
    let occurrences = &found.items;
    html! {
        section.panel {
            h2 { (t!(ctx, "occurrences")) }
            @if occurrences.is_empty() { (empty(&t!(ctx, "no-occurrences"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "offer")) } th { (t!(ctx, "occurrence")) } th { (t!(ctx, "stock")) } } }
                    tbody { @for one in occurrences {
                        tr {
                            td.tight { (offer_name(ctx, &one.offer)) }
                            td.tight.side { (time(ctx, one.occurrence)) }
                            td.wide { (stock(ctx, one)) }
                        }
                    } }
                }
            }
            (first_only(ctx, occurrences.len(), found.next_cursor.as_deref()))
        }
    }
}

/// How much stock of an occurrence is taken, completed, failed and left.
fn stock(ctx: &Ctx, one: &Occurrence) -> Markup {
    let [taken, completed, failed] = [one.taken, one.completed, one.failed].map(i64::from);
    let Some(left) = one.left.map(i64::from) else {
        return html! { (t!(ctx, "taken-n", n = taken)) };
    };
    let total = (taken + left).max(1) as f64;
    let width = |n: i64| n as f64 / total * 400.0;
    html! {
        svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(t!(ctx, "stock-label", taken = taken, left = left)) {
            rect.f-ready x="0" y="0" width="400" height="8" {}
            rect.f-running x="0" y="0" width=(format!("{:.1}", width(taken))) height="8" {}
            rect.f-succeeded x="0" y="0" width=(format!("{:.1}", width(completed))) height="8" {}
            rect.f-failed x=(format!("{:.1}", width(completed))) y="0" width=(format!("{:.1}", width(failed))) height="8" {}
        }
        span.muted { (t!(ctx, "stock-label", taken = taken, left = left)) }
    }
}

fn audiences_table(ctx: &Ctx, found: &List<Audience>) -> Markup {
    let audiences = &found.items;
    html! {
        section.panel {
            h2 { (t!(ctx, "audiences")) }
            @if audiences.is_empty() { (empty(&t!(ctx, "no-audiences"))) }
            @else {
                table { thead { tr { th { (t!(ctx, "audience")) } th.num { (t!(ctx, "members")) } } }
                    tbody { @for one in audiences { tr { td { a href={ "/dispatch/audiences/" (segment(&one.audience)) } { bdi { (one.audience) } } } td.num { (number(one.count)) } } } } }
            }
            (first_only(ctx, audiences.len(), found.next_cursor.as_deref()))
        }
    }
}

/// The end of an id: its beginning is a time, which runs that were made together share.
fn id_end(id: RunId) -> String {
    let text = id.to_string();
    text[text.len() - 12..].to_owned()
}

fn offer_name(ctx: &Ctx, offer: &str) -> Markup {
    html! {
        @match run_of_name(offer) {
            Some(id) => a href={ "/runs/" (id) } title=(offer) { (t!(ctx, "offer-of-run")) " " code.whole-word { "…" (id_end(id)) } },
            None => bdi { (offer) },
        }
    }
}

fn assignments_table(ctx: &Ctx, assignments: &[Assignment]) -> Markup {
    html! {
        section.panel {
            h2 { (t!(ctx, "assignments")) }
            @if assignments.is_empty() { (empty(&t!(ctx, "no-assignments"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "user")) } th { (t!(ctx, "state")) } th { (t!(ctx, "offer")) } th { (t!(ctx, "occurrence")) } th { (t!(ctx, "started")) } th { (t!(ctx, "result")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in assignments {
                        tr {
                            td { a href={ "/dispatch/as?uid=" (segment(&one.uid)) } { bdi { (one.uid) } } }
                            td.tight.side { (state(ctx, one.state)) }
                            td { (offer_name(ctx, &one.offer)) }
                            td.tight.side { (time(ctx, one.occurrence)) }
                            td.tight.muted { (ago(ctx, one.assigned_at)) }
                            td.wide { @if let Some(result) = &one.result { code { (line(&result.to_string())) } } }
                            td.tight.side { @if ctx.viewer.operates() && one.state == AssignmentState::Assigned { (button(Button { kind: "small", confirm: Some(t!(ctx, "revoke-sure")), ..Button::new(format!("/dispatch/assignments/{}/revoke", one.assignment_id), t!(ctx, "revoke"), t!(ctx, "revoke-will")) })) } }
                        }
                    } }
                }
            }
        }
    }
}

pub(super) async fn revoke(ctx: &Ctx, id: &str) -> Result<Answer, Trouble> {
    ctx.send(
        Method::POST,
        &format!("/v1/assignments/{}/revoke", segment(id)),
        &json!({}),
    )
    .await?;
    Answer::back(ctx, Some(t!(ctx, "said-revoked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_known_by_the_end_of_its_id() {
        let id = "01a20486-7b18-70f7-88ee-43089edb2d5a".parse().unwrap();
        assert_eq!(id_end(RunId(id)), "43089edb2d5a");
    }

    #[test]
    fn what_is_due_often_is_cut_and_what_is_due_rarely_is_whole() {
        let at = |text: &str| text.parse::<Time>().unwrap();
        let (from, to) = (at("2026-11-26T00:00:00Z"), at("2026-12-03T00:00:00Z"));
        let due = |spec: Value| {
            let spec: OfferSpec = serde_json::from_value(spec).unwrap();
            super::due(&Terms::compile(spec, from).unwrap(), from, to)
        };
        let often = due(json!({"audience": "gid_a", "anchor": "2026-11-20T09:00:00Z", "every": "5m"}));
        assert_eq!(often.len(), AHEAD_EACH + 1);
        let late = due(json!({"kind": "once", "audience": "gid_a", "starts_at": "2026-12-02T09:00:00Z"}));
        assert_eq!(late, [at("2026-12-02T09:00:00Z")]);
        let daily = due(json!({"audience": "gid_a", "at": "02:30", "timezone": "UTC"}));
        assert_eq!(daily.len(), 7);
    }

    #[test]
    fn an_offer_says_when_it_is_due() {
        let word = |more: Value| {
            let mut terms = json!({
                "kind": "once", "audience": "gid_a", "template": null, "params": {}, "dispatch_times": 1, "mode": "single",
                "priority": 0, "max_hold": null, "enabled": true, "ends_at": null,
            });
            for (name, value) in more.as_object().unwrap() {
                terms[name] = value.clone();
            }
            due_word(Lang::En, &serde_json::from_value(terms).unwrap())
        };
        assert_eq!(word(json!({})), "once");
        assert_eq!(word(json!({"kind": "interval", "every": "1h"})), "every 1 h");
        assert_eq!(word(json!({"kind": "daily", "at": "09:30"})), "daily at 09:30");
        assert_eq!(
            word(json!({"kind": "daily", "at": "09:30", "every_days": 3})),
            "every 3 days at 09:30"
        );
    }
}
