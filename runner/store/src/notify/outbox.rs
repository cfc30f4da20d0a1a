//! The outbox: from notices to notifications, and from these to the nodes that send them.
//!
//! # The story
//!
//! One node at a time turns notices into notifications (an advisory lock that nobody waits for): it deletes the notices
//! and inserts the notifications in one transaction. So each notice is handled exactly once, and storms are computed
//! without a race. A node that dies in between has done nothing.
//!
//! A notification to be sent has a row in `outgoing`. A node takes due rows under its lease (`sql/take_outgoing.sql`),
//! sends without any transaction, and then deletes the row, or gives it back for later. If a node dies while it sends,
//! its lease on the row expires, as with attempts: another node sends the notification again, with the same id. So each
//! is sent at least once.
//!
//! Who asks for a resend changes when the row is due ([`Store::resend`]). If a node is sending at this moment, it finds
//! another time than it has taken, and the result of its try does not end the notification.

use std::collections::BTreeMap;

use heddle_domain::id::RunId;
use heddle_domain::notify::Event;
use heddle_domain::notify::message::{Entry, Facts};
use heddle_domain::notify::storm::{LISTED_MAX, Window};
use heddle_domain::{Chain, Time};
use serde_json::Value;
use uuid::Uuid;

use crate::database::PgSession;
use crate::transaction::Open;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// One node at a time turns notices into notifications.
const FAN_OUT_LOCK: i64 = 0x6865_6464_6c65_0006;

/// Up to how many waiting ones are counted: a caller that asks every few seconds must not read a whole backlog each
/// time.
pub const WAITING_COUNTED_MAX: i64 = 100_000;

/// A notification to be sent.
#[derive(Clone, Debug)]
pub struct NewNotification {
    /// UUIDv7; by it receivers recognise a repeat.
    pub id: Uuid,
    /// A channel's name, or a URL.
    pub channel: String,
    /// A channel's name, or [`destination_of_callback`](crate::notification::destination_of_callback). A slow destination
    /// delays no other one.
    pub destination: String,
    /// What it is about.
    pub event: Event,
    pub facts: Facts,
    /// For a callback: the run, as JSON text.
    pub payload: Option<String>,
    /// For a mail: the addresses.
    pub recipients: Vec<String>,
    pub created_at: Time,
    /// When it may be sent.
    pub due_at: Time,
    /// It is a digest: until it is sent, more events may be added to it.
    pub digest: bool,
    /// If it cannot be sent at all: the reason.
    pub failed: Option<String>,
}

/// The key of one window of a storm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StormKey {
    /// The group; 0: none.
    pub group_id: i64,
    pub event: &'static str,
    pub channel: String,
    /// A hash of the recipients' addresses.
    pub recipients: String,
}

/// A transaction that turns notices into notifications. If it is dropped without [`FanOut::commit`], nothing changes.
pub struct FanOut {
    tx: Open,
}

impl Store {
    /// Begins; `None`: another node is doing so.
    ///
    /// Locking: an advisory lock that nobody waits for, before anything else.
    pub async fn fan_out(&self) -> Result<Option<FanOut>, StoreError> {
        let mut tx = self.open("fan_out").await?;
        let locked = sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "locked!""#, FAN_OUT_LOCK)
            .fetch_one(&mut *tx)
            .await?;
        Ok(locked.then_some(FanOut { tx }))
    }
}

impl FanOut {
    /// Deletes notices; returns those that still existed.
    pub async fn take(&mut self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        Ok(
            sqlx::query_scalar!("DELETE FROM heddle.notices WHERE id = ANY ($1) RETURNING id", ids)
                .fetch_all(&mut *self.tx)
                .await?,
        )
    }

    /// Gives up a notice that no node could read: deletes it, and writes into the history that nobody was told of it.
    pub async fn give_up(&mut self, id: i64, notification: Uuid, why: &str, now: Time) -> Result<(), StoreError> {
        sqlx::query!(
            "WITH gone AS (DELETE FROM heddle.notices WHERE id = $1 RETURNING *)
             INSERT INTO heddle.notifications (id, channel, event, group_name, run, subject, facts, state, last_error,
                 created_at)
             SELECT $2, coalesce(n.channel, n.ended ->> 'callback', ''), n.event, g.name, n.run,
                    'an event that could not be read: ' || n.event,
                    jsonb_build_object('event', n.event, 'at', heddle.moment(n.at), 'group', g.name, 'run', n.run,
                        'count', 1),
                    2, $3, $4
               FROM gone n LEFT JOIN heddle.groups g ON g.id = n.group_id",
            id,
            notification,
            why,
            now
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    /// Whether something failed before an instant and has not succeeded until now; it has succeeded now. (A failure
    /// after that instant stays.)
    pub async fn recover(&mut self, group_id: i64, task: &str, at: Time) -> Result<bool, StoreError> {
        let over = sqlx::query!(
            "DELETE FROM heddle.troubles WHERE group_id = $1 AND task = $2 AND last_at <= $3",
            group_id,
            task,
            at
        )
        .execute(&mut *self.tx)
        .await?;
        if over.rows_affected() > 0 {
            return Ok(true);
        }
        let earlier = sqlx::query!(
            "UPDATE heddle.troubles SET first_at = last_at WHERE group_id = $1 AND task = $2 AND first_at <= $3",
            group_id,
            task,
            at
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(earlier.rows_affected() > 0)
    }

    /// The existing windows of these storms.
    pub async fn windows(&mut self, keys: &[StormKey]) -> Result<BTreeMap<StormKey, Window<Uuid>>, StoreError> {
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let groups: Vec<i64> = keys.iter().map(|key| key.group_id).collect();
        let events: Vec<String> = keys.iter().map(|key| key.event.to_owned()).collect();
        let channels: Vec<String> = keys.iter().map(|key| key.channel.clone()).collect();
        let recipients: Vec<String> = keys.iter().map(|key| key.recipients.clone()).collect();
        let rows = sqlx::query!(
            r#"SELECT k.ordinal AS "ordinal!", s.opened_at AS "opened_at!", s.told AS "told!", s.digest AS "digest?"
                 FROM UNNEST($1::bigint[], $2::text[], $3::text[], $4::text[])
                      WITH ORDINALITY AS k (group_id, event, channel, recipients, ordinal)
                 JOIN heddle.storms s USING (group_id, event, channel, recipients)"#,
            &groups,
            &events,
            &channels,
            &recipients
        )
        .fetch_all(&mut *self.tx)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                let key = keys.get(usize::try_from(row.ordinal - 1).ok()?)?;
                let window = Window {
                    opened_at: row.opened_at,
                    told: row.told as u32,
                    digest: row.digest,
                };
                Some((key.clone(), window))
            })
            .collect())
    }

    /// Stores the windows of storms, so that the next notifier continues them.
    pub async fn keep_windows(&mut self, windows: &BTreeMap<StormKey, Window<Uuid>>) -> Result<(), StoreError> {
        if windows.is_empty() {
            return Ok(());
        }
        let groups: Vec<i64> = windows.keys().map(|key| key.group_id).collect();
        let events: Vec<String> = windows.keys().map(|key| key.event.to_owned()).collect();
        let channels: Vec<String> = windows.keys().map(|key| key.channel.clone()).collect();
        let recipients: Vec<String> = windows.keys().map(|key| key.recipients.clone()).collect();
        let opened: Vec<Time> = windows.values().map(|window| window.opened_at).collect();
        let told: Vec<i32> = windows.values().map(|window| window.told as i32).collect();
        let digests: Vec<Option<Uuid>> = windows.values().map(|window| window.digest).collect();
        sqlx::query!(
            "INSERT INTO heddle.storms (group_id, event, channel, recipients, opened_at, told, digest)
             SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::integer[],
                                  $7::uuid[])
             ON CONFLICT (group_id, event, channel, recipients) DO UPDATE
                SET opened_at = excluded.opened_at, told = excluded.told, digest = excluded.digest",
            &groups,
            &events,
            &channels,
            &recipients,
            &opened,
            &told,
            &digests as &[Option<Uuid>]
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    /// Those of these digests that may still get more events, with their facts. No node sends them before the end of
    /// this transaction. One that this version cannot read is closed: it is left as it is, and further events go into
    /// another one.
    ///
    /// Locking: their rows of *outgoing*, in the order of notifications. Transactions that take notifications skip
    /// them.
    pub async fn open_digests(&mut self, ids: &[Uuid], now: Time) -> Result<BTreeMap<Uuid, Facts>, StoreError> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let rows = sqlx::query!(
            "SELECT n.id AS \"id!\", n.facts AS \"facts!\" FROM heddle.outgoing o JOIN heddle.notifications n ON n.id = o.notification
              WHERE o.notification = ANY ($1) AND o.digest AND o.lease = 0 AND o.due_at > $2
              ORDER BY o.notification FOR UPDATE OF o",
            ids,
            now
        )
        .fetch_all(&mut *self.tx)
        .await?;
        let readable = |id, facts| {
            facts_of(id, facts)
                .inspect_err(|error| {
                    tracing::error!(error = %Chain(error), "cannot read a digest; further events go into another one");
                })
                .ok()
        };
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((row.id, readable(row.id, row.facts)?)))
            .collect())
    }

    /// Adds facts to a digest.
    pub async fn grow(&mut self, id: Uuid, facts: &Facts) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.notifications SET facts = $2, subject = $3 WHERE id = $1",
            id,
            to_value(facts)?,
            facts.subject()
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    pub async fn insert(&mut self, rows: &[NewNotification]) -> Result<(), StoreError> {
        insert_in(&mut self.tx, rows, 0).await
    }

    /// Commits what was written.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}

/// Adds an event to a digest.
pub fn gather(facts: &mut Facts, entry: Entry) {
    facts.count += 1;
    if facts.count == 2 {
        // The notification becomes a digest: of the facts of its first event, only those stay that hold for all events.
        *facts = Facts {
            event: std::mem::take(&mut facts.event),
            at: std::mem::take(&mut facts.at),
            group: facts.group.take(),
            next: facts.next.take().filter(|_| facts.task.is_none()),
            count: facts.count,
            entries: std::mem::take(&mut facts.entries),
            ..Facts::default()
        };
    }
    if facts.entries.len() < LISTED_MAX {
        facts.entries.push(entry);
    }
}

fn to_value(facts: &Facts) -> Result<Value, StoreError> {
    // Postgres keeps no zero characters.
    fn clean(value: &mut Value) {
        match value {
            Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{fffd}"),
            Value::Array(items) => items.iter_mut().for_each(clean),
            Value::Object(fields) => fields.values_mut().for_each(clean),
            _ => {}
        }
    }
    let mut value = StoreError::json_of(facts, ("notifications", "facts"))?;
    clean(&mut value);
    Ok(value)
}

pub(crate) fn facts_of(notification: Uuid, value: Value) -> Result<Facts, StoreError> {
    serde_json::from_value(value).map_err(|error| StoreError::unreadable("notifications", "facts", notification, error))
}

async fn insert_in(tx: &mut PgSession, rows: &[NewNotification], lease: i64) -> Result<(), StoreError> {
    for row in rows {
        sqlx::query!(
            "INSERT INTO heddle.notifications (id, channel, event, group_name, run, task, subject, facts, payload,
                 recipients, state, last_error, created_at)
             VALUES ($1, $2, $3, $4, $5::text::uuid, $6, $7, $8, $9, $10, $11, $12, $13)",
            row.id,
            row.channel,
            row.event.as_str(),
            row.facts.group,
            row.facts.run,
            row.facts.task,
            row.facts.subject(),
            to_value(&row.facts)?,
            row.payload,
            &row.recipients,
            if row.failed.is_some() { 2i16 } else { 0 },
            row.failed,
            row.created_at
        )
        .execute(&mut *tx)
        .await?;
        if row.failed.is_none() {
            sqlx::query!(
                "INSERT INTO heddle.outgoing (notification, lane, due_at, digest, lease) VALUES ($1, $2, $3, $4, $5)",
                row.id,
                row.destination,
                row.due_at,
                row.digest,
                lease
            )
            .execute(&mut *tx)
            .await?;
        }
    }
    Ok(())
}

/// A notification that this node is to send.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub id: Uuid,
    /// A channel's name, or a URL.
    pub channel: String,
    /// A channel's name, or [`destination_of_callback`](crate::notification::destination_of_callback).
    pub destination: String,
    /// What it is about.
    pub event: Event,
    pub run: Option<RunId>,
    pub facts: Facts,
    /// For a callback: JSON text.
    pub payload: Option<String>,
    /// For a mail: the addresses that were chosen for it; empty: those of its channel.
    pub recipients: Vec<String>,
    /// Addresses that need no further try.
    pub settled: Vec<String>,
    /// Why the mail server refused other addresses for good, in earlier tries.
    pub refused: Vec<String>,
    /// The number of tries so far.
    pub attempts: u32,
    /// When it was due: it has another time if somebody has asked for a resend since then.
    pub due_at: Time,
}

impl Outgoing {
    /// The addresses that have not got it yet, and may still get it. `to`: the addresses of its channel now, for a
    /// notification without addresses of its own. Its channel may have sent no mails when it was created.
    pub fn waiting(&self, to: &[String]) -> Vec<String> {
        let all = match self.recipients.as_slice() {
            [] => to,
            own => own,
        };
        let waits = |address: &&String| !self.settled.contains(address);
        all.iter().filter(waits).cloned().collect()
    }
}

/// How many due notifications of channels, or callbacks to URLs, a node may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Callbacks to URLs, not notifications of channels.
    pub callbacks: bool,
    /// How many notifications it may take altogether.
    pub limit: i64,
    /// How many of them to slow destinations.
    pub slow_limit: i64,
    /// How many to a destination that is not listed below.
    pub of_destination: i64,
    /// How many of a submitter that is not listed below.
    pub of_owner: i64,
    /// Destinations to which this node is sending, and slow ones.
    pub destinations: BTreeMap<String, DestinationRoom>,
    /// Submitters whose callbacks this node is sending, and how many more it may take of each.
    pub owners: BTreeMap<String, i64>,
}

/// How many due notifications to one destination a node may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestinationRoom {
    /// How many more notifications it may take.
    pub free: i64,
    /// Its last try took long.
    pub slow: bool,
}

/// What became of the addresses of a mail in a try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mailed {
    /// The addresses that need no further try: they have got their mail, or were refused for good.
    pub settled: Vec<String>,
    /// Why addresses were refused for good, each with the address.
    pub refused: Vec<String>,
}

/// The result of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Done,
    /// It will never arrive; the reason.
    Failed(String),
    /// It will be tried again; why it failed, and when.
    Later(String, Time),
}

/// What became of the row of a notification when the result of a try was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The result is that of the notification.
    Kept,
    /// Somebody has asked for a resend since the try began: it is due, and is sent again.
    Resent,
    /// The row is not this node's any more.
    TakenOver,
}

/// The work of the notifier.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pending {
    /// Whether there are notices.
    pub notices: bool,
    /// When the next notification is due.
    pub next_due: Option<Time>,
}

impl Store {
    /// One cheap query for the work of the notifier.
    pub async fn outbox(&self) -> Result<Pending, StoreError> {
        let row = sqlx::query!(
            r#"SELECT EXISTS (SELECT FROM heddle.notices) AS "notices!",
                      (SELECT min(due_at) FROM heddle.outgoing) AS next_due"#
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Pending {
            notices: row.notices,
            next_due: row.next_due,
        })
    }

    /// How many notifications wait to be sent, by the kind of channel (`callback`: a URL; `none`: the channel does not
    /// exist any more), and how many notices wait to be turned into notifications. Counts at most
    /// [`WAITING_COUNTED_MAX`] of each.
    pub async fn waiting_notifications(&self) -> Result<(Vec<(String, i64)>, i64), StoreError> {
        let rows = sqlx::query!(
            r#"SELECT coalesce(c.kind, CASE WHEN o.lane LIKE '://%' THEN 'callback' ELSE 'none' END) AS "kind!",
                      count(*) AS "count!"
                 FROM (SELECT lane FROM heddle.outgoing LIMIT $1) o LEFT JOIN heddle.channels c ON c.name = o.lane
                GROUP BY 1"#,
            WAITING_COUNTED_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let notices = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM (SELECT FROM heddle.notices LIMIT $1) n"#,
            WAITING_COUNTED_MAX
        )
        .fetch_one(&self.pool)
        .await?;
        Ok((rows.into_iter().map(|row| (row.kind, row.count)).collect(), notices))
    }

    /// Takes due notifications, as far as there is room; `not`: those that this node is sending, or passes over. See
    /// `sql/take_outgoing.sql`. Of notifications that this version cannot read: their ids, and the errors. They are taken
    /// as well, so the caller gives them back ([`Store::give_outgoing_back`]).
    pub async fn take_outgoing(
        &self,
        lease: i64,
        room: &Room,
        not: &[Uuid],
    ) -> Result<Vec<Result<Outgoing, (Uuid, StoreError)>>, StoreError> {
        let destinations: Vec<String> = room.destinations.keys().cloned().collect();
        let free: Vec<i64> = room.destinations.values().map(|room| room.free).collect();
        let slow: Vec<bool> = room.destinations.values().map(|room| room.slow).collect();
        let owners: Vec<String> = room.owners.keys().cloned().collect();
        let owners_free: Vec<i64> = room.owners.values().copied().collect();
        let rows = sqlx::query_file!(
            "src/sql/take_outgoing.sql",
            lease,
            room.of_destination,
            room.limit,
            &destinations,
            &free,
            &slow,
            not,
            room.callbacks,
            room.slow_limit,
            room.of_owner,
            &owners,
            &owners_free
        )
        .fetch_all(&self.pool)
        .await?;
        let read = rows.into_iter().map(|row| -> Result<Outgoing, (Uuid, StoreError)> {
            let Some(event) = Event::from_word(&row.event) else {
                let error = StoreError::unreadable("notifications", "event", row.id, row.event);
                return Err((row.id, error));
            };
            Ok(Outgoing {
                id: row.id,
                channel: row.channel,
                destination: row.destination,
                event,
                run: row.run.map(RunId),
                facts: facts_of(row.id, row.facts).map_err(|error| (row.id, error))?,
                payload: row.payload,
                recipients: row.recipients,
                settled: row.delivered,
                refused: row.refused,
                attempts: row.attempts as u32,
                due_at: row.due_at,
            })
        });
        Ok(read.collect())
    }

    /// Gives back notifications that were taken and are not sent by this node: another one may send them at once.
    pub async fn give_outgoing_back(&self, ids: &[Uuid], lease: i64) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.outgoing SET lease = 0 WHERE notification = ANY ($1) AND lease = $2",
            ids,
            lease
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Records the result of a try, and what became of its addresses. `due_at`: when the notification was due as it was
    /// taken. If it is due at another time now, [`Store::resend`] was called during the try: the result is not the
    /// notification's, which stays due. Only the error of the try is kept.
    ///
    /// Locking: its row of *outgoing*, then the notification, as [`Store::resend`] locks them. `due_at` is compared
    /// under these locks: a resend is wholly before or after the recording.
    pub async fn finish_outgoing(
        &self,
        (id, due_at): (Uuid, Time),
        lease: i64,
        sent: &Sent,
        mailed: &Mailed,
        now: Time,
    ) -> Result<Recorded, StoreError> {
        let (state, error, later) = match sent {
            Sent::Done => (1i16, None, None),
            Sent::Failed(why) => (2, Some(why), None),
            Sent::Later(why, at) => (0, Some(why), Some(*at)),
        };
        let error = error.map(|error| error.replace('\0', "\u{fffd}"));
        let resent = sqlx::query_scalar!(
            r#"WITH held AS MATERIALIZED (
                 SELECT due_at <> $9::timestamptz AS resent FROM heddle.outgoing
                  WHERE notification = $1 AND lease = $2 FOR UPDATE),
             later AS (
                 UPDATE heddle.outgoing o
                    SET lease = 0, due_at = CASE WHEN h.resent THEN o.due_at ELSE $6::timestamptz END
                   FROM held h WHERE o.notification = $1 AND (h.resent OR $6::timestamptz IS NOT NULL)),
             gone AS (
                 DELETE FROM heddle.outgoing o
                  USING held h WHERE o.notification = $1 AND NOT h.resent AND $6::timestamptz IS NULL)
             UPDATE heddle.notifications n
                SET state = CASE WHEN h.resent THEN n.state ELSE $3::smallint END,
                    attempts = CASE WHEN h.resent THEN n.attempts ELSE n.attempts + 1 END,
                    last_error = $4,
                    -- It may be large, and is made again if somebody wants it to be sent again. What is given up keeps it
                    -- as long as its run: whoever deleted the run meanwhile left the copy to this try.
                    payload = CASE WHEN NOT h.resent AND ($3::smallint = 1 OR $3::smallint = 2
                                   AND (SELECT count(*) FROM heddle.runs_live r WHERE r.id = n.run) = 0
                                   AND (SELECT count(*) FROM heddle.runs_done d WHERE d.id = n.run) = 0)
                                   THEN NULL ELSE n.payload END,
                    delivered = CASE WHEN h.resent THEN n.delivered ELSE n.delivered || $5::text[] END,
                    refused = CASE WHEN h.resent THEN n.refused ELSE n.refused || $8::text[] END,
                    sent_at = CASE WHEN NOT h.resent AND $3::smallint = 1 THEN $7::timestamptz END
               FROM held h WHERE n.id = $1
            RETURNING h.resent AS "resent!""#,
            id,
            lease,
            state,
            error,
            &mailed.settled,
            later,
            now,
            &mailed.refused,
            due_at
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(match resent {
            Some(false) => Recorded::Kept,
            Some(true) => Recorded::Resent,
            None => Recorded::TakenOver,
        })
    }

    /// Inserts a notification that this node sends at once.
    pub async fn begin_outgoing(&self, row: NewNotification, lease: i64) -> Result<(), StoreError> {
        transaction!(self, pool, "begin_outgoing", |tx| {
            insert_in(&mut tx, std::slice::from_ref(&row), lease).await?;
            tx.commit().await?;
            Ok(())
        })
    }

    /// Deletes windows of storms that were over before an instant.
    pub async fn prune_storms(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.storms s
              WHERE (s.group_id, s.event, s.channel, s.recipients) IN (
                    SELECT group_id, event, channel, recipients FROM heddle.storms WHERE opened_at < $1 LIMIT $2)",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}
