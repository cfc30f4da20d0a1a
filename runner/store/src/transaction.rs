//! Named transactions: each is a span, its duration is counted, and it is repeated after a conflict with another
//! transaction.
//!
//! ```text
//! transaction!(self, control, "put_setting", |tx| { ...; tx.commit().await?; Ok(true) })
//! ```
//!
//! begins a transaction on that pool of the store and runs the block with it. The block returns `Result<_,
//! StoreError>`; if it ends without a commit, nothing has changed. After a conflict with another transaction (a
//! deadlock, a lock that was not released in time, a row that changes faster than it can be locked), the whole block is
//! repeated, a few times: Postgres has rolled it back. It is not repeated when the database was lost: the commit may
//! have succeeded, and only its answer may be lost. Only the caller knows whether a repeat does harm.
//!
//! This is for what people configure, for services for which nobody waits, and for heartbeats and reports of workers.
//! Transactions of the data plane are repeated by their group commits, which know what else waits (`heddle_engine`'s
//! `group_commit`). Those, and transactions for which a locked row is an answer, have a name, a span and a duration, and
//! are tried once. A control of a run is tried once here as well: `heddle_engine` decides it again as a whole, as often
//! and after the same pauses ([`again_after`]).
//!
//! ```text
//! transaction!(self, pool, "claim", once, |tx| { ... })                 // or once("BEGIN READ ONLY")
//! transaction!(self, pool, "heartbeat", alone, |connection| { ... })    // one statement: no BEGIN, no COMMIT
//! let tx = self.open("fan_out").await?;         // kept by a value of the caller's, which commits it
//! ```
//!
//! All transactions begin in this way: a test below reads the sources. A name costs a look-up in a small map at the
//! end; no statement, and no memory except for the first use of each name.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};
use tokio::time::Instant;

use crate::database::{PgSession, Transaction};
use crate::{Store, StoreError};

/// How often a transaction is tried that conflicts with others.
const TRIES_MAX: u32 = 3;

/// The pause before it is tried again, times the number of tries so far.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// How long to wait before the next try of what failed with this error at try `tried` (the first is 1); `None`: it is not
/// tried again.
pub fn again_after(error: &StoreError, tried: u32) -> Option<Duration> {
    (tried < TRIES_MAX && matches!(error, StoreError::Conflict(_))).then(|| AGAIN_AFTER * tried)
}

/// The counts of a store's transactions. Each name is written in the source, so their number is bounded.
#[derive(Debug)]
pub(crate) struct Transactions {
    seconds: HistogramVec,
    repeated: IntCounterVec,
}

impl Default for Transactions {
    fn default() -> Self {
        let seconds = HistogramOpts::new(
            "heddle_transaction_seconds",
            "Duration of this node's database transactions, by name, in seconds. Each try counts separately.",
        )
        .buckets(BUCKETS.to_vec());
        let repeated = Opts::new(
            "heddle_transactions_repeated_total",
            "Database transactions of this node that conflicted with another transaction and were retried, by name.",
        );
        Self {
            seconds: HistogramVec::new(seconds, &["transaction"]).expect("the name is a metric's"),
            repeated: IntCounterVec::new(repeated, &["transaction"]).expect("the name is a metric's"),
        }
    }
}

impl Transactions {
    fn count(&self, name: &'static str, took: Duration, repeated: bool) {
        self.seconds.with_label_values(&[name]).observe(took.as_secs_f64());
        if repeated {
            self.repeated.with_label_values(&[name]).inc();
        }
    }
}

impl Store {
    /// How long transactions took and how often they were repeated, by name, since the program began.
    pub fn transaction_metrics(&self) -> [Box<dyn Collector>; 2] {
        let Transactions { seconds, repeated } = &*self.transactions;
        [Box::new(seconds.clone()), Box::new(repeated.clone())]
    }
}

/// The tries of one transaction.
#[derive(Debug)]
pub(crate) struct Tries<'s> {
    transactions: &'s Transactions,
    name: &'static str,
    tried: u32,
    began: Instant,
}

impl<'s> Tries<'s> {
    pub(crate) fn new(transactions: &'s Transactions, name: &'static str) -> Self {
        Self {
            transactions,
            name,
            tried: 0,
            began: Instant::now(),
        }
    }

    /// The next try's span.
    pub(crate) fn span(&mut self) -> tracing::Span {
        self.began = Instant::now();
        tracing::debug_span!("transaction", name = self.name, tried = self.tried)
    }

    /// How long to wait before the next try; `None`: this was the last one.
    pub(crate) fn again_after<T>(&mut self, result: &Result<T, StoreError>) -> Option<Duration> {
        self.tried += 1;
        let pause = result.as_ref().err().and_then(|error| again_after(error, self.tried));
        self.transactions
            .count(self.name, self.began.elapsed(), pause.is_some());
        pause
    }

    /// It is done after one try.
    pub(crate) fn done(self) {
        self.transactions.count(self.name, self.began.elapsed(), false);
    }
}

/// A transaction that a value of the caller keeps; if it is dropped before [`Open::commit`], it is rolled back.
#[derive(Debug)]
pub(crate) struct Open {
    tx: Transaction,
    _timed: Timed,
}

/// Counts how long a transaction was open.
#[derive(Debug)]
struct Timed {
    transactions: Arc<Transactions>,
    name: &'static str,
    began: Instant,
    /// As long as the transaction. Its statements are not part of it: they belong to their callers.
    _span: tracing::Span,
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.transactions.count(self.name, self.began.elapsed(), false);
    }
}

impl Store {
    /// Begins a named transaction of the data plane, for a value that keeps it; see the module's head.
    pub(crate) async fn open(&self, name: &'static str) -> Result<Open, StoreError> {
        let timed = Timed {
            transactions: self.transactions.clone(),
            name,
            began: Instant::now(),
            _span: tracing::debug_span!("transaction", name),
        };
        Ok(Open {
            tx: self.pool.begin().await?,
            _timed: timed,
        })
    }
}

impl Open {
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        self.tx.commit().await
    }

    /// Its statements are long by design; see [`Transaction::patiently`].
    pub(crate) fn patiently(&mut self) {
        self.tx.patiently();
    }
}

impl Deref for Open {
    type Target = PgSession;
    fn deref(&self) -> &PgSession {
        &self.tx
    }
}

impl DerefMut for Open {
    fn deref_mut(&mut self) -> &mut PgSession {
        &mut self.tx
    }
}

/// A named transaction; see the module's head.
macro_rules! transaction {
    ($store:expr, $pool:ident, $name:literal, alone, |$connection:ident| $body:block) => {{
        let store: &$crate::Store = $store;
        let once = async || -> Result<_, $crate::StoreError> {
            let mut $connection = store.$pool.acquire().await?;
            $body
        };
        $crate::transaction::transaction!(@repeated store, $name, once)
    }};
    ($store:expr, $pool:ident, $name:literal, |$tx:ident| $body:block) => {{
        let store = $store;
        $crate::transaction::transaction!(store, &store.$pool, $name, |$tx| $body)
    }};
    ($store:expr, $pool:ident, $name:literal, once, |$tx:ident| $body:block) => {
        $crate::transaction::transaction!($store, $pool, $name, once("BEGIN"), |$tx| $body)
    };
    ($store:expr, $pool:ident, $name:literal, once($begin:expr), |$tx:ident| $body:block) => {{
        let store = $store;
        let once = async || -> Result<_, $crate::StoreError> {
            let mut $tx = store.$pool.begin_with($begin).await?;
            $body
        };
        let mut tries = $crate::transaction::Tries::new(&store.transactions, $name);
        let span = tries.span();
        let result = tracing::Instrument::instrument(once(), span).await;
        tries.done();
        result
    }};
    ($store:expr, $pool:expr, $name:expr, |$tx:ident| $body:block) => {{
        let (store, pool): (&$crate::Store, &$crate::database::Pool) = ($store, $pool);
        let once = async || -> Result<_, $crate::StoreError> {
            let mut $tx = pool.begin().await?;
            $body
        };
        $crate::transaction::transaction!(@repeated store, $name, once)
    }};
    (@repeated $store:ident, $name:expr, $once:ident) => {{
        let mut tries = $crate::transaction::Tries::new(&$store.transactions, $name);
        loop {
            let span = tries.span();
            let result = tracing::Instrument::instrument($once(), span).await;
            match tries.again_after(&result) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => break result,
            }
        }
    }};
}
pub(crate) use transaction;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn what_met_others_is_tried_again_but_not_for_ever() {
        let transactions = Transactions::default();
        let mut tries = Tries::new(&transactions, "one");
        for tried in 1..TRIES_MAX {
            let met: Result<(), _> = Err(StoreError::contended());
            assert_eq!(tries.again_after(&met), Some(AGAIN_AFTER * tried));
        }
        assert_eq!(tries.again_after::<()>(&Err(StoreError::contended())), None);
        for result in [Ok(()), Err(StoreError::unreadable("t", "c", "r", "f"))] {
            assert_eq!(Tries::new(&transactions, "two").again_after(&result), None);
        }
        let counts = |name: &str| {
            let seconds = transactions.seconds.with_label_values(&[name]);
            let repeated = transactions.repeated.with_label_values(&[name]);
            (seconds.get_sample_count(), repeated.get())
        };
        assert_eq!((counts("one"), counts("two")), ((3, 2), (2, 0)));
    }

    /// The sources below a directory.
    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn each_transaction_has_a_name() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut all = Vec::new();
        sources(&here, &mut all);
        assert!(all.len() > 50, "{} files", all.len());
        let begin = [[".begin", "()"].concat(), [".begin", "_with("].concat()];
        let nameless: Vec<PathBuf> = all
            .into_iter()
            .filter(|path| ![here.join("transaction.rs"), here.join("database/pool.rs")].contains(path))
            .filter(|path| {
                let text = std::fs::read_to_string(path).unwrap();
                begin.iter().any(|begin| text.contains(begin))
            })
            .collect();
        assert!(
            nameless.is_empty(),
            "these begin transactions without `transaction!`: {nameless:?}"
        );
    }
}
