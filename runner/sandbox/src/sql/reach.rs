//! How far a statement has come, for whoever gives up on it: what took so long?

use deadpool_postgres::{Pool, Status};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Shared by a statement and whoever may give up on it.
#[derive(Clone, Default)]
pub struct Reach(Arc<Mutex<Step>>);

#[derive(Default)]
enum Step {
    /// Its database is not known yet.
    #[default]
    Begun,
    /// It waits for one of these connections.
    Connecting(Pool),
    /// It has a connection.
    Connected,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl Reach {
    pub(super) fn connecting(&self, pool: &Pool) {
        *self.0.lock() = Step::Connecting(pool.clone());
    }

    pub(super) fn connected(&self) {
        *self.0.lock() = Step::Connected;
    }

    /// What took longer than so many milliseconds, for a statement on this connection that is given up now.
    pub fn late(&self, connection: &str, millis: u128) -> String {
        match &*self.0.lock() {
            Step::Begun => format!("Heddle could not read the connection `{connection}` within {millis} ms"),
            Step::Connecting(pool) => waited(connection, &pool.status(), millis),
            Step::Connected => format!("the statement took longer than {millis} ms and was cancelled"),
        }
    }
}

/// Connections that are still being made do not count in `size`. So if all are there, others use them.
fn waited(connection: &str, status: &Status, millis: u128) -> String {
    if status.size < status.max_size {
        return format!("cannot connect to `{connection}` within {millis} ms");
    }
    format!(
        "no connection to `{connection}` became free within {millis} ms (its `max_connections` is {} for each node)",
        status.max_size
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_so_long_is_said() {
        let reach = Reach::default();
        assert_eq!(
            reach.late("shop", 300),
            "Heddle could not read the connection `shop` within 300 ms"
        );
        let status = |size: usize| Status {
            max_size: 2,
            size,
            available: 0,
            waiting: 1,
        };
        for size in [0, 1] {
            assert_eq!(
                waited("shop", &status(size), 300),
                "cannot connect to `shop` within 300 ms"
            );
        }
        assert_eq!(
            waited("shop", &status(2), 300),
            "no connection to `shop` became free within 300 ms (its `max_connections` is 2 for each node)"
        );
        reach.connected();
        assert_eq!(
            reach.late("shop", 300),
            "the statement took longer than 300 ms and was cancelled"
        );
    }
}
