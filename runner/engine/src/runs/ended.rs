//! What is made of runs that have ended is kept for those who ask again.
//!
//! A run of a thousand tasks is a quarter of a megabyte, and each of its pages shows a part of it. Once it has ended it
//! changes only when somebody does something to it, which its mark tells ([`Store::ended_mark`]): what was made of it is
//! good for as long as the mark is the same. A mark is read before what it stands for is, or with it, so that what is kept
//! is never older than its mark.
//!
//! [`Store::ended_mark`]: heddle_store::Store::ended_mark

use std::collections::VecDeque;
use std::sync::Arc;

use heddle_domain::id::RunId;
use parking_lot::Mutex;

/// What is made of runs that have ended: of those that were asked for last, as long as there is room.
#[derive(Debug)]
pub struct Ended<T> {
    weight_max: usize,
    /// The one that was asked for last comes first.
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
    /// Keeps what together weighs no more than this, in whatever unit.
    pub fn new(weight_max: usize) -> Self {
        Self {
            weight_max,
            kept: Mutex::default(),
        }
    }

    /// Whether anything of this run is kept, maybe of how it was before.
    pub fn knows(&self, run: RunId) -> bool {
        self.kept.lock().iter().any(|kept| kept.run == run)
    }

    /// What was made of a run that still has this mark.
    pub fn find(&self, run: RunId, mark: &str) -> Option<Arc<T>> {
        let mut all = self.kept.lock();
        let index = all.iter().position(|kept| kept.run == run && kept.mark == mark)?;
        let kept = all.remove(index)?;
        let what = kept.what.clone();
        all.push_front(kept);
        Some(what)
    }

    /// Keeps what was made of a run with this mark, in place of what was kept of it before.
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
        // The second was asked for before the first was.
        ended.keep(run(3), "a".into(), 4, Arc::new("three"));
        assert!(ended.knows(run(1)) && !ended.knows(run(2)) && ended.knows(run(3)));
        // It is another one now; and what does not fit is not kept.
        ended.keep(run(1), "b".into(), 4, Arc::new("again"));
        assert_eq!(ended.find(run(1), "b").as_deref(), Some(&"again"));
        ended.keep(run(1), "c".into(), 11, Arc::new("large"));
        assert!(!ended.knows(run(1)) && ended.knows(run(3)));
    }
}
