//! Scripts, loaded before a run asks for them.

use std::sync::Arc;

use heddle_domain::Chain;

use crate::node::signals::Signal;
use crate::{EngineError, Inner};

/// Loads scripts that were uploaded on other nodes before a run asks for them.
pub(crate) async fn keep_warm(inner: Arc<Inner>) {
    // Once for a node, not at the first upload of a text.
    if let Err(error) = inner.sandbox.warm_runtimes().await {
        tracing::warn!(%error, "scripts that are text cannot be run");
    }
    loop {
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = inner.node.signals.raised(Signal::Scripts) => {}
        }
        if let Err(error) = inner.warm().await {
            tracing::warn!(error = %Chain(&error), "scripts could not be loaded in advance");
        }
    }
}

impl Inner {
    /// Loads the active versions of scripts; answers how many there are.
    pub(crate) async fn warm(&self) -> Result<usize, EngineError> {
        /// How many scripts are loaded in advance; the rest is loaded when it is needed.
        const SCRIPTS_MAX: i64 = 1_000;
        let names = self.node.store.active_scripts(SCRIPTS_MAX).await?;
        let mut loaded = 0;
        for name in names {
            let Some(facts) = self.node.catalog.script(&name, None).await? else {
                continue;
            };
            match self.load_script(&facts).await? {
                Ok(_) => loaded += 1,
                Err(_) => tracing::warn!(script = name, "a script cannot be loaded"),
            }
        }
        Ok(loaded)
    }
}
