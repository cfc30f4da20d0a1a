//! What all routes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::{Chance, Clock};
use heddle_engine::{Engine, FairSlots};
use heddle_store::Store;
use heddle_store::secret::SecretKeys;
use tokio::sync::Semaphore;

use crate::access::provider::Provider;
use crate::access::{Rates, Signer, TokenCache};
use crate::fair_bytes::FairBytes;
use crate::kept::Kept;
use crate::metrics::Page;

/// The time zone of the clients of the compatibility calls, by default.
pub const COMPAT_ZONE_DEFAULT: chrono_tz::Tz = chrono_tz::Tz::Asia__Shanghai;

/// How many slow bodies of unknown callers a node reads at the same time, and how many of one address.
const UNKNOWN_SLOW_MAX: usize = 256;
const UNKNOWN_SLOW_OF_ONE_MAX: usize = 64;

/// How many uploads may wait for a slot: ten people who upload at once are no overload.
pub(crate) const UPLOADS_WAITING_MAX: usize = 64;

/// How many bytes the answers about ended runs that are kept may have together.
const ENDED_BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// How the API behaves; each bound can be configured.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// `heddle dev`: no tokens; instead Host and Origin must name this machine.
    pub dev: bool,
    /// Names, in addition to loopback ones, that Host and Origin may have in dev mode.
    pub dev_hosts: Vec<String>,
    /// Bytes of a JSON or YAML body.
    pub body_bytes_max: usize,
    /// Bytes of a batch of submissions.
    pub batch_bytes_max: usize,
    /// Bytes of a script.
    pub script_bytes_max: usize,
    /// How long a body may pause between two pieces.
    pub body_idle_timeout: Duration,
    /// How long a body may take altogether.
    pub body_timeout: Duration,
    /// Requests under way at once; more get 429. One caller gets three quarters of them.
    pub requests_max: usize,
    /// Requests that wait (`?wait=`) or follow (SSE) at once; more get 429. One caller gets three quarters of them.
    pub waits_max: usize,
    /// Uploads at once; some more wait, the rest gets 429. One caller gets half of them.
    pub uploads_max: usize,
    /// Bytes of memory that large bodies take together, with the values that are read from them; more get 429. One
    /// caller gets three quarters of them.
    pub bodies_bytes_max: usize,
    /// Bytes of large answers that have not been sent yet, together; more get 429. One caller gets three quarters of
    /// them.
    pub answers_bytes_max: usize,
    /// How long a request waits for some of these bytes.
    pub memory_wait: Duration,
    pub wait_max: Duration,
    /// The keys of short-lived tokens signed for one uid, at least 32 bytes each; none: there are no such tokens. The
    /// first one signs.
    pub device_keys: Vec<Vec<u8>>,
    /// The provider with which people sign in; `None`: they sign in with tokens.
    pub provider: Option<Arc<Provider>>,
    /// How many requests a second one token may make on this node; `None`: any number.
    pub rate_max: Option<u32>,
    /// The time zone of the clients of the compatibility calls.
    pub compat_zone: chrono_tz::Tz,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            dev: false,
            dev_hosts: Vec::new(),
            body_bytes_max: 4 * 1024 * 1024,
            batch_bytes_max: 32 * 1024 * 1024,
            script_bytes_max: heddle_store::blob::BLOB_BYTES_MAX,
            body_idle_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(300),
            requests_max: 1_024,
            waits_max: 10_000,
            uploads_max: 4,
            bodies_bytes_max: 512 * 1024 * 1024,
            answers_bytes_max: 512 * 1024 * 1024,
            memory_wait: Duration::from_secs(2),
            wait_max: Duration::from_secs(60),
            device_keys: Vec::new(),
            provider: None,
            rate_max: None,
            compat_zone: COMPAT_ZONE_DEFAULT,
        }
    }
}

/// What the API counts, for metrics.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Answers by the first digit of their status, from 1.
    answers: [AtomicU64; 5],
    in_flight: AtomicI64,
}

impl Counts {
    /// A request has come in.
    pub(crate) fn began(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// The request was answered (for a stream: the answer has begun).
    pub(crate) fn answered(&self, status: u16) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes its numbers to `/metrics`.
    pub(crate) fn tell(&self, page: &Page) {
        let class = ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter();
        page.counters(
            "heddle_http_answers_total",
            "Answers of the API, by class of HTTP status.",
            "status",
            class.zip(self.answers.iter().map(|count| count.load(Ordering::Relaxed))),
        );
        page.gauge(
            "heddle_http_requests_in_flight",
            "Requests that have not been answered yet.",
            self.in_flight.load(Ordering::Relaxed).max(0) as f64,
        );
    }
}

/// Writes the metrics of a node, for `/metrics`.
pub type NodeMetrics = Arc<dyn Fn(&Page) + Send + Sync>;

/// A request that has been answered (of a stream: its answer has begun), for a tracer.
#[derive(Clone, Debug)]
pub struct Answered {
    pub method: String,
    /// The path as the table of routes has it: with the names of its parameters, not with what callers put there.
    pub route: String,
    pub status: u16,
    /// When it was answered.
    pub at: heddle_domain::Time,
    /// How long that took.
    pub took: Duration,
    /// The caller's `traceparent`, as it came.
    pub traceparent: Option<String>,
}

/// Is called for each answered request, on threads that serve. It must neither wait nor fail.
pub type RequestTracer = Arc<dyn Fn(Answered) + Send + Sync>;

/// The parts of a node that its API needs.
pub struct AppParts {
    pub store: Store,
    pub engine: Engine,
    pub clock: Arc<dyn Clock>,
    /// Randomness, of cryptographic quality: tokens are made of it.
    pub chance: Arc<dyn Chance>,
    /// What secrets are sealed with.
    pub secret_keys: SecretKeys,
    /// What the node counts.
    pub metrics: NodeMetrics,
    /// Receives spans of answers; none unless configured.
    pub tracer: Option<RequestTracer>,
    pub config: HttpConfig,
}

/// What all routes share. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

/// The inside of [`App`].
pub struct Shared {
    pub store: Store,
    pub engine: Engine,
    pub clock: Arc<dyn Clock>,
    pub chance: Arc<dyn Chance>,
    /// What secrets are sealed with.
    pub secret_keys: SecretKeys,
    /// What the node counts.
    pub metrics: NodeMetrics,
    pub config: HttpConfig,
    /// What gives out offers.
    pub(crate) dispatcher: heddle_engine::Dispatcher,
    pub(crate) tracer: Option<RequestTracer>,
    pub(crate) tokens: TokenCache,
    pub(crate) rates: Rates,
    pub(crate) signer: Option<Signer>,
    /// Requests under way: the owners are callers.
    pub(crate) requests: Arc<FairSlots>,
    /// The same of those that wait or follow.
    pub(crate) waits: Arc<FairSlots>,
    pub(crate) uploads: Arc<FairSlots>,
    /// The memory for large bodies, and for large answers: the owners are callers.
    pub(crate) bodies: Arc<FairBytes>,
    pub(crate) answers: Arc<FairBytes>,
    /// How many more uploads may wait for a slot.
    pub(crate) uploads_waiting: Arc<Semaphore>,
    /// Uploads that wait for the interpreter of their language, and have no slot meanwhile.
    pub(crate) interpreter_waits: Arc<FairSlots>,
    /// Slow bodies of senders that are not known: the owners are addresses.
    pub(crate) unknown_bodies: Arc<FairSlots>,
    pub(crate) counts: Counts,
    /// Answers about large runs that have ended.
    pub(crate) ended: heddle_engine::Ended<bytes::Bytes>,
    pub(crate) openapi: std::sync::OnceLock<Kept>,
    pub(crate) docs: std::sync::OnceLock<Kept>,
}

/// How many of a node's concurrent requests one caller may have: all but a quarter, which is left to others.
fn most_of(all: usize) -> usize {
    all - all / 4
}

impl App {
    /// Creates the app from the parts of a node.
    pub fn new(parts: AppParts) -> Self {
        let config = parts.config;
        Self(Arc::new(Shared {
            store: parts.store,
            dispatcher: parts.engine.dispatcher(),
            engine: parts.engine,
            rates: Rates::new(config.rate_max, parts.clock.clone()),
            clock: parts.clock,
            chance: parts.chance,
            secret_keys: parts.secret_keys,
            metrics: parts.metrics,
            tracer: parts.tracer,
            tokens: TokenCache::default(),
            signer: Signer::new(&config.device_keys),
            requests: FairSlots::new(config.requests_max, most_of(config.requests_max)),
            waits: FairSlots::new(config.waits_max, most_of(config.waits_max)),
            uploads: FairSlots::new(config.uploads_max, config.uploads_max / 2),
            bodies: FairBytes::new(config.bodies_bytes_max, most_of(config.bodies_bytes_max)),
            answers: FairBytes::new(config.answers_bytes_max, most_of(config.answers_bytes_max)),
            unknown_bodies: FairSlots::new(UNKNOWN_SLOW_MAX, UNKNOWN_SLOW_OF_ONE_MAX),
            uploads_waiting: Arc::new(Semaphore::new(UPLOADS_WAITING_MAX)),
            interpreter_waits: FairSlots::new(UPLOADS_WAITING_MAX, UPLOADS_WAITING_MAX / 2),
            counts: Counts::default(),
            ended: heddle_engine::Ended::new(ENDED_BYTES_MAX),
            openapi: std::sync::OnceLock::new(),
            docs: std::sync::OnceLock::new(),
            config,
        }))
    }

    /// Forgets which tokens are in force: called when the log of changes says that one has changed.
    pub fn forget_tokens(&self) {
        self.0.tokens.clear();
    }
}

impl std::ops::Deref for App {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}
