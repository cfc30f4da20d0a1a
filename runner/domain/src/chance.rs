//! Randomness: it comes in only through this interface.

use std::fmt::Debug;
use std::sync::Arc;

/// The source of random bits: the operating system in a node, a seed in a test.
pub trait Chance: Debug + Send + Sync + 'static {
    /// 128 bits, new ones with each call: unpredictable in a node, repeatable in a test.
    fn bits(&self) -> u128;
}

impl<C: Chance + ?Sized> Chance for Arc<C> {
    fn bits(&self) -> u128 {
        (**self).bits()
    }
}

/// A number from 0 (inclusive) to 1 (exclusive) made of the upper 53 bits.
pub fn fraction(bits: u128) -> f64 {
    ((bits >> 75) as f64) / ((1u64 << 53) as f64)
}
