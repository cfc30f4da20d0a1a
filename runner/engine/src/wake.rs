//! Wake-ups: between the loops of a node, between callers that wait and runs that end, and between nodes.
//!
//! Between nodes they travel by LISTEN/NOTIFY, coalesced, outside the data plane's transactions. Nothing depends on
//! them: every waiter polls as well, only less often.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_store::change::CHANGES_CHANNEL;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::signals::Signal;
use crate::{Engine, EngineError, Inner};

/// The channel on which nodes wake each other.
pub(crate) const CHANNEL: &str = "heddle_wake";

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

/// What nodes tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is work in *ready* that the one who tells does not take at once.
    Work,
    /// Attempts of other nodes were stopped.
    Stopped,
    /// A run has ended.
    Ended(RunId),
    /// So many runs have ended that they are not named.
    ManyEnded,
    /// A run came back to life: who has worked on it before has to read anew what is known of it. (Told in the transaction
    /// that brings it back, so that it is heard before a wake-up for its work.)
    Reopened(RunId),
    /// A queue has been filled.
    Filled(String),
}

/// What stands for each in a payload: letters, then runs, each behind a space, then queues, each behind a bar, as in
/// `ws 0198... !0199...|mail|bills`. Nodes of earlier versions write and read the same; letters and runs that a node does
/// not know it passes over.
const WORK: char = 'w';
const STOPPED: char = 's';
const MANY_ENDED: &str = "*";
const REOPENED: char = '!';
const QUEUE: char = '|';

/// News as a payload.
pub(crate) fn encode(news: &[News]) -> String {
    let (mut letters, mut runs, mut queues) = (String::new(), String::new(), String::new());
    let many = news.contains(&News::ManyEnded);
    for one in news {
        match one {
            News::Work => letters.push(WORK),
            News::Stopped => letters.push(STOPPED),
            // The star stands for these as well, and earlier versions know it only alone.
            News::Ended(_) if many => {}
            News::Ended(run) => runs.push_str(&format!(" {run}")),
            News::ManyEnded => runs.push_str(&format!(" {MANY_ENDED}")),
            News::Reopened(run) => runs.push_str(&format!(" {REOPENED}{run}")),
            News::Filled(queue) => {
                queues.push(QUEUE);
                queues.push_str(queue);
            }
        }
    }
    if runs.is_empty() {
        runs.push(' ');
    }
    letters + &runs + &queues
}

/// What a payload says, as far as this node knows the words.
pub(crate) fn decode(payload: &str) -> Vec<News> {
    let mut news = Vec::new();
    let mut parts = payload.split(QUEUE);
    let (letters, runs) = {
        let first = parts.next().unwrap_or_default();
        first.split_once(' ').unwrap_or((first, ""))
    };
    // First of all: what follows may be about these runs.
    for run in runs.split_ascii_whitespace() {
        match run.strip_prefix(REOPENED) {
            Some(run) => news.extend(run.parse().ok().map(|id| News::Reopened(RunId(id)))),
            None if run == MANY_ENDED => news.push(News::ManyEnded),
            None => news.extend(run.parse().ok().map(|id| News::Ended(RunId(id)))),
        }
    }
    news.extend(letters.contains(WORK).then_some(News::Work));
    news.extend(letters.contains(STOPPED).then_some(News::Stopped));
    news.extend(
        parts
            .filter(|queue| !queue.is_empty())
            .map(|queue| News::Filled(queue.to_owned())),
    );
    news
}

/// News that gather until they are sent: each once, and no more than a payload holds.
#[derive(Debug, Default)]
struct Outbox {
    work: bool,
    stopped: bool,
    many_ended: bool,
    ended: Vec<RunId>,
    queues: BTreeSet<String>,
}

impl Outbox {
    fn add(&mut self, news: News) {
        match news {
            News::Work => self.work = true,
            News::Stopped => self.stopped = true,
            News::Ended(run) if self.ended.len() < NAMED_MAX => self.ended.push(run),
            News::Ended(_) | News::ManyEnded => self.many_ended = true,
            // What has no room in the payload is found by looking.
            News::Filled(queue) if self.queues.len() < QUEUES_NAMED_MAX => drop(self.queues.insert(queue)),
            News::Filled(_) => {}
            // Told with its transaction.
            News::Reopened(_) => {}
        }
    }

    fn news(self) -> Vec<News> {
        let mut news = Vec::with_capacity(self.ended.len() + self.queues.len() + 3);
        news.extend(self.work.then_some(News::Work));
        news.extend(self.stopped.then_some(News::Stopped));
        match self.many_ended {
            true => news.push(News::ManyEnded),
            false => news.extend(self.ended.into_iter().map(News::Ended)),
        }
        news.extend(self.queues.into_iter().map(News::Filled));
        news
    }
}

/// Who waits for runs on this node, and what other nodes will be told.
#[derive(Default)]
pub(crate) struct Wakes {
    runs: Mutex<HashMap<RunId, Arc<Notify>>>,
    watched: AtomicUsize,
    outbox: Mutex<Outbox>,
    /// There is something in the outbox.
    gathered: Notify,
}

impl Wakes {
    /// Tells other nodes, soon.
    pub(crate) fn tell(&self, news: News) {
        self.outbox.lock().add(news);
        self.gathered.notify_one();
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
        if ended.is_empty() {
            return;
        }
        let mut outbox = self.outbox.lock();
        ended.iter().for_each(|run| outbox.add(News::Ended(*run)));
        drop(outbox);
        self.gathered.notify_one();
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
pub(crate) async fn send(inner: Arc<Inner>) {
    let wakes = &inner.wakes;
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = wakes.gathered.notified() => {}
        }
        // Whether there are others is known as of the last heartbeat, and a node that came since may hold what is to be
        // interrupted within a second: that is told in any case. It is rare.
        if !inner.others.load(Ordering::Acquire) && !wakes.outbox.lock().stopped {
            *wakes.outbox.lock() = Outbox::default();
            continue;
        }
        tokio::time::sleep(GATHER).await;
        let news = std::mem::take(&mut *wakes.outbox.lock()).news();
        if news.is_empty() {
            continue;
        }
        if let Err(error) = inner.store.notify(CHANNEL, &encode(&news)).await {
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
        for news in decode(payload) {
            match news {
                News::Work => self.signals.raise(Signal::Work),
                News::Stopped => self.signals.raise(Signal::Orphans),
                News::Ended(run) => self.wakes.ring(Some(run)),
                News::ManyEnded => self.wakes.ring(None),
                News::Reopened(run) => {
                    self.contexts.remove(&run);
                }
                News::Filled(queue) => self.heard_of_queue(&queue),
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
                if matches!(change.kind.as_str(), "topic" | "script") {
                    self.signals.raise(Signal::Messages);
                }
                self.tell_listeners(&change.kind, &change.name);
                if change.kind == "group" {
                    self.signals.raise(Signal::Schedules);
                    self.signals.raise(Signal::Links);
                }
                if change.kind == "group" && self.store.wake_gate(&change.name).await? {
                    // Its bounds may have changed, and with them whose turn it is.
                    self.signals.raise(Signal::Inbox);
                }
                if change.kind == "pool" {
                    self.signals.raise(Signal::Pools);
                }
                if change.kind == "queue" {
                    self.queues.ring_all(&change.name);
                }
                if change.kind == "script" {
                    self.signals.raise(Signal::Scripts);
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
    // Once for a node, not at the first upload of a text.
    if let Err(error) = inner.sandbox.warm_runtimes().await {
        tracing::warn!(%error, "scripts that are text cannot be run");
    }
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = inner.signals.raised(Signal::Scripts) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u128) -> RunId {
        RunId(uuid::Uuid::from_u128(number))
    }

    fn gathered(news: impl IntoIterator<Item = News>) -> String {
        let mut outbox = Outbox::default();
        news.into_iter().for_each(|one| outbox.add(one));
        encode(&outbox.news())
    }

    /// The payloads of the version before this one, byte by byte: nodes of both work side by side during an upgrade.
    #[test]
    fn payloads_are_those_of_earlier_versions() {
        let (one, other) = (run(1), run(2));
        let check = |news: &[News], payload: &str| {
            assert_eq!(encode(news), payload);
            let mut read = decode(payload);
            assert!(news.iter().all(|news| read.contains(news)), "{payload}: {read:?}");
            read.retain(|read| !news.contains(read));
            assert_eq!(read, [], "{payload}");
        };
        check(&[], " ");
        check(&[News::Work], "w ");
        check(&[News::Work, News::Stopped], "ws ");
        check(&[News::Ended(one), News::Ended(other)], &format!(" {one} {other}"));
        check(&[News::ManyEnded], " *");
        check(&[News::Reopened(one)], &format!(" !{one}"));
        check(
            &[
                News::Work,
                News::Ended(one),
                News::Filled("a.b-c".into()),
                News::Filled("ü_".into()),
            ],
            &format!("w {one}|a.b-c|ü_"),
        );
    }

    #[test]
    fn what_is_not_understood_is_passed_over() {
        let one = run(1);
        assert_eq!(decode(""), []);
        assert_eq!(decode("x ?12 abc !def"), []);
        assert_eq!(
            decode(&format!("xw {one} @7||q")),
            [News::Ended(one), News::Work, News::Filled("q".into())]
        );
        // What has come back is forgotten before there is work for it.
        let both = encode(&[News::Work, News::Reopened(one)]);
        assert_eq!(decode(&both), [News::Reopened(one), News::Work]);
    }

    #[test]
    fn a_payload_holds_what_gathers() {
        // A payload has at most 8,000 bytes, and a queue's name 63 characters of up to four.
        let longest = |n: u32| char::from_u32(0x1F600 + n).expect("a character").to_string().repeat(63);
        let names = (0..50).map(|n| News::Filled(longest(n)));
        let ended = |count: u128| (0..count).map(|n| News::Ended(run(n)));
        let named = gathered(
            ended(NAMED_MAX as u128)
                .chain(names)
                .chain([News::Work, News::Stopped, News::Work]),
        );
        assert!(named.len() < 8_000, "{}", named.len());
        let read = decode(&named);
        assert_eq!(read.len(), NAMED_MAX + QUEUES_NAMED_MAX + 2);
        assert_eq!(gathered(ended(1_000)), " *");
        assert_eq!(gathered([News::Filled("q".into()), News::Filled("q".into())]), " |q");
    }
}
