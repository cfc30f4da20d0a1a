//! Scripts on this node: made runnable when they are asked for, or before.

use std::sync::Arc;

use heddle_domain::Chain;
use heddle_domain::state::ErrorKind;
use heddle_sandbox::{CompileError, LoadError, Script};
use heddle_store::StoreError;

use crate::node::catalog::ScriptFacts;
use crate::node::signals::Signal;
use crate::runs::ending::{Ending, Step};
use crate::{Engine, EngineError, Runs};

/// Loads scripts that were uploaded on other nodes before a run asks for them.
pub(crate) async fn keep_warm(runs: Arc<Runs>) {
    // Once for a node, not at the first upload of a text.
    if let Err(error) = runs.sandbox.warm_runtimes().await {
        tracing::warn!(%error, "scripts that are text cannot be run");
    }
    loop {
        tokio::select! {
            () = runs.node.stop.cancelled() => return,
            () = runs.node.signals.raised(Signal::Scripts) => {}
        }
        if let Err(error) = runs.warm().await {
            tracing::warn!(error = %Chain(&error), "scripts could not be loaded in advance");
        }
    }
}

impl Runs {
    /// Makes a script runnable on this node.
    pub(crate) async fn load_script(&self, script: &ScriptFacts) -> Step<Script> {
        let store = self.node.store.clone();
        let digest = script.digest.trim_start_matches("sha256:").to_owned();
        let fetch = async move {
            match store.blob(&digest).await {
                Ok(Some(bytes)) => Ok(bytes::Bytes::from(bytes)),
                Ok(None) => Err(LoadTrouble::Gone),
                Err(error) => Err(LoadTrouble::Store(error)),
            }
        };
        match self.sandbox.load(&script.code, fetch).await {
            Ok(loaded) => Ok(Ok(loaded)),
            Err(LoadError::Fetch(LoadTrouble::Store(error))) => Err(error.into()),
            Err(error @ LoadError::Compile(CompileError::Internal(_))) => Err(EngineError::Unreadable(format!(
                "script {}@{} could not be loaded: {error}",
                script.name, script.version
            ))),
            Err(error) => Ok(Err(Ending::failed(
                ErrorKind::Failed,
                format!("script {}@{} could not be loaded: {error}", script.name, script.version),
            ))),
        }
    }

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

/// Why the bytes of a script cannot be had.
#[derive(Debug, thiserror::Error)]
enum LoadTrouble {
    #[error("its bytes are gone")]
    Gone,
    #[error(transparent)]
    Store(StoreError),
}

impl Engine {
    /// Makes a script runnable on this node; the runs error says why that cannot be.
    pub async fn load_script(&self, script: &ScriptFacts) -> Result<Result<Script, String>, EngineError> {
        Ok(self.runs.load_script(script).await?.map_err(|ending| match ending {
            Ending::Failed { message, .. } => message,
            _ => String::new(),
        }))
    }
}
