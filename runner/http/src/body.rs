//! Bodies of requests: how many bytes they may have, how long they may take, and how much memory they take together.
//!
//! A body is in memory while it arrives, which may take minutes, and until its request has been handled. So what it has
//! beyond a small part counts against the memory for bodies ([`crate::fair_bytes`]), of which each caller has a share: as
//! it arrives, and not before, because a length that is only announced takes nothing.
//!
//! Known callers get the time that a slow line needs. A body of an unknown caller is read before anything else is done
//! with its request, so that it blocks nothing: it must be small, and arrive at once, or take one of a few slots, of
//! which each address gets some, for a few seconds.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt;

use crate::access::Peer;
use crate::app::App;
use crate::fair_bytes::{FairBytes, HeldBytes};
use crate::problem::Problem;

/// The maximum bytes of an unknown caller's body: a sign-in has a token in it.
const UNKNOWN_BYTES_MAX: usize = 64 * 1024;

/// How long such a body may take before it counts as slow.
const UNKNOWN_AT_ONCE: Duration = Duration::from_millis(200);

/// How long it may take altogether.
const UNKNOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes of a body, with its values, do not count: requests have slots, so these are few enough.
const UNCOUNTED_BYTES: usize = 256 * 1024;

/// The same for requests of which thousands may be under way: those that may wait, which have ten times as many slots, and
/// forms of pages, which have none.
const UNCOUNTED_OF_MANY_BYTES: usize = 16 * 1024;

/// Shorter texts have too few values to count.
const WEIGHED_FROM_BYTES: usize = 2 * 1024;

/// Seconds after which a caller without memory should come back.
const RETRY_SECONDS: u64 = 1;

/// Memory that bodies take, and how long they wait for it.
pub(crate) struct BodyMemory {
    held: HeldBytes,
    wait: Duration,
    /// The most that one body may count.
    most: usize,
    /// How many bytes do not count.
    uncounted: usize,
}

impl BodyMemory {
    /// For one body of this caller; it has taken nothing yet. Of a body that `is_of_many`, less does not count.
    pub(crate) fn of(app: &App, owner: &str, is_of_many: bool) -> Self {
        Self::within(&app.bodies, owner, app.config.memory_wait, is_of_many)
    }

    fn within(bodies: &Arc<FairBytes>, owner: &str, wait: Duration, is_of_many: bool) -> Self {
        Self {
            held: bodies.of(owner),
            wait,
            most: bodies.each_max(),
            uncounted: match is_of_many {
                true => UNCOUNTED_OF_MANY_BYTES,
                false => UNCOUNTED_BYTES,
            },
        }
    }

    /// Counts a body of so many bytes altogether.
    async fn take(&mut self, whole: usize) -> Result<(), Problem> {
        let counted = whole.saturating_sub(self.uncounted).min(self.most);
        let more = counted.saturating_sub(self.held.bytes());
        if more == 0 || self.held.grow(more, self.wait).await {
            return Ok(());
        }
        Err(Problem::overloaded(
            "too many bytes of request bodies on this node at the same time, in total or from this caller; try again \
             later",
            RETRY_SECONDS,
        ))
    }

    /// Counts the values that will be read from a body of JSON, before they are. A body with more than one caller may have
    /// counts as that much: it is read when the caller has nothing else.
    pub(crate) async fn take_values(&mut self, text: &[u8], weight: fn(&[u8]) -> usize) -> Result<(), Problem> {
        if text.len() < WEIGHED_FROM_BYTES {
            return Ok(());
        }
        self.take(text.len().saturating_add(weight(text))).await
    }

    /// The same bytes, which count until the last part of them is dropped.
    pub(crate) fn keep(self, bytes: Bytes) -> Bytes {
        self.held.keep(bytes)
    }
}

/// Refuses a compressed body (reading it as it is would only give an error about UTF-8), and a body whose header
/// announces too many bytes.
pub(crate) fn check_head(headers: &HeaderMap, bytes_max: usize) -> Result<(), Problem> {
    let codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut codings = codings.flat_map(|value| value.to_str().unwrap_or("?").split(',').map(str::trim));
    let is_none = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    if let Some(coding) = codings.find(|&coding| !is_none(coding)) {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the body has the content encoding `{coding}`; send it without compression"),
        ));
    }
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(Problem::too_large(bytes_max));
    }
    Ok(())
}

/// Makes room in a buffer for a piece of at most `bytes_max` altogether. It grows by doubling, but to no more than that, and
/// what it takes is counted.
async fn make_room(
    read: &mut Vec<u8>,
    piece: usize,
    bytes_max: usize,
    memory: Option<&mut BodyMemory>,
) -> Result<(), Problem> {
    let needed = read.len() + piece;
    if needed <= read.capacity() {
        return Ok(());
    }
    let whole = needed.max(read.capacity().saturating_mul(2).min(bytes_max));
    if let Some(memory) = memory {
        memory.take(whole).await?;
    }
    read.reserve_exact(whole - read.len());
    Ok(())
}

/// Reads a body to its end; it may pause for `idle`, and take `whole`. What it takes of the `memory` stays taken.
pub(crate) async fn read(
    body: Body,
    bytes_max: usize,
    idle: Duration,
    whole: Duration,
    mut memory: Option<&mut BodyMemory>,
) -> Result<Bytes, Problem> {
    let read = async {
        let mut stream = body.into_data_stream();
        let mut read = Vec::<u8>::new();
        loop {
            match tokio::time::timeout(idle, stream.next()).await {
                Err(_) => return Err(late()),
                Ok(None) => return Ok(Bytes::from(read)),
                Ok(Some(Err(error))) => return Err(Problem::malformed(broken(&error))),
                Ok(Some(Ok(piece))) if read.len() + piece.len() > bytes_max => {
                    return Err(Problem::too_large(bytes_max));
                }
                Ok(Some(Ok(piece))) => {
                    make_room(&mut read, piece.len(), bytes_max, memory.as_deref_mut()).await?;
                    read.extend_from_slice(&piece);
                }
            }
        }
    };
    tokio::time::timeout(whole, read).await.unwrap_or_else(|_| Err(late()))
}

/// Why a body broke off, in words for its sender.
pub(crate) fn broken(error: &axum::Error) -> &'static str {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // This is how hyper tells apart what it cannot read as chunks from the end of a connection.
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
        {
            return "the chunks of the body are not valid";
        }
        cause = error.source();
    }
    "the connection closed before the body was complete"
}

/// Reads the body of a request whose sender is not known.
pub(crate) async fn read_unknown(app: &App, peer: Peer, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    if http_body::Body::is_end_stream(&body) {
        return Ok(Bytes::new());
    }
    check_head(headers, UNKNOWN_BYTES_MAX)?;
    let mut reading = std::pin::pin!(read(body, UNKNOWN_BYTES_MAX, UNKNOWN_TIMEOUT, UNKNOWN_TIMEOUT, None));
    if let Ok(read) = tokio::time::timeout(UNKNOWN_AT_ONCE, reading.as_mut()).await {
        return read;
    }
    let owner = peer.address().to_string();
    let _slot = app.unknown_bodies.try_take(&owner).ok_or_else(|| {
        Problem::overloaded(
            "too many slow request bodies from unknown callers on this node; try again later",
            UNKNOWN_TIMEOUT.as_secs(),
        )
    })?;
    reading.await
}

fn late() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "the body arrived too slowly")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_many_bodies_less_does_not_count() {
        let budget = FairBytes::new(1 << 20, 1 << 20);
        for (is_of_many, kib, counted) in [(false, 256, 0), (false, 300, 44), (true, 16, 0), (true, 300, 284)] {
            let mut memory = BodyMemory::within(&budget, "a", Duration::ZERO, is_of_many);
            memory.take(kib << 10).await.unwrap();
            assert_eq!(memory.held.bytes(), counted << 10, "{is_of_many} {kib}");
        }
    }
}
