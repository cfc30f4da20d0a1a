//! The feed of events, as NDJSON.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::stream;
use heddle_api::{Event, Moment};
use heddle_domain::Chain;
use heddle_domain::Fault;
use heddle_engine::Engine;
use heddle_store::event::{EVENTS_BYTES_MAX, EventPage, EventPosition, EventRow};
use heddle_store::{Store, StoreError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;

use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request};
use crate::table::{Method, Pace, READS_MAX, Route};

/// How many rows one statement reads at most, and the first one; a row may contain up to a thousand events.
const PAGE: i64 = 1_000;
const PAGE_FIRST: i64 = 8;

/// How many events one statement is to read: the next one reads as many rows as these are, by those read before.
const PAGE_EVENTS: u64 = 4_000;

/// How many lines may be asked for.
const LIMIT_MAX: u64 = 1_000_000;

/// How often a follower reads.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// How often a reader checks whether transactions that were open at its request have ended, and for how long at most.
const SETTLE_EVERY: Duration = Duration::from_millis(10);
const SETTLE_ROUNDS: u32 = 200;

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/events",
            Access::View,
            "List events, in order",
            events,
        )
        .detail(
            "The answer has one JSON object per line: `{cursor, kind, at, ...}`. To continue later, send the last \
            `cursor` as `after`. Each event is delivered at least once, and none is skipped, even if it was committed \
            late. The answer ends with the newest event, unless `follow=true`.",
        )
        .query("after", "The `cursor` of the last event that you have processed. Default: from the oldest event.")
        .number(
            "limit",
            1..=LIMIT_MAX as i64,
            None,
            "The maximum number of lines, 1 to 1,000,000. Default: no limit.",
        )
        .query(
            "kinds",
            "Only these kinds, for example `run.failed,assignment.completed`. `run.*` means all kinds that begin with \
            `run.`.",
        )
        .flag("follow", "`true`: keep the connection open and continue with new events. Default: `false`.")
        .answers_as(200, "application/x-ndjson", of::<Event>())
        .pace(Pace::Waits),
    ]
}

/// The kinds that there are.
const KINDS: [&str; 10] = [
    "assignment.dispatched",
    "assignment.completed",
    "assignment.failed",
    "assignment.revoked",
    "assignment.expired",
    "run.started",
    "run.succeeded",
    "run.failed",
    "run.cancelled",
    "run.skipped",
];

fn parse_position(text: &str) -> Option<EventPosition> {
    let mut parts = text.split('-');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (xid, id, read) = (number()?, number()?, number()?);
    parts.next().is_none().then_some(())?;
    Some(EventPosition {
        xid,
        id: id.try_into().ok()?,
        read: read.try_into().ok()?,
    })
}

struct Feed {
    store: Store,
    after: EventPosition,
    kinds: Option<Vec<String>>,
    left: u64,
    follow: bool,
    engine: Engine,
    /// A reader that does not follow is done when all transactions below this one have been decided.
    target: Option<u64>,
    rounds: u32,
    /// How many rows are read next.
    page: i64,
    /// What was read before the answer began, so that an error of it is the status of the answer.
    first: Option<EventPage>,
    waiting: VecDeque<Bytes>,
    over: bool,
}

/// Whether an event has a time of its own.
#[derive(Deserialize)]
struct Dated {
    at: Option<IgnoredAny>,
}

/// A row's lines after a position; several if it contains several events. Its content is passed on as text: of a
/// thousand events only the beginnings have to be made. An event's own time counts: the row has the last of them.
fn lines(row: &EventRow, after: EventPosition, out: &mut Vec<(EventPosition, String)>) -> serde_json::Result<()> {
    let several = row.data.starts_with('[');
    let items: Vec<&RawValue> = match several {
        true => serde_json::from_str(&row.data)?,
        false => vec![serde_json::from_str(&row.data)?],
    };
    let count = items.len() as u32;
    let skip = if (after.xid, after.id) == (row.xid, row.id) {
        after.read
    } else {
        0
    };
    let kind = json!(row.kind);
    for (index, item) in items.into_iter().enumerate().skip(skip as usize) {
        let read = index as u32 + 1;
        // The position of a row's last event is the row itself: a reader continues after it.
        let read = if several && read < count { read } else { 0 };
        let position = EventPosition {
            xid: row.xid,
            id: row.id,
            read,
        };
        let fields = item.get().strip_prefix('{').unwrap_or("}");
        let comma = if fields.starts_with('}') { "" } else { ", " };
        let at = match serde_json::from_str::<Dated>(item.get())?.at {
            Some(_) => String::new(),
            None => format!(r#", "at": "{}""#, Moment(row.at)),
        };
        let (xid, id) = (row.xid, row.id);
        let line = format!(r#"{{"cursor": "{xid}-{id}-{read}", "kind": {kind}{at}{comma}{fields}"#) + "\n";
        out.push((position, line));
    }
    Ok(())
}

/// How many rows are read after so many rows that stood for so many events and had so many bytes: the statement looks at
/// the size of each row that it may read, so of large rows it is asked for few.
fn next_page(rows: i64, events: u64, bytes: u64) -> i64 {
    let each = |of_all: u64| (of_all / rows.max(1) as u64).max(1);
    let fitting = (PAGE_EVENTS / each(events)).min(EVENTS_BYTES_MAX as u64 / each(bytes));
    (fitting as i64).clamp(1, PAGE)
}

impl Feed {
    /// How many rows the next read asks for: no more than events are wanted.
    fn rows(&self) -> i64 {
        self.page.min(self.left.try_into().unwrap_or(PAGE))
    }

    async fn read_once(&self) -> Result<EventPage, StoreError> {
        let kinds = self.kinds.as_deref();
        self.store.events_after(self.after, kinds, self.rows()).await
    }

    /// Reads behind the last position; again if the connection to the database is cut meanwhile.
    async fn read(&self) -> Result<EventPage, StoreError> {
        for _ in 1..READS_MAX {
            match self.read_once().await {
                Err(error) if error.is_cut() => {}
                read => return read,
            }
        }
        self.read_once().await
    }

    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Self)> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                return Some((Ok(line), self));
            }
            if self.over || self.left == 0 {
                return None;
            }
            let rows = self.rows();
            let read = match self.first.take() {
                Some(first) => Ok(first),
                None => self.read().await,
            };
            let page = match read {
                Ok(page) => page,
                Err(error) => {
                    // The reader comes back with its cursor.
                    tracing::warn!(error = %Chain(&error), "a stream of events ends early; its reader can continue \
                        from its last cursor");
                    return Some((
                        Err(std::io::Error::other("the database is not available")),
                        self.ended(),
                    ));
                }
            };
            let full = page.is_cut || page.rows.len() as i64 == rows;
            let last = page.rows.last().map(|row| (row.xid, row.id));
            let mut found = Vec::new();
            let after = self.after;
            if let Err(error) = page.rows.iter().try_for_each(|row| lines(row, after, &mut found)) {
                tracing::error!(%error, "cannot read a row of the events");
                return Some((Err(std::io::Error::other("an event cannot be read")), self.ended()));
            }
            if full {
                let bytes: u64 = page.rows.iter().map(|row| row.data.len() as u64).sum();
                self.page = next_page(page.rows.len() as i64, found.len() as u64, bytes);
            }
            found.truncate(self.left.try_into().unwrap_or(usize::MAX));
            self.left -= found.len() as u64;
            // If a reader's position says that it has read more of a row than there is, it continues after the row.
            if let Some((position, _)) = found.last() {
                self.after = *position;
            } else if let Some((xid, id)) = last {
                self.after = EventPosition { xid, id, read: 0 };
            }
            // Lines of one read are sent together.
            let text: String = found.iter().map(|(_, line)| line.as_str()).collect();
            if !text.is_empty() {
                self.waiting.push_back(text.into());
            }
            if full {
                continue;
            }
            // All below the oldest open transaction has been seen, if only to be passed over: it is not read again.
            self.after = self.after.max(EventPosition {
                xid: page.settled.saturating_sub(1),
                id: i64::MAX,
                read: 0,
            });
            if self.follow {
                // When a node stops, its readers continue at another, with their cursors.
                if self.engine.is_leaving() {
                    self.over = true;
                } else if self.waiting.is_empty() {
                    tokio::time::sleep(POLL_EVERY).await;
                }
                continue;
            }
            let target = *self.target.get_or_insert(page.next);
            self.rounds += 1;
            if page.settled >= target || self.rounds > SETTLE_ROUNDS {
                self.over = true;
            } else if self.waiting.is_empty() {
                tokio::time::sleep(SETTLE_EVERY).await;
            }
        }
    }

    fn ended(mut self) -> Self {
        self.over = true;
        self
    }
}

async fn events(request: Request) -> Outcome {
    let after = match request.query("after") {
        None => EventPosition::default(),
        // As any other cursor that cannot be read.
        Some(text) => parse_position(text).ok_or_else(|| {
            Problem::malformed(format!("`after` must be the `cursor` of an earlier line, not `{text}`"))
        })?,
    };
    let left = request.query_number("limit", 1..=LIMIT_MAX)?.unwrap_or(u64::MAX);
    let asked = request.query_all("kinds");
    let mut kinds: Vec<&str> = Vec::new();
    for kind in &asked {
        let before = kinds.len();
        let family = kind.strip_suffix('*');
        kinds.extend(KINDS.into_iter().filter(|known| match family {
            Some(family) => known.starts_with(family),
            None => known == kind,
        }));
        if kinds.len() == before {
            let known = KINDS.join(", ");
            return Err(Problem::invalid(Fault::at(
                "/kinds",
                format!("unknown kind of event `{kind}`; the kinds are {known}"),
            )));
        }
    }
    let kinds = (!asked.is_empty()).then(|| kinds.into_iter().map(str::to_owned).collect());
    let mut feed = Feed {
        store: request.app.store.clone(),
        after,
        kinds,
        left,
        follow: request.flag("follow", false)?,
        engine: request.app.engine.clone(),
        target: None,
        rounds: 0,
        page: PAGE_FIRST,
        first: None,
        waiting: VecDeque::new(),
        over: false,
    };
    // If its connection is cut, the whole request is handled again.
    feed.first = Some(feed.read_once().await?);
    let body = Body::from_stream(stream::unfold(feed, Feed::next));
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_its_row_has() {
        let check = |data: &str, read: u32, expect: &[&str]| {
            let row = EventRow {
                xid: 7,
                id: 3,
                kind: "run.failed".into(),
                at: "2026-11-24T05:00:00.000001Z".parse().unwrap(),
                data: data.into(),
            };
            let mut found = Vec::new();
            let after = EventPosition { xid: 7, id: 3, read };
            lines(&row, after, &mut found).unwrap();
            let lines: Vec<&str> = found.iter().map(|(_, line)| line.trim_end()).collect();
            assert_eq!(lines, expect);
            for (position, line) in &found {
                let read: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(parse_position(read["cursor"].as_str().unwrap()), Some(*position));
            }
        };
        let began = r#""kind": "run.failed", "at": "2026-11-24T05:00:00.000001Z""#;
        check(
            r#"{"run": "\"}{", "n": null}"#,
            0,
            &[&format!(
                r#"{{"cursor": "7-3-0", {began}, "run": "\"}}{{", "n": null}}"#
            )],
        );
        check("{}", 0, &[&format!(r#"{{"cursor": "7-3-0", {began}}}"#)]);
        let [first, second] = [1, 0].map(|read| format!(r#"{{"cursor": "7-3-{read}", {began}, "n": 1}}"#));
        check(r#"[{"n": 1}, {"n": 1}]"#, 0, &[&first, &second]);
        check(r#"[{"n": 1}, {"n": 1}]"#, 1, &[&second]);
        check(r#"[{"n": 1}]"#, 5, &[]);
        // A run that ended before the last one of its row keeps its own time, once.
        let own = r#""at": "2026-11-24T04:59:59.000000Z", "n": 1}"#;
        check(
            &format!("[{{{own}, {{\"n\": 1}}]"),
            0,
            &[&format!(r#"{{"cursor": "7-3-1", "kind": "run.failed", {own}"#), &second],
        );
        // A field of params is no time of the event.
        check(
            r#"{"params": {"at": 1}}"#,
            0,
            &[&format!(r#"{{"cursor": "7-3-0", {began}, "params": {{"at": 1}}}}"#)],
        );
    }

    #[test]
    fn rows_of_many_events_are_read_few_at_a_time() {
        assert_eq!(next_page(PAGE_FIRST, PAGE_FIRST as u64, 800), PAGE);
        assert_eq!(next_page(PAGE_FIRST, PAGE_FIRST as u64 * 1_000, 800), 4);
        // What a reader had read of its first row is not counted; a position beyond the wanted number does not stop it.
        assert_eq!((next_page(1, 0, 0), next_page(1, 1_000_000, 0)), (PAGE, 1));
        // Of rows with much text, too: so many that they fit into a page.
        assert_eq!((next_page(16, 16, 256 << 10), next_page(1, 1, 32 << 20)), (16, 1));
    }
}
