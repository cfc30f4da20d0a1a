//! Scripts on this node: the sandbox that runs them, and the secrets and connections that they get.
//!
//! A script is loaded when it is needed, or before. Runs, attempts and messages use scripts; scripts know only the node.

pub(crate) mod grants;
pub(crate) mod redact;
pub(crate) mod runtimes;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use heddle_domain::{Chain, Time};
use heddle_sandbox::{LoadError, Sandbox, Script};
use heddle_store::StoreError;
use heddle_store::blob::Blob;
use heddle_store::change::{Change, Noun};
use heddle_store::secret::SecretKeys;

use crate::EngineError;
use crate::node::Node;
use crate::node::catalog::ScriptFacts;
use crate::node::part::Part;
use crate::node::service::{NEVER, Needs, Service};
use crate::node::signals::Signal;

// What the API needs of the sandbox, which it reaches only through this crate: uploads, calls of a script without a run,
// and which addresses a connection may have.
pub use heddle_sandbox::{
    AttemptHandle, AttemptRequest, BoxFuture, CompileError, Compiled, Context, Grants, HostPattern, HostServices,
    Interval, Language, Limits, LogLine, MAX_SOURCE_BYTES, Outcome, SourceFault, Uploaded, World, check_connection_url,
    digest_of,
};

/// The pause after scripts could not be loaded.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How long a node that starts waits for its scripts before it accepts requests.
const WARM_MAX: Duration = Duration::from_secs(10);

/// The same while another node can do its work: a load balancer sends requests there.
const WARM_RELIEVED_MAX: Duration = Duration::from_secs(60);

/// The sandbox of scripts, and the keys of the secrets that they get.
pub(crate) struct Scripts {
    node: Arc<Node>,
    pub(crate) sandbox: Sandbox,
    pub(crate) keys: Arc<SecretKeys>,
}

/// Loads scripts that were uploaded on other nodes before a run asks for them.
pub(crate) struct Warmer {
    scripts: Arc<Scripts>,
    /// The runtimes of text scripts are loaded: once per node, not at the first upload of a text.
    has_begun: bool,
}

impl Warmer {
    pub(crate) fn of(scripts: Arc<Scripts>) -> Self {
        Self {
            scripts,
            has_begun: false,
        }
    }
}

impl Service for Warmer {
    const FAILED: &'static str = "cannot load scripts in advance; each one is loaded when a run needs it";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = AGAIN_AFTER;

    fn node(&self) -> &Arc<Node> {
        &self.scripts.node
    }

    /// New scripts wake it, but only after its first tick. That one loads no scripts, so a signal before it would be lost.
    async fn woken(&mut self) {
        match self.has_begun {
            true => self.scripts.node.signals.raised(Signal::Scripts).await,
            false => std::future::pending().await,
        }
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        if std::mem::replace(&mut self.has_begun, true) {
            self.scripts.warm().await?;
        } else if let Err(error) = self.scripts.sandbox.warm_runtimes().await {
            tracing::warn!(%error, "cannot prepare the runtimes of source scripts; runs of these scripts fail or wait");
        }
        Ok(NEVER)
    }
}

/// While a node is idle, prepares the Python runtime, so that the first text in Python does not have to wait for it.
pub(crate) struct Preparer {
    scripts: Arc<Scripts>,
    /// How many checks in a row found the node idle.
    idle: u32,
}

impl Preparer {
    /// How often to check whether the node is idle, and how often it must be.
    const POLL_EVERY: Duration = Duration::from_secs(1);
    const IDLE_CHECKS: u32 = 4;

    pub(crate) fn of(scripts: Arc<Scripts>) -> Self {
        Self { scripts, idle: 0 }
    }
}

impl Service for Preparer {
    const FAILED: &'static str = "cannot prepare the Python runtime in advance; it is prepared when a script needs it";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = NEVER;

    fn node(&self) -> &Arc<Node> {
        &self.scripts.node
    }

    fn first_after(&self) -> Duration {
        Self::POLL_EVERY
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let sandbox = &self.scripts.sandbox;
        self.idle = if sandbox.is_idle() { self.idle + 1 } else { 0 };
        if self.idle < Self::IDLE_CHECKS {
            return Ok(Self::POLL_EVERY);
        }
        if sandbox.has_python() {
            return Ok(NEVER);
        }
        tokio::select! {
            // A stopping node does not wait for a compiler: the compiler dies with its parent.
            () = self.scripts.node.stop.cancelled() => {}
            made = sandbox.prepare_python() => match made {
                Ok(()) => tracing::info!("the Python runtime is ready"),
                // The first upload of a text in Python makes the snapshot, or gets the error.
                Err(error) => tracing::warn!(%error, "{}", Self::FAILED),
            },
        }
        Ok(NEVER)
    }
}

/// Stored bytes, as the sandbox takes them.
pub(crate) fn uploaded(blob: Blob) -> Uploaded {
    Uploaded {
        bytes: bytes::Bytes::from(blob.bytes),
        at: blob.created_at,
    }
}

impl Scripts {
    pub(crate) fn new(node: Arc<Node>, sandbox: Sandbox, keys: Arc<SecretKeys>) -> Self {
        Self { node, sandbox, keys }
    }

    /// Makes a script ready to run on this node, or says why that is not possible.
    pub(crate) async fn load(&self, script: &ScriptFacts) -> Result<Result<Script, String>, EngineError> {
        // The facts of a current run may be old: the runtime may have been retired since.
        let now = match &script.runtime {
            Some(_) => self.node.catalog.script(&script.name, Some(script.version)).await?,
            None => None,
        };
        let script = now.as_deref().unwrap_or(script);
        let store = self.node.store.clone();
        let digest = script.digest.trim_start_matches("sha256:").to_owned();
        let fetch = async move {
            match store.blob(&digest).await {
                Ok(Some(blob)) => Ok(uploaded(blob)),
                Ok(None) => Err(LoadTrouble::Gone),
                Err(error) => Err(LoadTrouble::Store(error)),
            }
        };
        let store = self.node.store.clone();
        let kept = async move {
            match &script.runtime {
                Some(tag) => store.runtime_bytes(tag).await.map_err(LoadTrouble::Store),
                None => Ok(None),
            }
        };
        match self.sandbox.load_kept(&script.code, kept, fetch).await {
            Ok(loaded) => Ok(Ok(loaded)),
            Err(LoadError::Fetch(LoadTrouble::Store(error))) => Err(error.into()),
            Err(LoadError::Compile(CompileError::NotNow(stopped))) => Err(stopped.into()),
            Err(error) => {
                let said = format!("script {}@{} could not be loaded: {error}", script.name, script.version);
                match error {
                    LoadError::Compile(CompileError::Internal(_)) => Err(EngineError::unreadable(said)),
                    _ => Ok(Err(said)),
                }
            }
        }
    }

    /// Loads the active versions of scripts; returns how many there are. After that, the node takes its part of the work. A
    /// script that this node fails to compile keeps no other one from being loaded; then the first of these errors is
    /// returned, and the node goes on warming.
    pub(crate) async fn warm(&self) -> Result<usize, EngineError> {
        /// How many scripts are loaded in advance; the others are loaded when they are needed.
        const SCRIPTS_MAX: i64 = 1_000;
        let names = self.node.store.active_scripts(SCRIPTS_MAX).await?;
        let (mut loaded, mut failed) = (0, None);
        for name in names {
            if self.node.stop.is_cancelled() {
                return Err(EngineError::Stopping);
            }
            let Some(facts) = self.node.catalog.script(&name, None).await? else {
                continue;
            };
            match self.load(&facts).await {
                Ok(Ok(_)) => loaded += 1,
                Ok(Err(error)) => tracing::warn!(script = name, error, "cannot load a script; its runs fail"),
                // The others would have the same.
                Err(error @ (EngineError::Store(_) | EngineError::Unavailable)) => return Err(error),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.node.end_warming();
        Ok(loaded)
    }

    /// The same, but waits only as long as a node that starts may wait. The rest is loaded afterwards.
    pub(crate) async fn warm_in_time(&self) {
        let node = &self.node;
        let long_enough = async {
            tokio::time::sleep(WARM_MAX).await;
            let needed = node.state.wait_for(|state| !state.leaves_work());
            let _ = tokio::time::timeout(WARM_RELIEVED_MAX - WARM_MAX, needed).await;
        };
        let mut long_enough = std::pin::pin!(long_enough);
        let loaded = tokio::select! {
            loaded = self.warm() => loaded,
            () = &mut long_enough => {
                tracing::info!("some scripts are still compiling; their runs wait until they are ready, or run on other \
                    nodes");
                node.signals.raise(Signal::Scripts);
                return;
            }
        };
        match loaded {
            Ok(0) => {}
            Ok(scripts) => tracing::info!(scripts, "loaded the scripts of the enabled groups"),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot load scripts in advance; trying again, and each one is \
                    loaded when a run needs it");
                // The node leaves its part of the work to others until the scripts are loaded, so it is not ready before.
                node.signals.raise(Signal::Scripts);
                tokio::select! {
                    () = node.state.wait_for(|state| !state.warming) => {}
                    () = long_enough => {}
                }
            }
        }
    }
}

impl Part for Scripts {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        match change.noun {
            Some(Noun::Script) => self.node.signals.raise(Signal::Scripts),
            // Its scripts now have another runtime: forget them, and make new snapshots.
            Some(Noun::Runtime) => {
                self.sandbox.forget_runtime(&change.name);
                self.node.signals.raise(Signal::Scripts);
            }
            _ => {}
        }
        async { Ok(()) }.boxed()
    }

    /// What is loaded has its bytes for a name, and stays; other scripts may be active.
    fn forget(&self) {
        self.node.signals.raise(Signal::Scripts);
    }
}

/// Why the bytes of a script are not available.
#[derive(Debug, thiserror::Error)]
enum LoadTrouble {
    #[error("its content was deleted")]
    Gone,
    #[error(transparent)]
    Store(StoreError),
}
