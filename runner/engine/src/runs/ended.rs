//! Keeps what was computed from ended runs, for the next request.
//!
//! A run of a thousand tasks is a quarter of a megabyte, and each of its pages shows a part of it. After its end, a run
//! changes only by a control, and that changes its mark ([`Store::ended_mark`]): a result is valid as long as the mark
//! is the same. The mark is read before the run, or with it, so a kept result is never older than its mark.
//!
//! [`Store::ended_mark`]: heddle_store::Store::ended_mark

use std::collections::VecDeque;
use std::sync::Arc;

use heddle_domain::id::RunId;
use parking_lot::Mutex;

/// Results computed from ended runs: those requested last, within a maximum weight.
#[derive(Debug)]
pub struct Ended<T> {
    weight_max: usize,
    /// The one that was requested last comes first.
    kept: Mutex<VecDeque<Kept<T>>>,
}

#[derive(Debug)]
struct Kept<T> {
    run: RunId,
    mark: String,
    weight: usize,
    what: Arc<T>,
}

impl<T> Ended<T> {
    /// Keeps results with at most this weight together; the caller chooses the unit.
    pub fn new(weight_max: usize) -> Self {
        Self {
            weight_max,
            kept: Mutex::default(),
        }
    }

    /// Whether any result of this run is kept, perhaps an old one.
    pub fn knows(&self, run: RunId) -> bool {
        self.kept.lock().iter().any(|kept| kept.run == run)
    }

    /// The result for a run, if its mark is still the same.
    pub fn find(&self, run: RunId, mark: &str) -> Option<Arc<T>> {
        let mut all = self.kept.lock();
        let index = all.iter().position(|kept| kept.run == run && kept.mark == mark)?;
        let kept = all.remove(index)?;
        let what = kept.what.clone();
        all.push_front(kept);
        Some(what)
    }

    /// Keeps the result for a run with this mark; it replaces the run's previous one.
    pub fn keep(&self, run: RunId, mark: String, weight: usize, what: Arc<T>) {
        let mut all = self.kept.lock();
        all.retain(|kept| kept.run != run);
        if weight > self.weight_max {
            return;
        }
        all.push_front(Kept {
            run,
            mark,
            weight,
            what,
        });
        let mut sum = 0;
        all.retain(|kept| {
            sum += kept.weight;
            sum <= self.weight_max
        });
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_is_kept_is_as_old_as_its_mark_and_no_more_than_there_is_room_for() {
        let run = |n: u128| RunId(Uuid::from_u128(n));
        let ended = Ended::new(10);
        ended.keep(run(1), "a".into(), 4, Arc::new("one"));
        ended.keep(run(2), "a".into(), 4, Arc::new("two"));
        assert_eq!(ended.find(run(1), "a").as_deref(), Some(&"one"));
        assert!(ended.find(run(1), "b").is_none() && ended.find(run(3), "a").is_none());
        // The second was requested before the first.
        ended.keep(run(3), "a".into(), 4, Arc::new("three"));
        assert!(ended.knows(run(1)) && !ended.knows(run(2)) && ended.knows(run(3)));
        // The run has changed; and a result that does not fit is not kept.
        ended.keep(run(1), "b".into(), 4, Arc::new("again"));
        assert_eq!(ended.find(run(1), "b").as_deref(), Some(&"again"));
        ended.keep(run(1), "c".into(), 11, Arc::new("large"));
        assert!(!ended.knows(run(1)) && ended.knows(run(3)));
    }
}
