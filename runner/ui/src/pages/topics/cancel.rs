//! Cancelling messages of a topic: first how many it would be, then the button for it.

use axum::http::Method;
use heddle_api::{Cancelled, Day, List, MessageView};
use maud::{Markup, html};
use serde_json::json;

use super::{Looked, still_to_send, why_not};
use crate::ctx::segment;
use crate::form::field;
use crate::pages::answer::Answer;
use crate::words::{Arg, t};
use crate::{Ctx, Trouble};

/// The filter of a cancel, from the address: a day, a sender, a receiver.
pub(super) struct AskedCancel {
    fields: Vec<(&'static str, String)>,
    /// How many messages it finds, counted up to a maximum.
    count: i64,
    more: bool,
}

/// How many messages are counted for a cancel, and in pages of how many.
const COUNTED_PAGES: usize = 10;
const COUNTED_EACH: u32 = 500;

pub(super) async fn asked_cancel(ctx: &Ctx, api: &str) -> Result<Looked<AskedCancel>, Trouble> {
    if ctx.q("cancel").is_none() || !ctx.viewer.operates() {
        return Ok(Looked::Nothing);
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
        return Err(Trouble::new(422, t!(ctx, "cancel-missing")));
    }
    let (mut count, mut more) = (0, false);
    if let [("day", day)] = fields.as_slice() {
        let day: Day = ctx.get(&format!("{api}/days/{}", segment(day))).await?;
        count = still_to_send(&day) + day.retrying;
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
    Ok(Looked::Found(AskedCancel { fields, count, more }))
}

/// Shows first how many messages a cancel would affect, then the button for it.
pub(super) fn cancel_form(ctx: &Ctx, topic: &str, day: &str, asked: Looked<AskedCancel>) -> Markup {
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
            form.filters method="get" action={ (ctx.path) "#cancel" } {
                @if let Some(month) = ctx.q("month") { input type="hidden" name="month" value=(month); }
                (field("day", &day, false))
                (field("sender", &written("sender"), true))
                (field("receiver", &written("receiver"), true))
                button type="submit" name="cancel" value="count" { (t!(ctx, "cancel-count")) }
            }
            @match asked {
                Looked::Nothing => p.muted.under { (t!(ctx, "cancel-hint")) },
                Looked::Refused(_, why) => (why_not(&why)),
                Looked::Found(asked) => form.filters.under method="post" action={ "/topics/" (segment(topic)) "/cancel" } {
                    @for (name, value) in &asked.fields { input type="hidden" name=(name) value=(value); }
                    p { (t!(ctx, "cancel-would", n = Arg::at_least(asked.count, asked.more))) }
                    @if asked.count > 0 || asked.more { button.danger type="submit" title=(t!(ctx, "cancel-messages-will")) { (t!(ctx, "cancel-messages")) } }
                },
            }
        }
    }
}

pub(super) async fn cancel(ctx: &Ctx, topic: &str, api: &str) -> Result<Answer, Trouble> {
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
    let said = t!(ctx, "said-cancelled-messages", n = done.cancelled as i64);
    let day = field(&form, "day")
        .map(|day| format!("/{}", segment(day.trim())))
        .unwrap_or_default();
    Ok(Answer::Go {
        to: format!("/topics/{}{day}", segment(topic)),
        said: Some(said),
    })
}
