//! Messages: taking them in, looking them up, taking one back.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use heddle_api::{List, Message, MessageView, Messages, MessagesAccepted, Moment, Rejected};
use heddle_domain::Fault;
use heddle_domain::message::{BUCKETS, address_of};
use heddle_domain::topic::parse_day;
use heddle_engine::{IngestError, IngestReport, Ingestion};
use heddle_store::StoreError;
use heddle_store::message::{Cancelled, MessageRow, MessageSearch};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::topics::{end_empty, find};
use crate::access::{Access, refused};
use crate::body;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, no_content, ok};
use crate::table::{Method, Route};

/// Lines are passed on in blocks of this many, or of this many bytes.
const BLOCK_LINES_MAX: usize = 5_000;
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// How many blocks wait for the database while the next is read.
const BLOCKS_MAX: usize = 2;

/// When a stream pauses for this long, what has come is committed.
const LINGER: Duration = Duration::from_millis(100);

/// And so has one that never pauses, as often as this: what trickles in is not kept waiting for a full block, nor is a
/// transaction kept open for it (the database ends those that are idle for 6 s).
const SETTLE_EVERY: Duration = Duration::from_secs(1);

const BYTE_ORDER_MARK: char = '\u{feff}';

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Post,
            "/v1/topics/{topic}/messages",
            Access::Operate,
            "Schedule messages",
            take,
        )
        .detail(
            "The body is one message, an array of messages, or (as `application/x-ndjson`) a stream with one message \
            per line and no limit on its length. Accepted messages are committed. A message with a `key` that already \
            exists on its day counts as `accepted` and as `repeated`. `rejected` has at most 1,000 lines, \
            `rejected_total` is the number of all. If the stream breaks, messages that were committed stay.",
        )
        .takes(of::<Messages>())
        .takes_as("application/x-ndjson", of::<Message>())
        .answers(200, of::<MessagesAccepted>())
        .problem(422, "The body is a single message, and it is rejected."),
        Route::new(
            Method::Get,
            "/v1/topics/{topic}/messages",
            Access::View,
            "List messages",
            list,
        )
        .detail(
            "In the order of day, bucket and id. A search by `sender` reads one bucket of each day. A search by \
            `receiver` alone reads all messages of the days.",
        )
        .list()
        .formatted("day", "date", "Only messages that are due on this day, for example 2026-11-21.")
        .number("bucket", 0..=BUCKETS - 1, None, "Only messages in this bucket, 0 to 9999.")
        .number("sender", 0..=i64::MAX, None, "Only messages from this sender.")
        .number("receiver", 0..=i64::MAX, None, "Only messages to this receiver.")
        .answers(200, of::<List<MessageView>>())
        .problem(422, "The search takes too long; add `day` or `sender`."),
        Route::new(
            Method::Get,
            "/v1/topics/{topic}/messages/{id}",
            Access::View,
            "Get a message",
            get,
        )
        .answers(200, of::<MessageView>()),
        Route::new(
            Method::Delete,
            "/v1/topics/{topic}/messages/{id}",
            Access::Operate,
            "Cancel a message",
            delete,
        )
        .answers_empty(204)
        .problem(
            409,
            "The message was sent, has failed, or is being sent; if it is being sent and that fails, it is not tried again.",
        ),
    ]
}

fn accepted(mut report: IngestReport, names_ids: bool) -> MessagesAccepted {
    report.rejected.sort_by_key(|entry| entry.0);
    let rejected = report.rejected.into_iter();
    MessagesAccepted {
        accepted: report.accepted,
        repeated: report.repeated,
        rejected: rejected
            .map(|(line, faults)| {
                let details: Vec<String> = faults.0.into_iter().map(|fault| fault.detail).collect();
                Rejected {
                    line,
                    detail: details.join("; "),
                }
            })
            .collect(),
        rejected_total: report.rejected_total,
        ids: names_ids.then_some(report.ids),
    }
}

impl From<IngestError> for Problem {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::UnknownTopic(name) => Self::not_found("topic", &name),
            IngestError::Engine(error) => crate::adapter::Refusal::from(error).into(),
        }
    }
}

fn is_lines(request: &Request) -> bool {
    let value = request
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = value
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    matches!(
        essence.as_str(),
        "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/jsonlines"
            | "application/x-jsonlines"
            | "text/x-ndjson"
    )
}

async fn take(mut request: Request) -> Outcome {
    let name = request.name("topic", "topic")?;
    let ingestion = request.app.engine.ingest(&name).await?;
    if is_lines(&request) {
        request.is_plain()?;
        let body = std::mem::replace(request.body.get_mut(), Body::empty());
        return take_stream(&request, ingestion, body).await;
    }
    request.is_json().map_err(|_| {
        Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be application/json, or application/x-ndjson with one message per line",
        )
    })?;
    let bytes_max = request.app.config.batch_bytes_max;
    let bytes = request.bytes(bytes_max).await?;
    request.count_values(&bytes, crate::json::outer_weight).await?;
    if bytes.trim_ascii().is_empty() {
        return Err(Problem::malformed("the body is empty; messages were expected"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| Problem::malformed("the body is not UTF-8"))?;
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    match serde_json::from_str::<&RawValue>(text) {
        Ok(whole) if whole.get().starts_with('[') => take_array(ingestion, whole.get()).await,
        Ok(whole) if whole.get().starts_with('{') => take_one(ingestion, whole.get()).await,
        Ok(_) => Err(Problem::invalid_at("", "a message must be an object")),
        // Lines that were not announced as such.
        Err(_) if is_several(text) => take_stream(&request, ingestion, Body::from(bytes.clone())).await,
        Err(error) => Err(Problem::malformed(format!("the body is not JSON: {error}"))),
    }
}

/// Whether a text begins with a whole line of JSON, and goes on after it.
fn is_several(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines
        .next()
        .is_some_and(|line| serde_json::from_str::<&RawValue>(line).is_ok());
    first && lines.next().is_some()
}

async fn take_one(mut ingestion: Ingestion, text: &str) -> Outcome {
    ingestion.push(std::iter::once((1, text))).await?;
    let report = ingestion.finish().await?;
    if let Some((_, faults)) = report.rejected.first() {
        return Err(Problem::invalid(faults.clone()));
    }
    ok(&accepted(report, true))
}

async fn take_array(mut ingestion: Ingestion, text: &str) -> Outcome {
    let items: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    let names_ids = items.len() <= heddle_engine::INGEST_IDS_MAX;
    for (block, items) in items.chunks(BLOCK_LINES_MAX).enumerate() {
        let first = (block * BLOCK_LINES_MAX) as u64 + 1;
        let lines = items
            .iter()
            .enumerate()
            .map(|(index, item)| (first + index as u64, item.get()));
        ingestion.push(lines).await?;
    }
    ok(&accepted(ingestion.finish().await?, names_ids))
}

/// A part of a stream.
enum Piece {
    /// Whole lines, the first of which has this number.
    Lines(u64, Bytes),
    /// A line that is longer than any message.
    TooLong(u64),
    /// Commit what has come: nothing comes at the moment, or it has been a while.
    Pause,
    /// It broke off: status and reason.
    Broken(StatusCode, &'static str),
}

async fn take_stream(request: &Request, mut ingestion: Ingestion, body: Body) -> Outcome {
    let (pieces, mut coming) = mpsc::channel(BLOCKS_MAX);
    let reader = Reader {
        pieces,
        idle: request.app.config.body_idle_timeout,
        line_bytes_max: ingestion.line_bytes_max(),
        rest: BytesMut::new(),
        scanned: 0,
        lines: 0,
        end: 0,
        next_line: 1,
        skipping: false,
        paused: true,
        settled: Instant::now(),
    };
    let reading = tokio::spawn(reader.run(body));
    let mut broken = None;
    let written = async {
        let token_ended = request.token_ended();
        tokio::pin!(token_ended);
        loop {
            let piece = tokio::select! {
                piece = coming.recv() => piece,
                // Nothing is taken for a token that has been revoked meanwhile.
                () = &mut token_ended => {
                    broken = Some(refused());
                    break;
                }
            };
            let Some(piece) = piece else { break };
            match piece {
                Piece::Lines(first, bytes) => push_lines(&mut ingestion, first, &bytes).await?,
                Piece::TooLong(line) => {
                    let bytes_max = ingestion.line_bytes_max();
                    let detail = format!("the line is longer than {bytes_max} bytes");
                    ingestion.report().reject(line, Fault::at("", detail));
                }
                Piece::Pause => ingestion.flush().await?,
                Piece::Broken(status, why) => broken = Some(Problem::new(status, why)),
            }
        }
        ingestion.flush().await
    }
    .await;
    drop(coming);
    reading.abort();
    let report = ingestion.report().clone();
    let mut problem = match (written, broken) {
        (Ok(()), None) => return ok(&accepted(report, false)),
        (Ok(()), Some(problem)) => problem,
        (Err(error), _) => error.into(),
    };
    problem.detail = format!("{}; {}", problem.detail, so_far(&report));
    Err(problem)
}

fn so_far(report: &IngestReport) -> String {
    format!(
        "{} messages were accepted, {} lines were rejected before the stream ended",
        report.accepted, report.rejected_total
    )
}

/// A line without what some editors and shells begin a file with, which RFC 8259 (8.1) lets a reader pass over.
fn unmarked(line: &str, number: u64) -> &str {
    match number {
        1 => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
        _ => line,
    }
}

async fn push_lines(ingestion: &mut Ingestion, first: u64, bytes: &[u8]) -> Result<(), IngestError> {
    let mut lines = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = first + index as u64;
        match std::str::from_utf8(line).map(|text| unmarked(text, number)) {
            Ok(text) if text.trim_ascii().is_empty() => {}
            Ok(text) => lines.push((number, text)),
            Err(_) => ingestion
                .report()
                .reject(number, Fault::at("", "the line is not UTF-8")),
        }
    }
    ingestion.push(lines.into_iter()).await
}

/// Cuts a body into blocks of whole lines. Holds one block, and a part of a line.
struct Reader {
    pieces: mpsc::Sender<Piece>,
    idle: Duration,
    line_bytes_max: usize,
    rest: BytesMut,
    /// How much of `rest` has been looked through, the lines found in it, and where the last of them ends.
    scanned: usize,
    lines: u64,
    end: usize,
    /// The number of the line that `rest` begins with.
    next_line: u64,
    /// In the middle of a line that is too long.
    skipping: bool,
    paused: bool,
    /// When all that had come was last passed on.
    settled: Instant,
}

impl Reader {
    async fn run(mut self, body: Body) {
        let mut stream = body.into_data_stream();
        loop {
            let wait = if self.paused { self.idle } else { LINGER };
            let sent = match tokio::time::timeout(wait, stream.next()).await {
                Err(_) if !self.paused => {
                    self.paused = true;
                    self.settle().await
                }
                Err(_) => {
                    let late = Piece::Broken(StatusCode::REQUEST_TIMEOUT, "the body arrived too slowly");
                    let _ = self.pieces.send(late).await;
                    return;
                }
                Ok(Some(Ok(bytes))) => {
                    self.paused = false;
                    self.rest.extend_from_slice(&bytes);
                    match self.settled.elapsed() < SETTLE_EVERY {
                        true => self.pass_on(false).await,
                        false => self.settle().await,
                    }
                }
                Ok(Some(Err(error))) => {
                    // Complete lines are taken, as if the stream had ended there.
                    self.pass_on(true).await;
                    let broken = Piece::Broken(StatusCode::BAD_REQUEST, body::broken(&error));
                    let _ = self.pieces.send(broken).await;
                    return;
                }
                Ok(None) => {
                    self.pass_on(true).await;
                    if !self.skipping && !self.rest.is_empty() {
                        let last = self.rest.split().freeze();
                        let piece = match last.len() > self.line_bytes_max {
                            true => Piece::TooLong(self.next_line),
                            false => Piece::Lines(self.next_line, last),
                        };
                        let _ = self.pieces.send(piece).await;
                    }
                    return;
                }
            };
            if !sent {
                return;
            }
        }
    }

    /// Passes all whole lines on, to be committed.
    async fn settle(&mut self) -> bool {
        let sent = self.pass_on(true).await && self.pieces.send(Piece::Pause).await.is_ok();
        self.settled = Instant::now();
        sent
    }

    /// Passes whole lines on: all there are, or only full blocks. `false`: nobody listens any more.
    async fn pass_on(&mut self, all: bool) -> bool {
        loop {
            if self.skipping {
                match self.rest.iter().position(|byte| *byte == b'\n') {
                    Some(end) => {
                        drop(self.rest.split_to(end + 1));
                        self.skipping = false;
                        self.next_line += 1;
                    }
                    None => {
                        self.rest.clear();
                        return true;
                    }
                }
            }
            let mut long = false;
            while let Some(found) = self.rest[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let newline = self.scanned + found;
                if newline - self.end > self.line_bytes_max {
                    long = true;
                    break;
                }
                self.lines += 1;
                self.end = newline + 1;
                self.scanned = self.end;
                if self.is_full() {
                    break;
                }
            }
            if !long && !self.is_full() {
                self.scanned = self.rest.len();
                long = self.rest.len() - self.end > self.line_bytes_max;
            }
            if self.end > 0 && (all || long || self.is_full()) {
                // Without the last line's end, after which there would be an empty line.
                let block = self.rest.split_to(self.end).freeze();
                let block = block.slice(..block.len() - 1);
                let first = self.next_line;
                self.next_line += self.lines;
                self.scanned -= self.end;
                (self.lines, self.end) = (0, 0);
                if self.pieces.send(Piece::Lines(first, block)).await.is_err() {
                    return false;
                }
            } else if long {
                if self.pieces.send(Piece::TooLong(self.next_line)).await.is_err() {
                    return false;
                }
                self.skipping = true;
                self.scanned = 0;
            } else {
                return true;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.lines as usize >= BLOCK_LINES_MAX || self.end >= BLOCK_BYTES_MAX
    }
}

fn shown(row: MessageRow) -> Result<MessageView, StoreError> {
    Ok(MessageView {
        id: row.id,
        sender: row.sender,
        receiver: row.receiver,
        due: row
            .due_at
            .map_or_else(|| row.day.to_string(), |at| Moment(at).to_string()),
        payload: StoreError::json_in(&row.payload, ("messages", "payload"), row.id)?,
        day: row.day,
        bucket: row.bucket,
        state: row.state.as_str().to_owned(),
        attempts: row.attempt,
        retry_at: row.retry_at.map(Moment),
        error: row.error,
    })
}

async fn list(request: Request) -> Outcome {
    let topic = find(&request).await?;
    let bucket = request.query_number("bucket", 0..=BUCKETS - 1)?;
    let day = match request.query("day") {
        Some(text) => Some(parse_day(text).map_err(|fault| Problem::malformed(format!("`day`: {}", fault.detail)))?),
        None => None,
    };
    let filter = MessageSearch {
        day,
        bucket: bucket.map(|bucket| bucket as i16),
        sender: request.query_number("sender", 0..=i64::MAX)?,
        receiver: request.query_number("receiver", 0..=i64::MAX)?,
    };
    let after = request.cursor_as::<Uuid>()?;
    if after.is_some_and(|after| address_of(after).is_none()) {
        return Err(Problem::malformed(
            "`cursor` must be the `next_cursor` of an earlier answer",
        ));
    }
    let page = request
        .app
        .store
        .messages(topic.id, filter, after, request.limit()?)
        .await?
        .ok_or_else(|| Problem::invalid_at("", "the search takes too long; add `day` or `sender`"))?;
    let items = page.items.into_iter().map(shown);
    ok(&List {
        items: items.collect::<Result<Vec<_>, _>>()?,
        next_cursor: page.next,
    })
}

async fn get(request: Request) -> Outcome {
    let topic = find(&request).await?;
    let id: Uuid = request.id("id", "message")?;
    let row = request.app.store.message(topic.id, id).await?;
    let row = row.ok_or_else(|| Problem::not_found("message", request.part("id")))?;
    ok(&shown(row)?)
}

async fn delete(request: Request) -> Outcome {
    let topic = find(&request).await?;
    let id: Uuid = request.id("id", "message")?;
    let missing = || Problem::not_found("message", request.part("id"));
    let address = address_of(id).ok_or_else(missing)?;
    let store = &request.app.store;
    let (done, emptied) = store
        .cancel_message(request.by(), topic.id, &topic.name, address, id)
        .await?;
    end_empty(&request, emptied).await;
    match done {
        Cancelled::Done => no_content(),
        Cancelled::Missing => Err(missing()),
        Cancelled::InHand => Err(Problem::conflict(
            "the message is being sent, so it cannot be cancelled; if it fails, it is not retried",
        )),
        Cancelled::Ended => {
            let state = store
                .message(topic.id, id)
                .await?
                .map_or("gone", |row| row.state.as_str());
            Err(Problem::conflict(format!("the message is already {state}")))
        }
    }
}
