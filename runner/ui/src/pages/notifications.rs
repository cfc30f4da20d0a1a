//! What people were told, and through what.

use axum::http::Method;
use heddle_api::{Channel, ChannelKind, List, Notification, NotificationState};
use maud::{Markup, html};
use serde_json::json;

use super::answer::Answer;
use crate::ctx::{Beat, segment};
use crate::elements::{
    Button, ago, button, choice, empty, first_only, group_link, line, listed, named, state_of, with_query,
};
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble};

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let found: List<Notification> = ctx
        .get(&format!(
            "/v1/notifications?{}",
            ctx.asks(50, &["state", "channel", "cursor"])
        ))
        .await?;
    let channels: List<Channel> = ctx.get("/v1/channels?limit=100").await?;
    let title = t!(ctx, "nav-notifications");
    let states = [
        ("", t!(ctx, "all")),
        ("pending", t!(ctx, "state-notification-pending")),
        ("sent", t!(ctx, "state-sent")),
        ("failed", t!(ctx, "state-failed")),
    ];
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, if ctx.filters() { "no-notifications-match" } else { "no-notifications" }))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "subject")) } th { (t!(ctx, "state")) } th { (t!(ctx, "channel")) } th { (t!(ctx, "group")) } th { (t!(ctx, "created")) } th { (t!(ctx, "error")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in &found.items { (row(ctx, one)) } }
                }
            }
        }
    };
    let body = html! {
        div.heading {
            div.grow { h1 { (title) } }
            (choice(ctx, &t!(ctx, "state"), "state", ctx.q("state").unwrap_or_default(), &states))
        }
        @if let Some(channel) = ctx.q("channel") { p { span.tag { (t!(ctx, "channel")) (ctx.lang.colon()) bdi { (channel) } " " a.remove href=(with_query(ctx, &[("channel", None), ("cursor", None)])) aria-label=(t!(ctx, "remove-filter")) { "×" } } } }
        (listed(ctx, "notifications", shown, found.next_cursor.as_deref()))
        (ctx.live("channel-list", of_channels(ctx, &channels)))
    };
    Answer::page(Page::new("notifications", title, body))
}

/// The state of a notification as people see it: one whose last delivery failed is `retrying`, not `pending`.
fn shown_state(one: &Notification) -> &'static str {
    match one.state {
        NotificationState::Pending if one.attempts > 0 && one.last_error.is_some() => "retrying",
        state => state.as_str(),
    }
}

fn row(ctx: &Ctx, one: &Notification) -> Markup {
    let shown_state = shown_state(one);
    let next = one.next_attempt_at.filter(|_| shown_state == "retrying");
    let to: Vec<&str> = one.to.iter().map(String::as_str).collect();
    html! {
        tr {
            td.wide { @if let Some(run) = one.run { a href={ "/runs/" (run) } { (line(&one.subject)) } } @else { (line(&one.subject)) } }
            td.tight { (state_of(ctx, "notification", shown_state)) @if let Some(at) = next { br; span.why { (t!(ctx, "next-try")) " " (ago(ctx, at)) } } }
            td.side { bdi { (one.channel) } @if !to.is_empty() { p.muted { bdi { (named(&to)) } } } }
            td { @if let Some(group) = &one.group { (group_link(group)) } }
            td.tight.muted.side { (ago(ctx, one.created_at)) }
            td.wide { @if let Some(error) = &one.last_error { span.error { (line(error)) } } }
            td.tight.side { @if ctx.viewer.operates() && one.state != NotificationState::Pending { (button(Button { kind: "small", ..Button::new(format!("/notifications/{}/resend", one.id), t!(ctx, "resend"), t!(ctx, "resend-will")) })) } }
        }
    }
}

/// The channels, as a page of the system.
pub(super) async fn channels(ctx: &Ctx) -> Result<Markup, Trouble> {
    let channels: List<Channel> = ctx.get("/v1/channels?limit=100").await?;
    Ok(ctx.live("channel-list", of_channels(ctx, &channels)))
}

fn of_channels(ctx: &Ctx, found: &List<Channel>) -> Markup {
    let channels = &found.items;
    html! {
        section.panel #channels {
            h2 { (t!(ctx, "channels")) }
            @if channels.is_empty() { (empty(&t!(ctx, "no-channels"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "channel")) } th { (t!(ctx, "kind")) } th { (t!(ctx, "changed")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in channels {
                        @let name = one.name.as_str();
                        tr {
                            td { a href={ "/notifications?channel=" (segment(name)) } { bdi { (name) } } }
                            td.tight { span.tag { (one.shown.kind.map(ChannelKind::as_str).unwrap_or_default()) } }
                            td.tight.muted { (ago(ctx, one.updated_at)) }
                            td.tight.side { @if ctx.viewer.operates() { (button(Button { kind: "small", ..Button::new(format!("/notifications/channels/{}/test", segment(name)), t!(ctx, "test-channel"), t!(ctx, "test-channel-will")) })) } }
                        }
                    } }
                }
            }
            (first_only(ctx, channels.len(), found.next_cursor.as_deref()))
        }
    }
}

pub(super) async fn resend(ctx: &Ctx, id: &str) -> Result<Answer, Trouble> {
    ctx.send(
        Method::POST,
        &format!("/v1/notifications/{}/resend", segment(id)),
        &json!({}),
    )
    .await?;
    Answer::back(ctx, Some(t!(ctx, "said-resend")))
}

pub(super) async fn test(ctx: &Ctx, channel: &str) -> Result<Answer, Trouble> {
    let target = format!("/v1/channels/{}/test", segment(channel));
    let notification: Notification = ctx.ask(Method::POST, &target, &json!({})).await?;
    let said = match notification.state {
        NotificationState::Sent => t!(ctx, "said-test-sent", name = channel),
        NotificationState::Pending => t!(ctx, "said-test-pending"),
        // A `!` before what is said makes it an error.
        NotificationState::Failed => {
            let why = notification.last_error.unwrap_or_default();
            format!("!{}", t!(ctx, "said-test-failed", name = channel, why = line(&why)))
        }
    };
    Answer::back(ctx, Some(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_and_is_tried_again_does_not_just_wait() {
        let shown = |state: &str, attempts: i32, last_error: Option<&str>| {
            let one = json!({
                "id": uuid::Uuid::nil(), "channel": "mail", "event": "failed", "subject": "x", "to": [], "count": 1,
                "state": state, "attempts": attempts, "last_error": last_error, "created_at": "2026-11-25T10:00:00Z",
            });
            shown_state(&serde_json::from_value(one).unwrap())
        };
        assert_eq!(shown("pending", 0, None), "pending");
        assert_eq!(shown("pending", 2, Some("Connection refused")), "retrying");
        assert_eq!(shown("failed", 9, Some("Connection refused")), "failed");
        assert_eq!(shown("sent", 2, Some("Connection refused")), "sent");
    }
}
