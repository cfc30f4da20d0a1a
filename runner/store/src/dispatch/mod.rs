//! Pull dispatch: what audiences are offered, and who holds what of it. [`assignment`] describes the protocol and the
//! order of locks.

pub mod assignment;
pub mod audience;
pub mod exhausted;
pub(crate) mod forgotten;
pub mod offer;
pub(crate) mod task_offer;
