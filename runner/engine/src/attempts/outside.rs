//! Work outside of this node: an HTTP call, a statement. Its attempt waits and takes no slot of a script.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Attempts;
use crate::RunContext;
use crate::runs::ending::Ending;

/// One prepared attempt at such work.
pub(crate) trait Outside: Send {
    /// Does the work, within the timeout of its task. If the future is dropped, the work is cancelled.
    fn carry_out(self: Box<Self>, attempts: Arc<Attempts>, context: Arc<RunContext>) -> BoxFuture<'static, Ending>;
}
