//! Pools of sessions, and transactions on them.
//!
//! deadpool does the pooling (as it does for the databases of scripts). This module ensures that a returned session is
//! in a state in which the next user can use it. Unlike sqlx's own pool, a return costs no round trip.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult, TimeoutType};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Describe, Either, Execute, Executor, Postgres, SqlStr};
use tokio::runtime::Handle;

use super::session::Condition;
use super::{
    AGE_MAX, CONNECT_MAX, Connector, IDLE_MAX, LONG_STATEMENT_MAX, PgSession, Plans, TEST_AFTER, TEST_MAX, is_cut,
    no_answer,
};
use crate::change;

/// How often a transaction is begun if each session had been cut. All idle ones that were cut at the same time are closed
/// with the first; a server that goes down ends its sessions within some milliseconds.
const BEGINS_MAX: u32 = 3;

/// How sessions of a pool are created and tested.
pub(crate) struct Manager {
    connector: Connector,
    plans: Plans,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}

impl managed::Manager for Manager {
    type Type = PgSession;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<PgSession, sqlx::Error> {
        self.connector.connect(self.plans).await
    }

    async fn recycle(&self, session: &mut PgSession, metrics: &Metrics) -> RecycleResult<sqlx::Error> {
        if session.condition() != Condition::Clean {
            return Err(RecycleError::message("abandoned"));
        }
        if metrics.age() > AGE_MAX {
            return Err(RecycleError::message("too old"));
        }
        let watch = session.watch().clone();
        let heard = session.pulse().heard();
        if watch.now().saturating_sub(heard) > TEST_AFTER.as_millis() as u64 && !session.test(TEST_MAX).await {
            watch.bury(session.pulse());
            watch.distrust(heard);
            return Err(RecycleError::message("dead"));
        }
        Ok(())
    }
}

/// A pool. Cheap to clone. Statements can be run on it as on a single session.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    inner: managed::Pool<Manager>,
}

impl Pool {
    /// A pool of at most `connections_max` sessions, which plan as `plans` says.
    pub(crate) fn new(connector: &Connector, plans: Plans, connections_max: u32) -> Result<Self, sqlx::Error> {
        let manager = Manager {
            connector: connector.clone(),
            plans,
        };
        let inner = managed::Pool::builder(manager)
            .max_size(connections_max.max(1) as usize)
            // The session that was used last is known to be alive; the others get old and are closed.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(CONNECT_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| sqlx::Error::Configuration(error.to_string().into()))?;
        let weak = inner.weak();
        connector.watch().observe_pool(Arc::new(move |suspected| {
            let Some(pool) = weak.upgrade() else { return false };
            pool.retain(|session, metrics| {
                let distrusted = suspected.is_some_and(|since| session.pulse().heard() <= since);
                session.condition() == Condition::Clean && !distrusted && metrics.last_used() < IDLE_MAX
            });
            true
        }));
        Ok(Self { inner })
    }

    /// A session for exclusive use.
    pub(crate) async fn acquire(&self) -> Result<Pooled, sqlx::Error> {
        if self.inner.manager().plans == Plans::ByIndex {
            let watch = self.inner.manager().connector.watch();
            watch.asked(watch.now());
        }
        match self.inner.get().await {
            Ok(object) => Ok(Pooled { object: Some(object) }),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Timeout(TimeoutType::Wait)) => Err(no_answer(format!(
                "none of the node's {} connections to Postgres became free within {} s",
                self.inner.status().max_size,
                CONNECT_MAX.as_secs()
            ))),
            Err(PoolError::Closed) => Err(sqlx::Error::PoolClosed),
            Err(error) => Err(sqlx::Error::Configuration(error.to_string().into())),
        }
    }

    pub(crate) async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        self.begin_with("BEGIN").await
    }

    /// Begins a transaction with the given statement, which may contain settings for it. If the session had been cut while
    /// it was idle, nothing has been done yet: another one begins it.
    pub(crate) async fn begin_with(&self, statement: &'static str) -> Result<Transaction, sqlx::Error> {
        let mut begun = 0;
        loop {
            let mut session = self.acquire().await?;
            begun += 1;
            match session.begin(statement).await {
                Err(error) if is_cut(&error) && begun < BEGINS_MAX => {}
                result => return result.map(|()| Transaction { session }),
            }
        }
    }

    /// Closes idle sessions now, and the others when they are returned.
    pub(crate) fn close(&self) {
        self.inner.close();
    }
}

/// A session of a pool.
pub(crate) struct Pooled {
    object: Option<Object<Manager>>,
}

impl fmt::Debug for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").finish_non_exhaustive()
    }
}

const TAKEN: &str = "a session is taken only when it is dropped";

impl Deref for Pooled {
    type Target = PgSession;
    fn deref(&self) -> &PgSession {
        self.object.as_ref().expect(TAKEN)
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut PgSession {
        self.object.as_mut().expect(TAKEN)
    }
}

/// Closes a session at both ends, without waiting for either.
fn discard(object: Object<Manager>) {
    let session = Object::take(object);
    session.watch().bury(session.pulse());
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(mut object) = self.object.take() else { return };
        match object.condition() {
            Condition::Clean => drop(object),
            Condition::Lost => discard(object),
            Condition::Unsettled => match Handle::try_current() {
                Ok(runtime) => {
                    runtime.spawn(async move {
                        match object.settle().await {
                            true => drop(object),
                            false => discard(object),
                        }
                    });
                }
                Err(_) => discard(object),
            },
        }
    }
}

/// A transaction; one that is dropped before [`Transaction::commit`] is rolled back.
#[derive(Debug)]
pub(crate) struct Transaction {
    session: Pooled,
}

impl Transaction {
    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        let announced = self.session.take_announced();
        change::write(&mut self.session, &announced).await?;
        self.session.commit().await?;
        if !announced.is_empty() {
            change::wake(&mut self.session).await;
        }
        Ok(())
    }

    /// Rolls it back, and waits until that is done.
    pub(crate) async fn rollback(mut self) -> Result<(), sqlx::Error> {
        self.session.rollback().await
    }

    /// Its statements are long by design: allows them [`LONG_STATEMENT_MAX`].
    pub(crate) fn patiently(&mut self) {
        self.session.allow(LONG_STATEMENT_MAX);
    }
}

impl Deref for Transaction {
    type Target = PgSession;
    fn deref(&self) -> &PgSession {
        &self.session
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgSession {
        &mut self.session
    }
}

impl<'c> Executor<'c> for &'c Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        'q: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        stream::once(async move {
            let mut session = self.acquire().await?;
            let all: Vec<_> = session.wait_for(|raw| raw.fetch_many(query).try_collect()).await?;
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
        Box::pin(async move { self.acquire().await?.wait_for(|raw| raw.fetch_optional(query)).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async move {
            let mut session = self.acquire().await?;
            session.wait_for(|raw| raw.prepare_with(sql, parameters)).await
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async move { self.acquire().await?.wait_for(|raw| raw.describe(sql)).await })
    }
}
