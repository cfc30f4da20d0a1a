//! Time: it comes in only through this interface.

use std::fmt::Debug;
use std::sync::Arc;

/// An instant in UTC with microseconds, as Postgres keeps it and as the API prints it.
pub type Time = chrono::DateTime<chrono::Utc>;

/// The source of instants. A node's clock follows the database's, so that nodes whose own clocks differ agree; tests
/// use a clock that stands still.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The present instant, cut to microseconds.
    fn now(&self) -> Time;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}

/// Cuts an instant to the microseconds that Postgres stores, so that a written value equals the one that is read.
pub fn to_micros(at: Time) -> Time {
    chrono::DateTime::from_timestamp_micros(at.timestamp_micros()).unwrap_or(at)
}
