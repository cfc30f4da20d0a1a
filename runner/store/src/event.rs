//! The feed of events: read in the order of transactions, never past one that is still open.
//!
//! An event has the number of its transaction. Transactions get their numbers when they begin to write, and commit in
//! any order, so a reader that only followed the numbers would miss late commits. So it stops below the oldest open
//! transaction (`pg_snapshot_xmin`): all transactions below have ended, and all that commit later have a greater
//! number. A transaction that is open for long delays the feed, but loses nothing.

use heddle_domain::Time;

use crate::{Store, StoreError};

/// How many bytes of text a page of the feed has, not counting its last row. Less than lists have: thousands of readers may
/// each keep a page in memory, for as long as they take to read it.
pub const EVENTS_BYTES_MAX: i64 = 256 << 10;

/// The position of a reader: after the `n`th event of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPosition {
    pub xid: u64,
    pub id: i64,
    /// If the row contains several events: how many have been read; 0 means all of them.
    pub read: u32,
}

/// A row of the feed.
#[derive(Clone, Debug)]
pub struct EventRow {
    pub xid: u64,
    pub id: i64,
    pub kind: String,
    pub at: Time,
    /// JSON text: an object, or an array of objects, each of which is one event.
    pub data: String,
}

/// A page of the feed.
#[derive(Clone, Debug)]
pub struct EventPage {
    pub rows: Vec<EventRow>,
    /// Whether the page ends because of its bytes ([`EVENTS_BYTES_MAX`]): more rows may follow.
    pub is_cut: bool,
    /// All transactions below this one have ended.
    pub settled: u64,
    /// The first transaction that had not begun.
    pub next: u64,
}

impl Store {
    /// Events after a position, of these kinds, at most `limit` rows. The page ends earlier with the row that goes beyond
    /// [`EVENTS_BYTES_MAX`]: an event of an assignment has its params.
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
        // A row of which some events have been read is read again.
        let id = if after.read > 0 { after.id - 1 } else { after.id };
        // Bounds and rows in one statement, so as of one moment and in one round trip.
        let rows = sqlx::query!(
            r#"SELECT b.settled AS "settled!", b.next AS "next!", e.xid AS "xid?", e.id AS "id?", e.kind AS "kind?",
                      e.at AS "at?", e.data AS "data?", e.cut AS "cut?"
                 FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS settled,
                              pg_snapshot_xmax(pg_current_snapshot())::text AS next) AS b
                 LEFT JOIN LATERAL (
                      SELECT w.xid::text AS xid, w.id, w.kind, w.at, w.data,
                             w.upto > $5::bigint OR w.stored > $5 AS cut
                        FROM (SELECT s.*, sum(octet_length(s.data)) OVER (ORDER BY s.xid, s.id ROWS UNBOUNDED PRECEDING) AS upto
                                FROM (SELECT f.xid, f.id, f.kind, f.at, f.data::text AS data, f.stored
                                        FROM (SELECT r.*, sum(pg_column_size(r.data))
                                                          OVER (ORDER BY r.xid, r.id ROWS UNBOUNDED PRECEDING) AS stored
                                                FROM (SELECT v.xid, v.id, v.kind, v.at, v.data FROM heddle.events v
                                                       WHERE (v.xid, v.id) > ($1::text::xid8, $2)
                                                         AND v.xid < pg_snapshot_xmin(pg_current_snapshot())
                                                         AND ($3::text[] IS NULL OR v.kind = ANY ($3))
                                                       ORDER BY v.xid, v.id LIMIT $4) AS r) AS f
                                       WHERE f.stored - pg_column_size(f.data) <= $5
                                       -- Because of the offset, each text is made once.
                                       ORDER BY f.xid, f.id OFFSET 0) AS s) AS w
                       WHERE w.upto - octet_length(w.data) <= $5
                       ORDER BY w.xid, w.id) AS e ON true"#,
            after.xid.to_string(),
            id,
            kinds,
            limit,
            EVENTS_BYTES_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let (mut settled, mut next) = (0, 0);
        let mut events = Vec::with_capacity(rows.len());
        let is_cut = rows.last().and_then(|row| row.cut).unwrap_or(false);
        for row in rows {
            (settled, next) = (number(id, &row.settled)?, number(id, &row.next)?);
            let (Some(xid), Some(id), Some(kind), Some(at), Some(data)) = (row.xid, row.id, row.kind, row.at, row.data)
            else {
                continue;
            };
            let xid = number(id, &xid)?;
            events.push(EventRow {
                xid,
                id,
                kind,
                at,
                data,
            });
        }
        Ok(EventPage {
            rows: events,
            is_cut,
            settled,
            next,
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
