//! An error of Heddle itself is not the failure of a script.
//!
//! Before an attempt, and while a script runs, the node reads from its database for it. When the database does not
//! answer, the caller waits: most such errors pass within seconds. The same holds when no child process can render a
//! template or check params at the moment. A node that cannot reach its database at all loses its lease meanwhile, and
//! with it all of its attempts. An error that lasts longer, or that waiting cannot help, ends the attempt as
//! [`Ending::Ours`]: the script gets no answer, the attempt's history says that Heddle failed, and the task run is
//! retried without using up a retry. If the error may pass, it does not count as a loss: each such attempt has waited,
//! so this is no loop without a pause. Any other error counts as a loss, up to `max_lost`.

use std::time::Duration;

use heddle_domain::Chain;
use tokio::time::Instant;

use crate::EngineError;
use crate::node::Node;
use crate::node::group_commit::is_passing;
use crate::runs::ending::Ending;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much of an attempt's timeout may pass before the attempt is given back instead of timed out: in percent.
const SHARE_OF_TIMEOUT: u32 = 80;

/// The pause before the next try: doubled each time, up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long an attempt that began at `began` waits for an answer, from the moment at which it asks.
pub(crate) fn until(began: Instant, timeout: Option<Duration>) -> Instant {
    let patience = Instant::now() + PATIENCE;
    match timeout {
        Some(timeout) => patience.min(began + timeout * SHARE_OF_TIMEOUT / 100),
        None => patience,
    }
}

/// Tries until there is an answer, or an error that waiting cannot help.
pub(crate) async fn patient<T, F>(
    node: &Node,
    what: &'static str,
    until: Instant,
    mut ask: impl FnMut() -> F,
) -> Result<T, EngineError>
where
    F: Future<Output = Result<T, EngineError>>,
{
    let mut pause = PAUSE_FIRST;
    let mut logged = false;
    loop {
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if !is_passing(&error) || Instant::now() + pause > until || node.stop.is_cancelled() {
            return Err(error);
        }
        if !std::mem::replace(&mut logged, true) {
            tracing::warn!(error = %Chain(&error), what, "an attempt waits, because the database or the node is \
                temporarily unavailable");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Ending {
    /// An attempt that ends by an error of Heddle itself.
    pub(crate) fn ours(what: &str, error: &EngineError) -> Self {
        let passing = is_passing(error);
        tracing::warn!(error = %Chain(error), what, passing, "an attempt failed because of an error in Heddle; it is \
            run again");
        // People see only the kind of an error of Heddle; the log has the details.
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
