//! The attempt's log, kept with the run.
//!
//! ```
//! # let (rows, table) = (3, "orders");
//! heddle::info!("read {rows} rows");
//! heddle::warn!("{table} is empty"; table = table, rows = rows);
//! ```
//!
//! What follows the semicolon are fields: any value that serialises. The log is cut, and says so, at the task's log
//! limit (1 MiB unless the task has another).

use serde_json::{Map, Value};

use crate::host;

pub use crate::{debug, error, info, trace, warn};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Single steps, for finding out how something happened.
    Trace,
    /// What helps to find a mistake.
    Debug,
    /// What happened, as far as it interests operators.
    Info,
    /// What somebody should look at.
    Warn,
    /// What went wrong and needs somebody.
    Error,
}

/// Writes a line; the macros are shorter.
pub fn write(level: Level, message: &str, fields: Map<String, Value>) {
    let fields = if fields.is_empty() {
        String::new()
    } else {
        Value::Object(fields).to_string()
    };
    host::log(level, message, &fields);
}

/// Writes a line at a [`Level`](crate::log::Level): `log!(level, "text {}", value; field = value)`.
#[macro_export]
macro_rules! log {
    ($level:expr, $format:literal $(, $argument:expr)* $(,)?) => {
        $crate::log::write($level, &::std::format!($format $(, $argument)*), $crate::serde_json::Map::new())
    };
    ($level:expr, $format:literal $(, $argument:expr)* ; $($field:ident = $value:expr),+ $(,)?) => {{
        let mut fields = $crate::serde_json::Map::new();
        $(fields.insert(::std::stringify!($field).to_owned(), $crate::json!($value));)+
        $crate::log::write($level, &::std::format!($format $(, $argument)*), fields)
    }};
}

/// Logs every step: `trace!("text {}", value; field = value)`.
#[macro_export]
macro_rules! trace {
    ($($all:tt)+) => { $crate::log!($crate::log::Level::Trace, $($all)+) };
}

/// Logs what helps to find a mistake: `debug!("text {}", value; field = value)`.
#[macro_export]
macro_rules! debug {
    ($($all:tt)+) => { $crate::log!($crate::log::Level::Debug, $($all)+) };
}

/// Logs what happened: `info!("text {}", value; field = value)`.
#[macro_export]
macro_rules! info {
    ($($all:tt)+) => { $crate::log!($crate::log::Level::Info, $($all)+) };
}

/// Logs what somebody should look at: `warn!("text {}", value; field = value)`.
#[macro_export]
macro_rules! warn {
    ($($all:tt)+) => { $crate::log!($crate::log::Level::Warn, $($all)+) };
}

/// Logs what went wrong: `error!("text {}", value; field = value)`.
#[macro_export]
macro_rules! error {
    ($($all:tt)+) => { $crate::log!($crate::log::Level::Error, $($all)+) };
}
