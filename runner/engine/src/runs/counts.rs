//! The counters of a node for its runs and attempts, for its metrics.

use std::sync::atomic::AtomicU64;

use prometheus::{Histogram, HistogramOpts};

/// How many runs and attempts have ended on a node, and how long they took.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) ended: AtomicU64,
    /// Of these, runs that never began, by `Skip` from 1.
    pub(crate) skipped: [AtomicU64; 2],
    pub(crate) attempts_ended: AtomicU64,
    /// From a run's creation to its end.
    pub(crate) run_seconds: Histogram,
    /// From the moment when an attempt was taken to its outcome: one value for each of `attempts_ended`.
    pub(crate) attempt_seconds: Histogram,
    /// The processor time of a script's attempt.
    pub(crate) script_cpu_seconds: Histogram,
    /// From the moment at which a task run was ready for workers to a worker's claim.
    pub(crate) queue_wait_seconds: Histogram,
    /// Task runs that one claim brought.
    pub(crate) claimed: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        // From half a millisecond to two hours: a small script ends in the first bucket, a long report in the last.
        let seconds = [
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
            1_800.0, 7_200.0,
        ];
        let processor = [
            0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
        ];
        let sizes = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            Histogram::with_opts(options).expect("the name is a metric's, and the bounds grow")
        };
        Self {
            ended: AtomicU64::default(),
            skipped: Default::default(),
            attempts_ended: AtomicU64::default(),
            run_seconds: histogram(
                "heddle_run_seconds",
                "Duration of runs that ended on this node, from their creation to their end, in seconds.",
                &seconds,
            ),
            attempt_seconds: histogram(
                "heddle_attempt_seconds",
                "Duration of attempts whose outcome this node has recorded, from the claim to the end, in seconds.",
                &seconds,
            ),
            script_cpu_seconds: histogram(
                "heddle_script_cpu_seconds",
                "Processor time of script attempts on this node, in seconds.",
                &processor,
            ),
            queue_wait_seconds: histogram(
                "heddle_queue_wait_seconds",
                "Time that task runs on queues waited for a worker, from ready to the claim at this node, in seconds.",
                &seconds,
            ),
            claimed: histogram(
                "heddle_claimed_task_runs",
                "Number of task runs in one claim of this node, without empty claims.",
                &sizes,
            ),
        }
    }
}

impl Counts {
    /// The histograms, without the plain counters.
    pub(crate) fn histograms(&self) -> [&Histogram; 5] {
        [
            &self.run_seconds,
            &self.attempt_seconds,
            &self.script_cpu_seconds,
            &self.queue_wait_seconds,
            &self.claimed,
        ]
    }
}
