//! Tests that measure seconds: how soon a node notices that its connection to Postgres is broken, how soon it recovers,
//! and other promises in seconds. They are a separate program, so that Cargo runs it when nothing else runs; and within
//! it, each of these tests has the machine to itself ([`alone`]), while the others run concurrently ([`beside`]).

#![allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")]

mod bulk;
mod clocks;
mod faults;
mod heals;
mod nodes;
mod promises;
mod upgrades;

use heddle_tests::{calls, one, sleeps, with};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Nothing else runs for as long as this is held.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Others may run, but none that measure seconds.
pub(crate) async fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}
