//! New runs: what a submission must be like, how its run is laid out and created, and what follows from that.

pub(crate) mod batch_run;
pub(crate) mod check;
pub(crate) mod created;
pub(crate) mod starts;
pub(crate) mod submit;
