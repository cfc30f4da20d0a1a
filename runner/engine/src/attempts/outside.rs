//! Work that goes on outside of this node: a call, a statement. An attempt at it waits, and takes no slot of a script.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Attempts;
use crate::RunContext;
use crate::runs::ending::Ending;

/// One attempt at such work, prepared.
pub(crate) trait Outside: Send {
    /// Does it, within the timeout of its task; dropped, it is broken off.
    fn carry_out(self: Box<Self>, attempts: Arc<Attempts>, context: Arc<RunContext>) -> BoxFuture<'static, Ending>;
}
