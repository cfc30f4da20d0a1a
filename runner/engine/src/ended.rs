//! Caches results that were computed from ended runs.
//!
//! A run of a thousand tasks is a quarter of a megabyte, and each of its pages shows a part of it. After its end, a run
//! changes only by a control, and that changes its mark ([`Store::ended_mark`]): a result is valid as long as the mark
//! is the same. The mark is read before the run, or with it, so a kept result is never older than its mark.
//!
//! [`Store::ended_mark`]: heddle_store::Store::ended_mark

use std::sync::Arc;

use heddle_domain::id::RunId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// About how many results are kept. The cache does not divide the room for so few, so one result may take almost all of it.
const RESULTS: usize = 32;

/// Results computed from ended runs, within a maximum weight.
#[derive(Debug)]
pub struct Ended<T>(Cache<RunId, Arc<Kept<T>>, ByWeight>);

struct Kept<T> {
    mark: String,
    weight: usize,
    what: Arc<T>,
}

#[derive(Clone)]
struct ByWeight;

impl<T> Weighter<RunId, Arc<Kept<T>>> for ByWeight {
    fn weight(&self, _: &RunId, kept: &Arc<Kept<T>>) -> u64 {
        // The cache never removes an entry without weight.
        kept.weight.max(1) as u64
    }
}

impl<T> Ended<T> {
    /// Keeps results with at most this weight together; the caller chooses the unit.
    pub fn new(weight_max: usize) -> Self {
        Self(Cache::with_weighter(RESULTS, weight_max as u64, ByWeight))
    }

    /// Whether any result of this run is kept, perhaps an old one.
    pub fn knows(&self, run: RunId) -> bool {
        self.0.contains_key(&run)
    }

    /// The result for a run, if its mark is still the same.
    pub fn find(&self, run: RunId, mark: &str) -> Option<Arc<T>> {
        let kept = self.0.get(&run)?;
        (kept.mark == mark).then(|| kept.what.clone())
    }

    /// Keeps the result for a run with this mark; it replaces the run's previous one. One that is too large is not kept.
    pub fn keep(&self, run: RunId, mark: String, weight: usize, what: Arc<T>) {
        self.0.insert(run, Arc::new(Kept { mark, weight, what }));
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
        assert_eq!(ended.find(run(1), "a").as_deref(), Some(&"one"));
        assert!(ended.find(run(1), "b").is_none() && ended.find(run(2), "a").is_none());
        // The run has changed.
        ended.keep(run(1), "b".into(), 4, Arc::new("again"));
        assert_eq!(ended.find(run(1), "b").as_deref(), Some(&"again"));
        assert!(ended.find(run(1), "a").is_none());
        // The cache has room for two results.
        for n in 2..10 {
            ended.keep(run(n), "a".into(), 4, Arc::new("another"));
            assert!(ended.knows(run(n)));
            assert!((1..10).filter(|n| ended.knows(run(*n))).count() <= 2);
        }
        // A result that does not fit is not kept, nor is the one that it replaces.
        ended.keep(run(9), "b".into(), 11, Arc::new("large"));
        assert!(!ended.knows(run(9)));
    }
}
