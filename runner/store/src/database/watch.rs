//! The watch finds sessions that will never get an answer, and tells whether the data plane moves.
//!
//! Four times a second it checks the waits of all sessions. It asks the server about those that last suspiciously long,
//! in one statement on its own connection. [`super`] describes what follows.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use heddle_domain::Chain;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::session::Pulse;
use super::{Alone, SILENCE_MAX, SUSPICIOUS_AFTER, SUSPICIOUS_AFTER_MAX, TRUST_AFTER};
use crate::StoreError;

const POLL_EVERY: Duration = Duration::from_millis(250);
/// How long that question may take on the open connection. This may be as dead as the suspected ones, and the answer
/// must come before a node's lease ends.
const ASK_KEPT_MAX: Duration = Duration::from_millis(750);
/// How long it may take on a new connection, including connecting.
const ASK_MAX: Duration = Duration::from_secs(4);
/// The pause before the next question.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often unused connections are closed.
const TIDY_EVERY: Duration = Duration::from_secs(30);
/// How many sessions may wait to be ended at the server; the server detects the others by itself.
const BURIED_MAX: usize = 256;

/// Closes idle sessions of a pool: those that were last heard of at or before a time, and those that nobody needs.
/// `false`: the pool is gone.
type Sweep = Box<dyn Fn(Option<u64>) -> bool + Send + Sync>;

pub(crate) struct Watch {
    started: Instant,
    pulses: Mutex<Vec<Weak<Pulse>>>,
    pools: Mutex<Vec<Sweep>>,
    /// Sessions that were closed at this end, to be ended at the server.
    buried: Mutex<Vec<(i32, String)>>,
    /// When the data plane first asked something after its last answer; 0: it waits for nothing.
    unanswered: AtomicU64,
    /// After how many milliseconds of waiting sessions are suspected, and when one was last given up.
    suspicious: AtomicU64,
    given_up: AtomicU64,
}

fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            pulses: Mutex::default(),
            pools: Mutex::default(),
            buried: Mutex::default(),
            unanswered: AtomicU64::new(0),
            suspicious: AtomicU64::new(millis(SUSPICIOUS_AFTER)),
            given_up: AtomicU64::new(0),
        })
    }

    /// Milliseconds since the watch began; never 0.
    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    pub(crate) fn observe(&self, pulse: &Arc<Pulse>) {
        let mut pulses = self.pulses.lock();
        pulses.retain(|known| known.strong_count() > 0);
        pulses.push(Arc::downgrade(pulse));
    }

    pub(crate) fn observe_pool(&self, sweep: Sweep) {
        self.pools.lock().push(sweep);
    }

    /// The data plane asks something.
    pub(crate) fn asked(&self, at: u64) {
        let _ = self
            .unanswered
            .compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The data plane has got an answer.
    pub(crate) fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// How long the data plane has been asking without any answer.
    pub(crate) fn stalled_for(&self) -> Duration {
        match self.unanswered.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now().saturating_sub(since)),
        }
    }

    /// Lets the server end a session that is closed at this end.
    pub(crate) fn bury(&self, pulse: &Pulse) {
        let mut buried = self.buried.lock();
        if buried.len() < BURIED_MAX {
            buried.push((pulse.process, pulse.born.clone()));
        }
    }

    /// Closes idle sessions that were last heard of at or before this time.
    pub(crate) fn distrust(&self, heard: u64) {
        self.sweep(Some(heard));
    }

    fn sweep(&self, distrusted: Option<u64>) {
        // Not under the lock: a closing session may wake somebody who asks the pool for one.
        let sweeps = std::mem::take(&mut *self.pools.lock());
        let kept: Vec<Sweep> = sweeps.into_iter().filter(|sweep| sweep(distrusted)).collect();
        self.pools.lock().extend(kept);
    }

    async fn check_all(&self, line: &Alone) -> Duration {
        let now = self.now();
        if now.saturating_sub(self.given_up.load(Ordering::Relaxed)) > millis(TRUST_AFTER) {
            self.suspicious.store(millis(SUSPICIOUS_AFTER), Ordering::Relaxed);
        }
        let suspicious = self.suspicious.load(Ordering::Relaxed);
        let mut suspects: Vec<(Arc<Pulse>, u64)> = Vec::new();
        for pulse in self.observed() {
            let Some(since) = pulse.waiting_since() else { continue };
            let waited = now.saturating_sub(since);
            if waited > pulse.bound() {
                self.give_up(&pulse, waited, "the statement exceeded its time limit");
            } else if waited
                > if pulse.is_small() {
                    millis(SUSPICIOUS_AFTER)
                } else {
                    suspicious
                }
            {
                suspects.push((pulse, since));
            }
        }
        if suspects.is_empty() && self.buried.lock().is_empty() {
            return POLL_EVERY;
        }
        let asked = self.ask_in_time(line, &suspects).await;
        let now = self.now();
        match asked {
            Ok(dead) => {
                let before = self.given_up.load(Ordering::Relaxed);
                for (pulse, since) in suspects {
                    // Unless it has got its answer meanwhile.
                    if dead.contains(&pulse.process) && pulse.waiting_since() == Some(since) {
                        self.give_up(
                            &pulse,
                            now.saturating_sub(since),
                            "the server is not working on the statement",
                        );
                        self.given_up.store(now, Ordering::Relaxed);
                        // Waits that began before others were given up died together with them: they are no new
                        // problem.
                        if since > before && !pulse.is_small() {
                            let later = (suspicious * 2).min(millis(SUSPICIOUS_AFTER_MAX));
                            self.suspicious.store(later, Ordering::Relaxed);
                        }
                    }
                }
                ASK_AGAIN_AFTER
            }
            Err(cause) => {
                let why = format!("the server does not answer any connection: {cause}");
                for (pulse, since) in suspects {
                    let waited = now.saturating_sub(since);
                    if waited > millis(SILENCE_MAX) && pulse.waiting_since() == Some(since) {
                        self.give_up(&pulse, waited, &why);
                    }
                }
                ASK_AGAIN_AFTER
            }
        }
    }

    fn observed(&self) -> Vec<Arc<Pulse>> {
        self.pulses.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks on the open connection, then on a new one. An error: the server answers on neither; why not on the new one.
    async fn ask_in_time(&self, line: &Alone, suspects: &[(Arc<Pulse>, u64)]) -> Result<Vec<i32>, String> {
        if line.is_kept().await
            && let Ok(Ok(dead)) = tokio::time::timeout(ASK_KEPT_MAX, self.ask(line, suspects)).await
        {
            return Ok(dead);
        }
        match tokio::time::timeout(ASK_MAX, self.ask(line, suspects)).await {
            Ok(asked) => asked.map_err(|error| Chain(&error).to_string()),
            Err(_) => Err(format!("no answer within {} s", ASK_MAX.as_secs())),
        }
    }

    /// Asks the server about sessions, and ends those that were closed. Returns the processes of sessions that are idle
    /// or do not exist.
    async fn ask(&self, line: &Alone, suspects: &[(Arc<Pulse>, u64)]) -> Result<Vec<i32>, StoreError> {
        let mut line = line.get().await?;
        let buried = self.buried.lock().clone();
        if !buried.is_empty() {
            let (processes, borns): (Vec<i32>, Vec<String>) = buried.iter().cloned().unzip();
            sqlx::query!(
                r#"SELECT count(pg_terminate_backend(a.pid)) AS "ended!"
                     FROM UNNEST($1::int[], $2::text[]) AS gone (process, born)
                     JOIN pg_stat_activity a ON a.pid = gone.process AND a.backend_start::text = gone.born"#,
                &processes,
                &borns
            )
            .fetch_one(&mut *line)
            .await?;
            self.buried.lock().retain(|one| !buried.contains(one));
        }
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let processes: Vec<i32> = suspects.iter().map(|(pulse, _)| pulse.process).collect();
        let borns: Vec<String> = suspects.iter().map(|(pulse, _)| pulse.born.clone()).collect();
        Ok(sqlx::query_scalar!(
            r#"SELECT asked.process AS "process!"
                 FROM UNNEST($1::int[], $2::text[]) AS asked (process, born)
                 LEFT JOIN pg_stat_activity a ON a.pid = asked.process AND a.backend_start::text = asked.born
                WHERE a.pid IS NULL
                   OR a.state LIKE 'idle%' AND a.state_change < clock_timestamp() - interval '1 second'"#,
            &processes,
            &borns
        )
        .fetch_all(&mut *line)
        .await?)
    }

    fn give_up(&self, pulse: &Pulse, waited: u64, why: &str) {
        tracing::warn!(
            process = pulse.process,
            waited_ms = waited,
            why,
            "closing a connection on which Postgres does not answer"
        );
        pulse.give_up();
        // Sessions that were last heard of before this one began to wait may be dead too.
        if let Some(since) = pulse.waiting_since() {
            self.distrust(since);
        }
    }
}

/// Checks until it is stopped. Asks on this connection.
pub(crate) async fn keep_watch(watch: Arc<Watch>, line: Alone, stop: CancellationToken) {
    let mut wait = POLL_EVERY;
    let mut tidied = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = watch.check_all(&line).await;
        if tidied.elapsed() > TIDY_EVERY {
            tidied = Instant::now();
            watch.sweep(None);
        }
    }
}
