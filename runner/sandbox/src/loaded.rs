//! Linked scripts in memory, so that an attempt begins at once.
//!
//! A script takes memory for its compiled code, two to four times the uploaded bytes. Scripts that were not used for a
//! while are dropped, however much room there is; if there is too little room, those that were not used for longest are
//! dropped first. They are loaded from disk again when they are needed, in milliseconds. A running attempt keeps its
//! own reference to a script.
//!
//! `quick_cache`, which other caches of Heddle use, does not fit: it does not know for how long an entry was unused, and
//! by default it refuses an entry that is larger than the cache; here, such a script is kept alone. Idle time is counted in
//! checks, not read from a clock, so a test needs no time.

use crate::script::Script;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

/// How often scripts are checked, and after how many checks without a use one is dropped.
const CHECK_EVERY: Duration = Duration::from_secs(60);
const IDLE_CHECKS_MAX: u32 = 10;

/// Linked scripts by digest.
pub(crate) struct Loaded<S = Script> {
    scripts: HashMap<String, Entry<S>>,
    bytes: u64,
    max_bytes: u64,
    uses: u64,
}

struct Entry<S> {
    script: S,
    /// The bytes of its code.
    bytes: u64,
    /// The number of its last use, now and at the last check.
    used: u64,
    seen: u64,
    /// How many checks in a row have found it unused.
    idle: u32,
}

impl<S: Clone> Loaded<S> {
    pub fn new(max_bytes: u64) -> Self {
        Self {
            scripts: HashMap::new(),
            bytes: 0,
            max_bytes,
            uses: 0,
        }
    }

    /// Whether a script is in memory; does not count as a use.
    pub fn contains(&self, digest: &str) -> bool {
        self.scripts.contains_key(digest)
    }

    /// How many there are, and the bytes of their code.
    pub fn size(&self) -> (usize, u64) {
        (self.scripts.len(), self.bytes)
    }

    pub fn get(&mut self, digest: &str) -> Option<S> {
        self.uses += 1;
        let entry = self.scripts.get_mut(digest)?;
        entry.used = self.uses;
        Some(entry.script.clone())
    }

    pub fn insert(&mut self, digest: &str, bytes: u64, script: S) {
        self.uses += 1;
        self.bytes += bytes;
        let entry = Entry {
            script,
            bytes,
            used: self.uses,
            seen: 0,
            idle: 0,
        };
        if let Some(old) = self.scripts.insert(digest.to_owned(), entry) {
            self.bytes -= old.bytes;
        }
        while self.bytes > self.max_bytes && self.scripts.len() > 1 {
            let oldest = self
                .scripts
                .iter()
                .min_by_key(|(_, entry)| entry.used)
                .map(|(digest, _)| digest.clone());
            let Some(oldest) = oldest.filter(|oldest| oldest != digest) else {
                break;
            };
            drop(self.remove(&oldest));
        }
    }

    /// Removes and returns those that satisfy a condition.
    pub fn take(&mut self, which: impl Fn(&S) -> bool) -> Vec<S> {
        let found: Vec<String> = self
            .scripts
            .iter()
            .filter(|(_, entry)| which(&entry.script))
            .map(|(digest, _)| digest.clone())
            .collect();
        found.iter().filter_map(|digest| self.remove(digest)).collect()
    }

    fn remove(&mut self, digest: &str) -> Option<S> {
        let entry = self.scripts.remove(digest)?;
        self.bytes -= entry.bytes;
        Some(entry.script)
    }

    /// One check: removes and returns scripts that too many checks in a row have found unused.
    fn take_idle(&mut self) -> Vec<S> {
        let mut idle = Vec::new();
        for (digest, entry) in &mut self.scripts {
            if entry.used == entry.seen {
                entry.idle += 1;
            } else {
                (entry.seen, entry.idle) = (entry.used, 0);
            }
            if entry.idle >= IDLE_CHECKS_MAX {
                idle.push(digest.clone());
            }
        }
        idle.iter().filter_map(|digest| self.remove(digest)).collect()
    }
}

/// Checks as long as the sandbox exists.
pub(crate) async fn forget_idle(loaded: Weak<Mutex<Loaded>>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let Some(loaded) = loaded.upgrade() else { return };
        // Outside of the lock: freeing tens of megabytes takes a moment.
        let idle = loaded.lock().take_idle();
        if !idle.is_empty() {
            tracing::debug!(
                scripts = idle.len(),
                "removed scripts from memory that were not used for a while"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unused_goes() {
        let mut loaded = Loaded::new(100);
        loaded.insert("a", 10, "the first");
        loaded.insert("b", 20, "the second");
        for look in 1..=IDLE_CHECKS_MAX + 1 {
            let gone = loaded.take_idle();
            // The first check finds both just used.
            let expect: &[&str] = if look == IDLE_CHECKS_MAX + 1 {
                &["the first"]
            } else {
                &[]
            };
            assert_eq!(gone, expect, "look {look}");
            loaded.get("b");
        }
        assert!(!loaded.contains("a") && loaded.contains("b"));
        assert_eq!(loaded.size(), (1, 20));
    }

    #[test]
    fn room_is_made_by_the_longest_unused() {
        let mut loaded = Loaded::new(100);
        loaded.insert("a", 50, ());
        loaded.insert("b", 40, ());
        loaded.get("a");
        loaded.insert("c", 50, ());
        assert!(loaded.contains("a") && !loaded.contains("b") && loaded.contains("c"));
        // A script that is larger than all the room is kept alone.
        loaded.insert("d", 1_000, ());
        assert_eq!(loaded.size(), (1, 1_000));
    }
}
