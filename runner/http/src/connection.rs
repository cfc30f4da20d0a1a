//! What is known of each connection: how long it has been silent, and whether its caller is known.
//!
//! Anybody can open connections, and none of them has an identity before its first request. So connections without a
//! known caller ([`Connection::mark_known`]) are *strangers*: they get less time, and have their own bounds, per
//! address and for all. If there is no room for another one, those that have been silent for longest are closed. A
//! client that wants something asks at once, and is never among these: a crowd of connections that send nothing, or a
//! head byte by byte, keeps nobody out. When a node has its maximum of connections, the longest silent ones are closed
//! in the same way, known or not.
//!
//! hyper can limit the time for heads itself. But then it tries to read the next head as soon as an answer is written,
//! which costs a useless read, and sets a timer for each request. Here a connection has one timer, which fires
//! periodically and checks how long it has been idle.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::Peer;
use crate::limits::ServeLimits;

/// Of the connections to be closed, one in this many is closed at once, because each search for them costs a pass over
/// all.
const MAKE_ROOM_SHARE: usize = 16;

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Where it comes from.
    pub(crate) peer: Peer,
    crowd: Arc<Crowd>,
    number: u64,
    began: Instant,
    /// Since when it has been waiting for a head, or handling a request: milliseconds since its beginning, shifted left
    /// by one bit. The lowest bit means that a request is open.
    since: AtomicU64,
    /// Its caller is known.
    known: AtomicBool,
    /// It has to close as soon as it is silent, to make room.
    unwanted: AtomicBool,
    check: Notify,
    /// The answer to a request is on its way, down to its last byte.
    ended: Notify,
}

/// The bit that means that a request is open.
const BUSY: u64 = 1;

impl Connection {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or_default() << 1
    }

    /// The head of a request has arrived.
    pub(crate) fn begins(&self) {
        self.since.store(self.now() | BUSY, Ordering::Release);
    }

    fn ends(&self) {
        self.since.store(self.now(), Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Returns when no request is open.
    pub(crate) async fn answered(&self) {
        loop {
            let ended = self.ended.notified();
            if !self.activity().0 {
                return;
            }
            ended.await;
        }
    }

    /// Its caller is known.
    pub(crate) fn mark_known(&self) {
        if !self.known.load(Ordering::Relaxed) && !self.known.swap(true, Ordering::Relaxed) {
            self.crowd.0.lock().counts_no_more(self.number);
        }
    }

    /// Whether a caller has been known on it.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Whether a request is open, and since when that, or silence, lasts.
    fn activity(&self) -> (bool, Instant) {
        let since = self.since.load(Ordering::Acquire);
        (since & BUSY != 0, self.began + Duration::from_millis(since >> 1))
    }

    /// Notes that an answer was sent completely.
    pub(crate) fn after(self: Arc<Self>, answer: Response) -> Response {
        if http_body::Body::is_end_stream(answer.body()) {
            self.ends();
            return answer;
        }
        answer.map(|body| Body::new(Noted { body, connection: self }))
    }

    /// Returns when it has exceeded its time, or must make room.
    pub(crate) async fn is_over(&self, limits: &ServeLimits) {
        loop {
            let (busy, since) = self.activity();
            if !busy && self.unwanted.load(Ordering::Acquire) {
                return;
            }
            let now = Instant::now();
            let until = match (busy, self.known.load(Ordering::Relaxed)) {
                (false, false) => since + limits.stranger_head_timeout,
                (true, false) => since + limits.stranger_request_timeout,
                (false, true) => since + limits.header_timeout,
                // The route limits the time of a known caller's request, `Progress` that of an answer that nobody reads.
                (true, true) => now + limits.header_timeout,
            };
            if until <= now {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.check.notified() => {}
            }
        }
    }
}

impl Peer {
    /// The address that the server has noted. A request without a connection (in tests) has none.
    pub(crate) fn of(request: &Parts) -> Self {
        let connection = request.extensions.get::<Arc<Connection>>();
        connection.map_or_else(|| Self::new(Ipv6Addr::UNSPECIFIED.into()), |connection| connection.peer)
    }
}

/// All connections of a node.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Mutex<Members>);

#[derive(Debug, Default)]
struct Members {
    next: u64,
    all: HashMap<u64, Seat>,
    strangers: usize,
    /// The number of strangers from each address.
    from: HashMap<Peer, usize>,
}

#[derive(Debug)]
struct Seat {
    connection: Arc<Connection>,
    /// It counts among the strangers.
    is_stranger: bool,
}

/// The entry of a connection, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Member(pub(crate) Arc<Connection>);

impl Drop for Member {
    fn drop(&mut self) {
        let mut members = self.0.crowd.0.lock();
        members.counts_no_more(self.0.number);
        members.all.remove(&self.0.number);
    }
}

impl Crowd {
    /// Registers a new connection. `None`: there is the maximum of strangers, and none of them is silent.
    pub(crate) fn enter(self: &Arc<Self>, peer: Peer, limits: &ServeLimits) -> Option<Member> {
        let mut members = self.0.lock();
        if members.from.get(&peer).copied().unwrap_or_default() >= limits.strangers_of_one_max
            && members.make_room(|seat| seat.is_stranger && seat.connection.peer == peer) == 0
        {
            return None;
        }
        if members.strangers >= limits.strangers_max && members.make_room(|seat| seat.is_stranger) == 0 {
            return None;
        }
        let number = members.next;
        members.next += 1;
        let connection = Arc::new(Connection {
            peer,
            crowd: Arc::clone(self),
            number,
            began: Instant::now(),
            since: AtomicU64::new(0),
            known: AtomicBool::new(false),
            unwanted: AtomicBool::new(false),
            check: Notify::new(),
            ended: Notify::new(),
        });
        members.strangers += 1;
        *members.from.entry(peer).or_default() += 1;
        let seat = Seat {
            connection: Arc::clone(&connection),
            is_stranger: true,
        };
        members.all.insert(number, seat);
        Some(Member(connection))
    }

    /// The longest silent ones make room: strangers if there are any.
    pub(crate) fn make_room(&self) {
        let mut members = self.0.lock();
        if members.make_room(|seat| seat.is_stranger) == 0 {
            members.make_room(|_| true);
        }
    }
}

impl Members {
    /// Lets the connections make room that have been silent for longest; returns how many these are.
    fn make_room(&mut self, of: impl Fn(&Seat) -> bool) -> usize {
        let mut silent: Vec<(Instant, u64)> = self
            .all
            .iter()
            .filter(|(_, seat)| of(seat) && !seat.connection.unwanted.load(Ordering::Relaxed))
            .filter_map(|(number, seat)| match seat.connection.activity() {
                (true, _) => None,
                (false, since) => Some((since, *number)),
            })
            .collect();
        let going = silent.len().div_ceil(MAKE_ROOM_SHARE);
        if going < silent.len() {
            silent.select_nth_unstable(going);
        }
        for (_, number) in &silent[..going] {
            if let Some(seat) = self.all.get(number) {
                seat.connection.unwanted.store(true, Ordering::Release);
                seat.connection.check.notify_one();
            }
            self.counts_no_more(*number);
        }
        going
    }

    fn counts_no_more(&mut self, number: u64) {
        let Some(seat) = self.all.get_mut(&number) else { return };
        if !std::mem::take(&mut seat.is_stranger) {
            return;
        }
        self.strangers -= 1;
        let peer = seat.connection.peer;
        if let Some(count) = self.from.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&peer);
            }
        }
    }
}

/// The body of an answer: when it is dropped, the connection waits again.
struct Noted {
    body: Body,
    connection: Arc<Connection>,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.connection.ends();
    }
}

impl http_body::Body for Noted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::new([10, 0, 0, last].into())
    }

    fn limits() -> ServeLimits {
        ServeLimits {
            strangers_max: 40,
            strangers_of_one_max: 20,
            ..ServeLimits::default()
        }
    }

    fn is_unwanted(member: &Member) -> bool {
        member.0.unwanted.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn those_who_are_silent_for_longest_make_room() {
        let (crowd, limits) = (Arc::new(Crowd::default()), limits());
        let mut one = Vec::new();
        for _ in 0..20 {
            one.push(crowd.enter(peer(1), &limits).expect("room"));
        }
        // The oldest asks something, the next is known.
        one[0].0.begins();
        one[1].0.mark_known();
        one[1].0.ends();
        let _known_counts_no_more = crowd.enter(peer(1), &limits).expect("room");
        assert!(!one.iter().any(is_unwanted));
        let _another = crowd.enter(peer(1), &limits).expect("room");
        let gone: Vec<usize> = (0..20).filter(|number| is_unwanted(&one[*number])).collect();
        // 20 silent strangers: two of them.
        assert_eq!(gone, [2, 3]);
        // Another address has its own bound, until there are too many of all.
        let other: Vec<_> = (0..20).map(|_| crowd.enter(peer(2), &limits).expect("room")).collect();
        assert!(!other.iter().any(is_unwanted));
        let _third = crowd.enter(peer(3), &limits).expect("room");
        let _fourth = crowd.enter(peer(3), &limits).expect("room");
        assert!(one.iter().filter(|member| is_unwanted(member)).count() > 2);
        let members = crowd.0.lock();
        assert!(members.strangers <= 40);
        assert_eq!(members.strangers, members.from.values().sum::<usize>());
        assert_eq!(
            members.strangers,
            members.all.values().filter(|seat| seat.is_stranger).count()
        );
    }

    #[tokio::test]
    async fn nobody_makes_room_in_the_middle_of_a_request() {
        let (crowd, limits) = (Arc::new(Crowd::default()), limits());
        let busy: Vec<_> = (0..20).map(|_| crowd.enter(peer(1), &limits).expect("room")).collect();
        for member in &busy {
            member.0.begins();
        }
        assert!(crowd.enter(peer(1), &limits).is_none());
        assert!(crowd.enter(peer(2), &limits).is_some());
        busy[3].0.ends();
        assert!(crowd.enter(peer(1), &limits).is_some());
        assert!(is_unwanted(&busy[3]));
        drop(busy);
        let members = crowd.0.lock();
        assert_eq!((members.strangers, members.from.len(), members.all.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn strangers_get_less_time() {
        let crowd = Arc::new(Crowd::default());
        let limits = ServeLimits {
            stranger_head_timeout: Duration::from_millis(20),
            stranger_request_timeout: Duration::from_millis(60),
            header_timeout: Duration::from_millis(40),
            ..limits()
        };
        let enter = || crowd.enter(peer(1), &limits).expect("room");
        let lasts = async |prepare: fn(&Connection), limit: Duration| {
            let began = Instant::now();
            let member = enter();
            prepare(&member.0);
            member.0.is_over(&limits).await;
            // By a clock of milliseconds.
            assert!(began.elapsed() >= limit - Duration::from_millis(2), "{limit:?}");
        };
        lasts(|_| {}, limits.stranger_head_timeout).await;
        lasts(Connection::begins, limits.stranger_request_timeout).await;
        lasts(Connection::mark_known, limits.header_timeout).await;
        let known = enter();
        known.0.mark_known();
        known.0.begins();
        let end = tokio::time::timeout(4 * limits.stranger_request_timeout, known.0.is_over(&limits));
        assert!(end.await.is_err(), "a known caller's request takes as long as it takes");
        // A connection that must make room ends at once, or as soon as its request is answered.
        let patient = ServeLimits {
            stranger_head_timeout: Duration::from_secs(600),
            ..limits
        };
        let unwanted = enter();
        unwanted.0.unwanted.store(true, Ordering::Release);
        unwanted.0.is_over(&patient).await;
    }
}
