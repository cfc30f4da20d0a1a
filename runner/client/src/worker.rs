//! A worker's loop: claims from a queue, works on several task runs at once, keeps their leases alive, stops gracefully.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::Span;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::{Claim, ClaimRequest, Client, Error, Result};

/// How long a claim call waits for work.
const WAIT: Duration = Duration::from_secs(30);

/// How long to wait after a call that failed, at first and at most.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(10);

/// How often an outcome is reported when the server cannot be reached; then its lease has run out anyway.
const REPORTS_MAX: u32 = 8;

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
    /// Task runs that were taken away while they were worked on, or whose outcome came too late.
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

    /// How long running task runs may take to end after the stop; the others are given back.
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
    /// The future of a task run that was cancelled or given to somebody else is dropped at the next heartbeat.
    pub async fn run<F, Fut>(self, stop: impl Future<Output = ()>, work: F) -> Result<WorkerReport>
    where
        F: Fn(Claim) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let counts = Arc::new(Counts::default());
        let (stopping, _) = watch::channel(false);
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
                            counts: counts.clone(),
                            stopping: stopping.subscribe(),
                            drain: self.drain,
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
        stopping.send_replace(true);
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
    counts: Arc<Counts>,
    stopping: watch::Receiver<bool>,
    drain: Duration,
}

impl Held {
    async fn work(self, work: impl Future<Output = Outcome>) {
        let mut stopping = self.stopping.clone();
        let drained = async {
            // The sender lives as long as the loop that waits for this.
            let _ = stopping.wait_for(|&stopping| stopping).await;
            tokio::time::sleep(self.drain).await;
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = self.taken_away() => {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            () = drained => Outcome::Released,
        };
        self.report(outcome).await;
    }

    /// Keeps the lease alive; returns when it is lost.
    async fn taken_away(&self) {
        loop {
            tokio::time::sleep(self.lease / 3).await;
            match self.client.heartbeat(&self.claim).await {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(_) => return,
            }
        }
    }

    /// Reports the outcome, again where the server cannot be reached. A repeat of what was accepted is refused, and so is an
    /// outcome that came too late: then nobody knows which it was.
    async fn report(&self, outcome: Outcome) {
        let mut again_after = AGAIN_AFTER;
        for attempt in 1..=REPORTS_MAX {
            let answer = match &outcome {
                Outcome::Done(output) => self.client.complete(&self.claim, output).await,
                Outcome::Failed(message) => self.client.fail(&self.claim, &json!(message), false).await,
                Outcome::Fatal(message) => self.client.fail(&self.claim, &json!(message), true).await,
                Outcome::Released => self.client.release(&self.claim).await,
            };
            let counter = match answer {
                Ok(_) if outcome == Outcome::Released => &self.counts.released,
                Ok(_) => &self.counts.reported,
                Err(error) if is_passing(&error) => {
                    tokio::time::sleep(again_after).await;
                    again_after = (again_after * 2).min(AGAIN_AFTER_MAX);
                    continue;
                }
                Err(error) if error.status() == Some(409) && attempt > 1 => &self.counts.unsure,
                Err(error) if error.status() == Some(413) => {
                    // A result that is too large will not become smaller.
                    let message = error.to_string();
                    match self.client.fail(&self.claim, &json!(message), true).await {
                        Ok(_) => &self.counts.reported,
                        Err(_) => &self.counts.lost,
                    }
                }
                Err(_) => &self.counts.lost,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that closes the first connection without an answer, and refuses what comes with the second.
    async fn refusing_at_last(listener: TcpListener) {
        drop(listener.accept().await.unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        // The body ends it.
        while !request.ends_with(b"}") {
            assert!(stream.read_buf(&mut request).await.unwrap() > 0);
        }
        let body = r#"{"type": "about:blank", "title": "Conflict", "status": 409, "detail": "it has ended"}"#;
        let answer = format!(
            "HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_repeat_that_is_refused_is_not_counted_as_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(refusing_at_last(listener));
        let claim = json!({
            "id": uuid::Uuid::nil(), "token": "t", "run": uuid::Uuid::nil(), "group": "g", "task": "t", "item": null,
            "attempt": 1, "params": {}, "context": {}, "lease_expires_at": "2026-11-21T08:00:00.000000Z",
        });
        let counts = Arc::new(Counts::default());
        let (_stop, stopping) = watch::channel(false);
        let held = Held {
            client: Client::new(&url, None).unwrap(),
            claim: serde_json::from_value(claim).unwrap(),
            lease: Duration::from_secs(30),
            counts: counts.clone(),
            stopping,
            drain: Duration::ZERO,
        };
        held.report(Outcome::Done(json!(1))).await;
        server.await.unwrap();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        assert_eq!((of(&counts.reported), of(&counts.lost), of(&counts.unsure)), (0, 0, 1));
    }
}
