//! A worker's loop: claims from a queue, works on several task runs at once, keeps their leases alive, stops gracefully.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::Span;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Claim, ClaimAnswer, ClaimRequest, Client, Error, Result};

/// How long a claim call waits for work.
const WAIT: Duration = Duration::from_secs(30);

/// How long to wait after a call that failed, at first and at most.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(10);

/// For how long outcomes are still reported after the stop, when the time for running task runs is over.
const LAST_REPORTS: Duration = Duration::from_secs(30);

/// The outcome of a task run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is done, with an output.
    Done(Value),
    /// It failed, and may be tried again as its retry policy says.
    Failed(String),
    /// It failed, and would fail again.
    Fatal(String),
    /// Somebody else shall do it.
    Released,
}

/// What a worker did until it stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// Outcomes that were accepted.
    pub reported: u64,
    /// Task runs that were taken away while they were worked on, or whose outcome came too late: the server did not take it
    /// before the lease ended, or before the worker had to stop.
    pub lost: u64,
    /// Task runs that were given back at the stop.
    pub released: u64,
    /// Outcomes that were perhaps accepted: the server could not be reached, and refused the repeat. Either it had accepted
    /// the outcome before, or the claim had ended.
    pub unsure: u64,
}

/// A worker of one queue.
///
/// ```no_run
/// # async fn example() -> Result<(), heddle_client::Error> {
/// use heddle_client::{Client, Outcome, Worker};
///
/// let worker = Worker::new(Client::from_env()?, "thumbnails", "worker-1").concurrency(8);
/// let stop = async { drop(tokio::signal::ctrl_c().await) };
/// worker.run(stop, async |claim| Outcome::Done(serde_json::json!({"made": claim.params["file"]}))).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    client: Client,
    queue: String,
    request: ClaimRequest,
    concurrency: usize,
    lease: Duration,
    drain: Duration,
}

#[derive(Default)]
struct Counts {
    reported: AtomicU64,
    lost: AtomicU64,
    released: AtomicU64,
    unsure: AtomicU64,
}

impl Worker {
    /// A worker with a name that people see; one task run at once, leases of 30 s.
    pub fn new(client: Client, queue: impl Into<String>, name: impl Into<String>) -> Self {
        let request = ClaimRequest {
            worker: name.into(),
            ..ClaimRequest::default()
        };
        Self {
            client,
            queue: queue.into(),
            request,
            concurrency: 1,
            lease: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }

    /// How many task runs are worked on at once: 1 to 1,000.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.clamp(1, 1_000);
        self
    }

    /// After how long without a sign of life the server gives a task run to somebody else; a heartbeat is sent three
    /// times within it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long running task runs may take to end after the stop; the others are given back. If the server does not take the
    /// outcomes, they are reported again for 30 s more. So [`Worker::run`] returns at most 30 s after this time.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// This worker's tags; task runs with tags go to workers that have all of them.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Works until `stop` is done. A server that cannot be reached, or is overloaded, is asked again; a refusal (an
    /// unknown queue's name, a token of others) ends the worker.
    ///
    /// The future of a task run that was cancelled or given to somebody else is dropped at the next heartbeat. An outcome that
    /// the server does not take is reported again until the lease ends, and heartbeats go on meanwhile.
    pub async fn run<F, Fut>(self, stop: impl Future<Output = ()>, work: F) -> Result<WorkerReport>
    where
        F: Fn(Claim) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let counts = Arc::new(Counts::default());
        let (stopping, _) = watch::channel(None);
        let mut under_way = JoinSet::new();
        let mut again_after = AGAIN_AFTER;
        tokio::pin!(stop);
        let ended = loop {
            let free = self.concurrency - under_way.len();
            if free == 0 {
                tokio::select! {
                    _ = under_way.join_next() => {}
                    () = &mut stop => break Ok(()),
                }
                continue;
            }
            let mut request = self.request.clone();
            request.max = Some(i64::try_from(free).unwrap_or(i64::MAX));
            request.lease = Some(Span::from_std(self.lease));
            let claimed = tokio::select! {
                claimed = self.client.claim(&self.queue, &request, WAIT) => claimed,
                // The server takes back what it sent on a connection that is gone.
                () = &mut stop => break Ok(()),
            };
            while under_way.try_join_next().is_some() {}
            match claimed {
                Ok(claims) => {
                    again_after = AGAIN_AFTER;
                    for claim in claims {
                        let future = work(claim.clone());
                        let held = Held {
                            client: self.client.clone(),
                            claim,
                            lease: self.lease,
                            held_since: watch::channel(Instant::now()).0,
                            counts: counts.clone(),
                            stopping: stopping.subscribe(),
                            drain: self.drain,
                            again_after: AGAIN_AFTER,
                            last_reports: LAST_REPORTS,
                        };
                        under_way.spawn(held.work(future));
                    }
                }
                Err(error) if is_passing(&error) => {
                    tokio::select! {
                        () = tokio::time::sleep(again_after) => {}
                        () = &mut stop => break Ok(()),
                    }
                    again_after = (again_after * 2).min(AGAIN_AFTER_MAX);
                }
                Err(error) => break Err(error),
            }
        };
        stopping.send_replace(Some(Instant::now()));
        while under_way.join_next().await.is_some() {}
        ended.map(|()| WorkerReport {
            reported: counts.reported.load(Ordering::Relaxed),
            lost: counts.lost.load(Ordering::Relaxed),
            released: counts.released.load(Ordering::Relaxed),
            unsure: counts.unsure.load(Ordering::Relaxed),
        })
    }
}

/// Whether the same call may do better a little later.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. }) || matches!(error.status(), Some(408 | 429 | 500..))
}

/// A task run that this worker holds.
struct Held {
    client: Client,
    claim: Claim,
    lease: Duration,
    /// When the lease was given or extended last.
    held_since: watch::Sender<Instant>,
    counts: Arc<Counts>,
    /// When the worker was told to stop.
    stopping: watch::Receiver<Option<Instant>>,
    drain: Duration,
    /// How long to wait after the first report that failed.
    again_after: Duration,
    /// For how long outcomes are still reported after the stop and `drain`.
    last_reports: Duration,
}

impl Held {
    async fn work(self, work: impl Future<Output = Outcome>) {
        let heartbeats = self.taken_away();
        tokio::pin!(heartbeats);
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = &mut heartbeats => {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            () = self.stopped_for(self.drain) => Outcome::Released,
        };
        // If one is refused now, either the outcome was accepted, or it will be refused as well.
        let heartbeats = async {
            heartbeats.await;
            std::future::pending::<&AtomicU64>().await
        };
        let counter = tokio::select! {
            counter = self.report(outcome) => counter,
            counter = heartbeats => counter,
            () = self.stopped_for(self.drain.saturating_add(self.last_reports)) => &self.counts.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until so much time has passed since the stop.
    async fn stopped_for(&self, time: Duration) {
        let mut stopping = self.stopping.clone();
        // The sender lives as long as the loop that waits for this.
        let stopped = match stopping.wait_for(Option::is_some).await {
            Ok(stopped) => *stopped,
            Err(_) => None,
        };
        match stopped.unwrap_or_else(Instant::now).checked_add(time) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Keeps the lease alive; returns when it is lost. A heartbeat waits a third of the lease for its answer: one that
    /// hangs, because a connection is dead or a proxy is stuck, leaves time for the next one before the lease ends.
    async fn taken_away(&self) {
        let pause = self.lease / 3;
        let mut next = Instant::now() + pause;
        loop {
            tokio::time::sleep_until(next).await;
            // Counted from here: after one that got no answer in time, the next one comes at once.
            next = Instant::now() + pause;
            match self.client.heartbeat_within(&self.claim, pause).await {
                Ok(_) => {
                    self.held_since.send_replace(Instant::now());
                }
                Err(error) if is_passing(&error) => {}
                Err(_) => return,
            }
        }
    }

    /// Reports the outcome, again until the lease ends if the server cannot be reached or is overloaded; returns where that
    /// counts. A repeat of what was accepted is refused, and so is an outcome that came too late: then nobody knows which it
    /// was.
    async fn report(&self, mut outcome: Outcome) -> &AtomicU64 {
        let mut again_after = self.again_after;
        let (mut is_repeat, mut too_large) = (false, false);
        loop {
            let request = match &outcome {
                Outcome::Done(output) => self.client.completion(&self.claim, output),
                Outcome::Failed(message) => self.client.failure(&self.claim, &json!(message), false),
                Outcome::Fatal(message) => self.client.failure(&self.claim, &json!(message), true),
                Outcome::Released => self.client.releasing(&self.claim),
            };
            // A try that hangs is made again. A large output may take longer than the lease, which heartbeats extend meanwhile.
            match request.send::<ClaimAnswer>().await {
                Ok(_) if outcome == Outcome::Released => return &self.counts.released,
                Ok(_) => return &self.counts.reported,
                Err(error) if is_passing(&error) => {
                    let held_for = self.held_since.borrow().elapsed();
                    let left = self.lease.saturating_sub(held_for);
                    if left.is_zero() {
                        return &self.counts.lost;
                    }
                    // The last report comes when the lease ends: the server's clock decides.
                    tokio::time::sleep(again_after.min(left)).await;
                    again_after = (again_after * 2).min(AGAIN_AFTER_MAX);
                    is_repeat = true;
                }
                Err(error) if error.status() == Some(409) && is_repeat => return &self.counts.unsure,
                Err(error) if error.status() == Some(413) && !too_large => {
                    // A result that is too large will not become smaller.
                    outcome = Outcome::Fatal(error.to_string());
                    too_large = true;
                }
                Err(_) => return &self.counts.lost,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Reads a request; returns its first line.
    async fn asked(stream: &mut TcpStream) -> String {
        let mut request = Vec::new();
        // The body ends it.
        while !request.ends_with(b"}") {
            assert!(stream.read_buf(&mut request).await.unwrap() > 0);
        }
        let line = request.split(|&byte| byte == b'\r').next().unwrap();
        String::from_utf8(line.to_vec()).unwrap()
    }

    async fn answer(mut stream: TcpStream, status: &str, body: &str) {
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }

    /// A server that closes the first connection without an answer, and refuses what comes with the second.
    async fn refusing_at_last(listener: TcpListener) {
        drop(listener.accept().await.unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        asked(&mut stream).await;
        let body = r#"{"type": "about:blank", "title": "Conflict", "status": 409, "detail": "it has ended"}"#;
        answer(stream, "409 Conflict", body).await;
    }

    /// A server that is overloaded until it has got a heartbeat. The first `silent` ones get no answer, and their connections
    /// stay open. Returns how many outcomes it has refused before it took one.
    async fn overloaded(listener: TcpListener, silent: usize) -> u32 {
        let (mut refused, mut is_free) = (0, false);
        let mut unanswered = Vec::new();
        let id = uuid::Uuid::nil();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let line = asked(&mut stream).await;
            let taken = format!(r#"{{"id": "{id}"}}"#);
            if line.contains("/heartbeat ") && unanswered.len() < silent {
                unanswered.push(stream);
            } else if line.contains("/heartbeat ") {
                is_free = true;
                answer(stream, "200 OK", &taken).await;
            } else if is_free {
                answer(stream, "200 OK", &taken).await;
                return refused;
            } else {
                refused += 1;
                let body =
                    r#"{"type": "about:blank", "title": "Overloaded", "status": 503, "detail": "it is overloaded"}"#;
                answer(stream, "503 Service Unavailable", body).await;
            }
        }
    }

    /// A server that takes an outcome only after so many heartbeats. Returns how many times it was sent one.
    async fn slow(listener: TcpListener, heartbeats: usize) -> usize {
        let id = uuid::Uuid::nil();
        let taken = format!(r#"{{"id": "{id}"}}"#);
        let (mut outcomes, mut heard) = (Vec::new(), 0);
        while heard < heartbeats {
            let (mut stream, _) = listener.accept().await.unwrap();
            if asked(&mut stream).await.contains("/heartbeat ") {
                heard += 1;
                answer(stream, "200 OK", &taken).await;
            } else {
                outcomes.push(stream);
            }
        }
        let sent = outcomes.len();
        answer(outcomes.remove(0), "200 OK", &taken).await;
        sent
    }

    /// A server that closes all connections without an answer.
    async fn closing(listener: TcpListener) {
        loop {
            drop(listener.accept().await.unwrap());
        }
    }

    /// A task run of this server's, for a worker that was told to stop at this time.
    fn held(url: &str, lease: Duration, stopped: Option<Instant>) -> (Held, watch::Sender<Option<Instant>>) {
        let claim = json!({
            "id": uuid::Uuid::nil(), "token": "t", "run": uuid::Uuid::nil(), "group": "g", "task": "t", "item": null,
            "attempt": 1, "params": {}, "context": {}, "lease_expires_at": "2026-11-21T08:00:00.000000Z",
        });
        let (stop, stopping) = watch::channel(stopped);
        let held = Held {
            client: Client::new(url, None).unwrap(),
            claim: serde_json::from_value(claim).unwrap(),
            lease,
            held_since: watch::channel(Instant::now()).0,
            counts: Arc::default(),
            stopping,
            drain: Duration::ZERO,
            again_after: Duration::from_millis(1),
            last_reports: Duration::ZERO,
        };
        (held, stop)
    }

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, url)
    }

    /// What was accepted, what was lost, and what is unsure.
    fn counted(counts: &Counts) -> [u64; 3] {
        [&counts.reported, &counts.lost, &counts.unsure].map(|count| count.load(Ordering::Relaxed))
    }

    async fn done() -> Outcome {
        Outcome::Done(json!(1))
    }

    #[tokio::test]
    async fn a_repeat_that_is_refused_is_not_counted_as_accepted() {
        let (listener, url) = listen().await;
        let server = tokio::spawn(refusing_at_last(listener));
        let (held, _stop) = held(&url, Duration::from_secs(30), None);
        let counts = held.counts.clone();
        held.work(done()).await;
        server.await.unwrap();
        assert_eq!(counted(&counts), [0, 0, 1]);
    }

    #[tokio::test]
    async fn an_outcome_is_reported_as_long_as_heartbeats_keep_the_lease() {
        let (listener, url) = listen().await;
        let server = tokio::spawn(overloaded(listener, 0));
        let (held, _stop) = held(&url, Duration::from_secs(6), None);
        let counts = held.counts.clone();
        held.work(done()).await;
        let refused = server.await.unwrap();
        assert_eq!(counted(&counts), [1, 0, 0]);
        assert!(refused > 0);
    }

    /// The fourth heartbeat comes when the first lease would be over.
    #[tokio::test]
    async fn a_report_may_take_longer_than_the_lease() {
        let (listener, url) = listen().await;
        let server = tokio::spawn(slow(listener, 4));
        let (held, _stop) = held(&url, Duration::from_secs(3), None);
        let counts = held.counts.clone();
        held.work(done()).await;
        assert_eq!(counted(&counts), [1, 0, 0]);
        assert_eq!(server.await.unwrap(), 1, "it is sent once");
    }

    /// Without a short timeout, the first heartbeat would hang for longer than the lease.
    #[tokio::test]
    async fn a_heartbeat_without_an_answer_does_not_cost_the_lease() {
        let (listener, url) = listen().await;
        let server = tokio::spawn(overloaded(listener, 1));
        let (held, _stop) = held(&url, Duration::from_secs(6), None);
        let counts = held.counts.clone();
        held.work(done()).await;
        assert!(server.await.unwrap() > 0);
        assert_eq!(counted(&counts), [1, 0, 0]);
    }

    #[tokio::test]
    async fn an_outcome_is_given_up_when_the_lease_has_ended() {
        let (listener, url) = listen().await;
        tokio::spawn(closing(listener));
        let (held, _stop) = held(&url, Duration::from_millis(20), None);
        let counts = held.counts.clone();
        held.work(done()).await;
        assert_eq!(counted(&counts), [0, 1, 0]);
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_server_that_is_silent() {
        let (_listener, url) = listen().await;
        let (held, _stop) = held(&url, Duration::from_secs(3_600), Some(Instant::now()));
        let counts = held.counts.clone();
        held.work(done()).await;
        assert_eq!(counted(&counts), [0, 1, 0]);
    }
}
