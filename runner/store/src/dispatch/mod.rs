//! Pull dispatch: what audiences are offered, and who holds what of it. The protocol and the order of locks stand in
//! [`assignment`].

pub mod assignment;
pub mod audience;
pub mod exhausted;
pub mod offer;
pub(crate) mod task_offer;
