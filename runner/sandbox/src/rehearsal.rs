//! Rehearsals: attempts that an author tries out, with their own clock and chance, and with a substitute for the world
//! that answers requests and statements. An attempt of a node has none of this.

use bytes::Bytes;
use futures::future::BoxFuture;
use heddle_domain::clock::to_micros;
use heddle_domain::{Clock, Time};
use rand::TryRng;
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;
use tokio::sync::Notify;
use wasmtime::component::{HasData, Resource};
use wasmtime_wasi::clocks::WasiClocksCtxView;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

/// What an attempt gets instead of the time, chance and the world.
#[derive(Clone, Default)]
pub struct Rehearsal {
    /// The script's clocks begin here and stand still, except that they advance by the script's waits; a wait takes no
    /// time. Those of a WASI 0.1 command advance with real time, and its waits take their time. Not before 1970.
    pub now: Option<Time>,
    /// With `now`: waits take their time, because somebody real is asked in between.
    pub paced: bool,
    /// All random values of the script come from this, and are the same in each rehearsal.
    pub seed: Option<u64>,
    /// Answers requests and statements.
    pub exchanges: Option<Arc<dyn Exchanges>>,
}

/// Answers requests and statements instead of the world, or is told the world's answers. It is called on guest threads
/// and on I/O threads: it must not block.
pub trait Exchanges: Send + Sync {
    /// The answer to a request, or why there is none. `None`: it is sent, as far as it is granted.
    fn request(&self, request: &WebRequest) -> Option<Result<WebAnswer, String>>;
    /// The result of a request that was sent.
    fn requested(&self, request: WebRequest, answer: &Result<WebAnswer, String>);
    /// The answer to a statement, or why there is none. `None`: it is executed, as far as it is granted.
    fn statement(&self, statement: &SqlStatement) -> Option<Result<SqlAnswer, String>>;
    /// The result of a statement that was executed.
    fn stated(&self, statement: SqlStatement, answer: &Result<SqlAnswer, String>);
}

/// One request: each redirect that is followed is a separate one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebRequest {
    /// The HTTP method in capital letters.
    pub method: String,
    /// The whole address, with its query.
    pub url: String,
    /// The sent body; empty if there is none.
    pub body: Bytes,
}

/// The answer of a server, or that of a test case in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebAnswer {
    pub status: u16,
    /// In the server's order; a name may occur more than once.
    pub headers: Vec<(String, String)>,
    /// The whole body; empty for a redirect that is followed.
    pub body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlStatement {
    pub connection: String,
    /// As the script wrote it.
    pub statement: String,
    /// A JSON array as text.
    pub params: String,
    /// Whether its rows are wanted; otherwise the number of changed rows.
    pub rows: bool,
}

/// The answer of a database, or that of a test case in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlAnswer {
    /// A JSON array of objects.
    Rows(String),
    /// How many rows were changed.
    Count(u64),
}

impl SqlAnswer {
    pub(crate) fn rows(self) -> String {
        match self {
            Self::Rows(rows) => rows,
            Self::Count(_) => "[]".into(),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Rows(_) => 0,
            Self::Count(count) => *count,
        }
    }
}

/// A clock that stands still unless somebody waits.
#[derive(Debug)]
pub(crate) struct StageClock {
    start: Time,
    moved_nanos: AtomicU64,
    paced: bool,
    /// The clock that it follows, and since when.
    follows: Option<(Arc<dyn Clock>, Time)>,
    /// Open requests: time does not advance before they are answered.
    asking: AtomicUsize,
    answered: Notify,
}

impl StageClock {
    pub fn new(start: Time, paced: bool, follows: Option<Arc<dyn Clock>>) -> Self {
        Self {
            start,
            moved_nanos: AtomicU64::new(0),
            paced,
            follows: follows.map(|clock| {
                let since = clock.now();
                (clock, since)
            }),
            asking: AtomicUsize::new(0),
            answered: Notify::new(),
        }
    }

    /// Nanoseconds since it began.
    pub fn nanos(&self) -> u64 {
        let followed = self.follows.as_ref().map_or(0, |(clock, since)| {
            let nanos = (clock.now() - *since).num_nanoseconds().unwrap_or_default();
            nanos.max(0).cast_unsigned()
        });
        self.moved_nanos.load(Acquire).saturating_add(followed)
    }

    /// Waits until the clock shows this, or advances the clock.
    pub async fn wait_until(&self, nanos: u64) {
        self.all_answered().await;
        if self.paced {
            let wait = nanos.saturating_sub(self.nanos());
            tokio::time::sleep(Duration::from_nanos(wait)).await;
        }
        self.moved_nanos.fetch_max(nanos, AcqRel);
    }

    async fn all_answered(&self) {
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            if self.asking.load(Acquire) == 0 {
                return;
            }
            answered.await;
        }
    }

    /// Somebody is asked, until the result is dropped.
    pub fn ask(self: &Arc<Self>) -> Asking {
        self.asking.fetch_add(1, AcqRel);
        Asking(Arc::clone(self))
    }
}

impl Clock for StageClock {
    fn now(&self) -> Time {
        let nanos = i64::try_from(self.nanos()).unwrap_or(i64::MAX);
        let now = self.start.checked_add_signed(chrono::TimeDelta::nanoseconds(nanos));
        to_micros(now.unwrap_or(self.start))
    }
}

/// A guest waits for an answer, from [`StageClock::ask`].
pub(crate) struct Asking(Arc<StageClock>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, AcqRel);
        self.0.answered.notify_waiters();
    }
}

/// The clock as guests of wasmtime-wasi read it.
pub(crate) struct StageTime(pub Arc<StageClock>);

/// Its reported resolution: it is cut to microseconds.
const RESOLUTION: Duration = Duration::from_micros(1);

impl HostWallClock for StageTime {
    fn resolution(&self) -> Duration {
        RESOLUTION
    }

    fn now(&self) -> Duration {
        let micros = Clock::now(&*self.0).timestamp_micros();
        Duration::from_micros(micros.max(0).cast_unsigned())
    }
}

impl HostMonotonicClock for StageTime {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        self.0.nanos()
    }
}

/// `wasi:clocks/monotonic-clock` of components: that of wasmtime-wasi, unless the attempt is a rehearsal.
pub(crate) struct Monotonic<'a> {
    pub clocks: WasiClocksCtxView<'a>,
    pub stage: Option<Arc<StageClock>>,
}

/// Marks its functions as working on a [`Monotonic`].
pub(crate) struct HasMonotonic;

impl HasData for HasMonotonic {
    type Data<'a> = Monotonic<'a>;
}

impl monotonic_clock::Host for Monotonic<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        self.clocks.now()
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        monotonic_clock::Host::resolution(&mut self.clocks)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        match &self.stage {
            Some(stage) => {
                let wait = Wait {
                    stage: Arc::clone(stage),
                    until_nanos: when,
                };
                let wait = self.clocks.table.push(wait)?;
                subscribe(self.clocks.table, wait)
            }
            None => self.clocks.subscribe_instant(when),
        }
    }

    fn subscribe_duration(&mut self, nanos: u64) -> wasmtime::Result<Resource<DynPollable>> {
        match &self.stage {
            Some(stage) => {
                let until = stage.nanos().saturating_add(nanos);
                self.subscribe_instant(until)
            }
            None => self.clocks.subscribe_duration(nanos),
        }
    }
}

struct Wait {
    stage: Arc<StageClock>,
    until_nanos: u64,
}

#[wasmtime_wasi::async_trait]
impl Pollable for Wait {
    async fn ready(&mut self) {
        self.stage.wait_until(self.until_nanos).await;
    }
}

/// The source of an attempt's random bytes.
pub(crate) enum Chance {
    System,
    Seeded(Draws),
}

impl Chance {
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        match self {
            Self::System => system(bytes),
            Self::Seeded(draws) => {
                draws.fill(bytes);
                Ok(())
            }
        }
    }
}

/// Fills a buffer from the system's random source.
fn system(bytes: &mut [u8]) -> Result<(), String> {
    // SAFETY: the pointer and the length are those of a live buffer.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(got) == Ok(bytes.len()) {
        Ok(())
    } else {
        Err("the system has no random bytes".into())
    }
}

/// The bytes that follow from a seed: SHA-256 of it and a counter, so that they are the same in every build.
pub(crate) struct Draws {
    seed: u64,
    /// Several sources share one seed; this number makes their bytes different.
    who: u8,
    next: u64,
    left: Vec<u8>,
}

impl Draws {
    pub fn new(seed: u64, who: u8) -> Self {
        Self {
            seed,
            who,
            next: 0,
            left: Vec::new(),
        }
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.left.is_empty() {
                let mut digest = Sha256::new();
                digest.update(self.seed.to_le_bytes());
                digest.update([self.who]);
                digest.update(self.next.to_le_bytes());
                self.next += 1;
                self.left = digest.finalize().to_vec();
            }
            *byte = self.left.pop().unwrap_or_default();
        }
    }
}

impl TryRng for Draws {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
}

/// A statement's answer from the substitute for the world, or else from `carry_out`; the substitute is told that one.
pub(crate) fn answered(
    exchanges: Option<&Arc<dyn Exchanges>>,
    statement: SqlStatement,
    carry_out: impl FnOnce(SqlStatement) -> Result<BoxFuture<'static, Result<SqlAnswer, String>>, String>,
) -> Result<BoxFuture<'static, Result<SqlAnswer, String>>, String> {
    let Some(exchanges) = exchanges else {
        return carry_out(statement);
    };
    if let Some(answer) = exchanges.statement(&statement) {
        return Ok(Box::pin(async move { answer }));
    }
    let (exchanges, kept) = (Arc::clone(exchanges), statement.clone());
    let answer = match carry_out(statement) {
        Ok(answer) => answer,
        Err(refused) => {
            exchanges.stated(kept, &Err(refused.clone()));
            return Err(refused);
        }
    };
    Ok(Box::pin(async move {
        let answer = answer.await;
        exchanges.stated(kept, &answer);
        answer
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_bytes_in_every_build() {
        let draw = |seed, who| {
            let mut bytes = [0; 40];
            Draws::new(seed, who).fill(&mut bytes);
            bytes
        };
        assert_eq!(draw(7, 0), draw(7, 0));
        assert!(draw(7, 0) != draw(8, 0) && draw(7, 0) != draw(7, 1));
        let mut draws = Draws::new(7, 0);
        let (mut first, mut second) = ([0; 13], [0; 27]);
        draws.fill(&mut first);
        draws.fill(&mut second);
        assert_eq!([&first[..], &second[..]].concat(), draw(7, 0));
    }

    #[tokio::test]
    async fn a_stage_clock_goes_on_by_what_is_waited() {
        let start: Time = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Arc::new(StageClock::new(start, false, None));
        assert_eq!(clock.now(), start);
        clock.wait_until(3_600_000_000_000).await;
        assert_eq!(clock.now(), start + chrono::TimeDelta::hours(1));
        clock.wait_until(1).await;
        assert_eq!(clock.now(), start + chrono::TimeDelta::hours(1));
        // Not while somebody is asked.
        let asking = clock.ask();
        let mut waiting = std::pin::pin!(clock.wait_until(7_200_000_000_000));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(asking);
        waiting.await;
        assert_eq!(clock.now(), start + chrono::TimeDelta::hours(2));
    }
}
