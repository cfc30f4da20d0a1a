//! Work outside of this node: an HTTP call, a statement. Its attempt waits and takes no slot of a script.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::state::ErrorKind;

use super::Attempts;
use crate::RunContext;
use crate::runs::ending::Ending;

/// One prepared attempt at such work.
pub(crate) trait Outside: Send {
    /// Does the work, within the timeout of its task. If the future is dropped, the work is cancelled.
    fn carry_out(self: Box<Self>, attempts: Arc<Attempts>, context: Arc<RunContext>) -> BoxFuture<'static, Ending>;
}

/// Does work within the timeout of its task. `late` makes the error for work that took longer than so many
/// milliseconds.
pub(super) async fn within(
    timeout: Option<Duration>,
    work: impl Future<Output = Ending>,
    late: impl FnOnce(u128) -> String,
) -> Ending {
    let Some(timeout) = timeout else { return work.await };
    match tokio::time::timeout(timeout, work).await {
        Ok(ending) => ending,
        Err(_) => Ending::failed(ErrorKind::Timeout, late(timeout.as_millis())),
    }
}
