//! The stream of events to one browser.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::part::parse_has;
use super::pulse::{Changes, KEEP_ALIVE, Open, Pulse, wait};
use super::said::{before, events, goes_on, greeting, here};
use super::session;
use super::shown::{Looks, Shown, What, looks_of, parts_of};
use crate::ctx::Beat;
use crate::{Ctx, Ui};

/// The minimum time between two updates of a page.
const GAP: Duration = Duration::from_millis(250);
/// The maximum of that time, however large the first of the two updates was.
const GAP_MAX: Duration = Duration::from_secs(2);
/// The time after an update for each KiB of it, in microseconds: a page is sent at most 64 KiB per second, between the
/// two limits above.
const MICROS_FOR_KIB: u64 = 1_000_000 / 64;
/// How often a page is made again although nothing seems to have changed.
const ANYWAY_EVERY: Duration = Duration::from_secs(60);
/// Instead of making a page again without a change, a node may send what it has made for another viewer within this time.
const ANYWAY_AGE: Duration = Duration::from_secs(10);
/// How soon a page that could not be made is tried again.
const AWAY_EVERY: Duration = Duration::from_secs(2);

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
    /// The browser has to hear that the page is up to date: it has not been told yet, or was told that the page cannot be
    /// made.
    away: bool,
}

enum News {
    /// What has changed, when the page changes, and how often it does so with time alone.
    Events(Vec<Bytes>, Beat, Option<Duration>),
    /// The page is not for this viewer any more, or not there.
    Over(&'static str),
}

impl Again {
    /// What has changed up to `due`, or later; or that the database is away, without a wait for what it does not answer.
    async fn make(&mut self, due: Instant) -> News {
        let ui = self.ui.clone();
        tokio::select! {
            biased;
            () = ui.pulse.is_away() => self.away(),
            news = self.made(due) => news,
        }
    }

    async fn made(&mut self, due: Instant) -> News {
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
        let mut ctx = Ctx::new(self.ui.clone(), viewer, head, Bytes::new());
        ctx.is_open = true;
        let looks = looks_of(&ctx, &self.target);
        self.shown.take_if(|(same, _)| *same != looks);
        let pulse = &self.ui.pulse;
        let (_, shown) = self.shown.get_or_insert_with(|| (looks.clone(), pulse.shown(looks)));
        let due = self.given.map_or(due, |given| due.max(given));
        let made = shown.since(due, parts_of(&ctx)).await;
        self.given = Some(made.begun);
        let (parts, beat, pace) = match &made.what {
            What::Parts(parts, beat, pace) => (parts, *beat, *pace),
            What::Gone => return News::Over("gone"),
            What::Away => return self.away(),
        };
        let mut events = Vec::new();
        for part in parts {
            if self.has.get(part.name) == Some(&part.hash) {
                continue;
            }
            self.has.insert(part.name.to_owned(), part.hash.clone());
            let id: Vec<String> = self.has.iter().map(|(name, hash)| format!("{name}-{hash}")).collect();
            events.push(Bytes::from(format!("id: {}\n", id.join("."))));
            events.push(part.event.clone());
        }
        if std::mem::take(&mut self.away) {
            events.push(here());
        }
        News::Events(events, beat, pace)
    }

    fn away(&mut self) -> News {
        self.away = true;
        let seconds = self.ui.pulse.away_for().as_secs();
        let event = format!("event: away\ndata: {seconds}\n\n");
        News::Events(vec![Bytes::from(event)], Beat::Cluster, None)
    }
}

/// The changes of a page, as long as it is open.
pub(crate) async fn stream(ctx: Ctx) -> Response {
    let Some(open) = Open::new(&ctx.ui) else {
        let mut response = Response::new("too many pages are open; close some of them".into());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return response;
    };
    let brief = ctx.q("brief").is_some();
    if ctx.q("session").is_some() {
        return session::stream(&ctx, open, brief);
    }
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
        away: true,
    };
    let left = ctx.ui.host.left(ctx.head());
    let pulse = Pulse::listen(&ctx.ui);
    let state = Stream {
        _open: open,
        ui: again.ui.clone(),
        again: Some(again),
        making: None,
        pulse,
        left,
        queue: VecDeque::from([greeting(brief)]),
        said: Instant::now(),
        gap: GAP,
        brief,
        beat: Beat::Cluster,
        pace: None,
        run: None,
        made: None,
        over: false,
    };
    events(futures::stream::unfold(state, |mut stream| async move {
        let event: Bytes = stream.next().await?;
        Some((Ok(event), stream))
    }))
}

/// The stream to one browser.
struct Stream {
    /// The page counts as open as long as there is the stream.
    _open: Open,
    ui: Ui,
    /// `None` while the page is made.
    again: Option<Again>,
    making: Option<BoxFuture<'static, (Again, News)>>,
    pulse: Changes,
    /// Completes when the viewer is not admitted any more.
    left: BoxFuture<'static, ()>,
    queue: VecDeque<Bytes>,
    /// When the last event was sent.
    said: Instant,
    /// How long the next update has to wait.
    gap: Duration,
    beat: Beat,
    /// How often the page is made again because it changes with time alone.
    pace: Option<Duration>,
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
                self.said = Instant::now();
                return Some(event);
            }
            if self.making.is_some() {
                self.wait_for_news().await;
                continue;
            }
            let answered = self.brief && self.made.is_some();
            let Some(again) = &self.again else { return None };
            if self.over || answered || self.ui.engine.is_leaving() {
                return None;
            }
            // The first answer is made now: nobody goes back to a state before the page that they have.
            let mut due = Instant::now();
            if let Some(made) = self.made {
                let (ui, pulse, run, beat) = (&self.ui, &mut self.pulse, &mut self.run, self.beat);
                let (away, gap, pace) = (again.away, self.gap, self.pace);
                let passes = made + pace.unwrap_or(ANYWAY_EVERY);
                let moved = async {
                    tokio::time::sleep(gap).await;
                    tokio::select! {
                        changed = wait(ui, pulse, run, beat) => changed,
                        () = tokio::time::sleep(AWAY_EVERY), if away => Instant::now(),
                        () = ui.pulse.is_away(), if !away => Instant::now(),
                        () = tokio::time::sleep_until(passes), if pace.is_some() => of_pace(pace),
                    }
                };
                // Also if the page is made all the time: what does not change is not sent.
                let quiet = tokio::time::sleep_until(self.said + KEEP_ALIVE);
                let changed = tokio::select! {
                    biased;
                    () = &mut self.left => {
                        self.end("signed-out");
                        continue;
                    }
                    changed = moved => Some(changed),
                    () = quiet => None,
                };
                due = match changed {
                    Some(at) => at,
                    None if !away && made.elapsed() < ANYWAY_EVERY => {
                        self.queue.push_back(here());
                        continue;
                    }
                    None => Instant::now().checked_sub(ANYWAY_AGE).unwrap_or(due),
                };
            }
            self.made = Some(Instant::now());
            self.making = self.again.take().map(|mut again| {
                let making: BoxFuture<'static, _> = Box::pin(async move {
                    let news = again.make(due).await;
                    (again, news)
                });
                making
            });
        }
    }

    /// Waits until the page is made. If that takes long, the page hears meanwhile that its stream goes on.
    async fn wait_for_news(&mut self) {
        let Some(making) = &mut self.making else { return };
        let quiet = tokio::time::sleep_until(self.said + KEEP_ALIVE);
        let (again, news) = tokio::select! {
            biased;
            () = &mut self.left => {
                self.making = None;
                return self.end("signed-out");
            }
            made = making => made,
            () = quiet => return self.queue.push_back(goes_on()),
        };
        self.making = None;
        match news {
            News::Events(events, beat, pace) => {
                self.pace = pace;
                if let Beat::Run(run) = beat
                    && let Some(made) = again.given
                    && self.run.as_ref().is_none_or(|(listened, _)| *listened != run)
                {
                    self.run = Some((run, self.ui.pulse.listen_to(run, made)));
                }
                self.beat = beat;
                self.gap = gap_behind(&events);
                let before = before(&events);
                let is_large = before.is_some();
                self.queue.extend(before);
                self.queue.extend(events);
                // The longer time that was promised for it is over.
                self.queue.extend(is_large.then(goes_on));
            }
            News::Over(why) => self.end(why),
        }
        self.again = Some(again);
    }

    /// Sends the reason why no more events follow, and ends the stream.
    fn end(&mut self, why: &str) {
        self.queue
            .push_back(Bytes::from(format!("event: over\ndata: {why}\n\n")));
        self.over = true;
    }
}

/// For a page that changes with time alone, how new its parts have to be: what was made for another viewer just now will do.
fn of_pace(pace: Option<Duration>) -> Instant {
    let now = Instant::now();
    now.checked_sub(pace.unwrap_or_default() / 2).unwrap_or(now)
}

/// How long the update behind these events has to wait.
fn gap_behind(events: &[Bytes]) -> Duration {
    let bytes: usize = events.iter().map(Bytes::len).sum();
    Duration::from_micros(bytes as u64 / 1_024 * MICROS_FOR_KIB).clamp(GAP, GAP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
