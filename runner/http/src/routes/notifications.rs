//! Notifications: what people have been told, and what they are about to be told.

use heddle_api::{List, Moment};
use heddle_domain::Fault;
use heddle_domain::notify::Event;
use heddle_domain::notify::message::Entry;
use heddle_store::notification::{NotificationFilter, NotificationRow, Resend};
use serde::Serialize;
use uuid::Uuid;

use crate::access::Access;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Route};

/// The words for states, by number.
const STATES: [&str; 3] = ["pending", "sent", "failed"];

/// A notification as the API shows it.
#[derive(Serialize)]
pub(super) struct NotificationView {
    id: Uuid,
    channel: String,
    event: String,
    group: Option<String>,
    run: Option<Uuid>,
    task: Option<String>,
    subject: String,
    to: Vec<String>,
    /// How many events it stands for.
    count: u64,
    state: &'static str,
    attempts: i32,
    last_error: Option<String>,
    created_at: Moment,
    sent_at: Option<Moment>,
    next_attempt_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Entry>,
}

impl NotificationView {
    fn listed(row: NotificationRow) -> Self {
        Self {
            id: row.id,
            channel: row.channel,
            event: row.event,
            group: row.facts.group,
            run: row.run,
            task: row.facts.task,
            subject: row.subject,
            to: row.recipients,
            count: row.facts.count,
            state: usize::try_from(row.state)
                .ok()
                .and_then(|state| STATES.get(state))
                .unwrap_or(&STATES[0]),
            attempts: row.attempts,
            last_error: row.last_error,
            created_at: row.created_at.into(),
            sent_at: row.sent_at.map(Into::into),
            next_attempt_at: row.next_attempt_at.map(Into::into),
            text: None,
            entries: Vec::new(),
        }
    }

    /// With what it says.
    pub(super) fn whole(row: NotificationRow) -> Self {
        let text = row.facts.text();
        let entries = row.facts.entries.clone();
        Self {
            text: Some(text),
            entries,
            ..Self::listed(row)
        }
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/notifications",
            Access::View,
            "List notifications",
            list,
        )
        .detail("Newest first.")
        .list()
        .query("channel", "Only those of this channel.")
        .query("event", "Only of these events; several with commas.")
        .query(
            "state",
            "Only in these states: `pending`, `sent`, `failed`; several with commas.",
        )
        .query("group", "Only those about this group.")
        .query("run", "Only those about this run.")
        .query("from", "Made at or after.")
        .query("to", "Made before.")
        .answers(200, "NotificationList"),
        Route::new(
            Method::Get,
            "/v1/notifications/{id}",
            Access::View,
            "Get a notification with its text",
            get,
        )
        .answers(200, "Notification"),
        Route::new(
            Method::Post,
            "/v1/notifications/{id}/resend",
            Access::Operate,
            "Send a notification again",
            resend,
        )
        .detail("To all its recipients, whatever came of it before; one that waits for its next try is sent now.")
        .answers(200, "Notification"),
    ]
}

async fn list(request: Request) -> Outcome {
    let mut states = Vec::new();
    for word in request.query_all("state") {
        let wrong = || Fault::at("/state", format!("`{word}` is no state of a notification"));
        let state = STATES.iter().position(|state| *state == word);
        states.push(state.ok_or_else(|| Problem::invalid(wrong()))? as i16);
    }
    let mut events = Vec::new();
    for word in request.query_all("event") {
        let wrong = || Fault::at("/event", format!("`{word}` is no event"));
        let event = Event::from_word(word).ok_or_else(|| Problem::invalid(wrong()))?;
        events.push(event.as_str().to_owned());
    }
    let run = match request.query("run") {
        Some(text) => {
            let wrong = |_| Problem::invalid_at("/run", format!("`{text}` is no run's id"));
            Some(text.parse::<Uuid>().map_err(wrong)?)
        }
        None => None,
    };
    let filter = NotificationFilter {
        channel: request.query("channel").map(str::to_owned),
        events,
        states,
        group: request.query("group").map(str::to_owned),
        run,
        from: request.query_time("from")?,
        to: request.query_time("to")?,
    };
    let page = request
        .app
        .store
        .notifications(&filter, request.cursor_as()?, request.limit()?)
        .await?;
    ok(&List::<NotificationView> {
        items: page.items.into_iter().map(NotificationView::listed).collect(),
        next_cursor: page.next,
    })
}

async fn find(request: &Request, id: Uuid) -> Result<NotificationRow, Problem> {
    let row = request.app.store.notification(id).await?;
    row.ok_or_else(|| Problem::not_found("notification", &id.to_string()))
}

async fn get(request: Request) -> Outcome {
    let id: Uuid = request.id("id", "notification")?;
    ok(&NotificationView::whole(find(&request, id).await?))
}

async fn resend(mut request: Request) -> Outcome {
    let id: Uuid = request.id("id", "notification")?;
    request.nothing().await?;
    match request.app.store.resend(request.by(), id).await? {
        Resend::NotFound => Err(Problem::not_found("notification", &id.to_string())),
        Resend::Done => {
            request.app.engine.ring_notifier();
            ok(&NotificationView::whole(find(&request, id).await?))
        }
    }
}
