//! Wake-ups: between the loops of a node, between callers that wait and runs that end, and between nodes.
//!
//! Between nodes they travel by LISTEN/NOTIFY, coalesced, outside the data plane's transactions. Nothing depends on
//! them: every waiter polls as well, only less often.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_store::change::CHANGES_CHANNEL;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::{Engine, EngineError, Inner};

/// The channel on which nodes wake each other.
pub(crate) const CHANNEL: &str = "heddle_wake";

/// What stands before a run that came back to life: who has worked on it before has to read anew what is known of it.
/// (In the transaction that brings it back, so that it is heard before a wake-up for its work.)
const REOPENED: char = '!';

/// What nodes are told of a run that is brought back.
pub(crate) fn reopened(run: RunId) -> String {
    format!(" {REOPENED}{run}")
}

/// How long wake-ups gather before they are sent.
const GATHER: Duration = Duration::from_millis(5);

/// How many runs one notification names; more of them are told as `*`. (A payload has at most 8,000 bytes.)
const NAMED_MAX: usize = 150;

/// How many queues one notification names; a name has at most 63 characters of four bytes.
const QUEUES_NAMED_MAX: usize = 8;

/// How often changes are looked for without being told.
const FOLLOW_EVERY: Duration = Duration::from_millis(1_000);

/// How often a caller that waits looks by itself.
const WAIT_POLL: Duration = Duration::from_millis(500);

/// What other nodes are told.
pub(crate) enum Wake {
    Work,
    Stopped,
    Ended(RunId),
    Queue(String),
}

/// The node's own bells.
pub(crate) struct Wakes {
    runs: Mutex<HashMap<RunId, Arc<Notify>>>,
    watched: AtomicUsize,
    orphans: Notify,
    sender: mpsc::UnboundedSender<Wake>,
}

impl Wakes {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Wake>) {
        let (sender, receiver) = mpsc::unbounded_channel::<Wake>();
        let wakes = Self {
            runs: Mutex::default(),
            watched: AtomicUsize::new(0),
            orphans: Notify::new(),
            sender,
        };
        (wakes, receiver)
    }

    /// There is work in *ready* that this node does not take at once.
    pub(crate) fn work(&self) {
        let _ = self.sender.send(Wake::Work);
    }

    /// A queue has been filled.
    pub(crate) fn queue(&self, name: String) {
        let _ = self.sender.send(Wake::Queue(name));
    }

    /// Attempts of other nodes were stopped.
    pub(crate) fn stopped(&self) {
        let _ = self.sender.send(Wake::Stopped);
    }

    /// Sub-runs may have lost their parents.
    pub(crate) fn orphans(&self) {
        self.orphans.notify_one();
    }

    pub(crate) async fn orphaned(&self) {
        self.orphans.notified().await;
    }

    /// Runs have moved; some have ended.
    pub(crate) fn moved(&self, moved: &[RunId], ended: &[RunId]) {
        if self.watched.load(Ordering::Acquire) > 0 {
            let runs = self.runs.lock();
            for run in moved {
                if let Some(bell) = runs.get(run) {
                    bell.notify_waiters();
                }
            }
        }
        for run in ended {
            let _ = self.sender.send(Wake::Ended(*run));
        }
    }

    fn ring(&self, run: Option<RunId>) {
        let runs = self.runs.lock();
        match run {
            Some(run) => {
                if let Some(bell) = runs.get(&run) {
                    bell.notify_waiters();
                }
            }
            None => runs.values().for_each(|bell| bell.notify_waiters()),
        }
    }
}

/// Rings when a run moves.
pub struct RunWatch {
    inner: Arc<Inner>,
    run: RunId,
    bell: Arc<Notify>,
}

impl RunWatch {
    /// Waits until the run may have moved, for `at_most`.
    pub async fn moved(&self, at_most: Duration) {
        tokio::select! {
            () = self.bell.notified() => {}
            () = tokio::time::sleep(at_most.min(WAIT_POLL)) => {}
            () = self.inner.stop.cancelled() => {}
        }
    }
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        let mut runs = self.inner.wakes.runs.lock();
        // Two are this watch and the map: nobody else listens.
        if Arc::strong_count(&self.bell) <= 2 {
            runs.remove(&self.run);
        }
        self.inner.wakes.watched.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Engine {
    /// Begins to listen for a run's moves: before looking at it, so that none is missed.
    pub fn watch(&self, run: RunId) -> RunWatch {
        let wakes = &self.inner.wakes;
        wakes.watched.fetch_add(1, Ordering::AcqRel);
        let bell = wakes.runs.lock().entry(run).or_default().clone();
        RunWatch {
            inner: self.inner.clone(),
            run,
            bell,
        }
    }

    /// Waits until a run has ended, for `at_most`; `None`: there is no such run.
    pub async fn wait(&self, run: RunId, at_most: Duration) -> Result<Option<bool>, EngineError> {
        let watch = self.watch(run);
        let until = tokio::time::Instant::now() + at_most;
        loop {
            let bell = watch.bell.notified();
            tokio::pin!(bell);
            bell.as_mut().enable();
            match self.inner.store.run_ended(run).await? {
                Some(false) => {}
                other => return Ok(other),
            }
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() || self.inner.stop.is_cancelled() {
                return Ok(Some(false));
            }
            tokio::select! {
                () = bell => {}
                () = tokio::time::sleep(left.min(WAIT_POLL)) => {}
                () = self.inner.stop.cancelled() => {}
            }
        }
    }
}

/// Sends what has gathered, while there are other nodes to hear it.
pub(crate) async fn send(inner: Arc<Inner>, mut wakes: mpsc::UnboundedReceiver<Wake>) {
    loop {
        let first = tokio::select! {
            () = inner.stop.cancelled() => return,
            wake = wakes.recv() => wake,
        };
        let Some(first) = first else { return };
        // Whether there are others is known as of the last heartbeat, and a node that came since may hold what is to be
        // interrupted within a second: that is told in any case. It is rare.
        if !inner.others.load(Ordering::Acquire) && !matches!(first, Wake::Stopped) {
            continue;
        }
        tokio::time::sleep(GATHER).await;
        let (mut work, mut stopped, mut ended, mut many) = (false, false, Vec::new(), false);
        let mut queues = std::collections::BTreeSet::new();
        let mut next = Some(first);
        while let Some(wake) = next {
            match wake {
                Wake::Work => work = true,
                Wake::Stopped => stopped = true,
                Wake::Ended(run) if ended.len() < NAMED_MAX => ended.push(run.to_string()),
                Wake::Ended(_) => many = true,
                // What has no room in the payload is found by looking.
                Wake::Queue(name) if queues.len() < QUEUES_NAMED_MAX => drop(queues.insert(name)),
                Wake::Queue(_) => {}
            }
            next = wakes.try_recv().ok();
        }
        let mut payload = String::new();
        if work {
            payload.push('w');
        }
        if stopped {
            payload.push('s');
        }
        payload.push(' ');
        payload.push_str(&if many { "*".to_owned() } else { ended.join(" ") });
        for queue in queues {
            payload.push('|');
            payload.push_str(&queue);
        }
        if let Err(error) = inner.store.notify(CHANNEL, &payload).await {
            tracing::debug!(error = %Chain(&error), "a wake-up was not sent; polling makes up for it");
        }
    }
}

/// Listens to other nodes and follows the log of changes.
pub(crate) async fn follow(inner: Arc<Inner>) {
    let mut listener = None;
    loop {
        if listener.is_none() {
            listener = match inner.store.listen(&[CHANNEL, CHANGES_CHANNEL]).await {
                Ok(listener) => Some(listener),
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "cannot listen; polling goes on");
                    None
                }
            };
        }
        if let Err(error) = inner.follow_changes().await {
            tracing::warn!(error = %Chain(&error), "cannot follow changes");
        }
        let heard = async {
            match &mut listener {
                Some(listener) => listener.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(FOLLOW_EVERY) => {}
            heard = heard => match heard {
                Ok((channel, payload)) if channel == CHANNEL => inner.heard(&payload),
                Ok(_) => {}
                Err(_) => listener = None,
            },
        }
    }
}

impl Inner {
    fn heard(&self, payload: &str) {
        let mut parts = payload.split('|');
        let payload = parts.next().unwrap_or_default();
        parts.for_each(|queue| self.heard_of_queue(queue));
        let (flags, runs) = payload.split_once(' ').unwrap_or((payload, ""));
        for run in runs.split_ascii_whitespace() {
            if let Some(Ok(id)) = run.strip_prefix(REOPENED).map(str::parse) {
                self.contexts.remove(&RunId(id));
            }
        }
        if flags.contains('w') {
            self.work.notify_one();
        }
        if flags.contains('s') {
            self.wakes.orphans();
        }
        if runs == "*" {
            self.wakes.ring(None);
        } else {
            for run in runs.split_ascii_whitespace() {
                if let Ok(id) = run.parse() {
                    self.wakes.ring(Some(RunId(id)));
                }
            }
        }
    }

    fn tell_listeners(&self, kind: &str, name: &str) {
        for listener in self.on_change.lock().iter() {
            listener(kind, name);
        }
    }

    /// Drops from the caches what was changed elsewhere.
    pub(crate) async fn follow_changes(&self) -> Result<(), EngineError> {
        /// How many changes one statement reads.
        const PAGE: i64 = 500;
        loop {
            let position = self.position.load(Ordering::Acquire);
            let changes = self.store.changes_since(position, PAGE).await?;
            for change in &changes {
                self.catalog.forget(&change.kind, &change.name);
                self.dispatch.forget(&change.kind, &change.name);
                self.messages.forget(&change.kind);
                self.tell_listeners(&change.kind, &change.name);
                if change.kind == "group" {
                    self.schedules.notify_one();
                    self.links.notify_one();
                }
                if change.kind == "group" && self.store.wake_gate(&change.name).await? {
                    // Its bounds may have changed, and with them whose turn it is.
                    self.inbox.notify_one();
                }
                if change.kind == "pool" {
                    self.pools.notify_one();
                }
                if change.kind == "queue" {
                    self.queues.ring_all(&change.name);
                }
                if change.kind == "script" {
                    self.warm_up.notify_one();
                }
                self.position.store(change.id, Ordering::Release);
            }
            if (changes.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }
}

/// Loads scripts that were uploaded on other nodes before a run asks for them.
pub(crate) async fn warm(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = inner.warm_up.notified() => {}
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
        let names = self.store.active_scripts(SCRIPTS_MAX).await?;
        let mut loaded = 0;
        for name in names {
            let Some(facts) = self.catalog.script(&name, None).await? else {
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
