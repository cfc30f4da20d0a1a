//! The watch finds sessions that will never get an answer.
//!
//! Four times a second it checks the waits of all sessions. It asks the server about those that last suspiciously long,
//! in one statement on its own connection. [`super`] describes what follows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::Chain;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pulse::Pulse;
use super::watch::millis;
use super::{Alone, SILENCE_MAX, SUSPICIOUS_AFTER, SUSPICIOUS_AFTER_MAX, TRUST_AFTER, Watch};
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

impl Watch {
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
