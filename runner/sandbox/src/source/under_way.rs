//! The operations of a script that are under way.

use crate::effects::Entry;
use crate::memory::Held;
use crate::services::BoxFuture;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use serde_json::Value;
use std::collections::HashMap;

/// How many cancelled operations are kept, apart from as many as are under way.
const MAX_CANCELLED: usize = 32;

/// The end of an operation.
pub(super) type Ending = BoxFuture<'static, Result<Arrived, String>>;
type Waiting = BoxFuture<'static, (u64, Result<Arrived, String>)>;

/// The operations that have begun and not ended.
#[derive(Default)]
pub(crate) struct Pending {
    /// Created when it is first needed: most attempts wait for nothing.
    pub(super) futures: Option<Box<FuturesUnordered<Abortable<Waiting>>>>,
    /// How many of these futures are cancelled. They end when the script waits, or are removed before.
    pub(super) cancelled: usize,
    /// By number; those that do not keep the script alive (`idle`) are marked.
    pub(super) handles: HashMap<u64, (AbortHandle, bool)>,
    /// Timers of a rehearsal, which are due when nothing else can come.
    pub(super) timers: Vec<Timer>,
}

pub(super) struct Timer {
    pub(super) until_nanos: u64,
    pub(super) id: u64,
    pub(super) idle: bool,
}

impl Pending {
    pub fn cancel(&mut self, id: u64) {
        if let Some((handle, _)) = self.handles.remove(&id) {
            handle.abort();
            self.cancelled += 1;
            // A script that never waits may begin and cancel as often as it wants.
            if self.cancelled > self.handles.len() + MAX_CANCELLED {
                self.forget_cancelled();
            }
        }
        self.timers.retain(|timer| timer.id != id);
    }

    /// Removes the futures of cancelled operations, with all that they hold. The others begin in the same order as before.
    pub(super) fn forget_cancelled(&mut self) {
        if std::mem::take(&mut self.cancelled) == 0 {
            return;
        }
        if let Some(futures) = &mut self.futures {
            // The newest comes first.
            let all = std::mem::take(&mut **futures).into_iter();
            let mut kept: Vec<_> = all.filter(|future| !future.is_aborted()).collect();
            kept.reverse();
            **futures = kept.into_iter().collect();
        }
    }

    pub(super) fn add(&mut self, id: u64, idle: bool, future: Ending) {
        let (handle, registration) = AbortHandle::new_pair();
        let waiting: Waiting = Box::pin(async move { (id, future.await) });
        self.handles.insert(id, (handle, idle));
        self.futures
            .get_or_insert_default()
            .push(Abortable::new(waiting, registration));
    }

    /// Whether anything that keeps the script alive can still come.
    pub(super) fn is_awaited(&self) -> bool {
        self.handles.values().any(|(_, idle)| !idle) || self.timers.iter().any(|timer| !timer.idle)
    }

    /// The next due timer; of several, the one that was set first.
    pub(super) fn take_timer(&mut self) -> Option<Timer> {
        let next = self
            .timers
            .iter()
            .enumerate()
            .min_by_key(|(_, timer)| timer.until_nanos)?
            .0;
        Some(self.timers.remove(next))
    }
}

/// What has arrived for the script; its bytes, and those of the call, count for the attempt until the script gets it.
pub(super) struct Arrived {
    pub(super) raw: Raw,
    pub(super) held: Held,
}

impl Arrived {
    pub(super) fn value(value: Value, held: Held) -> Self {
        let raw = Raw::Value(value);
        Self { raw, held }
    }
}

/// The result of a call, before the attempt's own writes are applied to it.
pub(super) enum Raw {
    Value(Value),
    Seen {
        key: String,
        stored: Entry,
    },
    Compared {
        key: String,
        expected: Option<u64>,
        value: String,
        stored: Entry,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt as _, StreamExt as _};
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn cancelled_operations_do_not_pile_up() {
        let mut pending = Pending::default();
        let never = || -> Ending { Box::pin(std::future::pending::<Result<Arrived, String>>()) };
        for id in 0..10 {
            pending.add(id, false, never());
        }
        for id in 10..10_000 {
            pending.add(id, false, never());
            pending.cancel(id);
            let kept = pending.futures.as_ref().map_or(0, |futures| futures.len());
            assert!(kept <= 2 * 10 + MAX_CANCELLED + 1, "{kept}");
        }
        pending.forget_cancelled();
        assert_eq!(pending.futures.as_ref().map(|futures| futures.len()), Some(10));
        assert_eq!((pending.cancelled, pending.handles.len()), (0, 10));
    }

    #[test]
    fn operations_begin_in_their_order() {
        let mut pending = Pending::default();
        let begun = Arc::new(Mutex::new(Vec::new()));
        for id in 0..5 {
            let begun = Arc::clone(&begun);
            let operation = async move {
                begun.lock().push(id);
                std::future::pending::<Result<Arrived, String>>().await
            };
            pending.add(id, false, Box::pin(operation));
        }
        pending.cancel(2);
        pending.forget_cancelled();
        let futures = pending.futures.as_mut().unwrap();
        assert!(futures.next().now_or_never().is_none());
        assert_eq!(*begun.lock(), [0, 1, 3, 4]);
    }
}
