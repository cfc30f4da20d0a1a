//! Keeping open pages up to date.
//!
//! A page that has parts which may change opens `/live?at=<its address>&has=<what it has>`. Here the page's function runs
//! again, for the same viewer, whenever something may have changed, and the parts whose text is another are sent, each as
//! an event named like the part. What a browser has is known by short hashes, first of its address, later of what was
//! sent (`id` of the events), so that one that comes back gets what it missed and nothing else.
//!
//! When something may have changed:
//!
//! * a page about a run listens to the engine, which rings when the run moves on this node, and looks each second
//!   otherwise;
//! * all other pages listen to one watcher per node, which reads a fingerprint of the cluster twice a second for as long
//!   as any page is open: the newest change and run, and how often the tables that work passes through have been
//!   written to. It costs the same whether one page is open or five hundred.
//!
//! Between two updates of a page is a quarter of a second at least.
//!
//! A proxy that gathers what it passes on hands out nothing of an answer that does not end. A page that hears nothing asks
//! for answers that do (`&brief=1`): what has changed until now, and when to ask again, which browsers do by themselves.
//!
//! A page ends with what its viewer has shown: a token that is revoked or a session that is ended, on whatever node, is
//! told by the log of changes ([`crate::Host::left`]); the browser then loads the page anew, is asked to sign in, and is led
//! back to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use heddle_domain::id::RunId;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::ctx::{Beat, Part};
use crate::{Ctx, Ui, answer, pages};

/// Pages that one node keeps up to date; more are told to come back, and stay as they are.
const PAGES_MAX: usize = 5_000;
/// The least between two updates of a page.
const GAP: Duration = Duration::from_millis(250);
/// How often the fingerprint is read while a page is open.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a page is made again although nothing seems to have changed.
const ANYWAY_EVERY: Duration = Duration::from_secs(60);
/// How often a page about a run looks by itself, and one about a run that has ended.
const RUN_EVERY: Duration = Duration::from_secs(1);
/// A comment, so that proxies and browsers know that the connection stands.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Tells pages that something may have changed.
#[derive(Default)]
pub(crate) struct Pulse {
    open: AtomicUsize,
    watcher: Mutex<Option<watch::Receiver<u64>>>,
}

impl Pulse {
    /// Listens; the first to do so starts the watcher, which ends when nobody does.
    fn listen(ui: &Ui) -> watch::Receiver<u64> {
        let mut watcher = ui.pulse.watcher.lock();
        if let Some(receiver) = watcher.as_ref().filter(|receiver| receiver.has_changed().is_ok()) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(0);
        *watcher = Some(receiver.clone());
        let ui = ui.clone();
        tokio::spawn(async move {
            let mut last = None;
            let mut beats = 0_u64;
            while ui.pulse.open.load(Ordering::Relaxed) > 0 && !ui.engine.is_leaving() {
                let counted = ui.engine.counters();
                let seen = match ui.engine.store().page_fingerprint().await {
                    Ok(fingerprint) => Some((fingerprint, format!("{counted:?}"))),
                    // The pages are made again, and say that the database is away.
                    Err(_) => None,
                };
                if seen != last {
                    beats += 1;
                    let _ = sender.send(beats);
                    last = seen;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        receiver
    }
}

/// One open page.
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

/// A part's text in a few letters.
fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What a page has, as it stands in an address.
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

/// A part as an event. Lines end at `\r` as well, as those of HTML do: what stands in a page must not end one for us.
fn event(id: &str, name: &str, html: &str) -> Bytes {
    let mut event = format!("id: {id}\nevent: {name}\n");
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
    open: Open,
}

enum Made {
    /// Events, maybe none.
    Events(Vec<Bytes>, Beat),
    /// The page is not for this viewer any more, or not there.
    Over(&'static str),
}

impl Again {
    async fn make(&mut self) -> Made {
        let mut head = self.head.clone();
        let Ok(uri) = self.target.parse() else {
            return Made::Over("gone");
        };
        head.uri = uri;
        head.method = Method::GET;
        // A session that has ended meanwhile ends this, too.
        let viewer = match self.ui.host.admit(&mut head).await {
            Ok(viewer) => viewer,
            Err(turned) if matches!(turned.status, 401 | 403) => return Made::Over("signed-out"),
            Err(_) => return Made::Events(vec![Bytes::from_static(b"event: away\ndata: 1\n\n")], Beat::Cluster),
        };
        let ctx = Ctx::new(self.ui.clone(), viewer, head, Bytes::new());
        match pages::page(&ctx).await {
            Ok(_) => {}
            Err(trouble) if trouble.status == 404 => return Made::Over("gone"),
            Err(_) => return Made::Events(vec![Bytes::from_static(b"event: away\ndata: 1\n\n")], Beat::Cluster),
        }
        let beat = ctx.beat();
        let mut events = Vec::new();
        for part in ctx.take_parts() {
            let now = hash(&part.html);
            if self.has.get(part.name) == Some(&now) {
                continue;
            }
            self.has.insert(part.name.to_owned(), now);
            let id: Vec<String> = self.has.iter().map(|(name, hash)| format!("{name}-{hash}")).collect();
            events.push(event(&id.join("."), part.name, &part.html));
        }
        Made::Events(events, beat)
    }
}

/// The changes of a page, for as long as somebody looks at it.
pub(crate) async fn stream(ctx: Ctx) -> Response {
    let Some(open) = Open::new(&ctx.ui) else {
        let mut response = Response::new("too many pages are open".into());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return response;
    };
    let at = ctx.q("at").unwrap_or("/").to_owned();
    if !at.starts_with('/') || at.starts_with("//") || at.starts_with("/live") {
        let mut response = Response::new("`at` is the address of a page".into());
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    }
    let has = ctx.header("last-event-id").or(ctx.q("has")).unwrap_or_default();
    let again = Again {
        has: parse_has(has),
        ui: ctx.ui.clone(),
        head: ctx.head().clone(),
        target: at,
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
        brief,
        beat: Beat::Cluster,
        made: None,
        over: false,
    };
    answer::events(futures::stream::unfold(state, |mut stream| async move {
        let event: Bytes = stream.next().await?;
        Some((Ok(event), stream))
    }))
}

/// What goes to one browser.
struct Stream {
    again: Again,
    pulse: watch::Receiver<u64>,
    /// Completes when whoever looks may do so no more.
    left: BoxFuture<'static, ()>,
    queue: VecDeque<Bytes>,
    beat: Beat,
    /// When the page was made last.
    made: Option<tokio::time::Instant>,
    /// It ends when what has changed until now has been told.
    brief: bool,
    over: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            let told = self.brief && self.made.is_some();
            if self.over || told || self.again.open.0.engine.is_leaving() {
                return None;
            }
            if let Some(made) = self.made {
                let (ui, pulse, beat) = (&self.again.ui, &mut self.pulse, self.beat);
                let moved = async {
                    tokio::time::sleep(GAP).await;
                    wait(ui, pulse, beat).await
                };
                let quiet = tokio::select! {
                    biased;
                    () = &mut self.left => {
                        self.end("signed-out");
                        continue;
                    }
                    quiet = moved => quiet,
                };
                if quiet && made.elapsed() < ANYWAY_EVERY {
                    return Some(Bytes::from_static(b": here\n\n"));
                }
            }
            self.made = Some(tokio::time::Instant::now());
            match self.again.make().await {
                Made::Events(events, beat) => {
                    self.beat = beat;
                    self.queue.extend(events);
                }
                Made::Over(why) => self.end(why),
            }
        }
    }

    /// Says why nothing more will come.
    fn end(&mut self, why: &str) {
        self.queue
            .push_back(Bytes::from(format!("event: over\ndata: {why}\n\n")));
        self.over = true;
    }
}

/// Waits until the page may have changed; whether nothing but time has passed.
async fn wait(ui: &Ui, pulse: &mut watch::Receiver<u64>, beat: Beat) -> bool {
    match beat {
        Beat::Run(run) => {
            let watch = ui.engine.watch(RunId(run));
            watch.moved(RUN_EVERY).await;
            false
        }
        Beat::Still => {
            tokio::time::sleep(KEEP_ALIVE).await;
            true
        }
        Beat::Cluster => match tokio::time::timeout(KEEP_ALIVE, pulse.changed()).await {
            Ok(Ok(())) => false,
            // The watcher has ended: another is begun.
            Ok(Err(_)) => {
                *pulse = Pulse::listen(ui);
                tokio::time::sleep(LOOK_EVERY).await;
                false
            }
            Err(_) => true,
        },
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
            let event = event("a-1", "a", html);
            let read = read(std::str::from_utf8(&event).unwrap());
            assert_eq!(read, [("a".to_owned(), shown.to_owned())], "{html:?}");
        }
    }
}
