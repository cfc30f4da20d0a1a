//! The history of notifications.

use chrono::SecondsFormat;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::notify::channel::{shown_error, shown_target};
use heddle_domain::notify::message::Facts;
use heddle_domain::state::NotificationState;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::change::{By, Noun, Page};
use crate::database::PgSession;
use crate::outbox::facts_of;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// A notification, as people see it.
#[derive(Clone, Debug)]
pub struct NotificationRow {
    pub id: Uuid,
    /// A channel's name, or of a URL the host.
    pub channel: String,
    /// The name of its event.
    pub event: String,
    pub group: Option<String>,
    pub run: Option<Uuid>,
    /// The task; of a digest, none.
    pub task: Option<String>,
    /// Its subject, as Heddle writes it.
    pub subject: String,
    /// The number of its events.
    pub count: u64,
    /// Addresses, for a mail.
    pub recipients: Vec<String>,
    pub state: NotificationState,
    /// The number of tries so far.
    pub attempts: i32,
    /// Why the last try failed.
    pub last_error: Option<String>,
    /// When it was created.
    pub created_at: Time,
    pub sent_at: Option<Time>,
    /// When it is next tried.
    pub next_attempt_at: Option<Time>,
}

/// The same, as a row of the table.
struct Found {
    id: Uuid,
    channel: String,
    event: String,
    group: Option<String>,
    run: Option<Uuid>,
    task: Option<String>,
    subject: String,
    count: Option<Value>,
    recipients: Vec<String>,
    state: i16,
    attempts: i32,
    last_error: Option<String>,
    created_at: Time,
    sent_at: Option<Time>,
    due_at: Option<Time>,
}

impl TryFrom<Found> for NotificationRow {
    type Error = StoreError;

    fn try_from(row: Found) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id,
            last_error: row.last_error.map(|error| shown_error(&error, &row.channel)),
            channel: shown_target(&row.channel),
            event: row.event,
            group: row.group,
            run: row.run,
            task: row.task,
            subject: row.subject,
            // A row that cannot be read must not make a list fail.
            count: row.count.and_then(|count| count.as_u64()).unwrap_or(1),
            recipients: row.recipients,
            state: state_of(row.id, row.state)?,
            attempts: row.attempts,
            created_at: row.created_at,
            sent_at: row.sent_at,
            next_attempt_at: row.due_at,
        })
    }
}

/// A notification of a list; or why this version cannot read it.
pub type ListedNotification = Result<NotificationRow, StoreError>;

#[derive(Clone, Debug, Default)]
pub struct NotificationFilter {
    pub channel: Option<String>,
    pub events: Vec<String>,
    pub states: Vec<i16>,
    pub group: Option<String>,
    pub run: Option<Uuid>,
    /// Created at or after.
    pub from: Option<Time>,
    /// Created at or before.
    pub to: Option<Time>,
}

/// The result of a request to send a notification again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// There is no such notification.
    NotFound,
    /// It is a callback that was sent: its payload was removed, and has to be made again from this run. Nothing has changed.
    NeedsRun(Option<RunId>),
    /// It will be sent.
    Done,
}

impl Store {
    /// Notifications, newest first, older than `before`. Of their facts, only what a list shows: the others may be large. One that
    /// this version cannot read is the error that says so in its place.
    pub async fn notifications(
        &self,
        filter: &NotificationFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Page<ListedNotification>, StoreError> {
        let rows = sqlx::query_as!(
            Found,
            "SELECT n.id, n.channel, n.event, n.group_name AS \"group\", n.run, n.facts ->> 'task' AS task, n.subject,
                    n.facts -> 'count' AS count,
                    CASE WHEN n.recipients = '{}' THEN n.delivered ELSE n.recipients END AS \"recipients!\",
                    n.state, n.attempts, n.last_error, n.created_at, n.sent_at, o.due_at AS \"due_at?\"
               FROM heddle.notifications n LEFT JOIN heddle.outgoing o ON o.notification = n.id
              WHERE ($1::uuid IS NULL OR n.id < $1) AND ($2::text IS NULL OR n.channel = $2)
                AND (cardinality($3::text[]) = 0 OR n.event = ANY ($3))
                AND (cardinality($4::smallint[]) = 0 OR n.state = ANY ($4))
                AND ($5::text IS NULL OR n.group_name = $5) AND ($6::uuid IS NULL OR n.run = $6)
                AND ($7::timestamptz IS NULL OR n.created_at >= $7) AND ($8::timestamptz IS NULL OR n.created_at <= $8)
              ORDER BY n.id DESC LIMIT $9",
            before,
            filter.channel,
            &filter.events,
            &filter.states,
            filter.group,
            filter.run,
            filter.from,
            filter.to,
            limit + 1
        )
        .fetch_all(&self.pool)
        .await?;
        let found = Page::of(rows, limit, |row| row.id.to_string());
        Ok(Page {
            items: found.items.into_iter().map(NotificationRow::try_from).collect(),
            next: found.next,
        })
    }

    /// A notification, with its facts.
    pub async fn notification(&self, id: Uuid) -> Result<Option<(NotificationRow, Facts)>, StoreError> {
        let row = sqlx::query_as!(
            Found,
            "SELECT n.id, n.channel, n.event, n.group_name AS \"group\", n.run, n.facts ->> 'task' AS task, n.subject,
                    n.facts -> 'count' AS count,
                    CASE WHEN n.recipients = '{}' THEN n.delivered ELSE n.recipients END AS \"recipients!\",
                    n.state, n.attempts, n.last_error, n.created_at, n.sent_at, o.due_at AS \"due_at?\"
               FROM heddle.notifications n LEFT JOIN heddle.outgoing o ON o.notification = n.id WHERE n.id = $1",
            id
        )
        .fetch_optional(&self.pool)
        .await?;
        let facts = sqlx::query_scalar!("SELECT facts FROM heddle.notifications WHERE id = $1", id)
            .fetch_optional(&self.pool)
            .await?;
        let (Some(row), Some(facts)) = (row, facts) else {
            return Ok(None);
        };
        Ok(Some((NotificationRow::try_from(row)?, facts_of(id, facts)?)))
    }

    /// Sends a notification again, to all its recipients, as if it had never been tried; a waiting one is sent now. If
    /// a node is just sending it, it is sent again after this try, whose result does not count
    /// ([`Store::finish_outgoing`]). `payload`: what is sent if the notification has none any more.
    ///
    /// Locking: the notification, KEY SHARE, only to prevent its pruning; then its row of *outgoing*, then the
    /// notification, as the recording of a try locks them.
    pub async fn resend(&self, by: By<'_>, id: Uuid, payload: Option<&str>) -> Result<Resend, StoreError> {
        transaction!(self, pool, "resend", |tx| {
            let row = sqlx::query!(
                "SELECT n.channel, n.run, n.event = 'callback' AND position('://' IN n.channel) > 0 AS \"called_back!\"
               FROM heddle.notifications n WHERE n.id = $1 FOR KEY SHARE",
                id
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = row else {
                return Ok(Resend::NotFound);
            };
            let destination = if row.called_back {
                destination_of_callback(&row.channel, by.actor)
            } else {
                row.channel
            };
            let (before, after) = send_again(&mut tx, id, &destination, by.at).await?;
            // It is read under the locks: a try that is recorded at the same time may remove it.
            if !with_payload(&mut tx, id, payload).await? {
                return Ok(Resend::NeedsRun(row.run.map(RunId)));
            }
            let (about, name) = (Noun::Notification.quiet(), id.to_string());
            audit::record(&mut tx, by, "resend", about, &name, Some(&before), Some(&after)).await?;
            tx.commit().await?;
            Ok(Resend::Done)
        })
    }

    /// Deletes notifications that were created before an instant and need not be sent any more, at most `limit`. The state
    /// is compared once more when a row is locked: [`Store::resend`] may have changed it since it was found.
    pub async fn prune_notifications(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.notifications WHERE id IN (
                 SELECT id FROM heddle.notifications WHERE created_at < $1 AND state <> 0 ORDER BY created_at LIMIT $2)
               AND state <> 0",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}

/// The state of a notification's row.
fn state_of(id: Uuid, state: i16) -> Result<NotificationState, StoreError> {
    StoreError::known(NotificationState::from_number, state, ("notifications", "state"), id)
}

/// A notification for the audit: its state, and when it is next tried.
fn audited(state: NotificationState, attempts: i32, due_at: Option<Time>) -> Value {
    let due_at = due_at.map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true));
    json!({"state": state.as_str(), "attempts": attempts, "next_attempt_at": due_at})
}

/// Makes a notification due; returns what it was before and after, for the audit. The new `due_at` tells the node that is
/// just sending it that the result of its try does not count.
///
/// Locking: its row of *outgoing*, then the notification. It is read under these locks, so a try that is recorded at the
/// same time is wholly before or after it.
async fn send_again(tx: &mut PgSession, id: Uuid, destination: &str, now: Time) -> Result<(Value, Value), StoreError> {
    let outgoing = sqlx::query!(
        "SELECT due_at, lease FROM heddle.outgoing WHERE notification = $1 FOR UPDATE",
        id
    )
    .fetch_optional(&mut *tx)
    .await?;
    let due_at = outgoing.as_ref().map(|row| row.due_at);
    let is_being_sent = outgoing.is_some_and(|row| row.lease != 0);
    sqlx::query!(
        "INSERT INTO heddle.outgoing (notification, lane, due_at) VALUES ($1, $2, $3)
             ON CONFLICT (notification) DO UPDATE SET due_at = excluded.due_at, digest = false",
        id,
        destination,
        now
    )
    .execute(&mut *tx)
    .await?;
    let was = sqlx::query!(
        "SELECT state, attempts FROM heddle.notifications WHERE id = $1 FOR NO KEY UPDATE",
        id
    )
    .fetch_one(&mut *tx)
    .await?;
    let state = state_of(id, was.state)?;
    let before = audited(state, was.attempts, due_at);
    if state == NotificationState::Pending && !is_being_sent {
        return Ok((before, audited(state, was.attempts, Some(now))));
    }
    sqlx::query!(
        "UPDATE heddle.notifications SET state = 0, attempts = 0, sent_at = NULL, delivered = '{}', refused = '{}'
              WHERE id = $1",
        id
    )
    .execute(tx)
    .await?;
    Ok((before, audited(NotificationState::Pending, 0, Some(now))))
}

/// Gives a callback to a URL or a webhook this payload if it has none. Returns whether it has one now, or needs none.
async fn with_payload(tx: &mut PgSession, id: Uuid, payload: Option<&str>) -> Result<bool, StoreError> {
    let lacking = sqlx::query_scalar!(
        r#"UPDATE heddle.notifications n SET payload = $2
            WHERE n.id = $1 AND n.payload IS NULL AND n.event = 'callback'
              AND (position('://' IN n.channel) > 0
                   OR EXISTS (SELECT FROM heddle.channels c WHERE c.name = n.channel AND c.kind = 'webhook'))
           RETURNING n.payload IS NULL AS "lacking!""#,
        id,
        payload
    )
    .fetch_optional(tx)
    .await?;
    Ok(lacking != Some(true))
}

/// What begins the destination of a callback; no name of a channel does.
pub const CALLBACK_PREFIX: &str = "://";

/// The host and port of a callback's URL, after [`CALLBACK_PREFIX`].
pub fn destination_of_url(url: &str) -> String {
    let rest = url.split_once(CALLBACK_PREFIX).map_or(url, |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = host.rsplit('@').next().unwrap_or(host).to_lowercase();
    format!("{CALLBACK_PREFIX}{host}")
}

/// The destination of a callback: the host and port of its URL, and who submitted the run. So the callbacks of one
/// submitter to a host do not delay those of another one.
pub fn destination_of_callback(url: &str, owner: &str) -> String {
    format!("{}/{owner}", destination_of_url(url))
}

/// Who submitted the run of a callback, by its destination; empty for a channel.
pub fn owner_of(destination: &str) -> &str {
    let rest = destination.strip_prefix(CALLBACK_PREFIX);
    rest.and_then(|rest| rest.split_once('/'))
        .map_or("", |(_, owner)| owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_state_is_not_taken_for_another_one() {
        let states: Vec<_> = (0..3).map(|number| state_of(Uuid::nil(), number).unwrap()).collect();
        assert_eq!(states, NotificationState::ALL);
        for unknown in [-1, 3] {
            let found = state_of(Uuid::nil(), unknown);
            assert!(matches!(found, Err(StoreError::Unreadable { .. })), "{found:?}");
        }
    }
}
