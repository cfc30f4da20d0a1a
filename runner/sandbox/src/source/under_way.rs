//! The operations of a script that are under way.

use crate::effects::Entry;
use crate::services::BoxFuture;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use serde_json::Value;
use std::collections::HashMap;

type Waiting = BoxFuture<'static, (u64, Result<Raw, String>)>;

/// The operations that have begun and not ended.
#[derive(Default)]
pub(crate) struct Pending {
    /// Created when it is first needed: most attempts wait for nothing.
    pub(super) futures: Option<Box<FuturesUnordered<Abortable<Waiting>>>>,
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
        }
        self.timers.retain(|timer| timer.id != id);
    }

    pub(super) fn add(&mut self, id: u64, idle: bool, future: BoxFuture<'static, Result<Raw, String>>) {
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
