//! Attempts that this node takes: how many, which, and those that it has in hand.

pub(crate) mod claimer;
pub(crate) mod held;
pub(crate) mod patience;
pub(crate) mod pools;
pub(crate) mod room;
