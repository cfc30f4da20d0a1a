//! Write Heddle task scripts in Rust.
//!
//! A script is a function. Its parameters and output are typed, their JSON Schema is derived, and natively it stays an
//! ordinary function that a test calls:
//!
//! ```
//! use heddle::Failure;
//!
//! #[heddle::data]
//! pub struct Params {
//!     /// Who is greeted.
//!     #[serde(default = "world")]
//!     name: String,
//! }
//!
//! fn world() -> String {
//!     "world".to_owned()
//! }
//!
//! /// Greets somebody.
//! #[heddle::task]
//! fn run(params: Params) -> Result<String, Failure> {
//!     heddle::info!("greeting {}", params.name; attempt = heddle::context().attempt);
//!     Ok(format!("Hello, {}!", params.name))
//! }
//!
//! let host = heddle::testing::Host::new();
//! assert_eq!(run(Params { name: "Ada".into() }).unwrap(), "Hello, Ada!");
//! assert_eq!(host.logs()[0].message, "greeting Ada");
//! ```
//!
//! Built with `cargo build --target wasm32-wasip2` in a crate whose `crate-type` includes `cdylib`, it is a component
//! for the world `heddle:task/task` (`wit/task.wit`). All host calls have doubles in [`testing`].

// The macros name this crate `::heddle`, also inside its own tests.
extern crate self as heddle;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod consumer;
mod context;
mod effects;
mod error;
mod failure;
mod host;
pub mod http;
pub mod log;
pub mod script;
pub mod sql;
pub mod state;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod bindings;

pub use chrono;
pub use consumer::Message;
pub use context::{Context, Interval, MapItem, Time, context, now, sleep};
pub use effects::{enqueue, notify, progress, secret, upstream};
pub use error::Error;
pub use failure::{Failure, OrFail};
pub use schemars;
pub use serde;
pub use serde_json;
pub use serde_json::{Value, json};

/// Derives `Serialize`, `Deserialize` and `JsonSchema` through this crate, so that a script need not depend on serde and
/// schemars. For parameters, outputs, rows, payloads; `#[serde(...)]` and `#[schemars(...)]` attributes work as ever.
///
/// Doc comments on fields become descriptions in the schema, and a field with `#[serde(default)]` is optional there.
/// Unknown members are let through, because a group's params go to all of its tasks.
pub use heddle_macros::data;

/// Makes `fn(params: Params) -> Result<Output, Failure>` a task's script.
///
/// `Params` is `Deserialize + JsonSchema`, `Output` is `Serialize`; any error type that converts into [`Failure`] will
/// do. A task without parameters takes `()` or nothing. The doc comment is the script's description.
///
/// The script's default params are those of fields with `#[serde(default)]` (where the type is `Serialize`), overridden
/// by `#[heddle::task(defaults = expression)]`, an expression whose value serialises to a JSON object:
/// `defaults = heddle::json!({"region": "eu"})` or `defaults = Params::default()`.
///
/// The macro adds a type `HeddleTask` that implements [`script::Task`]; tests that want to go through JSON use that.
pub use heddle_macros::task;

/// Makes `fn(topic: &str, batch: Vec<Message>) -> Vec<Result<(), Failure>>` a consumer of scheduled messages.
///
/// One outcome per message, in the same order. With `-> Result<Vec<Result<(), Failure>>, Failure>` the batch as a whole
/// may fail too, and then every message of it has. The macro adds a type `HeddleConsumer` that implements
/// [`script::Consumer`].
pub use heddle_macros::consumer;
