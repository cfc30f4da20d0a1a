//! What an answer holds until it has been sent: the slot of its request, and, if it is large, its share of the memory for
//! answers.
//!
//! Whoever does not read an answer keeps it in memory. hyper takes each piece of a body at once, however long it is, and
//! drops the body with the last one; so a long piece is given to it in short ones, each of which holds what the answer
//! holds. The short ones are views of the long one: none of it is freed before all of them are.
//!
//! Nobody knows how long a stream becomes, and it holds little at a time, if it is read. If it is not, what it has in
//! memory beyond a short piece counts ([`Hold::of_stream`]): it was not refused, but its caller gets no other stream, and
//! no large answer, while its share is used up.
//!
//! How long an answer may go unread is bounded by [`crate::progress`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use heddle_engine::FairSlot;
use http_body::{Frame, SizeHint};

use crate::app::App;
use crate::fair_bytes::{FairBytes, HeldBytes};
use crate::problem::Problem;

/// The longest piece that hyper is given: it buffers about as much before it waits for the client.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Answers with more bytes count against the memory for answers. Requests have slots, so these are few enough to let
/// smaller ones be.
const LARGE_BYTES: usize = 1 << 20;

/// The same for answers of which thousands may be unread: to requests that may wait, which have ten times as many slots, and
/// for pages, which have none.
const LARGE_OF_MANY_BYTES: usize = 64 << 10;

/// Seconds after which a caller should ask again.
const RETRY_SECONDS: u64 = 1;

/// The memory that a handler has taken for its answer before it made it.
#[derive(Clone)]
pub(crate) struct Reserved {
    _held: Arc<HeldBytes>,
}

impl Reserved {
    fn new(held: HeldBytes) -> Self {
        Self { _held: Arc::new(held) }
    }
}

/// The answer has been counted already.
#[derive(Clone)]
struct IsCounted;

/// What an answer holds.
pub(crate) struct Hold {
    _slot: Option<FairSlot>,
    _memory: Option<Reserved>,
    /// For a stream: no bytes, of its caller.
    stream: Option<HeldBytes>,
}

impl Hold {
    pub(crate) fn new(slot: Option<FairSlot>, memory: Option<Reserved>) -> Self {
        Self {
            _slot: slot,
            _memory: memory,
            stream: None,
        }
    }

    /// The same for a stream, whose long pieces count for the owner of these bytes.
    pub(crate) fn of_stream(self, stream: Option<HeldBytes>) -> Self {
        Self { stream, ..self }
    }

    /// A long piece. That of a stream counts until the last part of it is dropped.
    fn counted(&self, piece: Bytes) -> Bytes {
        let Some(stream) = &self.stream else { return piece };
        let mut held = stream.another();
        held.become_anyway(piece.len().min(held.each_max()));
        held.keep(piece)
    }
}

fn too_many_bytes() -> Problem {
    Problem::overloaded(
        "too many large answers on this node at the same time that have not been read yet, in total or by this caller; \
         read them, or try again later",
        RETRY_SECONDS,
    )
}

/// Takes the memory for an answer of so many bytes before it is made; waits for it for a short time.
pub(crate) async fn reserve(app: &App, owner: &str, bytes: usize) -> Result<Option<Reserved>, Problem> {
    if bytes <= LARGE_BYTES {
        return Ok(None);
    }
    let mut held = app.answers.of(owner);
    match held
        .grow(bytes.min(app.answers.each_max()), app.config.memory_wait)
        .await
    {
        true => Ok(Some(Reserved::new(held))),
        false => Err(too_many_bytes()),
    }
}

/// The answer with the memory that was taken for it.
pub(crate) fn reserved(mut response: Response, memory: Option<Reserved>) -> Response {
    if let Some(memory) = memory {
        response.extensions_mut().insert(memory);
    }
    response
}

/// Refuses a change whose answer might be large, or a stream, from a caller who reads none of them: afterwards it could not
/// be refused.
pub(crate) fn check_room(app: &App, owner: &str) -> Result<(), Problem> {
    match app.answers.has_room(owner) {
        true => Ok(()),
        false => Err(too_many_bytes()),
    }
}

/// Counts an answer that has been made, if it is large: whoever waited for memory would keep it meanwhile, so it is
/// refused at once. The answer to a change (`acts`) is sent in any case: it may be all that the caller learns of it. Of
/// answers that are `is_of_many`, smaller ones count, too.
pub(crate) fn count(
    app: &App,
    owner: &str,
    acts: bool,
    is_of_many: bool,
    response: &mut Response,
) -> Result<Option<Reserved>, Problem> {
    count_within(&app.answers, owner, acts, is_of_many, response)
}

fn count_within(
    answers: &Arc<FairBytes>,
    owner: &str,
    acts: bool,
    is_of_many: bool,
    response: &mut Response,
) -> Result<Option<Reserved>, Problem> {
    let from = if is_of_many { LARGE_OF_MANY_BYTES } else { LARGE_BYTES };
    if response.extensions().get::<IsCounted>().is_some() {
        return Ok(None);
    }
    // Of a stream, what it has in memory counts.
    let Some(bytes) = http_body::Body::size_hint(response.body()).exact() else {
        return Ok(None);
    };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let memory = match response.extensions_mut().remove::<Reserved>() {
        Some(memory) => memory,
        None if bytes <= from => return Ok(None),
        None => {
            let bytes = bytes.min(answers.each_max());
            let mut held = answers.of(owner);
            if acts {
                held.grow_anyway(bytes);
            } else if !held.try_grow(bytes) {
                return Err(too_many_bytes());
            }
            Reserved::new(held)
        }
    };
    response.extensions_mut().insert(IsCounted);
    Ok(Some(memory))
}

/// The answer of a page, counted for its owner.
pub(crate) fn page(app: &App, owner: &str, acts: bool, mut response: Response) -> Result<Response, Problem> {
    let memory = count(app, owner, acts, true, &mut response)?;
    Ok(match memory {
        None => response,
        memory => held(response, Hold::new(None, memory), None),
    })
}

/// The answer, which holds something until it has been sent, and which is cut off at the `end`.
pub(crate) fn held(response: Response, hold: Hold, end: Option<BoxFuture<'static, ()>>) -> Response {
    if http_body::Body::is_end_stream(response.body()) {
        return response;
    }
    response.map(|body| {
        Body::new(Held {
            body,
            rest: Bytes::new(),
            hold: Arc::new(hold),
            end,
            is_over: false,
        })
    })
}

struct Held {
    body: Body,
    /// What is left of a long piece.
    rest: Bytes,
    hold: Arc<Hold>,
    end: Option<BoxFuture<'static, ()>>,
    is_over: bool,
}

impl Held {
    /// A short piece of the rest.
    fn next_piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        Bytes::from_owner(Piece {
            bytes,
            _hold: Arc::clone(&self.hold),
        })
    }
}

struct Piece {
    bytes: Bytes,
    _hold: Arc<Hold>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Some(end) = &mut this.end
            && end.as_mut().poll(context).is_ready()
        {
            this.end = None;
            this.is_over = true;
        }
        if this.is_over {
            return Poll::Ready(None);
        }
        if this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                none => return Poll::Ready(none),
            };
            match frame.into_data() {
                Ok(data) if data.len() <= PIECE_BYTES => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(data) => this.rest = this.hold.counted(data),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || (self.rest.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use heddle_engine::FairSlots;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_holds_its_slot_until_its_last_piece_is_dropped() {
        let slots = FairSlots::new(1, 1);
        let long: Bytes = (0..3 * PIECE_BYTES + 1).map(|n| n as u8).collect();
        let hold = Hold::new(slots.try_take("a"), None);
        let mut response = held(Response::new(Body::from(long.clone())), hold, None);
        let (mut pieces, mut sent) = (Vec::new(), 0);
        let exact = |response: &Response| http_body::Body::size_hint(response.body()).exact();
        assert_eq!(exact(&response), Some(long.len() as u64));
        while let Some(frame) = response.body_mut().frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert_eq!(piece, long[sent..sent + piece.len()]);
            sent += piece.len();
            pieces.push(piece);
            assert_eq!(exact(&response), Some((long.len() - sent) as u64));
        }
        assert_eq!((pieces.len(), sent), (4, long.len()));
        drop(response);
        assert_eq!(slots.free(), 0, "pieces are not sent yet");
        pieces.truncate(1);
        assert_eq!(slots.free(), 0);
        pieces.clear();
        assert_eq!(slots.free(), 1);
    }

    #[test]
    fn of_many_answers_smaller_ones_count() {
        let budget = FairBytes::new(4 << 20, 2 << 20);
        for (is_of_many, kib, counts) in [
            (false, 1_024, false),
            (false, 1_025, true),
            (true, 64, false),
            (true, 65, true),
        ] {
            let mut response = Response::new(Body::from(vec![0_u8; kib << 10]));
            let memory = count_within(&budget, "a", false, is_of_many, &mut response).unwrap();
            assert_eq!(memory.is_some(), counts, "{is_of_many} {kib}");
        }
    }

    #[tokio::test]
    async fn a_short_answer_holds_its_slot_until_it_is_taken() {
        let slots = FairSlots::new(1, 1);
        let hold = Hold::new(slots.try_take("a"), None);
        let response = held(Response::new(Body::from("short")), hold, None);
        assert_eq!(slots.free(), 0);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "short");
        assert_eq!(slots.free(), 1);
        // Nothing has to be sent.
        let hold = Hold::new(slots.try_take("a"), None);
        let _empty = held(Response::new(Body::empty()), hold, None);
        assert_eq!(slots.free(), 1);
    }

    #[tokio::test]
    async fn what_a_stream_has_in_memory_counts() {
        let budget = FairBytes::new(4 * PIECE_BYTES, 3 * PIECE_BYTES);
        let pieces =
            [3 * PIECE_BYTES + 1, PIECE_BYTES].map(|bytes| Ok::<_, std::io::Error>(Bytes::from(vec![0; bytes])));
        let body = Body::from_stream(futures::stream::iter(pieces));
        let hold = Hold::new(None, None).of_stream(Some(budget.of("a")));
        let mut sent = held(Response::new(body), hold, None).into_body().into_data_stream();
        let mut parts = Vec::new();
        for left in (0..4).rev() {
            parts.push(sent.next().await.unwrap().unwrap());
            assert!(!budget.has_room("a") && budget.has_room("b"), "{left} parts are left");
        }
        parts.truncate(1);
        assert!(!budget.has_room("a"), "a part is not sent yet");
        parts.clear();
        // A short piece does not count.
        let short = sent.next().await.unwrap().unwrap();
        assert_eq!(short.len(), PIECE_BYTES);
        assert!(budget.of("a").try_grow(3 * PIECE_BYTES));
        assert!(sent.next().await.is_none());
    }

    #[tokio::test]
    async fn an_answer_ends_with_the_token_of_its_caller() {
        let budget = FairBytes::new(10, 10);
        let mut memory = budget.of("a");
        assert!(memory.try_grow(10));
        let hold = Hold::new(None, Some(Reserved::new(memory)));
        let (revoke, revoked) = tokio::sync::oneshot::channel::<()>();
        let end: BoxFuture<'static, ()> = Box::pin(async move {
            let _ = revoked.await;
        });
        let long = Bytes::from(vec![0; 3 * PIECE_BYTES]);
        let response = held(Response::new(Body::from(long)), hold, Some(end));
        let mut pieces = response.into_body().into_data_stream();
        assert_eq!(pieces.next().await.unwrap().unwrap().len(), PIECE_BYTES);
        assert!(!budget.has_room("a"));
        revoke.send(()).unwrap();
        assert!(pieces.next().await.is_none());
        drop(pieces);
        assert!(budget.has_room("a"));
    }
}
