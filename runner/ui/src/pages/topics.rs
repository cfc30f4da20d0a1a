//! Topics of scheduled messages: days, a day's buckets, looking up, cancelling.

use axum::http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::Answer;
use crate::chart::fill;
use crate::ctx::{Beat, segment};
use crate::elements::{ago, empty, line, more, number, parse, script_link, state};
use crate::form::field;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// Buckets of a day: 100 by 100 of them.
const BUCKETS: usize = 10_000;
const SIDE: usize = 100;

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let found = ctx.get("/v1/topics?limit=100").await?;
    let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let title = t!(ctx, "nav-topics");
    let shown = html! {
        section.panel {
            @if items.is_empty() { (empty(&t!(ctx, "no-topics"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "topic")) } th { (t!(ctx, "sent-to")) } th { (t!(ctx, "granularity")) } th { (t!(ctx, "time-zone")) } th.num { (t!(ctx, "batch")) } } }
                    tbody { @for one in items {
                        @let name = one["name"].as_str().unwrap_or_default();
                        tr {
                            td { strong { a href={ "/topics/" (segment(name)) } { bdi { (name) } } } }
                            td.side { (target(ctx, one)) }
                            td.tight data-label=(t!(ctx, "granularity")) { (one["granularity"].as_str().unwrap_or("day")) }
                            td.tight.side { (one["timezone"].as_str().unwrap_or("UTC")) }
                            td.num data-label=(t!(ctx, "batch")) { (one["batch"]) }
                        }
                    } }
                }
            }
        }
    };
    let body =
        html! { div.heading { h1 { (title) } } (ctx.live("topics", shown)) (more(ctx, found["next_cursor"].as_str())) };
    Answer::page(Page::new("topics", title, body))
}

fn target(ctx: &Ctx, one: &Value) -> Markup {
    match (one["script"].as_str(), one["queue"].as_str()) {
        (Some(script), _) => script_link(script),
        (_, Some(queue)) => html! { a href={ "/queues/" (segment(queue)) } { (t!(ctx, "queue-named", name = queue)) } },
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

async fn days(ctx: &Ctx, topic: &str, api: &str) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let one = ctx.get(api).await?;
    let found = ctx.get(&format!("{api}/days?limit=100")).await?;
    let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let looked = look_up(ctx, api).await?;
    let shown = html! {
        section.panel {
            h2 { (t!(ctx, "days")) }
            @if items.is_empty() { (empty(&t!(ctx, "no-messages"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "day")) } th { (t!(ctx, "progress")) } th.num { (t!(ctx, "messages")) } th.num { (t!(ctx, "state-sent")) } th.num { (t!(ctx, "state-failed")) } th.num { (t!(ctx, "state-cancelled")) } } }
                    tbody { @for day in items {
                        @let date = day["day"].as_str().unwrap_or_default();
                        tr {
                            td.tight { a href={ "/topics/" (segment(topic)) "/" (date) } { (date) } }
                            td.wide { (bar(ctx, day)) }
                            td.num data-label=(t!(ctx, "messages")) { (number(&day["total"])) } td.num data-label=(t!(ctx, "state-sent")) { (number(&day["sent"])) } td.num data-label=(t!(ctx, "state-failed")) { (number(&day["failed"])) } td.num data-label=(t!(ctx, "state-cancelled")) { (number(&day["cancelled"])) }
                        }
                    } }
                }
            }
        }
    };
    let body = html! {
        div.heading { div.grow { h1 { bdi { (topic) } } p { (t!(ctx, "sent-to")) " " (target(ctx, &one)) " · " (one["timezone"].as_str().unwrap_or("UTC")) @if let Some(text) = one["description"].as_str() { br; (text) } } } }
        (ctx.live("days", shown))
        section.panel {
            h2 { (t!(ctx, "look-up")) }
            form.filters method="get" role="search" {
                (number_field(ctx, "sender"))
                (number_field(ctx, "receiver"))
                button type="submit" { (t!(ctx, "look-up")) }
            }
            @if let Some(messages) = &looked { (messages_table(ctx, messages)) }
        }
        @if ctx.viewer.operates() { (cancel_form(ctx, topic, "")) }
    };
    Answer::page(Page::new("topics", topic, body).crumbs(crumbs(ctx, topic, None)))
}

fn number_field(ctx: &Ctx, name: &'static str) -> Markup {
    html! { label.hidden for=(name) { (t!(ctx, name)) } input id=(name) type="search" inputmode="numeric" name=(name) value=[ctx.q(name)] placeholder=(t!(ctx, name)); }
}

async fn look_up(ctx: &Ctx, api: &str) -> Result<Option<Value>, Trouble> {
    if ctx.q("sender").is_none() && ctx.q("receiver").is_none() {
        return Ok(None);
    }
    let query = ctx.asks(50, &["sender", "receiver", "day"]);
    Ok(Some(ctx.get(&format!("{api}/messages?{query}")).await?))
}

fn messages_table(ctx: &Ctx, messages: &Value) -> Markup {
    let items = messages["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        @if items.is_empty() { (empty(&t!(ctx, "no-messages"))) }
        @else {
            table.cards {
                thead { tr { th { (t!(ctx, "due")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "sender")) } th.num { (t!(ctx, "receiver")) } th { (t!(ctx, "payload")) } } }
                tbody { @for one in items {
                    tr {
                        td.tight { (one["due"].as_str().unwrap_or_default()) }
                        td.tight.side { (state(ctx, one["state"].as_str().unwrap_or("pending"))) }
                        td.num data-label=(t!(ctx, "sender")) { (one["sender"]) } td.num data-label=(t!(ctx, "receiver")) { (one["receiver"]) }
                        td.wide { code { (line(&one["payload"].to_string())) } }
                    }
                } }
            }
        }
    }
}

/// A day's messages as one bar.
fn bar(ctx: &Ctx, day: &Value) -> Markup {
    let count = |name: &str| day[name].as_i64().unwrap_or_default();
    let total = count("total").max(1) as f64;
    let mut x = 0.0;
    let parts = [
        ("sent", "succeeded"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("in_hand", "running"),
    ]
    .map(|(name, class)| {
        let (from, width) = (x, count(name) as f64 / total * 400.0);
        x += width;
        (class, from, width)
    });
    html! {
        svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(t!(ctx, "of", n = span::number(count("sent")), all = span::number(count("total")))) {
            rect.f-ready x="0" y="0" width="400" height="8" {}
            @for (class, from, width) in parts {
                @if width > 0.0 { rect class=(fill(class)) x=(format!("{from:.1}")) y="0" width=(format!("{width:.1}")) height="8" {} }
            }
        }
    }
}

async fn one_day(ctx: &Ctx, topic: &str, day: &str, api: &str) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let one = ctx.get(&format!("{api}/days/{}", segment(day))).await?;
    let shown = html! {
        section.panel {
            (bar(ctx, &one))
            dl.stats {
                @for (name, word) in [("total", "messages"), ("sent", "state-sent"), ("failed", "state-failed"), ("cancelled", "state-cancelled"), ("in_hand", "in-hand"), ("retrying", "state-retrying")] {
                    div { dd { b { (number(&one[name])) } } dt { span { (t!(ctx, word)) } } }
                }
            }
            @if let Some(at) = one["drained_at"].as_str().and_then(parse) { p.muted { (t!(ctx, "state-drained")) " " (ago(ctx, at)) } }
        }
        section.panel {
            h2 { (t!(ctx, "buckets")) }
            (buckets(ctx, &one))
            (crate::elements::legend(ctx, &["pending", "running", "sent", "failed", "cancelled"]))
        }
    };
    let body = html! {
        div.heading { h1 { bdi { (topic) } " · " (day) } }
        (ctx.live("day", shown))
        @if ctx.viewer.operates() { (cancel_form(ctx, topic, day)) }
    };
    Answer::page(Page::new("topics", format!("{topic} · {day}"), body).crumbs(crumbs(ctx, topic, Some(day))))
}

/// A hundred rows of a hundred: which buckets are sent. One path for each state.
fn buckets(ctx: &Ctx, day: &Value) -> Markup {
    let mut paths: std::collections::BTreeMap<String, String> = Default::default();
    for one in day["buckets"].as_array().into_iter().flatten() {
        let bucket = one["bucket"].as_u64().unwrap_or_default() as usize % BUCKETS;
        let count = |name: &str| one[name].as_i64().unwrap_or_default();
        let (total, done) = (count("total"), count("sent") + count("failed") + count("cancelled"));
        let class = if count("failed") > 0 {
            "failed"
        } else if total > 0 && count("cancelled") == total {
            "cancelled"
        } else if done >= total {
            "succeeded"
        } else if count("sent") > 0 {
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
            svg.picture.buckets viewBox="0 0 600 600" width="600" height="600" role="img" aria-label=(t!(ctx, "buckets-label", n = day["buckets"].as_array().map_or(0, Vec::len))) {
                rect.ground x="0" y="0" width="600" height="600" {}
                @for (class, path) in &paths { path class=(class) d=(path) {} }
            }
        }
    }
}

fn cancel_form(ctx: &Ctx, topic: &str, day: &str) -> Markup {
    html! {
        section.panel {
            h2 { (t!(ctx, "cancel-messages")) }
            form.filters method="post" action={ "/topics/" (segment(topic)) "/cancel" } data-confirm=(t!(ctx, "cancel-messages-sure")) {
                label.hidden for="cancel-day" { (t!(ctx, "day")) } input #cancel-day type="text" name="day" value=(day) placeholder=(t!(ctx, "day"));
                label.hidden for="cancel-sender" { (t!(ctx, "sender")) } input #cancel-sender type="text" inputmode="numeric" name="sender" placeholder=(t!(ctx, "sender"));
                label.hidden for="cancel-receiver" { (t!(ctx, "receiver")) } input #cancel-receiver type="text" inputmode="numeric" name="receiver" placeholder=(t!(ctx, "receiver"));
                button.danger type="submit" { (t!(ctx, "cancel-messages")) }
            }
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
    let done = ctx.send(Method::POST, &format!("{api}/cancel"), &body).await?;
    let said = t!(
        ctx,
        "said-cancelled-messages",
        n = span::number(done["cancelled"].as_i64().unwrap_or_default())
    );
    let day = field(&form, "day")
        .map(|day| format!("/{}", segment(day.trim())))
        .unwrap_or_default();
    Ok(Answer::Go {
        to: format!("/topics/{}{day}", segment(topic)),
        said: Some(said),
    })
}
