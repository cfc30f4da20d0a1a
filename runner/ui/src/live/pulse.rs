//! When something may have changed: one watcher for all pages of this node that are open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_store::pages::PageFingerprint;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::shown::{Looks, Shown};
use crate::Ui;
use crate::ctx::Beat;

/// How many pages one node keeps up to date; further ones are told to come back, and do not change.
const PAGES_MAX: usize = 5_000;
/// How often the fingerprint is read while a page is open.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How many checks pass between two checks of runs.
const RUNS_EVERY: u64 = 2;
/// How long the database may take to answer the watcher before pages say that they are out of date. The watcher waits on.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// After how much time without an event a page is told that its stream goes on. Proxies then keep the connection, and the
/// page knows that something still arrives: a page that is told nothing for much longer opens another stream.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What the watcher has read: the fingerprint, and the counters of this node. `None`: the database did not answer.
type Seen = Option<(PageFingerprint, String)>;

fn audit_of(seen: &Seen) -> Option<&str> {
    seen.as_ref().map(|(print, _)| print.audit.as_str())
}

/// When something changed last, for the pages that listen to it.
#[derive(Clone)]
pub(super) struct Changes {
    /// When anything that the watcher looks at last changed.
    any: watch::Receiver<Instant>,
    /// When the watcher last found a new entry in the audit.
    audited: watch::Receiver<Instant>,
}

/// Tells pages that something may have changed.
#[derive(Default)]
pub(crate) struct Pulse {
    open: AtomicUsize,
    /// What the watcher tells.
    watcher: Mutex<Option<Changes>>,
    /// When each run changed last that a page is about.
    runs: Mutex<HashMap<Uuid, watch::Sender<Instant>>>,
    /// The pages that are shown.
    shown: Mutex<HashMap<Looks, Weak<Shown>>>,
    /// Since when the database has not answered the watcher.
    away: watch::Sender<Option<Instant>>,
}

impl Pulse {
    /// Listens for changes. The first listener starts the watcher, which ends when there are no listeners.
    pub(super) fn listen(ui: &Ui) -> Changes {
        let mut watcher = ui.pulse.watcher.lock();
        if let Some(changes) = watcher.as_ref().filter(|changes| changes.any.has_changed().is_ok()) {
            return changes.clone();
        }
        let (any, of_any) = watch::channel(Instant::now());
        let (audited, of_audited) = watch::channel(Instant::now());
        let changes = Changes {
            any: of_any,
            audited: of_audited,
        };
        *watcher = Some(changes.clone());
        // The watcher before may have left it set.
        ui.pulse.away.send_replace(None);
        let ui = ui.clone();
        tokio::spawn(async move {
            let mut last: Seen = None;
            let mut marks = HashMap::new();
            let mut looks = 0_u64;
            while !ui.pulse.is_done(&ui) {
                let counted = (ui.engine.counters(), ui.engine.message_counters());
                let begun = Instant::now();
                let seen = match ui.pulse.asked(ANSWER_MAX, ui.engine.store().page_fingerprint()).await {
                    Ok(fingerprint) => {
                        ui.pulse.away.send_if_modified(|away| away.take().is_some());
                        Some((fingerprint, format!("{counted:?}")))
                    }
                    // The pages say that the database is away.
                    Err(_) => {
                        ui.pulse.away.send_modify(|away| *away = away.or(Some(begun)));
                        None
                    }
                };
                if seen != last {
                    let now = Instant::now();
                    let _ = any.send(now);
                    if audit_of(&seen) != audit_of(&last) {
                        let _ = audited.send(now);
                    }
                    last = seen;
                }
                if looks.is_multiple_of(RUNS_EVERY) {
                    ui.pulse.look_at_runs(&ui, &mut marks).await;
                }
                looks += 1;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        changes
    }

    /// What the database answers to the watcher. If that takes longer than `most`, it counts as away until it answers.
    async fn asked<T>(&self, most: Duration, answer: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let mut answer = std::pin::pin!(answer);
        match tokio::time::timeout(most, answer.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                self.away.send_modify(|away| *away = away.or(Some(begun)));
                answer.await
            }
        }
    }

    /// How long the database has been away; zero if it is not.
    pub(super) fn away_for(&self) -> Duration {
        self.away.borrow().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Completes when the database is away: what is asked of it then may hang for long.
    pub(super) async fn is_away(&self) {
        // The sender is ours: this does not end without a reason.
        let _ = self.away.subscribe().wait_for(Option::is_some).await;
    }

    /// Whether the watcher may end. Decided under the lock under which a page looks for it: a page that is opened
    /// meanwhile either is counted here, or finds no watcher and starts another.
    fn is_done(&self, ui: &Ui) -> bool {
        let mut watcher = self.watcher.lock();
        let done = self.open.load(Ordering::Relaxed) == 0 || ui.engine.is_leaving();
        if done {
            *watcher = None;
        }
        done
    }

    /// Listens to a run for a page that was made at `made`; earlier changes are not reported.
    pub(super) fn listen_to(&self, run: Uuid, made: Instant) -> watch::Receiver<Instant> {
        let mut runs = self.runs.lock();
        let mut changes = runs.entry(run).or_insert_with(|| watch::channel(made).0).subscribe();
        // It changed while the page was made.
        if *changes.borrow() > made {
            changes.mark_changed();
        }
        changes
    }

    /// Signals the pages of runs that have changed. A run that is checked for the first time counts as changed: it may
    /// have changed between its page and this check.
    async fn look_at_runs(&self, ui: &Ui, marks: &mut HashMap<Uuid, Option<String>>) {
        let asked: Vec<Uuid> = {
            let mut runs = self.runs.lock();
            runs.retain(|_, sender| sender.receiver_count() > 0);
            marks.retain(|run, _| runs.contains_key(run));
            runs.keys().copied().collect()
        };
        if asked.is_empty() {
            return;
        }
        let marked = self.asked(ANSWER_MAX, ui.engine.store().page_run_marks(&asked)).await;
        let mut found: HashMap<Uuid, Option<String>> = match marked {
            Ok(found) => found.into_iter().map(|(run, mark)| (run, Some(mark))).collect(),
            Err(_) => HashMap::new(),
        };
        let runs = self.runs.lock();
        for run in asked {
            let mark = found.remove(&run).flatten();
            if marks.get(&run) != Some(&mark) {
                if let Some(sender) = runs.get(&run) {
                    let _ = sender.send(Instant::now());
                }
                marks.insert(run, mark);
            }
        }
    }

    /// A page that is shown to somebody, maybe for the first time.
    pub(super) fn shown(&self, looks: Looks) -> Arc<Shown> {
        let mut all = self.shown.lock();
        if let Some(shown) = all.get(&looks).and_then(Weak::upgrade) {
            return shown;
        }
        all.retain(|_, shown| shown.strong_count() > 0);
        let shown = Arc::new(Shown::default());
        all.insert(looks, Arc::downgrade(&shown));
        shown
    }
}

pub(super) struct Open(pub(super) Ui);

impl Open {
    pub(super) fn new(ui: &Ui) -> Option<Self> {
        let open = ui.pulse.open.fetch_add(1, Ordering::Relaxed);
        let page = Self(ui.clone());
        (open < PAGES_MAX).then_some(page)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.pulse.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until the page may have changed, and tells when it did.
pub(super) async fn wait(
    ui: &Ui,
    pulse: &mut Changes,
    run: &mut Option<(Uuid, watch::Receiver<Instant>)>,
    beat: Beat,
) -> Instant {
    if beat == Beat::Still {
        return std::future::pending().await;
    }
    // The watcher has ended: another is begun.
    if pulse.any.has_changed().is_err() {
        *pulse = Pulse::listen(ui);
        tokio::time::sleep(LOOK_EVERY).await;
        return Instant::now();
    }
    let (changes, bell) = match (beat, run) {
        (Beat::Run(id), Some((_, changes))) => (changes, Some(ui.engine.watch(RunId(id)))),
        (Beat::Audited, _) => (&mut pulse.audited, None),
        _ => (&mut pulse.any, None),
    };
    let rung = async {
        match &bell {
            Some(bell) => bell.rung().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = rung => Instant::now(),
        changed = changes.changed() => match changed {
            Ok(()) => *changes.borrow_and_update(),
            // The sender is gone: this counts as a change.
            Err(_) => Instant::now(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_hangs_is_away_before_it_answers() {
        let pulse = Pulse::default();
        assert_eq!(pulse.asked(ANSWER_MAX, std::future::ready(1)).await, 1);
        assert_eq!(pulse.away_for(), Duration::ZERO);
        let (answers, answer) = tokio::sync::oneshot::channel();
        let seen = async {
            pulse.is_away().await;
            answers.send(7).unwrap();
        };
        let (answer, ()) = tokio::join!(pulse.asked(Duration::from_millis(1), answer), seen);
        assert_eq!(answer, Ok(7));
        assert!(pulse.away_for() > Duration::ZERO, "until the watcher asks again");
    }

    #[tokio::test]
    async fn what_a_run_did_while_its_page_was_made_is_shown() {
        let (pulse, run) = (Pulse::default(), Uuid::nil());
        let made = Instant::now();
        let first = pulse.listen_to(run, made);
        assert!(!first.has_changed().unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
        pulse.runs.lock()[&run].send(Instant::now()).unwrap();
        assert!(first.has_changed().unwrap() && pulse.listen_to(run, made).has_changed().unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(!pulse.listen_to(run, Instant::now()).has_changed().unwrap());
    }
}
