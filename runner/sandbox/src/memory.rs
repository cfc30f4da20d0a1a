//! The memory of attempts: their linear memories, and what the node holds for them outside of these.
//!
//! Both count for the budget of the node. Each may reach the limit of the attempt: what is held counts, because a script
//! could otherwise begin a thousand requests and let the node keep them all; but it counts apart, because a linear memory
//! never shrinks. A script that once needed most of its limit for a moment could not receive a page any more.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use wasmtime::ResourceLimiter;

/// How many elements all of an attempt's tables may have.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;

/// The end of the error of a call that would exceed the attempt's limit.
const HELD: &str = "bytes is reached by what the node holds for the script: what its calls send, and answers that it has \
                    not read";
/// The error of a call for which the node has no memory.
const NODE_FULL: &str = "the node has no memory left for scripts";

/// Whether a script's message reports that a call was refused because of memory. A script gets the refusal as text, and
/// may go on: so only the text of its own failure can tell.
pub(crate) fn tells_of_memory(message: &str) -> bool {
    message.contains(HELD) || message.contains(NODE_FULL)
}

/// The memory of all attempts together.
pub(crate) struct MemoryBudget {
    pub limit_bytes: u64,
    pub used_bytes: AtomicU64,
}

/// What is known of an attempt's memory after its store is dropped.
#[derive(Default)]
pub(crate) struct MemoryMeter {
    /// The largest size of its linear memories.
    pub peak_bytes: AtomicU64,
    /// Its linear memory was refused more than its limit.
    pub refused: AtomicBool,
    /// Its linear memory was refused more than the node has left.
    pub exhausted: AtomicBool,
}

/// What one attempt uses, of its limit and of the node's budget.
struct Account {
    /// The limit of each of the two.
    limit_bytes: u64,
    linear_bytes: AtomicU64,
    held_bytes: AtomicU64,
    meter: Arc<MemoryMeter>,
    budget: Arc<MemoryBudget>,
}

/// Whose limit is reached.
#[derive(Debug)]
enum Full {
    Attempt,
    Node,
}

impl Account {
    /// Counts so many bytes more by one of the two counters, if they are allowed.
    fn take(&self, counter: &AtomicU64, more: u64) -> Result<(), Full> {
        if !add_within(counter, more, self.limit_bytes) {
            return Err(Full::Attempt);
        }
        if !add_within(&self.budget.used_bytes, more, self.budget.limit_bytes) {
            counter.fetch_sub(more, Relaxed);
            return Err(Full::Node);
        }
        Ok(())
    }

    fn give_back(&self, counter: &AtomicU64, bytes: u64) {
        counter.fetch_sub(bytes, Relaxed);
        self.budget.used_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Adds to a counter unless it would exceed the limit. Its value is never too large, not even for a moment: another
/// thread would be refused because of it.
fn add_within(counter: &AtomicU64, more: u64, limit: u64) -> bool {
    let mut used = counter.load(Relaxed);
    loop {
        let Some(sum) = used.checked_add(more).filter(|sum| *sum <= limit) else {
            return false;
        };
        match counter.compare_exchange_weak(used, sum, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(now) => used = now,
        }
    }
}

/// Holds bytes for an attempt, wherever its store is.
#[derive(Clone)]
pub(crate) struct Holder(Arc<Account>);

impl Holder {
    /// Holds so many bytes. The error is a text for the script's author.
    pub fn hold(&self, bytes: usize) -> Result<Held, String> {
        let mut held = self.hold_nothing();
        held.grow(bytes)?;
        Ok(held)
    }

    /// For what is not there yet: see [`Held::grow`].
    pub fn hold_nothing(&self) -> Held {
        Held {
            account: Arc::clone(&self.0),
            bytes: 0,
        }
    }
}

/// Bytes outside of the linear memories that count for an attempt until this is dropped.
pub(crate) struct Held {
    account: Arc<Account>,
    bytes: u64,
}

impl Held {
    /// Holds so many bytes more. The error is a text for the script's author.
    pub fn grow(&mut self, more: usize) -> Result<(), String> {
        let more = more as u64;
        let taken = self.account.take(&self.account.held_bytes, more);
        taken.map_err(|full| match full {
            Full::Attempt => format!("the memory limit of {} {HELD}", self.account.limit_bytes),
            Full::Node => NODE_FULL.to_owned(),
        })?;
        self.bytes += more;
        Ok(())
    }

    /// Holds so many bytes less, or none.
    pub fn shrink(&mut self, less: usize) {
        let less = self.bytes.min(less as u64);
        self.bytes -= less;
        self.account.give_back(&self.account.held_bytes, less);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.give_back(&self.account.held_bytes, self.bytes);
    }
}

/// Counts an attempt's memory and refuses what exceeds its limit.
pub(crate) struct MemoryGuard {
    account: Arc<Account>,
    table_elements: usize,
}

impl MemoryGuard {
    pub fn new(limit_bytes: u64, meter: Arc<MemoryMeter>, budget: Arc<MemoryBudget>) -> Self {
        let account = Account {
            limit_bytes,
            linear_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            meter,
            budget,
        };
        Self {
            account: Arc::new(account),
            table_elements: 0,
        }
    }

    /// The most that it may hold.
    pub fn limit_bytes(&self) -> u64 {
        self.account.limit_bytes
    }

    /// Holds bytes for the attempt outside of its linear memories. The error is a text for the script's author.
    pub fn hold(&self, bytes: usize) -> Result<Held, String> {
        self.holder().hold(bytes)
    }

    /// What holds bytes for the attempt elsewhere.
    pub fn holder(&self) -> Holder {
        Holder(Arc::clone(&self.account))
    }

    /// For what is not there yet: see [`Held::grow`].
    pub fn hold_nothing(&self) -> Held {
        self.holder().hold_nothing()
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        let linear = &self.account.linear_bytes;
        self.account.give_back(linear, linear.load(Relaxed));
    }
}

impl ResourceLimiter for MemoryGuard {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let meter = &self.account.meter;
        if maximum.is_some_and(|maximum| desired > maximum) {
            // This maximum is the module's own, or the pool's: only the pool's is a limit of ours.
            let is_ours = desired as u64 > self.account.limit_bytes;
            meter.refused.fetch_or(is_ours, Relaxed);
            return Ok(false);
        }
        let (linear, more) = (&self.account.linear_bytes, desired.saturating_sub(current) as u64);
        // Allocators end a program that gets no memory, in their own words: so this is remembered for whatever comes.
        let mark = match self.account.take(linear, more) {
            Ok(()) => None,
            Err(Full::Attempt) => Some(&meter.refused),
            Err(Full::Node) => Some(&meter.exhausted),
        };
        if let Some(mark) = mark {
            mark.store(true, Relaxed);
            return Ok(false);
        }
        meter.peak_bytes.fetch_max(linear.load(Relaxed), Relaxed);
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.table_elements = self.table_elements.saturating_add(desired.saturating_sub(current));
        Ok(self.table_elements <= MAX_TABLE_ELEMENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_counts() {
        let budget = Arc::new(MemoryBudget {
            limit_bytes: 250,
            used_bytes: AtomicU64::new(0),
        });
        let guard_of = || {
            let meter = Arc::new(MemoryMeter::default());
            (MemoryGuard::new(100, Arc::clone(&meter), Arc::clone(&budget)), meter)
        };
        let (mut guard, meter) = guard_of();
        // Each of the two may reach the limit.
        assert!(guard.memory_growing(0, 90, None).unwrap());
        let mut held = guard.hold(90).unwrap();
        let marks = |meter: &MemoryMeter| (meter.refused.load(Relaxed), meter.exhausted.load(Relaxed));
        let refused = held.grow(11).unwrap_err();
        assert!(
            refused.contains("limit of 100 bytes") && tells_of_memory(&refused),
            "{refused}"
        );
        // The script may handle this; other failures then have other reasons.
        assert_eq!(marks(&meter), (false, false));
        held.grow(10).unwrap();
        assert!(!guard.memory_growing(90, 101, None).unwrap());
        assert_eq!(marks(&meter), (true, false));
        assert!(guard.memory_growing(90, 100, None).unwrap());
        // Another attempt gets what the node has left.
        let (mut other, its_meter) = guard_of();
        let refused = other.hold(51).map(drop).unwrap_err();
        assert!(refused.contains("the node has no memory left") && tells_of_memory(&refused));
        assert_eq!(marks(&its_meter), (false, false));
        assert!(!other.memory_growing(0, 51, None).unwrap());
        assert_eq!(marks(&its_meter), (false, true));
        assert!(!tells_of_memory("no memory"));
        let rest = other.hold(50).unwrap();
        assert_eq!(budget.used_bytes.load(Relaxed), 250);
        // Something that is on its way may stay longer than its attempt.
        drop(guard);
        assert_eq!(budget.used_bytes.load(Relaxed), 150);
        drop((held, rest, other));
        assert_eq!(budget.used_bytes.load(Relaxed), 0);
        assert_eq!(meter.peak_bytes.load(Relaxed), 100);
    }
}
