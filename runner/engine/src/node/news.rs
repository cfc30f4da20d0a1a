//! Wake-ups between nodes by LISTEN/NOTIFY: coalesced, and sent outside of the transactions of runs.
//!
//! Work does not depend on them: every waiter also polls, only less often.
//!
//! One kind is more than a wake-up: [`News::Reopened`] makes other nodes forget the script versions that a run had before it
//! was reopened. It can be lost, as any notification: the server's queue of them is full, or the node that has committed ends
//! at that moment. A node that worked on the run before, and has not heard of its end either, may then use the former versions
//! for attempts of the run that it takes, and it does so until it forgets the run: when its own connection for notifications
//! or its lease begins again, when the run's place in the cache is needed, or when it ends the run. The same can happen to an
//! attempt that such a node takes before it has read the notification. Only a restart with the active versions
//! (`scripts: active`) gives a run others; everything else about a run never changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_domain::{Chain, Time};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Node;
use super::service::{NEVER, Needs, Service};
use crate::EngineError;

/// The channel on which nodes wake each other.
pub(crate) const CHANNEL: &str = "heddle_wake";

/// How long wake-ups gather before they are sent.
const GATHER: Duration = Duration::from_millis(5);

/// How many runs one notification names. If there are more, it contains `*` instead. (A payload has at most 8,000
/// bytes.)
const NAMED_MAX: usize = 150;

/// How many queues one notification names; a name has at most 63 characters of four bytes.
const QUEUES_NAMED_MAX: usize = 8;

/// A wake-up for other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is work in *ready* that the sender does not take at once.
    Work,
    /// Attempts of other nodes were stopped.
    Stopped,
    /// A run has ended.
    Ended(RunId),
    /// So many runs have ended that they are not named.
    ManyEnded,
    /// An ended run is live again: nodes that worked on it before have to read its facts again. (It is sent right after
    /// the commit that reopens the run, so that it arrives before a wake-up for the work of the run.)
    Reopened(RunId),
    /// There is something new in a queue.
    Filled(String),
}

/// The format of a payload: letters, then runs, each after a space, then queues, each after a bar, as in `ws 0198...
/// !0199...|mail|bills`. Nodes of earlier versions use the same format. A node skips letters and runs that it does not
/// know.
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
            // `*` means all runs, so the named runs are left out. Earlier versions also understand `*` only if no run
            // is named.
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

/// The news in a payload, as far as this node knows them.
pub(crate) fn decode(payload: &str) -> Vec<News> {
    let mut news = Vec::new();
    let mut parts = payload.split(QUEUE);
    let (letters, runs) = {
        let first = parts.next().unwrap_or_default();
        first.split_once(' ').unwrap_or((first, ""))
    };
    // First, because the other news may be about these runs.
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

/// News that gather until they are sent: each once, and only as many as fit into a payload.
#[derive(Debug, Default)]
struct Gathered {
    work: bool,
    stopped: bool,
    many_ended: bool,
    ended: Vec<RunId>,
    queues: BTreeSet<String>,
}

impl Gathered {
    fn add(&mut self, news: News) {
        match news {
            News::Work => self.work = true,
            News::Stopped => self.stopped = true,
            News::Ended(run) if self.ended.len() < NAMED_MAX => self.ended.push(run),
            News::Ended(_) | News::ManyEnded => self.many_ended = true,
            // Queues that do not fit into the payload are found by polling.
            News::Filled(queue) if self.queues.len() < QUEUES_NAMED_MAX => drop(self.queues.insert(queue)),
            News::Filled(_) => {}
            // It is sent by the control that has reopened the run, not from here.
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

/// The news for other nodes.
#[derive(Default)]
pub(crate) struct Outbox {
    gathered: Mutex<Gathered>,
    /// There is something in it.
    filled: Notify,
}

impl Outbox {
    /// Adds a wake-up, which is sent to other nodes soon.
    pub(crate) fn tell(&self, news: News) {
        self.gathered.lock().add(news);
        self.filled.notify_one();
    }

    /// Adds the ends of runs, which are sent to other nodes soon.
    pub(crate) fn tell_ended(&self, ended: &[RunId]) {
        if ended.is_empty() {
            return;
        }
        let mut gathered = self.gathered.lock();
        ended.iter().for_each(|run| gathered.add(News::Ended(*run)));
        drop(gathered);
        self.filled.notify_one();
    }
}

/// Sends the gathered news, if there are other nodes.
pub(crate) struct NewsSender {
    node: Arc<Node>,
    /// There is something to send. It waits a moment, so that more is sent together with it.
    gathers: bool,
}

impl NewsSender {
    pub(crate) fn of(node: Arc<Node>) -> Self {
        Self { node, gathers: false }
    }
}

impl Service for NewsSender {
    const FAILED: &'static str = "cannot notify other nodes; they poll";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = NEVER;

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn first_after(&self) -> Duration {
        NEVER
    }

    async fn woken(&mut self) {
        match self.gathers {
            true => std::future::pending().await,
            false => self.node.outbox.filled.notified().await,
        }
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let outbox = &self.node.outbox;
        if !std::mem::replace(&mut self.gathers, false) {
            // The node knows whether there are others from its last heartbeat. A node that came later may hold an
            // attempt that must be interrupted within a second. So this wake-up is always sent, even if no other node
            // is known; it is rare.
            if !self.node.has_others() && !outbox.gathered.lock().stopped {
                *outbox.gathered.lock() = Gathered::default();
                return Ok(NEVER);
            }
            self.gathers = true;
            return Ok(GATHER);
        }
        let news = std::mem::take(&mut *outbox.gathered.lock()).news();
        if !news.is_empty()
            && let Err(error) = self.node.store.notify(CHANNEL, &encode(&news)).await
        {
            tracing::debug!(error = %Chain(&error), "a notification to other nodes was not sent; they poll");
        }
        Ok(NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u128) -> RunId {
        RunId(uuid::Uuid::from_u128(number))
    }

    fn gathered(news: impl IntoIterator<Item = News>) -> String {
        let mut gathering = Gathered::default();
        news.into_iter().for_each(|one| gathering.add(one));
        encode(&gathering.news())
    }

    /// The payloads of the version before this one, byte by byte: during an upgrade, nodes of both versions run
    /// together.
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
        // A reopened run is forgotten before there is work for it.
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
