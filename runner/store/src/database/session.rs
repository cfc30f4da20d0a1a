//! A session: one connection, set up; the watch knows of each of its waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use heddle_domain::Time;
use sqlx::postgres::{PgConnection, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection, Describe, Either, Execute, Executor, Postgres, SqlStr};
use tokio_util::sync::CancellationToken;

use super::disk_space::is_full;
use super::pulse::Pulse;
use super::{SETTLE_MAX, STATEMENT_MAX, Watch, no_answer};

/// A row for the log of changes.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) at: Time,
}

/// The state in which a session is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The next user can use it.
    Clean,
    /// A statement or a transaction was abandoned.
    Unsettled,
    /// It cannot be used any more.
    Lost,
}

/// One connection to Postgres. Statements on it are bounded: see [`super`].
pub(crate) struct PgSession {
    raw: PgConnection,
    pulse: Arc<Pulse>,
    watch: Arc<Watch>,
    /// The bound for statements outside of transactions with a longer one.
    bound: Duration,
    in_transaction: bool,
    /// What its transaction writes to the log of changes when it is committed.
    announced: Vec<Announced>,
    lost: bool,
}

impl fmt::Debug for PgSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgSession")
            .field("process", &self.pulse.process)
            .finish_non_exhaustive()
    }
}

impl PgSession {
    /// Registers a connection that has been set up with the watch.
    pub(crate) fn new(raw: PgConnection, watch: &Arc<Watch>, process: i32, born: String, data: bool) -> Self {
        let pulse = Arc::new(Pulse {
            process,
            born,
            data,
            small: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            heard: AtomicU64::new(watch.now()),
            bound: AtomicU64::new(0),
            given_up: CancellationToken::new(),
        });
        watch.observe(&pulse);
        let mut session = Self {
            raw,
            pulse,
            watch: watch.clone(),
            bound: STATEMENT_MAX,
            in_transaction: false,
            announced: Vec::new(),
            lost: false,
        };
        session.bound_by(STATEMENT_MAX);
        session
    }

    /// Sets how long its statements may take from now on.
    pub(crate) fn bound_by(&mut self, bound: Duration) {
        self.bound = bound;
        self.allow(bound);
    }

    /// Says that its statements are small: if an answer is missing, the session is suspected sooner.
    pub(crate) fn sends_little(&mut self) {
        self.pulse.small.store(true, Ordering::Relaxed);
    }

    /// The same as [`PgSession::bound_by`], until the transaction's end.
    pub(crate) fn allow(&mut self, bound: Duration) {
        self.pulse.bound.store(bound.as_millis() as u64, Ordering::Release);
    }

    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(crate) fn condition(&self) -> Condition {
        if self.lost || self.pulse.given_up.is_cancelled() {
            Condition::Lost
        } else if self.in_transaction || self.pulse.waiting_since().is_some() {
            Condition::Unsettled
        } else {
            Condition::Clean
        }
    }

    /// Waits for an answer as long as the watch allows. If it is dropped, the session stays marked as waiting.
    pub(crate) async fn wait_for<'s, T, F>(
        &'s mut self,
        ask: impl FnOnce(&'s mut PgConnection) -> F,
    ) -> Result<T, sqlx::Error>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let Self {
            raw,
            pulse,
            watch,
            lost,
            ..
        } = self;
        if *lost || pulse.given_up.is_cancelled() {
            *lost = true;
            return Err(no_answer("the connection to Postgres was abandoned".into()));
        }
        let began = watch.now();
        pulse.waiting.store(began, Ordering::Release);
        if pulse.data {
            watch.asked(began);
        }
        let result = tokio::select! {
            biased;
            result = ask(raw) => result,
            () = pulse.given_up.cancelled() => {
                let waited = Duration::from_millis(watch.now().saturating_sub(began));
                Err(no_answer(format!("Postgres did not answer for {:.1} s; the connection is closed", waited.as_secs_f32())))
            }
        };
        pulse.waiting.store(0, Ordering::Release);
        if result.as_ref().is_err_and(is_full) {
            watch.disk_space.refused(watch.now(), pulse.data);
        }
        match &result {
            Err(error) if ends_session(error) => {
                *lost = true;
                // Sessions whose last answer is older than this may be lost too, and would fail their next statement.
                watch.distrust(began);
            }
            _ => {
                pulse.heard.store(watch.now(), Ordering::Release);
                if pulse.data {
                    watch.answered();
                }
            }
        }
        result
    }

    pub(crate) async fn begin(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        self.in_transaction = true;
        self.say(statement).await
    }

    /// Keeps a row for the log of changes until the commit, right before which it is written; see [`crate::change`].
    pub(crate) fn announce(&mut self, announced: Announced) {
        debug_assert!(self.in_transaction, "only a commit writes it");
        self.announced.push(announced);
    }

    /// What has to be written to the log of changes before the commit.
    pub(crate) fn take_announced(&mut self) -> Vec<Announced> {
        std::mem::take(&mut self.announced)
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        debug_assert!(self.announced.is_empty(), "nobody would learn of it");
        let committed = self.say("COMMIT").await;
        if committed.is_ok() {
            self.in_transaction = false;
            self.allow(self.bound);
        }
        committed
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.announced.clear();
        let ended = self.say("ROLLBACK").await;
        if ended.is_ok() {
            self.in_transaction = false;
            self.allow(self.bound);
        }
        ended
    }

    async fn say(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        self.wait_for(|raw| raw.execute(sqlx::raw_sql(statement)))
            .await
            .map(drop)
    }

    /// Whether the server still answers.
    pub(crate) async fn test(&mut self, limit: Duration) -> bool {
        match tokio::time::timeout(limit, self.wait_for(|raw| raw.ping())).await {
            Ok(tested) => tested.is_ok(),
            Err(_) => {
                self.lost = true;
                false
            }
        }
    }

    /// Ends what was abandoned. `false`: it cannot be ended, so the session must be closed.
    pub(crate) async fn settle(&mut self) -> bool {
        let in_transaction = self.in_transaction;
        let settled = async {
            match in_transaction {
                // sqlx first reads the rest of the previous statement.
                true => self.rollback().await,
                false => self.wait_for(|raw| raw.ping()).await,
            }
        };
        let settled = tokio::time::timeout(SETTLE_MAX, settled).await;
        matches!(settled, Ok(Ok(()))) && self.condition() == Condition::Clean
    }
}

/// Whether an error ended the connection, or refused it.
pub(crate) fn is_fatal(error: &dyn sqlx::error::DatabaseError) -> bool {
    use sqlx::postgres::{PgDatabaseError, PgSeverity};
    error
        .try_downcast_ref::<PgDatabaseError>()
        .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

/// Whether a session cannot be used after this error: the socket, the protocol, or the server ended it.
fn ends_session(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => is_last_answer(error.code().as_deref(), is_fatal(&**error)),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// Whether the server's answer is the last one of its session. After an answer with the severity FATAL or PANIC the server
/// closes the connection, whatever the code. Some codes end the session although their severity may be ERROR: a pooler has
/// lost its server; or the server accepts no writes, but nodes need a primary, and a new connection may reach it.
fn is_last_answer(code: Option<&str>, is_fatal: bool) -> bool {
    let ends = |code: &str| code.starts_with("08") || code.starts_with("57P") || matches!(code, "25006" | "25P03");
    is_fatal || code.is_some_and(ends)
}

/// Whether the server or the network ended the session, not a limit of this end.
pub(crate) fn is_cut(error: &sqlx::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        sqlx::Error::Io(error) => {
            let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof];
            kinds.contains(&error.kind())
        }
        sqlx::Error::Database(error) => matches!(error.code().as_deref(), Some("57P01" | "57P02" | "25P03")),
        _ => false,
    }
}

impl<'c> Executor<'c> for &'c mut PgSession {
    type Database = Postgres;

    /// All rows of a statement are read before the first is passed on, so that a slow reader does not count as a slow
    /// server, and the session is free as soon as possible.
    fn fetch_many<'e, 'q, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        'q: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        stream::once(async move {
            let all: Vec<_> = self.wait_for(|raw| raw.fetch_many(query).try_collect()).await?;
            Ok::<_, sqlx::Error>(stream::iter(all.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    fn fetch_optional<'e, 'q, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        'q: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(self.wait_for(|raw| raw.fetch_optional(query)))
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(self.wait_for(move |raw| raw.prepare_with(sql, parameters)))
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(self.wait_for(move |raw| raw.describe(sql)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_fatal_answer_a_session_is_not_used_again() {
        // A time limit of the server, a value that was refused, a page that cannot be read.
        for code in ["25P04", "22001", "XX001"] {
            assert!(is_last_answer(Some(code), true), "{code}");
            assert!(!is_last_answer(Some(code), false), "{code}");
        }
        for code in ["08006", "57P01", "25006", "25P03"] {
            assert!(is_last_answer(Some(code), false), "{code}");
        }
        assert!(!is_last_answer(None, false) && is_last_answer(None, true));
    }
}
