//! Cancelling messages of a topic: first how many it would be, then the button for it.

use axum::http::Method;
use heddle_api::{Cancelled, Day, List, MessageView, Topic};
use maud::{Markup, html};
use serde_json::json;

use super::{Looked, still_to_send, why_not};
use crate::ctx::segment;
use crate::form::field;
use crate::pages::answer::Answer;
use crate::words::{Arg, Lang, t};
use crate::{Ctx, Trouble};

/// The filter of a cancel, from the address: a day, a sender, a receiver.
pub(super) struct AskedCancel {
    fields: Vec<(&'static str, String)>,
    /// How many messages it finds, counted up to a maximum.
    count: i64,
    more: bool,
    /// How many of these have left the topic: they may wait in its queue, where they can be cancelled, or a worker has them.
    in_queue: i64,
}

/// How many messages are counted for a cancel, and in pages of how many.
const COUNTED_PAGES: usize = 10;
const COUNTED_EACH: u32 = 500;

pub(super) async fn asked_cancel(ctx: &Ctx, one: &Topic, api: &str) -> Result<Looked<AskedCancel>, Trouble> {
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
    let (mut count, mut more, mut in_queue) = (0, false, 0);
    if let [("day", day)] = fields.as_slice() {
        let day: Day = ctx.get(&format!("{api}/days/{}", segment(day))).await?;
        count = still_to_send(&day) + day.retrying;
        in_queue = day.in_hand;
    } else {
        let query = url::form_urlencoded::Serializer::new(format!("limit={COUNTED_EACH}"))
            .extend_pairs(&fields)
            .finish();
        let mut cursor = String::new();
        for _ in 0..COUNTED_PAGES {
            let page: List<MessageView> = ctx.get(&format!("{api}/messages?{query}{cursor}")).await?;
            let waits = |one: &&MessageView| matches!(one.state.as_str(), "scheduled" | "retrying");
            count += page.items.iter().filter(waits).count() as i64;
            in_queue += page.items.iter().filter(|one| one.state == "sending").count() as i64;
            more = page.next_cursor.is_some();
            let Some(next) = page.next_cursor else {
                break;
            };
            cursor = format!("&cursor={}", segment(&next));
        }
    }
    // Without a queue, what has left the topic is being sent.
    if one.spec.queue.is_none() {
        in_queue = 0;
    }
    Ok(Looked::Found(AskedCancel {
        fields,
        count: count + in_queue,
        more,
        in_queue,
    }))
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
                    p { (would(ctx.lang, &asked)) }
                    // Also if nothing was counted: what comes in until the button is pressed matches, too.
                    button.danger type="submit" title=(t!(ctx, "cancel-messages-will")) { (t!(ctx, "cancel-messages")) }
                },
            }
        }
    }
}

/// How many messages would be cancelled. Of those that have left the topic for its queue, nobody counts how many wait there.
fn would(lang: Lang, asked: &AskedCancel) -> String {
    let key = match (asked.in_queue, asked.more) {
        (0, _) | (_, true) => "cancel-would",
        _ => "cancel-would-most",
    };
    lang.t(key, &[("n", Arg::at_least(asked.count, asked.more))])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_with_what_is_in_the_queue_is_a_maximum() {
        let said = |count, in_queue, more| {
            let asked = AskedCancel {
                fields: Vec::new(),
                count,
                more,
                in_queue,
            };
            [Lang::En, Lang::Zh].map(|lang| would(lang, &asked))
        };
        assert_eq!(said(0, 0, false)[0], "0 messages match and have not been sent.");
        let in_part = said(7, 3, false);
        assert_eq!(
            in_part[0],
            "Up to 7 messages match: some are in the queue, where a worker may have them."
        );
        assert!(in_part[1].contains("最多 7 条"), "{}", in_part[1]);
        assert_eq!(
            said(1, 1, false)[0],
            "Up to 1 message matches: it is in the queue, where a worker may have it."
        );
        assert!(
            said(5_000, 1, true)[0].starts_with("5,000+ messages"),
            "neither is known"
        );
    }
}
