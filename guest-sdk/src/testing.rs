//! Doubles of the host, for native tests.
//!
//! A [`Host`] answers the host calls of its thread while it lives, and remembers what they did:
//!
//! ```
//! use heddle::testing::Host;
//!
//! #[heddle::task]
//! fn run() -> Result<usize, heddle::Failure> {
//!     let names: Vec<String> = heddle::upstream("names")?;
//!     heddle::notify("ops", "names", &names.join(", "))?;
//!     Ok(names.len())
//! }
//!
//! let host = Host::new().upstream("names", heddle::json!(["Ada", "Grace"]));
//! assert_eq!(run().unwrap(), 2);
//! assert_eq!(host.notified()[0].body, "Ada, Grace");
//! ```
//!
//! A call that was not set up is an error, as for a task without a grant; the clock stands still except for
//! [`sleep`](crate::sleep), which returns at once and advances it.

pub(crate) mod host;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use chrono::DateTime;
use serde_json::{Map, Value};

use crate::http::{Request, Response};
use crate::log::Level;
use crate::{Context, Error, Interval, MapItem, Time};

/// A line that was logged.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// How much it matters.
    pub level: Level,
    /// The text of the line, without its fields.
    pub message: String,
    /// The named values that were logged with the text.
    pub fields: Map<String, Value>,
}

/// A run that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueued {
    /// The name of the group whose run it is.
    pub group: String,
    /// The run's params, as the script gave them.
    pub params: Value,
    /// The key of the run, unique within the group; `None` if the script gave none.
    pub key: Option<String>,
}

/// A notification that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notified {
    /// The name of the channel.
    pub channel: String,
    /// The subject, for channels that have one.
    pub subject: String,
    /// The text for people.
    pub body: String,
}

/// An SQL statement that was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The name of the connection that executed it.
    pub connection: String,
    /// The SQL text, with `$1`, `$2`, … in the place of values.
    pub text: String,
    /// For `$1`, `$2`, ….
    pub params: Vec<Value>,
}

type Query = Box<dyn FnMut(&Statement) -> Result<Vec<Value>, String>>;
type Execute = Box<dyn FnMut(&Statement) -> Result<u64, String>>;
type Http = Box<dyn FnMut(&Request) -> Result<Response, String>>;

struct Double {
    context: Context,
    now: Time,
    upstream: BTreeMap<String, Value>,
    secrets: BTreeMap<String, String>,
    state: BTreeMap<String, (Value, u64)>,
    writes: u64,
    query: Option<Query>,
    execute: Option<Execute>,
    http: Option<Http>,
    logs: Vec<Line>,
    progress: Vec<(f64, String)>,
    enqueued: Vec<Enqueued>,
    notified: Vec<Notified>,
    statements: Vec<Statement>,
    requests: Vec<Request>,
    slept: Duration,
}

/// Midnight of 2026-01-01, UTC: what time it is in tests that do not say.
fn some_time() -> Time {
    DateTime::from_timestamp(1_767_225_600, 0).expect("a valid timestamp")
}

impl Double {
    fn new() -> Self {
        let now = some_time();
        Self {
            context: Context {
                run: "01938d5e-0000-7000-8000-000000000000".into(),
                group: "test".into(),
                task: "test".into(),
                attempt: 1,
                trigger: "manual".into(),
                logical_time: now,
                data_interval: Interval { start: now, end: now },
                deadline: None,
                item: None,
                idempotency_key: "01938d5e-0000-7000-8000-000000000000/test".into(),
            },
            now,
            upstream: BTreeMap::new(),
            secrets: BTreeMap::new(),
            state: BTreeMap::new(),
            writes: 0,
            query: None,
            execute: None,
            http: None,
            logs: Vec::new(),
            progress: Vec::new(),
            enqueued: Vec::new(),
            notified: Vec::new(),
            statements: Vec::new(),
            requests: Vec::new(),
            slept: Duration::ZERO,
        }
    }
}

thread_local! {
    static HOSTS: RefCell<Vec<Rc<RefCell<Double>>>> = const { RefCell::new(Vec::new()) };
}

/// A host that answers this thread's host calls while it lives.
#[must_use = "the host answers only while it lives"]
pub struct Host {
    double: Rc<RefCell<Double>>,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        HOSTS.with_borrow_mut(|hosts| hosts.retain(|host| !Rc::ptr_eq(host, &self.double)));
    }
}

impl Host {
    /// A host with nothing granted, that takes over from an earlier one of this thread.
    pub fn new() -> Self {
        let double = Rc::new(RefCell::new(Double::new()));
        HOSTS.with_borrow_mut(|hosts| hosts.push(Rc::clone(&double)));
        Self { double }
    }

    fn with(self, change: impl FnOnce(&mut Double)) -> Self {
        change(&mut self.double.borrow_mut());
        self
    }

    /// Changes what [`context`](crate::context) answers.
    pub fn context(self, change: impl FnOnce(&mut Context)) -> Self {
        self.with(|double| change(&mut double.context))
    }

    /// Sets the logical time, given in RFC 3339.
    pub fn logical_time(self, time: &str) -> Self {
        let time = DateTime::parse_from_rfc3339(time).expect("a time in RFC 3339").to_utc();
        self.context(|context| context.logical_time = time)
    }

    /// Makes this an item of a mapped task.
    pub fn item(self, value: Value, index: u32, count: u32) -> Self {
        self.context(|context| context.item = Some(MapItem { value, index, count }))
    }

    /// Sets the time that the script reads; only `sleep` advances it.
    pub fn now(self, now: Time) -> Self {
        self.with(|double| double.now = now)
    }

    /// Gives the task a dependency with this output.
    pub fn upstream(self, task: &str, output: Value) -> Self {
        self.with(|double| drop(double.upstream.insert(task.to_owned(), output)))
    }

    /// Grants the task a secret, which it reads by this name.
    pub fn secret(self, name: &str, value: &str) -> Self {
        self.with(|double| drop(double.secrets.insert(name.to_owned(), value.to_owned())))
    }

    /// Puts a value into the group's state.
    pub fn with_state(self, key: &str, value: Value) -> Self {
        self.with(|double| {
            double.writes += 1;
            double.state.insert(key.to_owned(), (value, double.writes));
        })
    }

    /// Answers SQL queries: rows as objects, or an error, with `(SQLSTATE 42P01)` in it if it is the
    /// database's.
    pub fn on_query(self, answer: impl FnMut(&Statement) -> Result<Vec<Value>, String> + 'static) -> Self {
        self.with(|double| double.query = Some(Box::new(answer)))
    }

    /// Answers SQL statements that change rows: how many, or an error.
    pub fn on_execute(self, answer: impl FnMut(&Statement) -> Result<u64, String> + 'static) -> Self {
        self.with(|double| double.execute = Some(Box::new(answer)))
    }

    /// Answers HTTP requests, with a response or a (retryable) error.
    pub fn on_http(self, answer: impl FnMut(&Request) -> Result<Response, String> + 'static) -> Self {
        self.with(|double| double.http = Some(Box::new(answer)))
    }

    /// The lines that were logged so far, in their order.
    pub fn logs(&self) -> Vec<Line> {
        self.double.borrow().logs.clone()
    }

    /// The progress that was reported.
    pub fn progress(&self) -> Vec<(f64, String)> {
        self.double.borrow().progress.clone()
    }

    /// A value of the group's state, the attempt's own writes included.
    pub fn state(&self, key: &str) -> Option<Value> {
        self.double.borrow().state.get(key).map(|(value, _)| value.clone())
    }

    /// The runs that were asked for.
    pub fn enqueued(&self) -> Vec<Enqueued> {
        self.double.borrow().enqueued.clone()
    }

    /// The notifications that were sent.
    pub fn notified(&self) -> Vec<Notified> {
        self.double.borrow().notified.clone()
    }

    /// The SQL statements, queries included, in their order.
    pub fn statements(&self) -> Vec<Statement> {
        self.double.borrow().statements.clone()
    }

    /// The HTTP requests, in their order.
    pub fn requests(&self) -> Vec<Request> {
        self.double.borrow().requests.clone()
    }

    /// How long the script slept, in all.
    pub fn slept(&self) -> Duration {
        self.double.borrow().slept
    }
}

/// The host of this thread, or one with nothing granted.
fn current() -> Rc<RefCell<Double>> {
    HOSTS
        .with_borrow(|hosts| hosts.last().cloned())
        .unwrap_or_else(|| Rc::new(RefCell::new(Double::new())))
}

fn http_error(message: String) -> Error {
    Error::retryable("http", message)
}
