//! A typed HTTP client for Heddle: for workers that claim from queues, for pollers of offers, for the command line, and
//! for programs that submit runs.
//!
//! ```no_run
//! # async fn example() -> Result<(), heddle_client::Error> {
//! use heddle_client::{Client, Submission};
//!
//! let client = Client::new("http://127.0.0.1:8080", None)?;
//! let run = client.start_run("nightly", &Submission { key: Some("2026-11-20".into()), ..Default::default() }).await?;
//! let ended = client.wait_for_run(run.id).await?;
//! println!("{}: {}", ended.id, ended.state);
//! # Ok(())
//! # }
//! ```
//!
//! Structs keep fields that they do not know in `more`, so that a newer server's answers pass through unharmed. Calls
//! that have no method here can be made with [`Client::request`].

mod admin;
mod backfills;
mod dispatch;
mod error;
mod groups;
mod list;
mod messages;
mod notifications;
mod queues;
mod request;
mod runs;
mod scripts;
mod stream;
mod worker;

pub use admin::{NewToken, Node, Token};
pub use backfills::{Backfill, BackfillRequest};
pub use dispatch::{Assignment, Completion};
pub use error::{Error, Problem, Result};
pub use groups::{Graph, Group, Revision};
pub use list::Page;
pub use messages::{Accepted, Rejected};
pub use notifications::{Channel, Notification, NotificationFilter};
pub use queues::{Claim, ClaimAnswer, ClaimRequest, Claims, Queue, Report, ReportLine};
pub use request::{Client, Request};
pub use runs::{Attempt, BatchItem, DataInterval, Failure, Override, Run, RunFilter, Submission, TaskRun, TaskWait};
pub use scripts::{Invocation, InvocationResult, Script, ScriptVersion};
pub use stream::{Lines, ServerEvent, ServerEvents};
pub use worker::{Outcome, Worker, WorkerReport};

pub use heddle_domain::state::{AttemptState, ErrorKind, RunState, TaskState, Trigger};
pub use reqwest::Method;

/// Fields of an answer that this version of the client does not know.
pub type More = serde_json::Map<String, serde_json::Value>;
