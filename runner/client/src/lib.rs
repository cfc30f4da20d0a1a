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
//! Bodies and answers are the types of [`heddle_api`]; fields that a newer server adds are ignored. Calls without a
//! method here can be made with [`Client::request`].

mod address;
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

pub use error::{Error, Result};
pub use list::Pages;
pub use notifications::NotificationFilter;
pub use queues::Report;
pub use request::{Client, Request, choose_cryptography};
pub use stream::{Lines, ServerEvent, ServerEvents};
pub use worker::{Outcome, Worker, WorkerReport};

pub use heddle_api::*;
pub use reqwest::Method;

/// Fields of an answer that this version of the client does not know.
pub type More = serde_json::Map<String, serde_json::Value>;
