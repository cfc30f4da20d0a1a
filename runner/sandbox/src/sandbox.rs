//! The sandbox of a node.

use crate::artefact::{Artefact, ArtefactCache, digest_of};
use crate::attempt::{AttemptRequest, AttemptResult, Outcome};
use crate::clients::Clients;
use crate::compiler::{Compiler, For, NotCompiled};
use crate::config::SandboxConfig;
use crate::describe::{self, Description};
use crate::engine::{Ticker, pooled_engine};
use crate::lanes::{AttemptHandle, Lanes, Signals, SlotKind};
use crate::loaded::{self, Loaded};
use crate::memory::MemoryBudget;
use crate::outbound::OutboundPolicy;
use crate::outgoing::NodeRequests;
use crate::run::{Done, Export, Runner, attempt};
use crate::script::{Linker, Script, World};
use crate::source::kept::Kept;
use crate::source::python::Python;
use crate::source::runtime::Runtime;
use crate::source::{RuntimeId, SourceFault, code_key, split_key};
use bytes::Bytes;
use heddle_domain::bounded::{Stopped, or_trouble};
use heddle_domain::{Clock, Time};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Threads for the I/O of host functions.
const IO_THREADS: usize = 1;
/// Threads for the timeouts of attempts. They do nothing else.
const TIMER_THREADS: usize = 1;

/// Compiles scripts and runs attempts. Cheap to clone; the last clone to go stops the threads.
#[derive(Clone)]
pub struct Sandbox {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    config: SandboxConfig,
    pub clock: Arc<dyn Clock>,
    pub runner: Arc<Runner>,
    pub lanes: Arc<Lanes>,
    linker: Arc<Linker>,
    compiler: Compiler,
    pub cache: Arc<ArtefactCache>,
    /// The same directory as the artefacts, or a separate one for interpreters.
    pub interpreters: Arc<ArtefactCache>,
    /// The runtimes of text scripts, created with the first of these.
    pub javascript: tokio::sync::OnceCell<Arc<Runtime>>,
    pub python: tokio::sync::OnceCell<Arc<Python>>,
    /// The runtimes that other programs have kept.
    pub kept: Kept,
    loaded: Arc<Mutex<Loaded>>,
    /// One lock per script that is being loaded.
    loading: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    io: Option<tokio::runtime::Runtime>,
    timers: Option<tokio::runtime::Runtime>,
}

impl Inner {
    pub fn loaded(&self) -> &Mutex<Loaded> {
        &self.loaded
    }

    /// Compiles wasm in a child process.
    pub async fn compile(&self, wasm: Bytes, whom: For<'_>) -> Result<Artefact, CompileError> {
        self.compile_within(wasm, whom, self.config.compile_timeout).await
    }

    /// The same with another timeout.
    pub async fn compile_within(
        &self,
        wasm: Bytes,
        whom: For<'_>,
        timeout: Duration,
    ) -> Result<Artefact, CompileError> {
        self.compiler
            .compile(wasm, whom, timeout)
            .await
            .map_err(|error| match error {
                NotCompiled::Refused(why) => CompileError::Rejected(why),
                NotCompiled::Timeout(after) => CompileError::Timeout(after),
                // If it happens to runs again and again, their attempts must not go on for ever: each one counts as lost.
                NotCompiled::NotNow(why) if matches!(whom, For::Runs) => CompileError::Internal(why),
                NotCompiled::NotNow(why) => CompileError::NotNow(Stopped::Trouble(why)),
                NotCompiled::Internal(error) => CompileError::Internal(error),
            })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lanes.close();
        for runtime in [self.io.take(), self.timers.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// Why the sandbox cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Wasmtime refuses the configuration, or there is not enough address space.
    #[error("cannot set up the wasm engine: {0}")]
    Engine(String),
    /// The directory for artefacts, or a thread.
    #[error("cannot set up the sandbox")]
    Io(#[from] std::io::Error),
    /// `private_hosts` has an unreadable entry.
    #[error("{0}")]
    Config(String),
}

/// The bytes of a script, as they were uploaded to Heddle.
#[derive(Clone, Debug)]
pub struct Uploaded {
    pub bytes: Bytes,
    /// When these bytes were uploaded for the first time, under any name and in any language. The clock of a text's top
    /// level shows it, so that each node that evaluates the text gets the same values.
    pub at: Time,
}

/// The facts of an accepted script.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// `sha256:` and the digest of the uploaded bytes.
    pub digest: String,
    /// What it exports, and so how Heddle calls it.
    pub world: World,
    /// The runtime with which a text was checked.
    pub runtime: Option<RuntimeId>,
    /// The functions that it has and Heddle calls; see [`Script::exports`].
    pub exports: Vec<&'static str>,
    /// The JSON Schema of its params: an object, not yet checked to be a valid schema.
    pub params_schema: Option<Value>,
    pub defaults: Map<String, Value>,
    /// What the script says about itself, for people.
    pub description: Option<String>,
    /// The bytes that were uploaded.
    pub size: usize,
}

impl Compiled {
    /// The name of its code in the sandbox.
    pub fn key(&self) -> String {
        let runtime = self.runtime.as_ref().map(|runtime| runtime.tag.as_str());
        code_key(&self.digest, self.world.as_str(), runtime)
    }
}

/// Why a script was refused.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// It is something else, or something is missing. The text follows "the script …".
    #[error("the script {0}")]
    Rejected(String),
    /// It has more bytes than this.
    #[error("the script has more than the maximum of {0} bytes")]
    TooLarge(usize),
    /// A text with an error.
    #[error("the script has an error: {0}")]
    Source(SourceFault),
    /// Compiling it takes longer than this.
    #[error("the script cannot be compiled within {0:?}")]
    Timeout(Duration),
    /// This node cannot do it at the moment: it is too busy, a child process was killed, or the interpreter of the
    /// script's language is not ready.
    #[error(transparent)]
    NotNow(#[from] Stopped),
    /// Heddle itself failed; the script did not cause it.
    #[error("{0}")]
    Internal(String),
}

/// Why an accepted script cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// Its bytes are not available.
    #[error("the content of the script cannot be read")]
    Fetch(E),
    /// This version of Heddle does not accept it any more.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// How busy the sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Attempts that began and have not ended, or wait for a slot.
    pub live: u32,
    /// Of these, those that want the processor (or a slot).
    pub runnable: u32,
    /// Of these, those that wait for I/O or time.
    pub parked: u32,
    /// Of these, those in the long lane, because they have used much processor time.
    pub long: u32,
    /// The maximum of live ones.
    pub slots: u32,
}

impl Sandbox {
    /// Starts a sandbox. It must be called within a tokio runtime: futures of [`crate::HostServices`] run there.
    pub fn new(config: SandboxConfig, clock: Arc<dyn Clock>) -> Result<Self, SandboxError> {
        let wrong = |error: wasmtime::Error| SandboxError::Engine(format!("{error:#}"));
        let engine = pooled_engine(config.max_instances, config.max_memory_bytes).map_err(wrong)?;
        let policy = OutboundPolicy::new(&config.private_hosts)
            .map_err(|error| SandboxError::Config(format!("private_hosts: {error}")))?;
        let clients = Clients::new(&policy, config.max_requests)
            .map_err(|error| SandboxError::Config(format!("HTTP client: {error}")))?;
        let cache = Arc::new(ArtefactCache::open(&config.cache_dir, &engine)?);
        let interpreters = match &config.interpreter_dir {
            Some(directory) => Arc::new(ArtefactCache::open(directory, &engine)?),
            None => Arc::clone(&cache),
        };
        let io = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            .thread_name("guest-io")
            .enable_all()
            .build()?;
        let timers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(TIMER_THREADS)
            .thread_name("guest-timers")
            .enable_time()
            .build()?;
        let ticker = Ticker::start(engine.clone())?;
        let lanes = Lanes::start(
            config.threads,
            config.long_threads,
            config.max_instances,
            ticker,
            io.handle(),
            timers.handle(),
        )?;
        let runner = Runner {
            clock: Arc::clone(&clock),
            clients: Arc::new(clients),
            policy,
            databases: Arc::default(),
            requests: NodeRequests::new(config.max_requests),
            budget: Arc::new(MemoryBudget {
                limit_bytes: config.total_memory_bytes,
                used_bytes: AtomicU64::new(0),
            }),
            node: tokio::runtime::Handle::try_current().unwrap_or_else(|_| io.handle().clone()),
            io: io.handle().clone(),
            engine: engine.clone(),
        };
        let loaded = Arc::new(Mutex::new(Loaded::new(config.max_loaded_bytes)));
        io.spawn(loaded::forget_idle(Arc::downgrade(&loaded)));
        Ok(Self {
            inner: Arc::new(Inner {
                linker: Arc::new(Linker::new(&engine).map_err(wrong)?),
                compiler: Compiler::new(&config, cache.directory().to_owned())?,
                cache,
                interpreters,
                javascript: tokio::sync::OnceCell::new(),
                python: tokio::sync::OnceCell::new(),
                kept: Kept::default(),
                loaded,
                loading: Mutex::default(),
                runner: Arc::new(runner),
                lanes,
                io: Some(io),
                timers: Some(timers),
                clock,
                config,
            }),
        })
    }

    /// The named external databases of this node.
    pub(crate) fn databases(&self) -> &crate::sql::Databases {
        &self.inner.runner.databases
    }

    /// The policy for all outgoing HTTP of this node.
    pub fn outbound(&self) -> &OutboundPolicy {
        &self.inner.runner.policy
    }

    /// Checks, compiles, links and describes a script, and keeps its artefact.
    pub async fn compile(&self, wasm: Bytes) -> Result<Compiled, CompileError> {
        self.compile_for(None, wasm).await
    }

    /// The same for a script that a person uploads: no uploader gets more than half of the compiler's slots.
    pub async fn compile_for(&self, uploader: Option<&str>, wasm: Bytes) -> Result<Compiled, CompileError> {
        let size = wasm.len();
        if size > self.inner.config.max_wasm_bytes {
            return Err(CompileError::TooLarge(self.inner.config.max_wasm_bytes));
        }
        let (digest, wasm) = blocking(move || (digest_of(&wasm), wasm)).await?;
        let _alone = self.alone(&digest).await;
        let script = match self.ready(&digest).await {
            Some(script) => script,
            None => {
                let whom = uploader.map_or(For::Runs, For::Uploader);
                self.build(&digest, wasm, whom).await?
            }
        };
        let description = match script.world() {
            World::Task | World::Consumer => self.describe(&script).await?,
            World::CommandP1 | World::CommandP2 | World::Source(_) => Description::default(),
        };
        self.keep(&script);
        Ok(Compiled {
            digest,
            world: script.world(),
            runtime: None,
            exports: script.exports(),
            params_schema: description.params.map(Value::Object),
            defaults: description.defaults.unwrap_or_default(),
            description: description.description,
            size,
        })
    }

    /// A script of our own, from memory, or from disk, or by compiling it.
    pub(crate) async fn own_wasm(&self, digest: &str, wasm: Bytes) -> Result<Script, CompileError> {
        if let Some(script) = self.loaded(digest) {
            return Ok(script);
        }
        let _alone = self.alone(digest).await;
        let script = match self.ready(digest).await {
            Some(script) => script,
            None => self.build(digest, wasm, For::All).await?,
        };
        self.keep(&script);
        Ok(script)
    }

    /// The imports of a component, if it is in memory or has been compiled here; see [`Script::imports`].
    pub async fn imports(&self, digest: &str) -> Option<Vec<String>> {
        self.ready(digest).await?.imports()
    }

    /// Whether a script is in memory.
    pub fn is_ready(&self, digest: &str) -> bool {
        self.inner.loaded.lock().contains(digest)
    }

    /// A script that is in memory.
    pub fn loaded(&self, digest: &str) -> Option<Script> {
        self.inner.loaded.lock().get(digest)
    }

    /// Loads an accepted script on this node: from memory, or from disk, or by compiling the bytes from `fetch`. If it
    /// is called concurrently for one script, one call does the work. `digest` is its key, as [`crate::code_key`] makes
    /// it; a text's runtime is this program's own, or one that was loaded before. If its top level has to be evaluated,
    /// the clock of that shows the present time.
    pub async fn load<E>(
        &self,
        digest: &str,
        fetch: impl Future<Output = Result<Bytes, E>> + Send,
    ) -> Result<Script, LoadError<E>> {
        let at = self.inner.clock.now();
        let fetch = async move { fetch.await.map(|bytes| Uploaded { bytes, at }) };
        self.load_kept(digest, async { Ok(None) }, fetch).await
    }

    /// The same for what was uploaded to Heddle. A text may have been checked with another program's runtime: `kept`
    /// returns its bundle, if there is one. The clock of its top level shows the time of its upload.
    pub async fn load_kept<E>(
        &self,
        digest: &str,
        kept: impl Future<Output = Result<Option<Vec<u8>>, E>> + Send,
        fetch: impl Future<Output = Result<Uploaded, E>> + Send,
    ) -> Result<Script, LoadError<E>> {
        if let Some(script) = self.inner.loaded.lock().get(digest) {
            return Ok(script);
        }
        if let Some(language) = split_key(digest).language {
            return self.load_source(digest, language, kept, fetch).await;
        }
        let _alone = self.alone(digest).await;
        if let Some(script) = self.ready(digest).await {
            return Ok(script);
        }
        let Uploaded { bytes, .. } = self.fetched(digest, fetch).await?;
        let script = self.build(digest, bytes, For::Runs).await?;
        self.keep(&script);
        Ok(script)
    }

    /// The uploaded bytes, if they are unchanged.
    pub(crate) async fn fetched<E>(
        &self,
        digest: &str,
        fetch: impl Future<Output = Result<Uploaded, E>> + Send,
    ) -> Result<Uploaded, LoadError<E>> {
        let uploaded = fetch.await.map_err(LoadError::Fetch)?;
        let wanted = digest.to_owned();
        let (same, uploaded) = blocking(move || (digest_of(&uploaded.bytes) == wanted, uploaded)).await?;
        match same {
            true => Ok(uploaded),
            false => Err(CompileError::Internal(format!("the bytes of {digest} have another digest")).into()),
        }
    }

    /// Starts an attempt on the guest threads and returns at once. `done` is called exactly once, usually on a guest
    /// thread: it must not block.
    pub fn start(
        &self,
        script: &Script,
        request: AttemptRequest,
        done: Box<dyn FnOnce(AttemptResult) + Send>,
    ) -> AttemptHandle {
        self.start_export(SlotKind::Runs, script, request, Export::Work, done)
    }

    /// How many scripts are in memory, and the bytes of their compiled code.
    pub fn in_memory(&self) -> (usize, u64) {
        self.inner.loaded.lock().size()
    }

    /// Whether no attempt wants the processor, and nothing is compiled.
    pub fn is_idle(&self) -> bool {
        self.load_now().runnable == 0 && self.inner.compiler.is_idle()
    }

    /// How busy the sandbox is now.
    pub fn load_now(&self) -> Load {
        let busy = self.inner.lanes.busy();
        Load {
            live: busy.live + busy.waiting,
            runnable: busy.runnable + busy.waiting,
            parked: busy.live - busy.runnable,
            long: busy.long,
            slots: self.inner.lanes.slots(),
        }
    }

    pub(crate) fn start_export(
        &self,
        slot_kind: SlotKind,
        script: &Script,
        request: AttemptRequest,
        export: Export,
        done: Box<dyn FnOnce(AttemptResult) + Send>,
    ) -> AttemptHandle {
        let signals = Arc::new(Signals::default());
        let limits = request.limits;
        let job = Box::pin(attempt(
            Arc::clone(&self.inner.runner),
            script.clone(),
            request,
            export,
            Arc::clone(&signals),
            Done::new(done),
        ));
        AttemptHandle {
            task: self.inner.lanes.spawn(slot_kind, signals, &limits, job),
        }
    }

    pub(crate) fn keep(&self, script: &Script) {
        let mut loaded = self.inner.loaded.lock();
        loaded.insert(script.digest(), script.inner.code_bytes, script.clone());
    }

    /// From memory or from the disk.
    async fn ready(&self, digest: &str) -> Option<Script> {
        if let Some(script) = self.inner.loaded.lock().get(digest) {
            return Some(script);
        }
        let (cache, linker, digest) = (
            Arc::clone(&self.inner.cache),
            Arc::clone(&self.inner.linker),
            digest.to_owned(),
        );
        let script = blocking(move || {
            let artefact = cache.read(&digest)?;
            // SAFETY: the cache gives what our compiler made, by checksum, from a directory that is ours.
            unsafe { linker.link(&digest, &artefact) }
                .inspect_err(|error| {
                    tracing::warn!(
                        digest,
                        error,
                        "a compiled script in the cache does not link; \
                    compiling it again"
                    )
                })
                .ok()
        });
        let script = script.await.ok()??;
        self.keep(&script);
        Some(script)
    }

    async fn build(&self, digest: &str, wasm: Bytes, whom: For<'_>) -> Result<Script, CompileError> {
        let artefact = self.inner.compile(wasm, whom).await?;
        let (cache, linker, digest) = (
            Arc::clone(&self.inner.cache),
            Arc::clone(&self.inner.linker),
            digest.to_owned(),
        );
        blocking(move || {
            // SAFETY: it comes straight from our compiler.
            let script = unsafe { linker.link(&digest, &artefact) }.map_err(CompileError::Rejected)?;
            let kept = cache.keep(&digest, artefact);
            // SAFETY: the same, or by checksum from a directory that is ours.
            let mapped = unsafe { linker.link(&digest, &kept) };
            Ok(mapped.unwrap_or(script))
        })
        .await?
    }

    async fn describe(&self, script: &Script) -> Result<Description, CompileError> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let request = describe::request(self.inner.clock.now());
        let done = Box::new(move |result: AttemptResult| {
            let _ = send.send(result.outcome);
        });
        self.start_export(SlotKind::Checks, script, request, Export::Describe, done);
        let lost = |_| CompileError::Internal("`describe` was dropped".into());
        match receive.await.map_err(lost)? {
            Outcome::Succeeded(text) => or_trouble(|| Description::parse(&text))?.map_err(CompileError::Rejected),
            Outcome::Failed {
                kind: heddle_domain::state::ErrorKind::Lost,
                message,
                ..
            } => Err(CompileError::Internal(message)),
            Outcome::Failed { kind, message, .. } => Err(CompileError::Rejected(format!(
                "fails when `describe` is called ({kind}): {message}"
            ))),
            Outcome::Skipped(_) | Outcome::Cancelled => Err(CompileError::Internal("`describe` did not return".into())),
        }
    }

    /// Waits while another call loads this script.
    pub(crate) async fn alone(&self, digest: &str) -> Alone<'_> {
        let lock = Arc::clone(self.inner.loading.lock().entry(digest.to_owned()).or_default());
        let held = lock.lock_owned().await;
        Alone {
            sandbox: self,
            digest: digest.to_owned(),
            held: Some(held),
        }
    }
}

/// The right to load a script.
pub(crate) struct Alone<'a> {
    sandbox: &'a Sandbox,
    digest: String,
    held: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let mut loading = self.sandbox.inner.loading.lock();
        self.held = None;
        // Others that wait for it hold a clone.
        if loading
            .get(&self.digest)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            loading.remove(&self.digest);
        }
    }
}

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, CompileError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| CompileError::Internal(error.to_string()))
}
