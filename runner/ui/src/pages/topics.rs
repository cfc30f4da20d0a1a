//! Topics of scheduled messages: days, a day's buckets, looking up, cancelling.

use axum::http::Method;
use chrono::{Datelike, Months, NaiveDate};
use chrono_tz::Tz;
use heddle_api::{Cancelled, Day, List, MessageView, Topic};
use heddle_domain::topic::Granularity;
use maud::{Markup, html};
use serde_json::json;

use super::Answer;
use crate::chart::fill;
use crate::ctx::{Beat, segment};
use crate::elements::{ago, empty, legend_of_messages, line, more, number, script_link, state_of, with_query};
use crate::form::field;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// Buckets of a day: 100 by 100 of them.
const BUCKETS: usize = 10_000;
const SIDE: usize = 100;

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let found: List<Topic> = ctx.get("/v1/topics?limit=100").await?;
    let title = t!(ctx, "nav-topics");
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, "no-topics"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "topic")) } th { (t!(ctx, "sent-to")) } th { (t!(ctx, "granularity")) } th { (t!(ctx, "time-zone")) } th.num { (t!(ctx, "batch")) } } }
                    tbody { @for one in &found.items {
                        tr {
                            td { strong { a href={ "/topics/" (segment(&one.name)) } { bdi { (one.name) } } } }
                            td.side { (target(ctx, one)) }
                            td.tight data-label=(t!(ctx, "granularity")) { (granularity_word(one.spec.granularity)) }
                            td.tight.side { (one.spec.timezone.as_deref().unwrap_or("UTC")) }
                            td.num data-label=(t!(ctx, "batch")) { (number(one.spec.batch)) }
                        }
                    } }
                }
            }
        }
    };
    let body =
        html! { div.heading { h1 { (title) } } (ctx.live("topics", shown)) (more(ctx, found.next_cursor.as_deref())) };
    Answer::page(Page::new("topics", title, body))
}

fn granularity_word(granularity: Granularity) -> &'static str {
    match granularity {
        Granularity::Day => "day",
        Granularity::Instant => "instant",
    }
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

/// The first day of the month that is shown: what was asked for, else the topic's today.
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
    let zone = one.spec.timezone.as_ref().and_then(|zone| zone.parse().ok());
    let zone = zone.unwrap_or(Tz::UTC);
    let month = month(ctx, zone);
    let found: List<Day> = ctx.get(&format!("{api}/days?limit=31&cursor={month}")).await?;
    let behind = month.checked_add_months(Months::new(1)).unwrap_or(month);
    let mut items = found.items;
    items.retain(|one| one.day < behind);
    let looked = look_up(ctx, api).await?;
    let asked = asked_cancel(ctx, api).await?;
    let shown = html! {
        section.panel {
            (month_choice(ctx, month))
            (month_grid(ctx, topic, month, ctx.now.with_timezone(&zone).date_naive(), &items))
            (legend_of_messages(ctx, &["sent", "running", "failed", "cancelled", "pending"]))
        }
        @if !items.is_empty() { (days_table(ctx, topic, &items)) }
    };
    let body = html! {
        div.heading { div.grow { h1 { bdi { (topic) } } p { (t!(ctx, "sent-to")) " " (target(ctx, &one)) " · " (zone.name()) @if let Some(text) = &one.spec.description { br; (text) } } } }
        (ctx.live("days", html! { div.stack { (shown) } }))
        section.panel {
            h2 { (t!(ctx, "look-up")) }
            form.filters method="get" role="search" {
                (number_field(ctx, "sender"))
                (number_field(ctx, "receiver"))
                button type="submit" { (t!(ctx, "look-up")) }
            }
            @if let Some(messages) = &looked { (messages_table(ctx, messages)) }
        }
        @if ctx.viewer.operates() { (cancel_form(ctx, topic, "", asked)) }
    };
    Answer::page(Page::new("topics", topic, body).crumbs(crumbs(ctx, topic, None)))
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

/// A month, weeks below one another, Mondays first: how many messages each day has, and how far they are.
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
                        a.day-cell.today[day == today] href={ "/topics/" (segment(topic)) "/" (date) } aria-label=(format!("{date}: {}", t!(ctx, "of", n = number(one.sent), all = number(one.total)))) {
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

fn days_table(ctx: &Ctx, topic: &str, items: &[Day]) -> Markup {
    let counts: [(&str, fn(&Day) -> i64); 4] = [
        ("messages", |day| day.total),
        ("state-sent", |day| day.sent),
        ("state-failed", |day| day.failed),
        ("state-cancelled", |day| day.cancelled),
    ];
    html! {
        section.panel {
            table.cards {
                thead { tr { th { (t!(ctx, "day")) } th { (t!(ctx, "progress")) } @for (word, _) in counts { th.num { (t!(ctx, word)) } } } }
                tbody { @for day in items {
                    tr {
                        td.tight { a href={ "/topics/" (segment(topic)) "/" (day.day) } { (day.day) } }
                        td.wide { (bar(ctx, day)) }
                        @for (word, count) in counts { td.num data-label=(t!(ctx, word)) { (number(count(day))) } }
                    }
                } }
            }
        }
    }
}

fn number_field(ctx: &Ctx, name: &'static str) -> Markup {
    html! { label.hidden for=(name) { (t!(ctx, name)) } input id=(name) type="search" inputmode="numeric" name=(name) value=[ctx.q(name)] placeholder=(t!(ctx, name)); }
}

async fn look_up(ctx: &Ctx, api: &str) -> Result<Option<Vec<MessageView>>, Trouble> {
    if ctx.q("sender").is_none() && ctx.q("receiver").is_none() {
        return Ok(None);
    }
    let query = ctx.asks(50, &["sender", "receiver", "day"]);
    let found: List<MessageView> = ctx.get(&format!("{api}/messages?{query}")).await?;
    Ok(Some(found.items))
}

fn messages_table(ctx: &Ctx, messages: &[MessageView]) -> Markup {
    html! {
        @if messages.is_empty() { (empty(&t!(ctx, "no-messages"))) }
        @else {
            table.cards {
                thead { tr { th { (t!(ctx, "due")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "sender")) } th.num { (t!(ctx, "receiver")) } th { (t!(ctx, "payload")) } } }
                tbody { @for one in messages {
                    tr {
                        td.tight { (one.due) }
                        td.tight.side { (state_of(ctx, "message", one.state.as_str())) }
                        td.num data-label=(t!(ctx, "sender")) { (one.sender) } td.num data-label=(t!(ctx, "receiver")) { (one.receiver) }
                        td.wide { code { (line(&one.payload.to_string())) } }
                    }
                } }
            }
        }
    }
}

/// A day's messages as one bar.
fn bar(ctx: &Ctx, day: &Day) -> Markup {
    let total = day.total.max(1) as f64;
    let mut x = 0.0;
    let parts = [
        (day.sent, "succeeded"),
        (day.failed, "failed"),
        (day.cancelled, "cancelled"),
        (day.in_hand, "running"),
    ]
    .map(|(count, class)| {
        let (from, width) = (x, count as f64 / total * 400.0);
        x += width;
        (class, from, width)
    });
    html! {
        svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(t!(ctx, "of", n = number(day.sent), all = number(day.total))) {
            rect.f-ready x="0" y="0" width="400" height="8" {}
            @for (class, from, width) in parts {
                @if width > 0.0 { rect class=(fill(class)) x=(format!("{from:.1}")) y="0" width=(format!("{width:.1}")) height="8" {} }
            }
        }
    }
}

async fn one_day(ctx: &Ctx, topic: &str, day: &str, api: &str) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let one: Day = ctx.get(&format!("{api}/days/{}", segment(day))).await?;
    let asked = asked_cancel(ctx, api).await?;
    let shown = html! { div.stack {
        section.panel {
            p.params { (bar(ctx, &one)) }
            dl.stats {
                // How fast it goes is reckoned by the page from one look to the next.
                @if one.state == "draining" { div hidden data-rate=(one.sent) { dd { b {} } dt { span { (t!(ctx, "per-second")) } } } }
                @for (count, word) in [(one.total, "messages"), (one.sent, "state-sent"), (one.failed, "state-failed"), (one.cancelled, "state-cancelled"), (one.in_hand, "in-hand"), (one.retrying, "state-retrying")] {
                    div { dd { b { (number(count)) } } dt { span { (t!(ctx, word)) } } }
                }
            }
            @if let Some(at) = one.drained_at { p.muted { (t!(ctx, "state-drained")) " " (ago(ctx, at)) } }
        }
        section.panel {
            h2 { (t!(ctx, "buckets")) }
            (buckets(ctx, &one))
            div.below { (legend_of_messages(ctx, &["pending", "running", "sent", "failed", "cancelled"])) }
        }
    } };
    let body = html! {
        div.heading { h1 { span { bdi { (topic) } " · " (day) } } }
        (ctx.live("day", shown))
        @if ctx.viewer.operates() { (cancel_form(ctx, topic, day, asked)) }
    };
    Answer::page(Page::new("topics", format!("{topic} · {day}"), body).crumbs(crumbs(ctx, topic, Some(day))))
}

/// A hundred rows of a hundred: which buckets are sent. One path for each state.
fn buckets(ctx: &Ctx, day: &Day) -> Markup {
    let mut paths: std::collections::BTreeMap<String, String> = Default::default();
    let all = day.buckets.as_deref().unwrap_or_default();
    for one in all {
        let bucket = usize::try_from(one.bucket).unwrap_or_default() % BUCKETS;
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

/// What a cancel would take, as it was asked for by the address: a day, a sender, a receiver.
struct AskedCancel {
    fields: Vec<(&'static str, String)>,
    /// How many; counted up to a bound.
    count: i64,
    more: bool,
}

/// Messages that are counted for a cancel, by pages of so many.
const COUNTED_PAGES: usize = 10;
const COUNTED_EACH: u32 = 500;

async fn asked_cancel(ctx: &Ctx, api: &str) -> Result<Option<AskedCancel>, Trouble> {
    if ctx.q("cancel").is_none() || !ctx.viewer.operates() {
        return Ok(None);
    }
    let fields: Vec<(&'static str, String)> = [
        ("day", "cancel_day"),
        ("sender", "cancel_sender"),
        ("receiver", "cancel_receiver"),
    ]
    .into_iter()
    .filter_map(|(name, asked)| Some((name, ctx.q(asked)?.trim().to_owned())))
    .collect();
    if fields.is_empty() {
        return Ok(None);
    }
    let (mut count, mut more) = (0, false);
    if let [("day", day)] = fields.as_slice() {
        let day: Day = ctx.get(&format!("{api}/days/{}", segment(day))).await?;
        count = (day.total - day.sent - day.failed - day.cancelled - day.in_hand).max(0);
    } else {
        let query = url::form_urlencoded::Serializer::new(format!("limit={COUNTED_EACH}"))
            .extend_pairs(&fields)
            .finish();
        let mut cursor = String::new();
        for _ in 0..COUNTED_PAGES {
            let page: List<MessageView> = ctx.get(&format!("{api}/messages?{query}{cursor}")).await?;
            let waits = |one: &&MessageView| matches!(one.state.as_str(), "scheduled" | "retrying");
            count += page.items.iter().filter(waits).count() as i64;
            more = page.next_cursor.is_some();
            let Some(next) = page.next_cursor else {
                break;
            };
            cursor = format!("&cursor={}", segment(&next));
        }
    }
    Ok(Some(AskedCancel { fields, count, more }))
}

/// First how many messages that would be, then the button that cancels them.
fn cancel_form(ctx: &Ctx, topic: &str, day: &str, asked: Option<AskedCancel>) -> Markup {
    let written = |name: &str| ctx.q(&format!("cancel_{name}")).unwrap_or_default().to_owned();
    let day = if written("day").is_empty() {
        day.to_owned()
    } else {
        written("day")
    };
    let field = |name: &'static str, value: &str, numeric: bool| -> Markup {
        html! {
            label.hidden for={ "cancel-" (name) } { (t!(ctx, name)) }
            input #{ "cancel-" (name) } type="text" inputmode=[numeric.then_some("numeric")] name={ "cancel_" (name) } value=(value) placeholder=(t!(ctx, name)) autocomplete="off";
        }
    };
    html! {
        section.panel #cancel {
            h2 { (t!(ctx, "cancel-messages")) }
            form.filters method="get" {
                (field("day", &day, false))
                (field("sender", &written("sender"), true))
                (field("receiver", &written("receiver"), true))
                button type="submit" name="cancel" value="count" { (t!(ctx, "cancel-count")) }
            }
            @if let Some(asked) = asked {
                form.filters.under method="post" action={ "/topics/" (segment(topic)) "/cancel" } {
                    @for (name, value) in &asked.fields { input type="hidden" name=(name) value=(value); }
                    p { (t!(ctx, "cancel-would", n = format!("{}{}", span::number(asked.count), if asked.more { "+" } else { "" }))) }
                    @if asked.count > 0 || asked.more { button.danger type="submit" title=(t!(ctx, "cancel-messages-will")) { (t!(ctx, "cancel-messages")) } }
                }
            } @else { p.muted.under { (t!(ctx, "cancel-hint")) } }
        }
    }
}

async fn cancel(ctx: &Ctx, topic: &str, api: &str) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let mut body = json!({});
    for name in ["day", "sender", "receiver", "bucket"] {
        if let Some(text) = field(&form, name) {
            body[name] = match (name, text.trim().parse::<i64>()) {
                ("day", _) | (_, Err(_)) => json!(text.trim()),
                (_, Ok(number)) => json!(number),
            };
        }
    }
    let done: Cancelled = ctx.ask(Method::POST, &format!("{api}/cancel"), &body).await?;
    let said = t!(ctx, "said-cancelled-messages", n = span::number(done.cancelled as i64));
    let day = field(&form, "day")
        .map(|day| format!("/{}", segment(day.trim())))
        .unwrap_or_default();
    Ok(Answer::Go {
        to: format!("/topics/{}{day}", segment(topic)),
        said: Some(said),
    })
}
