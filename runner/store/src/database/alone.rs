//! A connection outside of the pools: its user does not wait for a pool, and is its only user.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use super::session::Condition;
use super::{Connector, PgSession, Plans};

/// One connection, opened when it is needed and again when it is lost.
#[derive(Debug)]
pub(crate) struct Alone {
    connector: Connector,
    bound: Duration,
    slot: Mutex<Option<PgSession>>,
    opened: AtomicU64,
}

/// The connection, while somebody uses it. If it is dropped in the middle of a statement, it is closed.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    slot: MutexGuard<'a, Option<PgSession>>,
}

impl Alone {
    /// A connection whose statements may take at most `bound`.
    pub(crate) fn new(connector: Connector, bound: Duration) -> Self {
        Self {
            connector,
            bound,
            slot: Mutex::new(None),
            opened: AtomicU64::new(0),
        }
    }

    /// Whether the connection is open already, so that its next user does not wait for a new one.
    pub(crate) async fn is_kept(&self) -> bool {
        let slot = self.slot.lock().await;
        slot.as_ref()
            .is_some_and(|session| session.condition() == Condition::Clean)
    }

    /// How often the connection was opened. If it was opened again, the server may be another one.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// The connection; waits for its current user.
    pub(crate) async fn get(&self) -> Result<Held<'_>, sqlx::Error> {
        let mut slot = self.slot.lock().await;
        if slot
            .as_ref()
            .is_none_or(|session| session.condition() != Condition::Clean)
        {
            *slot = None;
            let mut session = self.connector.connect(Plans::AsUsual).await?;
            session.bound_by(self.bound);
            session.sends_little();
            *slot = Some(session);
            self.opened.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Held { slot })
    }
}

const FULL: &str = "a connection that is held is there";

impl Deref for Held<'_> {
    type Target = PgSession;
    fn deref(&self) -> &PgSession {
        self.slot.as_ref().expect(FULL)
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut PgSession {
        self.slot.as_mut().expect(FULL)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.condition() != Condition::Clean
            && let Some(session) = self.slot.take()
        {
            session.watch().bury(session.pulse());
        }
    }
}
