//! Topics of scheduled messages: days, a day's buckets, looking up, cancelling.

mod cancel;

use chrono::{Datelike, Months, NaiveDate};
use chrono_tz::Tz;
use heddle_api::{Day, List, MessageView, Queue, Topic};
use heddle_domain::message::BUCKETS;
use heddle_domain::topic::Granularity;
use maud::{Markup, html};

use self::cancel::{asked_cancel, cancel, cancel_form};
use super::answer::Answer;
use super::{message_errors, queues};
use crate::chart::fill;
use crate::ctx::{Beat, segment};
use crate::elements::{
    ago, empty, first_only, glyph, line, listed, number, parse, script_link, state_called, state_of, time_exact,
    with_query,
};
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// For how many topics the list shows the progress of today: up to 10,000 buckets must be counted for each.
const TODAYS_MAX: usize = 20;
/// The picture of a day's buckets has 100 rows of 100.
const SIDE: usize = 100;
const _: () = assert!(SIDE * SIDE == BUCKETS as usize);

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let found: List<Topic> = ctx.get(&format!("/v1/topics?{}", ctx.asks(100, &["cursor"]))).await?;
    let todays = futures::future::join_all(found.items.iter().take(TODAYS_MAX).map(|one| today(ctx, one))).await;
    let todays: Vec<Option<Day>> = todays.into_iter().collect::<Result<_, _>>()?;
    let title = t!(ctx, "nav-topics");
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, "no-topics"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "topic")) } th { (t!(ctx, "sent-to")) } th { (t!(ctx, "today")) } @for word in LISTED { th.num { (t!(ctx, word)) } } th { (t!(ctx, "granularity")) } th { (t!(ctx, "time-zone")) } } }
                    tbody { @for (index, one) in found.items.iter().enumerate() {
                        @let today = todays.get(index).map(Option::as_ref);
                        tr {
                            td { strong { a href={ "/topics/" (segment(&one.name)) } { bdi { (one.name) } } } }
                            td.side { (target(ctx, one)) }
                            td.tight data-label=(t!(ctx, "today")) {
                                @match today {
                                    Some(Some(day)) => a href={ "/topics/" (segment(&one.name)) "/" (day.day) } { (day.day) },
                                    Some(None) => span.muted { (t!(ctx, "no-messages-today")) },
                                    None => span.muted { "–" },
                                }
                            }
                            @let counts = today.map(|day| day.map_or([0; 4], in_the_list));
                            @for (index, word) in LISTED.into_iter().enumerate() {
                                td.num data-label=(t!(ctx, word)) { @match counts { Some(counts) => (number(counts[index])), None => span.muted { "–" } } }
                            }
                            td.tight data-label=(t!(ctx, "granularity")) { (granularity_word(ctx, one.spec.granularity)) }
                            td.tight.side data-label=(t!(ctx, "time-zone")) { (one.spec.timezone.as_deref().unwrap_or("UTC")) }
                        }
                    } }
                }
            }
        }
    };
    let body = html! { div.heading { h1 { (title) } } (listed(ctx, "topics", shown, found.next_cursor.as_deref())) };
    Answer::page(Page::new("topics", title, body))
}

fn granularity_word(ctx: &Ctx, granularity: Granularity) -> String {
    match granularity {
        Granularity::Day => t!(ctx, "granularity-day"),
        Granularity::Instant => t!(ctx, "granularity-instant"),
    }
}

fn zone_of(one: &Topic) -> Tz {
    let zone = one.spec.timezone.as_ref().and_then(|zone| zone.parse().ok());
    zone.unwrap_or(Tz::UTC)
}

/// The progress of today in the topic's zone, if something is due today.
async fn today(ctx: &Ctx, one: &Topic) -> Result<Option<Day>, Trouble> {
    let today = ctx.now.with_timezone(&zone_of(one)).date_naive();
    let target = format!("/v1/topics/{}/days?limit=1&cursor={today}", segment(&one.name));
    match ctx.get::<List<Day>>(&target).await {
        Ok(found) => Ok(found.items.into_iter().find(|day| day.day == today)),
        // It was deleted meanwhile.
        Err(trouble) if trouble.status == 404 => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// How many messages of a day have not been handled yet.
fn still_to_send(day: &Day) -> i64 {
    (day.total - day.sent - day.failed - day.cancelled - day.in_hand - day.retrying).max(0)
}

/// What the list of topics tells of their today.
const LISTED: [&str; 4] = ["state-scheduled", "in-hand", "state-sent", "state-failed"];

/// What is tried again is yet to be sent.
fn in_the_list(day: &Day) -> [i64; 4] {
    [still_to_send(day) + day.retrying, day.in_hand, day.sent, day.failed]
}

/// Each state of a day's messages, in the order in which they go through them.
fn counts(day: &Day) -> [(i64, &'static str); 6] {
    [
        (still_to_send(day), "scheduled"),
        (day.in_hand, "sending"),
        (day.retrying, "retrying"),
        (day.sent, "sent"),
        (day.failed, "failed"),
        (day.cancelled, "cancelled"),
    ]
}

/// The states that pictures of messages distinguish.
const DRAWN: [&str; 5] = ["scheduled", "sending", "sent", "failed", "cancelled"];

/// The word for a state of a topic's messages: what is put into a queue may wait there for a worker.
fn word(ctx: &Ctx, one: &Topic, state: &str) -> String {
    match (state, &one.spec.queue) {
        ("sending", Some(_)) => t!(ctx, "state-in-queue"),
        _ => t!(ctx, &format!("state-{state}")),
    }
}

/// Why a topic sends nothing, or why what it has put into its queue stays there, if it does.
async fn held_up(ctx: &Ctx, one: &Topic, days: &[Day]) -> Markup {
    if let Some(problem) = &one.problem {
        return html! { p.error { (line(problem)) } };
    }
    let queue = one
        .spec
        .queue
        .as_ref()
        .filter(|_| days.iter().any(|day| day.in_hand > 0));
    let Some(queue) = queue else { return html! {} };
    let address = format!("/queues/{}", segment(queue.as_str()));
    // A queue that has just been emptied may be gone.
    let found: Option<Queue> = ctx.get(&format!("/v1{address}")).await.ok();
    let reason = found.and_then(|found| queues::reason(ctx, &found));
    html! { @if let Some(reason) = reason { p.why { a href=(address) { (t!(ctx, "queue-named", name = queue.as_str())) } " · " (reason) } } }
}

/// The most that a topic sends in some time.
fn limit(ctx: &Ctx, one: &Topic) -> Option<String> {
    let rate = one.spec.rate?;
    let per = span::set(ctx.lang, rate.per);
    Some(t!(ctx, "topic-limit", n = number(rate.count), span = per))
}

fn target(ctx: &Ctx, one: &Topic) -> Markup {
    match (&one.spec.script, &one.spec.queue) {
        (Some(script), _) => script_link(script),
        (_, Some(queue)) => {
            html! { a href={ "/queues/" (segment(queue.as_str())) } { (t!(ctx, "queue-named", name = queue.as_str())) } }
        }
        _ => html! {},
    }
}

pub(super) async fn page(ctx: &Ctx, topic: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let api = format!("/v1/topics/{}", segment(topic));
    match rest {
        [] => days(ctx, topic, &api).await,
        ["cancel"] if ctx.posts() => cancel(ctx, topic, &api).await,
        [day] => one_day(ctx, topic, day, &api).await,
        _ => Err(Trouble::not_found()),
    }
}

fn crumbs(ctx: &Ctx, topic: &str, day: Option<&str>) -> Vec<(String, Option<String>)> {
    let mut crumbs = vec![(t!(ctx, "nav-topics"), Some("/topics".to_owned()))];
    crumbs.push((topic.to_owned(), day.map(|_| format!("/topics/{}", segment(topic)))));
    crumbs.extend(day.map(|day| (day.to_owned(), None)));
    crumbs
}

/// The first day of the shown month: of the requested one, or else of the current one in the topic's zone.
fn month(ctx: &Ctx, zone: Tz) -> NaiveDate {
    let asked = ctx
        .q("month")
        .and_then(|month| format!("{month}-01").parse::<NaiveDate>().ok());
    let today = ctx.now.with_timezone(&zone).date_naive();
    asked.unwrap_or_else(|| today.with_day(1).unwrap_or(today))
}

async fn days(ctx: &Ctx, topic: &str, api: &str) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let one: Topic = ctx.get(api).await?;
    let zone = zone_of(&one);
    let month = month(ctx, zone);
    let found: List<Day> = ctx.get(&format!("{api}/days?limit=31&cursor={month}")).await?;
    let behind = month.checked_add_months(Months::new(1)).unwrap_or(month);
    let mut items = found.items;
    items.retain(|one| one.day < behind);
    let looked = beside(ctx, look_up(ctx, api).await)?;
    let asked = beside(ctx, asked_cancel(ctx, &one, api).await)?;
    let status = refused(&looked).or(refused(&asked)).unwrap_or(200);
    let held_up = held_up(ctx, &one, &items).await;
    let errors = message_errors::shown(ctx, topic, &items).await?;
    let shown = html! {
        (held_up)
        (errors)
        section.panel {
            (month_choice(ctx, month))
            (month_grid(ctx, topic, month, ctx.now.with_timezone(&zone).date_naive(), &items))
            (legend(ctx, &one))
        }
        @if !items.is_empty() { (days_table(ctx, &one, &items)) }
    };
    let body = html! {
        div.heading { div.grow { h1 { bdi { (topic) } } p { (t!(ctx, "sent-to")) " " (target(ctx, &one)) " · " (zone.name()) " · " (t!(ctx, "batch-of", n = number(one.spec.batch))) @if let Some(limit) = limit(ctx, &one) { " · " (limit) } @if let Some(text) = &one.spec.description { br; bdi dir="auto" { (text) } } } } }
        (ctx.live("days", html! { div.stack { (shown) } }))
        section.panel #look-up {
            h2 { (t!(ctx, "look-up")) }
            // The address ends in `#look-up`, so that the browser scrolls to the result.
            form.filters method="get" action={ (ctx.path) "#look-up" } role="search" aria-label=(t!(ctx, "look-up")) {
                @if let Some(month) = ctx.q("month") { input type="hidden" name="month" value=(month); }
                (number_field(ctx, "sender"))
                (number_field(ctx, "receiver"))
                button type="submit" { (t!(ctx, "look-up")) }
            }
            @match &looked {
                Looked::Nothing => {}
                Looked::Refused(_, why) => (why_not(why)),
                Looked::Found(messages) => (messages_table(ctx, messages)),
            }
        }
        @if ctx.viewer.operates() { (cancel_form(ctx, topic, "", asked)) }
    };
    let page = Page::new("topics", topic, body).crumbs(crumbs(ctx, topic, None));
    Answer::page(Page { status, ..page })
}

/// The result of a form of the page.
enum Looked<T> {
    /// The form was not sent.
    Nothing,
    Found(T),
    /// The form was refused: the status, and the reason. The reason is shown next to the form, which keeps its values.
    Refused(u16, String),
}

/// The result of a form, to be shown on the page. An error that the form did not cause replaces the page.
fn beside<T>(ctx: &Ctx, answer: Result<Looked<T>, Trouble>) -> Result<Looked<T>, Trouble> {
    match answer {
        Err(trouble) if matches!(trouble.status, 400..500) => {
            let said = match trouble.said(ctx.lang) {
                nothing if nothing.is_empty() => crate::frame::means(ctx, trouble.status).0,
                said => said,
            };
            Ok(Looked::Refused(trouble.status, said))
        }
        other => other,
    }
}

fn refused<T>(looked: &Looked<T>) -> Option<u16> {
    match looked {
        Looked::Refused(status, _) => Some(*status),
        _ => None,
    }
}

fn why_not(why: &str) -> Markup {
    html! { p.state.s-failed.under role="alert" { (glyph("failed")) span { (why) } } }
}

/// Whether a form was sent, perhaps with empty fields only.
fn sent(ctx: &Ctx, field: &str) -> bool {
    ctx.query.iter().any(|(name, _)| name == field)
}

fn month_choice(ctx: &Ctx, month: NaiveDate) -> Markup {
    let written = |month: NaiveDate| month.format("%Y-%m").to_string();
    let other = |month: Option<NaiveDate>| {
        html! { @if let Some(month) = month { a href=(with_query(ctx, &[("month", Some(&written(month)))])) { (written(month)) } } }
    };
    html! {
        div.row {
            h2.grow { (t!(ctx, "days")) }
            nav.choice aria-label=(t!(ctx, "month")) {
                (other(month.checked_sub_months(Months::new(1))))
                a href=(with_query(ctx, &[("month", Some(&written(month)))])) aria-current="true" { (written(month)) }
                (other(month.checked_add_months(Months::new(1))))
            }
        }
    }
}

/// A month, one week below the other, beginning on Mondays: the number of each day's messages, and their progress.
fn month_grid(ctx: &Ctx, topic: &str, month: NaiveDate, today: NaiveDate, items: &[Day]) -> Markup {
    let lead = month.weekday().num_days_from_monday();
    let days = month.iter_days().take_while(|day| day.month() == month.month());
    let words = t!(ctx, "weekdays");
    html! {
        div.days {
            @for word in words.split(' ') { span.weekday aria-hidden="true" { (word) } }
            @for _ in 0..lead { span {} }
            @for day in days {
                @match items.iter().find(|one| one.day == day) {
                    Some(one) => {
                        @let date = day.to_string();
                        // Its name is what it shows: the date, the number, and the words of the bar.
                        a.day-cell.today[day == today] href={ "/topics/" (segment(topic)) "/" (date) } title=(format!("{date}: {}", t!(ctx, "of", n = number(one.sent), all = number(one.total)))) {
                            span { (day.day()) }
                            b { (span::short(one.total)) }
                            (bar(ctx, one))
                        }
                    }
                    None => span.day-cell.today[day == today] { span { (day.day()) } },
                }
            }
        }
    }
}

fn days_table(ctx: &Ctx, one: &Topic, items: &[Day]) -> Markup {
    let topic = &one.name;
    html! {
        section.panel {
            table.cards {
                thead { tr { th { (t!(ctx, "day")) } th { (t!(ctx, "progress")) } th.num { (t!(ctx, "messages")) } @for state in DRAWN { th.num { (word(ctx, one, state)) } } } }
                tbody { @for day in items {
                    tr {
                        td.tight { a href={ "/topics/" (segment(topic)) "/" (day.day) } { (day.day) } }
                        td.wide { (bar(ctx, day)) }
                        td.num data-label=(t!(ctx, "messages")) { (number(day.total)) }
                        @for (count, state) in counts(day) { @if DRAWN.contains(&state) { td.num data-label=(word(ctx, one, state)) { (number(count)) } } }
                    }
                } }
            }
        }
    }
}

fn number_field(ctx: &Ctx, name: &'static str) -> Markup {
    html! { label.hidden for=(name) { (t!(ctx, name)) } input id=(name) type="search" inputmode="numeric" name=(name) value=[ctx.q(name)] placeholder=(t!(ctx, name)); }
}

async fn look_up(ctx: &Ctx, api: &str) -> Result<Looked<List<MessageView>>, Trouble> {
    if ctx.q("sender").is_none() && ctx.q("receiver").is_none() {
        return match sent(ctx, "sender") {
            true => Err(Trouble::new(422, t!(ctx, "look-missing"))),
            false => Ok(Looked::Nothing),
        };
    }
    let query = ctx.asks(50, &["sender", "receiver", "day"]);
    let found: List<MessageView> = ctx.get(&format!("{api}/messages?{query}")).await?;
    Ok(Looked::Found(found))
}

fn messages_table(ctx: &Ctx, found: &List<MessageView>) -> Markup {
    let messages = &found.items;
    html! {
        @if messages.is_empty() { (empty(&t!(ctx, "no-messages"))) }
        @else {
            table.cards {
                thead { tr { th { (t!(ctx, "due")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "sender")) } th.num { (t!(ctx, "receiver")) } th { (t!(ctx, "payload")) } } }
                tbody { @for one in messages {
                    tr {
                        td.tight { @match parse(&one.due) { Some(at) => (time_exact(ctx, at)), None => (one.due) } }
                        td.tight.side { (state_of(ctx, "message", one.state.as_str())) }
                        td.num data-label=(t!(ctx, "sender")) { (one.sender) } td.num data-label=(t!(ctx, "receiver")) { (one.receiver) }
                        td.wide { code { (line(&one.payload.to_string())) } }
                    }
                } }
            }
        }
        (first_only(ctx, messages.len(), found.next_cursor.as_deref()))
    }
}

/// A day's messages as one bar.
fn bar(ctx: &Ctx, day: &Day) -> Markup {
    let total = day.total.max(1) as f64;
    let mut x = 0.0;
    // Messages that are only scheduled are the background.
    let drawn = counts(day).into_iter().filter(|(_, state)| *state != "scheduled");
    let parts: Vec<_> = drawn
        .map(|(count, state)| {
            let (from, width) = (x, count as f64 / total * 400.0);
            x += width;
            (state, from, width)
        })
        .collect();
    html! {
        svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(t!(ctx, "of", n = number(day.sent), all = number(day.total))) {
            rect.f-ready x="0" y="0" width="400" height="8" {}
            @for (state, from, width) in parts {
                @if width > 0.0 { rect class=(fill(state)) x=(format!("{from:.1}")) y="0" width=(format!("{width:.1}")) height="8" {} }
            }
        }
    }
}

async fn one_day(ctx: &Ctx, topic: &str, date: &str, api: &str) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let target = format!("{api}/days/{}", segment(date));
    let (one, day): (Topic, Day) = futures::try_join!(ctx.get(api), ctx.get(&target))?;
    let asked = beside(ctx, asked_cancel(ctx, &one, api).await)?;
    let status = refused(&asked).unwrap_or(200);
    let days = std::slice::from_ref(&day);
    let held_up = held_up(ctx, &one, days).await;
    let errors = message_errors::shown(ctx, topic, days).await?;
    let shown = html! { div.stack {
        section.panel {
            p.params { (bar(ctx, &day)) }
            (held_up)
            dl.stats {
                // How fast it goes is reckoned by the page from one look to the next.
                @if day.state == "draining" { div hidden data-rate=(day.sent) { dd { b {} } dt { span { (t!(ctx, "per-second")) } } } }
                div { dd { b { (number(day.total)) } } dt { span { (t!(ctx, "messages")) } } }
                @for (count, state) in counts(&day) { div.s-failed[state == "failed" && count > 0] { dd { b { (number(count)) } } dt { (state_called(state, &word(ctx, &one, state))) } } }
            }
            @if let Some(limit) = limit(ctx, &one) { p.muted { (limit) } }
            @if let Some(at) = day.drained_at { p.muted { (t!(ctx, "state-drained")) " " (ago(ctx, at)) } }
        }
        (errors)
        section.panel {
            h2 { (t!(ctx, "buckets")) }
            (buckets(ctx, &day))
            div.below { (legend(ctx, &one)) }
        }
    } };
    let body = html! {
        div.heading { h1 { span { bdi { (topic) } " · " (date) } } }
        (ctx.live("day", shown))
        @if ctx.viewer.operates() { (cancel_form(ctx, topic, date, asked)) }
    };
    let page = Page::new("topics", format!("{topic} · {date}"), body).crumbs(crumbs(ctx, topic, Some(date)));
    Answer::page(Page { status, ..page })
}

/// The states of messages that pictures tell apart.
fn legend(ctx: &Ctx, one: &Topic) -> Markup {
    html! {
        ul.legend aria-label=(t!(ctx, "legend")) {
            @for state in DRAWN { li { (state_called(state, &word(ctx, one, state))) } }
        }
    }
}

/// A hundred rows of a hundred: which buckets are sent. One path for each state.
fn buckets(ctx: &Ctx, day: &Day) -> Markup {
    let mut paths: std::collections::BTreeMap<String, String> = Default::default();
    let all = day.buckets.as_deref().unwrap_or_default();
    for one in all {
        let bucket = usize::try_from(one.bucket).unwrap_or_default() % (SIDE * SIDE);
        let class = if one.failed > 0 {
            "failed"
        } else if one.total > 0 && one.cancelled == one.total {
            "cancelled"
        } else if one.sent + one.cancelled >= one.total {
            "succeeded"
        } else if one.sent > 0 {
            "running"
        } else {
            "ready"
        };
        let (x, y) = (bucket % SIDE * 6, bucket / SIDE * 6);
        paths
            .entry(fill(class))
            .or_default()
            .push_str(&format!("M{x} {y}h5v5h-5z"));
    }
    html! {
        div.scroll tabindex="0" role="group" aria-label=(t!(ctx, "buckets")) {
            svg.picture.buckets viewBox="0 0 600 600" width="600" height="600" role="img" aria-label=(t!(ctx, "buckets-label", n = all.len())) {
                rect.ground x="0" y="0" width="600" height="600" {}
                @for (class, path) in &paths { path class=(class) d=(path) {} }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_a_day_are_all_of_its_messages() {
        let day = Day {
            day: NaiveDate::default(),
            state: "draining".into(),
            total: 19_999,
            sent: 9_000,
            failed: 400,
            cancelled: 30,
            in_hand: 560,
            retrying: 9,
            drained_at: None,
            dropped_at: None,
            buckets: None,
        };
        assert_eq!(still_to_send(&day), 10_000);
        assert_eq!(counts(&day).iter().map(|(count, _)| count).sum::<i64>(), day.total);
        // The list leaves out only what was cancelled.
        assert_eq!(in_the_list(&day), [10_009, 560, 9_000, 400]);
        assert_eq!(in_the_list(&day).iter().sum::<i64>() + day.cancelled, day.total);
    }
}
