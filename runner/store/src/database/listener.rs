//! A connection that listens for notifications.
//!
//! A listener waits without end, so its silence says nothing: after a while without a notification, it asks the server
//! whether the connection is alive. sqlx's listener needs a pool of sqlx: it gets its own, with one connection.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::Instant;

use super::{CONNECT_MAX, Connector, no_answer, unopened};
use crate::{Store, StoreError};

/// After this long without a notification, the connection is tested.
const ASK_AFTER: Duration = Duration::from_secs(5);
/// How long the answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// A connection that hears notifications.
pub struct Listener {
    inner: PgListener,
    /// When the next test is due.
    ask_at: Instant,
    /// If a test is running: until when its answer must come.
    answer_by: Option<Instant>,
}

impl Listener {
    /// The next notification: channel and payload. An error means that some may have been missed, and that the caller
    /// has to listen again. The call can be abandoned at any time, and repeated.
    pub async fn next(&mut self) -> Result<(String, String), StoreError> {
        loop {
            if self.answer_by.is_some() || self.ask_at <= Instant::now() {
                self.ask().await?;
            }
            match tokio::time::timeout_at(self.ask_at, self.inner.try_recv()).await {
                Ok(Ok(Some(heard))) => {
                    self.ask_at = Instant::now() + ASK_AFTER;
                    return Ok((heard.channel().to_owned(), heard.payload().to_owned()));
                }
                Ok(Ok(None)) => return Err(no_answer("the connection for LISTEN was lost".into()).into()),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
    }

    /// If a caller abandons this, the next one finds the test still running, with its time limit.
    async fn ask(&mut self) -> Result<(), StoreError> {
        let answer_by = *self.answer_by.get_or_insert_with(|| Instant::now() + ANSWER_MAX);
        let asked = sqlx::query("SELECT 1").execute(&mut self.inner);
        match tokio::time::timeout_at(answer_by, asked).await {
            Ok(answer) => {
                answer?;
                self.answer_by = None;
                self.ask_at = Instant::now() + ASK_AFTER;
                Ok(())
            }
            Err(_) => Err(no_answer("the connection for LISTEN does not answer".into()).into()),
        }
    }
}

impl Connector {
    async fn listen(&self, channels: &[&str]) -> Result<Listener, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_MAX)
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(self.options());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen_all(channels.iter().copied()).await?;
        Ok(Listener {
            inner: listener,
            ask_at: Instant::now() + ASK_AFTER,
            answer_by: None,
        })
    }
}

impl Store {
    /// Listens to channels, on its own connection.
    pub async fn listen(&self, channels: &[&str]) -> Result<Listener, StoreError> {
        match tokio::time::timeout(CONNECT_MAX, self.connector.listen(channels)).await {
            Ok(listener) => Ok(listener.map_err(unopened)?),
            Err(_) => Err(no_answer("listening took too long".into()).into()),
        }
    }
}
