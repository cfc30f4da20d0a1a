//! Recording how attempts end: their outcomes, their log lines, and what to do with those that cannot be recorded.

pub(crate) mod given_up;
pub(crate) mod log_buffer;
pub(crate) mod logs;
pub(crate) mod recorder;
pub(crate) mod single_task;
