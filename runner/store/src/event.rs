//! The feed of events: read in the order of transactions, never past one that is still open.
//!
//! An event carries the number of its transaction. Numbers are given out when transactions begin to write and commits
//! come in any order, so a reader that simply went by numbers would miss what commits late. It therefore stops below
//! the oldest transaction that is still open (`pg_snapshot_xmin`): all that lies below has been decided for good, and
//! whatever commits later has a greater number. A transaction that stays open for long holds the feed up, not wrong.

use heddle_domain::Time;
use serde_json::Value;

use crate::{Store, StoreError};

/// Where a reader stands: behind the `n`th event of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPosition {
    /// The transaction.
    pub xid: u64,
    /// The row.
    pub id: i64,
    /// Of a row that stands for several: how many have been read; 0 stands for all of them.
    pub read: u32,
}

/// A row of the feed.
#[derive(Clone, Debug)]
pub struct EventRow {
    pub xid: u64,
    pub id: i64,
    pub kind: String,
    pub at: Time,
    /// An object, or an array that stands for as many events.
    pub data: Value,
}

/// A look at the feed.
#[derive(Clone, Debug)]
pub struct EventPage {
    pub rows: Vec<EventRow>,
    /// All below this transaction have been decided.
    pub settled: u64,
    /// The first transaction that had not begun.
    pub next: u64,
}

impl Store {
    /// Events behind a position, of these kinds, at most `limit` rows.
    pub async fn events_after(
        &self,
        after: EventPosition,
        kinds: Option<&[String]>,
        limit: i64,
    ) -> Result<EventPage, StoreError> {
        let number = |row: i64, text: &str| {
            text.parse()
                .map_err(|_| StoreError::unreadable("events", "xid", row, format!("`{text}`")))
        };
        // A row of which some have been read is read again.
        let id = if after.read > 0 { after.id - 1 } else { after.id };
        let bounds = sqlx::query!(
            r#"SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS "settled!",
                      pg_snapshot_xmax(pg_current_snapshot())::text AS "next!""#
        )
        .fetch_one(&self.pool)
        .await?;
        let rows = sqlx::query!(
            r#"SELECT xid::text AS "xid!", id, kind, at, data FROM heddle.events
                WHERE (xid, id) > ($1::text::xid8, $2) AND xid < $3::text::xid8
                  AND ($4::text[] IS NULL OR kind = ANY ($4))
                ORDER BY xid, id LIMIT $5"#,
            after.xid.to_string(),
            id,
            bounds.settled,
            kinds,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        let mut events = Vec::with_capacity(rows.len());
        for row in rows {
            let xid = number(row.id, &row.xid)?;
            events.push(EventRow {
                xid,
                id: row.id,
                kind: row.kind,
                at: row.at,
                data: row.data,
            });
        }
        Ok(EventPage {
            rows: events,
            settled: number(id, &bounds.settled)?,
            next: number(id, &bounds.next)?,
        })
    }

    /// Drops at most `limit` events older than `before`.
    pub async fn prune_events(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.events WHERE (xid, id) IN (
                 SELECT xid, id FROM heddle.events WHERE at < $1 ORDER BY xid, id LIMIT $2)",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}
