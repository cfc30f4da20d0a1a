//! The parts of end-to-end tests: a database for each, nodes that are real processes, and a thin HTTP client.
//!
//! ```ignore
//! let world = World::new().await;
//! let node = world.node().await;
//! node.put_group("g", json!({"tasks": {"a": {"script": "hello"}}})).await;
//! let run = node.run("g", json!({})).await;
//! assert_eq!(run["state"], "succeeded");
//! ```
//!
//! Nothing here sleeps and hopes: a condition is checked until it is true ([`eventually`]), up to a deadline that is
//! far beyond the usual time.

mod api;
pub mod bench;
mod dev;
mod node;
mod process;
mod provider;
mod receiver;
mod relay;
mod sink;
mod smtp;
mod specs;
mod statements;
mod wire;
mod world;

pub use api::{Api, Reply, Sse, path_part};
pub use dev::Dev;
pub use heddle_client::choose_cryptography;
pub use node::{Node, NodeOptions, Starting};
pub use process::{
    Process, Spoken, allow_open_files, create_token, heddle, heddle_succeeds, program, run_program, run_unheard,
};
pub use provider::{CLIENT, CLIENT_SECRET, FakeProvider, Lie};
pub use receiver::{Answer, Receiver};
pub use relay::Relay;
pub use sink::{Request, Sink};
pub use smtp::{Mail, Manners, Smtp};
pub use specs::{calls, fails, one, sleeps, with};
pub use statements::{checked_statement, checked_statements};
pub use wire::Wire;
pub use world::{TOKEN, World};

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// After this time, a condition will not become true any more, even on a machine that compiles at the same time.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// How often a condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until there is something, and panics after [`PATIENCE`].
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look).await
}

/// Looks until there is something, and panics when `limit` is over.
pub async fn within<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "within {limit:?} there was no {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The task run of a task as a whole.
#[track_caller]
pub fn task<'a>(run: &'a Value, name: &str) -> &'a Value {
    item(run, name, None)
}

/// The task run of an item, or of a task as a whole.
#[track_caller]
pub fn item<'a>(run: &'a Value, name: &str, item: Option<u64>) -> &'a Value {
    let tasks = run["tasks"].as_array().unwrap_or_else(|| panic!("no tasks in {run}"));
    tasks
        .iter()
        .find(|task| task["task"] == name && task["item"].as_u64() == item)
        .unwrap_or_else(|| panic!("no task run {name} {item:?} in {run:#}"))
}

/// How many items of a task are in this state, as far as there are items yet.
pub fn items_in(run: &Value, name: &str, state: &str) -> usize {
    let of = |task: &&Value| task["task"] == name && task["item"].is_u64() && task["state"] == state;
    run["tasks"]
        .as_array()
        .map_or(0, |tasks| tasks.iter().filter(of).count())
}

/// The state of each task as a whole, `a=succeeded b=skipped`, in the order of the names.
#[track_caller]
pub fn states(run: &Value) -> String {
    let tasks = run["tasks"].as_array().unwrap_or_else(|| panic!("no tasks in {run}"));
    let mut states: Vec<String> = tasks
        .iter()
        .filter(|task| task["item"].is_null())
        .map(|task| {
            format!(
                "{}={}",
                task["task"].as_str().unwrap_or("?"),
                task["state"].as_str().unwrap_or("?")
            )
        })
        .collect();
    states.sort();
    states.join(" ")
}

/// A time in an answer.
#[track_caller]
pub fn time(value: &Value) -> chrono::DateTime<chrono::Utc> {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is not a valid time"));
    assert!(
        text.ends_with('Z') && text.len() == "2026-01-01T00:00:00.000000Z".len(),
        "{text} has no microseconds"
    );
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// All runs of a group, the oldest instant first.
pub async fn runs(api: &Api, group: &str) -> Vec<Value> {
    let mut runs = api.all(&format!("/v1/runs?group={group}&limit=500")).await;
    runs.sort_by_key(|run| time(&run["logical_time"]));
    runs
}

/// Seconds between two times in answers.
#[track_caller]
pub fn seconds(from: &Value, to: &Value) -> f64 {
    (time(to) - time(from)).as_seconds_f64()
}

/// An id in an answer.
#[track_caller]
pub fn id(value: &Value) -> String {
    value["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id in {value}"))
        .to_owned()
}
