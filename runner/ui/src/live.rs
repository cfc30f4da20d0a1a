//! Keeping open pages up to date.
//!
//! A page with parts that may change opens `/live?at=<its address>&has=<what it has>`. There the page's function runs
//! again, for the same viewer, whenever something may have changed, and the changed parts are sent, each as an event
//! with the part's name. A browser's parts are identified by short hashes, first in its address, later in the `id` of
//! events, so that one that returns gets only what it missed.
//!
//! One watcher per node checks whether something may have changed, as long as any page is open:
//!
//! * twice a second by a fingerprint of the cluster: the newest change and run, and how often the tables that work passes
//!   through have been written to;
//! * for pages about runs, by one statement a second over all runs that are shown somewhere. A run that changes on this
//!   node is signalled at once.
//!
//! A page is made once for all viewers with the same address, language, zone, theme and role. Their names are in the
//! frame, which is not part of this. So five hundred open pages cost as much as there are different ones, and nothing
//! while nothing changes. Nobody gets a page that was made before the one that they have.
//!
//! Between two updates of a page is a quarter of a second at least, and after a large one so much more that a page is sent
//! 64 KiB a second: five hundred pages of which each has a large part that changes all the time are no load for a network.
//!
//! A proxy that buffers answers passes on nothing of an answer that does not end. A page that gets nothing asks for
//! answers that do end (`&brief=1`): the changes until now, and when to ask again, which browsers do by themselves.
//!
//! A page ends with its viewer's token or session: the log of changes reports a revoked token or an ended session, on
//! any node ([`crate::Host::left`]). The browser then loads the page again, has to sign in, and is led back to it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use chrono_tz::Tz;
use futures::future::BoxFuture;
use heddle_domain::id::RunId;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::ctx::{Beat, Part, Theme};
use crate::words::Lang;
use crate::{Ctx, Role, Ui, Viewer, pages};

/// How many pages one node keeps up to date; further ones are told to come back, and do not change.
const PAGES_MAX: usize = 5_000;
/// The minimum time between two updates of a page.
const GAP: Duration = Duration::from_millis(250);
/// The maximum of that time, however large the first of the two updates was.
const GAP_MAX: Duration = Duration::from_secs(2);
/// The time after an update for each KiB of it, in microseconds: a page is sent at most 64 KiB per second, between the
/// two limits above.
const MICROS_FOR_KIB: u64 = 1_000_000 / 64;
/// How often the fingerprint is read while a page is open.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a page is made again although nothing seems to have changed.
const ANYWAY_EVERY: Duration = Duration::from_secs(60);
/// Instead of making a page again without a change, a node may send what it has made for another viewer within this time.
const ANYWAY_AGE: Duration = Duration::from_secs(10);
/// How many checks pass between two checks of runs.
const RUNS_EVERY: u64 = 2;
/// How soon a page that could not be made is tried again.
const AWAY_EVERY: Duration = Duration::from_secs(2);
/// How often a comment is sent if nothing else is, so that proxies and browsers know that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Tells pages that something may have changed.
#[derive(Default)]
pub(crate) struct Pulse {
    open: AtomicUsize,
    /// When something changed last.
    watcher: Mutex<Option<watch::Receiver<Instant>>>,
    /// When each run changed last that a page is about.
    runs: Mutex<HashMap<Uuid, watch::Sender<Instant>>>,
    /// The pages that are shown.
    shown: Mutex<HashMap<Looks, Weak<Shown>>>,
}

impl Pulse {
    /// Listens for changes. The first listener starts the watcher, which ends when there are no listeners.
    fn listen(ui: &Ui) -> watch::Receiver<Instant> {
        let mut watcher = ui.pulse.watcher.lock();
        if let Some(receiver) = watcher.as_ref().filter(|receiver| receiver.has_changed().is_ok()) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(Instant::now());
        *watcher = Some(receiver.clone());
        let ui = ui.clone();
        tokio::spawn(async move {
            let mut last = None;
            let mut marks = HashMap::new();
            let mut looks = 0_u64;
            while !ui.pulse.is_done(&ui) {
                let counted = ui.engine.counters();
                let seen = match ui.engine.store().page_fingerprint().await {
                    Ok(fingerprint) => Some((fingerprint, format!("{counted:?}"))),
                    // The pages are made again, and say that the database is away.
                    Err(_) => None,
                };
                if seen != last {
                    let _ = sender.send(Instant::now());
                    last = seen;
                }
                if looks.is_multiple_of(RUNS_EVERY) {
                    ui.pulse.look_at_runs(&ui, &mut marks).await;
                }
                looks += 1;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        receiver
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
    fn listen_to(&self, run: Uuid, made: Instant) -> watch::Receiver<Instant> {
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
        let mut found: HashMap<Uuid, Option<String>> = match ui.engine.store().page_run_marks(&asked).await {
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
    fn shown(&self, looks: Looks) -> Arc<Shown> {
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

/// The properties that make a page the same for two viewers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Looks {
    target: String,
    role: Role,
    dev: bool,
    lang: Lang,
    zone: Tz,
    theme: Theme,
}

/// A page that one or several viewers see. For several, the last made page is kept.
#[derive(Default)]
struct Shown(tokio::sync::Mutex<Option<Arc<Made>>>);

/// A page as it was made.
struct Made {
    /// When making it began. It contains everything that had changed before.
    begun: Instant,
    what: What,
}

enum What {
    /// Its parts, and when they change.
    Parts(Vec<Ready>, Beat),
    /// The page does not exist.
    Gone,
    /// The page cannot be made at present.
    Away,
}

/// A part as it is sent.
struct Ready {
    name: &'static str,
    hash: String,
    /// The event without its id.
    event: Bytes,
}

impl Ready {
    fn of(part: &Part) -> Self {
        Self {
            name: part.name,
            hash: hash(&part.html),
            event: event(part.name, &part.html),
        }
    }
}

impl Shown {
    /// The page as of `due` or later; it is made only if nobody else has made it since. An error counts for all who
    /// waited, too: otherwise each of them would wait for the database in turn.
    async fn since(self: &Arc<Self>, due: Instant, make: impl Future<Output = What>) -> Arc<Made> {
        let mut last = self.0.lock().await;
        if let Some(made) = last.as_ref().filter(|made| made.begun >= due) {
            return made.clone();
        }
        let begun = Instant::now();
        let made = Arc::new(Made {
            begun,
            what: make.await,
        });
        // Each viewer holds one reference. So it is kept only if there are several viewers.
        *last = (Arc::strong_count(self) > 1).then(|| made.clone());
        made
    }
}

struct Open(Ui);

impl Open {
    fn new(ui: &Ui) -> Option<Self> {
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

/// A short hash of the text of a part.
fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The parts that a page has, in the format for an address.
pub(crate) fn has(parts: &[Part]) -> String {
    let all: Vec<String> = parts
        .iter()
        .map(|part| format!("{}-{}", part.name, hash(&part.html)))
        .collect();
    all.join(".")
}

fn parse_has(text: &str) -> BTreeMap<String, String> {
    text.split('.')
        .filter_map(|entry| entry.rsplit_once('-'))
        .map(|(name, hash)| (name.to_owned(), hash.to_owned()))
        .collect()
}

/// A part as an event, without its id. Lines end at `\r` as well, as those of HTML do: a text in a page must not end a
/// line of ours.
fn event(name: &str, html: &str) -> Bytes {
    let mut event = format!("event: {name}\n");
    for line in html.replace("\r\n", "\n").split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    Bytes::from(event)
}

/// Makes a page's parts again.
struct Again {
    ui: Ui,
    head: axum::http::request::Parts,
    target: String,
    has: BTreeMap<String, String>,
    /// The page that is shared with other viewers, and the properties for which it was made.
    shown: Option<(Looks, Arc<Shown>)>,
    /// When what the browser has was made.
    given: Option<Instant>,
    /// The browser was told that the page cannot be made.
    away: bool,
    open: Open,
}

enum News {
    Events(Vec<Bytes>, Beat),
    /// The page is not for this viewer any more, or not there.
    Over(&'static str),
}

impl Again {
    /// What has changed up to `due`, or later.
    async fn make(&mut self, due: Instant) -> News {
        let mut head = self.head.clone();
        let Ok(uri) = self.target.parse() else {
            return News::Over("gone");
        };
        head.uri = uri;
        head.method = Method::GET;
        // A session that has ended meanwhile ends this, too.
        let viewer = match self.ui.host.admit(&mut head).await {
            Ok(viewer) => viewer,
            Err(turned) if matches!(turned.status, 401 | 403) => return News::Over("signed-out"),
            Err(_) => return self.away(),
        };
        let ctx = Ctx::new(self.ui.clone(), viewer, head, Bytes::new());
        let looks = looks_of(&ctx, &self.target);
        self.shown.take_if(|(same, _)| *same != looks);
        let pulse = &self.ui.pulse;
        let (_, shown) = self.shown.get_or_insert_with(|| (looks.clone(), pulse.shown(looks)));
        let due = self.given.map_or(due, |given| due.max(given));
        let made = shown.since(due, parts_of(&ctx)).await;
        self.given = Some(made.begun);
        let (parts, beat) = match &made.what {
            What::Parts(parts, beat) => (parts, *beat),
            What::Gone => return News::Over("gone"),
            What::Away => return self.away(),
        };
        let mut events = Vec::new();
        if std::mem::take(&mut self.away) {
            events.push(Bytes::from_static(b"event: here\ndata: 1\n\n"));
        }
        for part in parts {
            if self.has.get(part.name) == Some(&part.hash) {
                continue;
            }
            self.has.insert(part.name.to_owned(), part.hash.clone());
            let id: Vec<String> = self.has.iter().map(|(name, hash)| format!("{name}-{hash}")).collect();
            events.push(Bytes::from(format!("id: {}\n", id.join("."))));
            events.push(part.event.clone());
        }
        News::Events(events, beat)
    }

    fn away(&mut self) -> News {
        self.away = true;
        News::Events(vec![Bytes::from_static(b"event: away\ndata: 1\n\n")], Beat::Cluster)
    }
}

fn looks_of(ctx: &Ctx, target: &str) -> Looks {
    let Viewer { role, dev, .. } = ctx.viewer;
    Looks {
        target: target.to_owned(),
        role,
        dev,
        lang: ctx.lang,
        zone: ctx.zone,
        theme: ctx.theme,
    }
}

/// Makes a page, for its parts.
async fn parts_of(ctx: &Ctx) -> What {
    match pages::page(ctx).await {
        Ok(_) => What::Parts(ctx.take_parts().iter().map(Ready::of).collect(), ctx.beat()),
        Err(trouble) if trouble.status == 404 => What::Gone,
        Err(_) => What::Away,
    }
}

/// The changes of a page, as long as it is open.
pub(crate) async fn stream(ctx: Ctx) -> Response {
    let Some(open) = Open::new(&ctx.ui) else {
        let mut response = Response::new("too many pages are open; close some of them".into());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return response;
    };
    let at = ctx.q("at").unwrap_or("/").to_owned();
    if !at.starts_with('/') || at.starts_with("//") || at.starts_with("/live") {
        let mut response = Response::new("`at` must be the address of a page".into());
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    }
    let has = ctx.header("last-event-id").or(ctx.q("has")).unwrap_or_default();
    let again = Again {
        has: parse_has(has),
        ui: ctx.ui.clone(),
        head: ctx.head().clone(),
        target: at,
        shown: None,
        given: None,
        away: false,
        open,
    };
    let left = ctx.ui.host.left(ctx.head());
    let brief = ctx.q("brief").is_some();
    let here: &[u8] = if brief {
        b"retry: 5000\nevent: here\ndata: 1\n\n"
    } else {
        b"retry: 1000\nevent: here\ndata: 1\n\n"
    };
    let pulse = Pulse::listen(&ctx.ui);
    let state = Stream {
        again,
        pulse,
        left,
        queue: VecDeque::from([Bytes::from_static(here)]),
        gap: GAP,
        brief,
        beat: Beat::Cluster,
        run: None,
        made: None,
        over: false,
    };
    events(futures::stream::unfold(state, |mut stream| async move {
        let event: Bytes = stream.next().await?;
        Some((Ok(event), stream))
    }))
}

/// The stream of a page whose session has ended, to a page that was not listening then (nobody was looking at it). It is
/// told, and asks to sign in. A browser does not pass the status of a refused stream on to the page, which would only
/// try again.
pub(crate) fn signed_out() -> Response {
    let said = Bytes::from_static(b"event: over\ndata: signed-out\n\n");
    events(futures::stream::once(std::future::ready(Ok(said))))
}

/// An answer whose body goes on, such as a stream of events.
fn events(stream: impl futures::Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(stream));
    let fixed = HeaderValue::from_static;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, fixed("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, fixed("no-store"));
    // Proxies that would gather it first are asked not to.
    headers.insert("x-accel-buffering", fixed("no"));
    response
}

/// The stream to one browser.
struct Stream {
    again: Again,
    pulse: watch::Receiver<Instant>,
    /// Completes when the viewer is not admitted any more.
    left: BoxFuture<'static, ()>,
    queue: VecDeque<Bytes>,
    /// How long the next update has to wait.
    gap: Duration,
    beat: Beat,
    /// The run that the page is about, and when it changed last.
    run: Option<(Uuid, watch::Receiver<Instant>)>,
    /// When the page was looked at last.
    made: Option<Instant>,
    /// The stream ends when it has sent the changes until now.
    brief: bool,
    over: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            let answered = self.brief && self.made.is_some();
            if self.over || answered || self.again.open.0.engine.is_leaving() {
                return None;
            }
            // The first answer is made now: nobody goes back to a state before the page that they have.
            let mut due = Instant::now();
            if let Some(made) = self.made {
                let (ui, pulse, run, beat) = (&self.again.ui, &mut self.pulse, &mut self.run, self.beat);
                let (away, gap) = (self.again.away, self.gap);
                let moved = async {
                    tokio::time::sleep(gap).await;
                    tokio::select! {
                        changed = wait(ui, pulse, run, beat) => changed,
                        () = tokio::time::sleep(AWAY_EVERY), if away => Some(Instant::now()),
                    }
                };
                let changed = tokio::select! {
                    biased;
                    () = &mut self.left => {
                        self.end("signed-out");
                        continue;
                    }
                    changed = moved => changed,
                };
                due = match changed {
                    Some(at) => at,
                    None if made.elapsed() < ANYWAY_EVERY => return Some(Bytes::from_static(b": here\n\n")),
                    None => Instant::now().checked_sub(ANYWAY_AGE).unwrap_or(due),
                };
            }
            self.made = Some(Instant::now());
            match self.again.make(due).await {
                News::Events(events, beat) => {
                    if let Beat::Run(run) = beat
                        && let Some(made) = self.again.given
                        && self.run.as_ref().is_none_or(|(listened, _)| *listened != run)
                    {
                        self.run = Some((run, self.again.ui.pulse.listen_to(run, made)));
                    }
                    self.beat = beat;
                    self.gap = gap_behind(&events);
                    self.queue.extend(events);
                }
                News::Over(why) => self.end(why),
            }
        }
    }

    /// Sends the reason why no more events follow, and ends the stream.
    fn end(&mut self, why: &str) {
        self.queue
            .push_back(Bytes::from(format!("event: over\ndata: {why}\n\n")));
        self.over = true;
    }
}

/// How long the update behind these events has to wait.
fn gap_behind(events: &[Bytes]) -> Duration {
    let bytes: usize = events.iter().map(Bytes::len).sum();
    Duration::from_micros(bytes as u64 / 1_024 * MICROS_FOR_KIB).clamp(GAP, GAP_MAX)
}

/// Waits until the page may have changed, and tells when it did; `None`: nothing but time has passed.
async fn wait(
    ui: &Ui,
    pulse: &mut watch::Receiver<Instant>,
    run: &mut Option<(Uuid, watch::Receiver<Instant>)>,
    beat: Beat,
) -> Option<Instant> {
    if beat == Beat::Still {
        tokio::time::sleep(KEEP_ALIVE).await;
        return None;
    }
    // The watcher has ended: another is begun.
    if pulse.has_changed().is_err() {
        *pulse = Pulse::listen(ui);
        tokio::time::sleep(LOOK_EVERY).await;
        return Some(Instant::now());
    }
    let (changes, bell) = match (beat, run) {
        (Beat::Run(id), Some((_, changes))) => (changes, Some(ui.engine.watch(RunId(id)))),
        _ => (pulse, None),
    };
    let rung = async {
        match &bell {
            Some(bell) => bell.rung().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = rung => Some(Instant::now()),
        changed = changes.changed() => match changed {
            Ok(()) => Some(*changes.borrow_and_update()),
            // The sender is gone: this counts as a change.
            Err(_) => Some(Instant::now()),
        },
        () = tokio::time::sleep(KEEP_ALIVE) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_has_is_read_back() {
        let parts = [
            Part {
                name: "attention",
                html: "<p>1</p>".into(),
            },
            Part {
                name: "run-head",
                html: "<p>2</p>".into(),
            },
        ];
        let read = parse_has(&has(&parts));
        assert_eq!(read.len(), 2);
        assert_eq!(read["run-head"], hash("<p>2</p>"));
        assert!(parse_has("").is_empty() && parse_has("x").is_empty());
    }

    #[test]
    fn a_large_update_holds_the_next_one_back() {
        let gap = |sizes: &[usize]| {
            let events: Vec<Bytes> = sizes.iter().map(|size| vec![b'x'; *size].into()).collect();
            gap_behind(&events).as_millis()
        };
        assert_eq!((gap(&[]), gap(&[1_000, 9_000])), (250, 250));
        assert_eq!((gap(&[32 << 10]), gap(&[32 << 10, 32 << 10])), (500, 1_000));
        assert_eq!(gap(&[10 << 20]), 2_000);
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

    #[tokio::test]
    async fn a_page_is_made_once_for_all_who_look_at_the_same() {
        let shown = Arc::new(Shown::default());
        let another = shown.clone();
        let made = std::cell::Cell::new(0);
        let make = || async {
            made.set(made.get() + 1);
            tokio::time::sleep(Duration::from_millis(50)).await;
            What::Parts(Vec::new(), Beat::Cluster)
        };
        let changed = Instant::now();
        // Five hundred pages are signalled by one change.
        let all = futures::future::join_all((0..500).map(|_| shown.since(changed, make()))).await;
        assert_eq!(made.get(), 1);
        assert!(all.iter().all(|one| one.begun >= changed));
        // A change while a page is being made is not in it.
        let later = Instant::now();
        assert!(shown.since(later, make()).await.begun >= later);
        assert_eq!(made.get(), 2);
        // And a page that only knew of the first change gets the newer one.
        assert!(shown.since(changed, make()).await.begun >= later);
        assert_eq!(made.get(), 2);
        // Nothing is kept for the one who is left.
        drop(another);
        shown.since(Instant::now(), make()).await;
        assert!(shown.0.lock().await.is_none());
    }

    #[tokio::test]
    async fn that_a_page_cannot_be_made_is_found_once_for_all_who_wait() {
        let shown = Arc::new(Shown::default());
        let _another = shown.clone();
        let tried = std::cell::Cell::new(0);
        let fail = || async {
            tried.set(tried.get() + 1);
            tokio::time::sleep(Duration::from_millis(50)).await;
            What::Away
        };
        let due = Instant::now();
        let all = futures::future::join_all((0..500).map(|_| shown.since(due, fail()))).await;
        assert!(tried.get() == 1 && all.iter().all(|one| matches!(one.what, What::Away)));
        // A later request tries again.
        let now = shown.since(Instant::now(), async { What::Gone }).await;
        assert!(matches!(now.what, What::Gone));
    }

    /// What a browser makes of events, by the HTML standard: their types and their data.
    fn read(stream: &str) -> Vec<(String, String)> {
        let (mut events, mut kind, mut data) = (Vec::new(), String::new(), String::new());
        for line in stream.replace("\r\n", "\n").split(['\n', '\r']) {
            match line.split_once(": ") {
                None if data.is_empty() => kind.clear(),
                None => {
                    data.pop();
                    events.push((std::mem::take(&mut kind), std::mem::take(&mut data)));
                }
                Some(("event", value)) => kind = value.to_owned(),
                Some(("data", value)) => data = format!("{data}{value}\n"),
                Some(_) => {}
            }
        }
        events
    }

    #[test]
    fn what_stands_in_a_part_stays_in_its_event() {
        for (html, shown) in [
            ("<p>1</p>\n<p>2</p>", "<p>1</p>\n<p>2</p>"),
            ("<pre>a\r\nb</pre>\n", "<pre>a\nb</pre>\n"),
            ("10%\r20%", "10%\n20%"),
            (
                "\r\revent: over\rdata: signed-out\r\r",
                "\n\nevent: over\ndata: signed-out\n\n",
            ),
            ("", ""),
        ] {
            let event = event("a", html);
            let read = read(std::str::from_utf8(&event).unwrap());
            assert_eq!(read, [("a".to_owned(), shown.to_owned())], "{html:?}");
        }
    }
}
