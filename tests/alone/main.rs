//! What looks at seconds: how soon a node notices that its way to Postgres is broken, how soon it is back, and what else is
//! promised in seconds. In a program of its own, so that Cargo runs it when nothing else runs; and within it each of these
//! tests has the machine to itself ([`alone`]), while the others run beside one another ([`beside`]).

mod bulk;
mod clocks;
mod faults;
mod heals;
mod nodes;
mod promises;

use heddle_tests::{calls, one, sleeps, with};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Nothing else runs for as long as this is held.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Others may run, but none that look at seconds.
pub(crate) async fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}
