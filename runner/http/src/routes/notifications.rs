//! Notifications: what people have been told, and what they are about to be told.

use heddle_api::{List, Notification, NotificationState};
use heddle_domain::notify::Event;
use heddle_domain::notify::message::Facts;
use heddle_domain::{Chain, Fault};
use heddle_engine::line_due;
use heddle_store::change::Page;
use heddle_store::notification::{ListedNotification, NotificationFilter, NotificationRow, Resend};
use uuid::Uuid;

use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, list_of, ok};
use crate::table::{Method, Route};

fn listed(row: NotificationRow) -> Notification {
    Notification {
        id: row.id,
        channel: row.channel,
        event: row.event,
        group: row.group,
        run: row.run,
        task: row.task,
        subject: row.subject,
        to: row.recipients,
        count: row.count,
        state: row.state,
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
pub(super) fn whole((row, facts): (NotificationRow, Facts)) -> Notification {
    Notification {
        text: Some(facts.text()),
        entries: facts.entries,
        ..listed(row)
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
        .query(
            "channel",
            "Only notifications through this channel, or to this URL: the whole URL, not as it is shown.",
        )
        .query(
            "event",
            "Only notifications about these events. For several, use commas.",
        )
        .query(
            "state",
            "Only notifications in these states: `pending`, `sent`, `failed`. For several, use commas.",
        )
        .query("group", "Only notifications about this group.")
        .formatted("run", "uuid", "Only notifications about this run.")
        .time("from", "Only notifications created at or after this time.")
        .time("to", "Only notifications created at or before this time.")
        .answers(200, of::<List<Notification>>()),
        Route::new(
            Method::Get,
            "/v1/notifications/{id}",
            Access::View,
            "Get a notification with its text",
            get,
        )
        .answers(200, of::<Notification>()),
        Route::new(
            Method::Post,
            "/v1/notifications/{id}/resend",
            Access::Operate,
            "Send a notification again",
            resend,
        )
        .detail(
            "The notification is sent to all its recipients again, even if it was sent before. A notification \
            that waits for a retry is sent now. One that is being sent at this moment is sent again after this try. A \
            callback that was sent contains the run as it is now; 409 if the run does not exist any more, or has not \
            ended.",
        )
        .problem(
            409,
            "The run of a callback that was sent does not exist any more, or has not ended.",
        )
        .answers(200, of::<Notification>()),
    ]
}

async fn list(request: Request) -> Outcome {
    let mut states = Vec::new();
    for word in request.query_all("state") {
        let wrong = || Fault::at("/state", format!("`{word}` is not a state of a notification"));
        let state: Result<NotificationState, _> = word.parse();
        states.push(state.map_err(|_| Problem::invalid(wrong()))?.number());
    }
    let mut events = Vec::new();
    for word in request.query_all("event") {
        let wrong = || Fault::at("/event", format!("`{word}` is not an event"));
        let event = Event::from_word(word).ok_or_else(|| Problem::invalid(wrong()))?;
        events.push(event.as_str().to_owned());
    }
    let run: Option<Uuid> = request.query_as("run", "the id of a run, a UUID")?;
    let filter = NotificationFilter {
        channel: request.query_name("channel"),
        events,
        states,
        group: request.query_name("group"),
        run,
        from: request.query_time("from")?,
        to: request.query_time("to")?,
    };
    let page = request
        .app
        .store
        .notifications(&filter, request.cursor_as()?, request.limit()?)
        .await?;
    let page = Page {
        items: page.items.into_iter().filter_map(readable).collect(),
        next: page.next,
    };
    list_of(page, listed)
}

/// A notification of a list. One that cannot be read is left out, and the log names its row: it must not keep the others from
/// people. A page that is open reads the list again and again.
fn readable(found: ListedNotification) -> Option<NotificationRow> {
    const LINE: &str = "a list of notifications leaves out one that cannot be read";
    let error = match found {
        Ok(row) => return Some(row),
        Err(error) => error,
    };
    match line_due(LINE) {
        Some(omitted) => tracing::error!(error = %Chain(&error), omitted, "{LINE}"),
        None => tracing::debug!(error = %Chain(&error), "{LINE}"),
    }
    None
}

async fn find(request: &Request, id: Uuid) -> Result<(NotificationRow, Facts), Problem> {
    let row = request.app.store.notification(id).await?;
    row.ok_or_else(|| Problem::not_found("notification", &id.to_string()))
}

async fn get(request: Request) -> Outcome {
    let id: Uuid = request.id("id", "notification")?;
    ok(&whole(find(&request, id).await?))
}

async fn resend(request: Request) -> Outcome {
    let id: Uuid = request.id("id", "notification")?;
    let store = &request.app.store;
    let mut resent = store.resend(request.by(), id, None).await?;
    if let Resend::NeedsRun(run) = resent {
        let payload = match run {
            Some(run) => request.app.engine.callback_payload(run).await?,
            None => None,
        };
        if let Some(payload) = payload {
            resent = store.resend(request.by(), id, Some(&payload)).await?;
        }
    }
    match resent {
        Resend::NotFound => Err(Problem::not_found("notification", &id.to_string())),
        Resend::NeedsRun(_) => Err(Problem::conflict(
            "this callback was sent, and cannot be sent again: its run does not exist any more, or has not ended",
        )),
        Resend::Done => {
            request.app.engine.wake_notifier();
            ok(&whole(find(&request, id).await?))
        }
    }
}
