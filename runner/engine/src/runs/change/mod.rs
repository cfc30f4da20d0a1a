//! Changes of runs: the decision about one run under its lock, and the transaction that carries decisions out.

pub(crate) mod apply;
pub(crate) mod into_queues;
pub(crate) mod notices;
pub(crate) mod transition;
