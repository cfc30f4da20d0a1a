//! What is Heddle's own trouble is no failure of anybody's script.
//!
//! Before an attempt and while a script runs, the node reads from its database on their behalf. When the database does
//! not answer, whoever asked waits: most troubles are over within seconds. The same holds where nobody can render a template
//! or check params at the moment. A node that cannot reach its database at all
//! loses its lease in the meantime, and with it all that it has in hand. What lasts longer, or is no matter of waiting,
//! ends the attempt as [`Ending::Ours`]: the script is not told anything, the attempt's history says whose fault it was,
//! and the task run is tried again without using up a retry. After trouble that passes, that counts for nothing, and
//! since each such attempt has waited it is no loop without a pause; after any other, it counts as a loss, up to
//! `max_lost`.

use std::time::Duration;

use heddle_domain::Chain;
use tokio::time::Instant;

use crate::node::group_commit::is_passing;
use crate::runs::ending::Ending;
use crate::{EngineError, Runs};

/// For how long an answer is waited for at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of an attempt's timeout, this share may go by before the attempt is given back rather than timed out: in percent.
const SHARE_OF_TIMEOUT: u32 = 80;

/// The pause before asking again, doubled each time up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Until when an attempt that began at `began` waits for an answer that it asks for at this moment.
pub(crate) fn until(began: Instant, timeout: Option<Duration>) -> Instant {
    let patience = Instant::now() + PATIENCE;
    match timeout {
        Some(timeout) => patience.min(began + timeout * SHARE_OF_TIMEOUT / 100),
        None => patience,
    }
}

impl Runs {
    /// Asks until there is an answer, or an error that waiting does not mend.
    pub(crate) async fn patient<T, F>(
        &self,
        what: &'static str,
        until: Instant,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let mut pause = PAUSE_FIRST;
        let mut told = false;
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !is_passing(&error) || Instant::now() + pause > until || self.node.stop.is_cancelled() {
                return Err(error);
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %Chain(&error), what, "an attempt waits, because the database or the node is \
                    temporarily unavailable");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Ending {
    /// An attempt that ends by Heddle's own fault.
    pub(crate) fn ours(what: &str, error: &EngineError) -> Self {
        let passing = is_passing(error);
        tracing::warn!(error = %Chain(error), what, passing, "an attempt failed because of an error in Heddle; it is \
            run again");
        // Of our own errors people learn what kind; the log has the rest.
        let kind = match error {
            EngineError::Store(error) => match error {
                heddle_store::StoreError::ReadOnly(_) => "the database is read-only",
                _ if error.is_passing() => "the database is not available",
                _ => "the log of the node has the cause",
            },
            EngineError::NotComputed(_) => "this node is too busy",
            error if is_passing(error) => "the database is not available",
            _ => "the log of the node has the cause",
        };
        Self::Ours {
            message: format!("Heddle could not {what}: {kind}"),
            counted: !passing,
        }
    }
}
