//! How much one transaction hands to the node that runs it: the one rule.
//!
//! What becomes ready goes straight into *running* under the lease of the node whose transaction makes it ready, as far as
//! a [`Grant`] reaches. A grant is had from a node's [`Room`] only, and a row is handed over by a grant only
//! ([`ReadyRow::hand`]), so that no transaction can forget one of the three parts of the rule:
//!
//! * no more than the node can begin at once;
//! * no more than its share while other nodes are alive, so that they do not stand idle beside it;
//! * nothing while task runs wait in *ready*: what becomes ready now must not overtake what has waited.

use super::ReadyRow;

/// What a node can take, as it stands when a transaction begins.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// How many attempts it could begin at once.
    pub free: usize,
    /// How many one transaction may give it, for the sake of other nodes.
    pub share: usize,
    /// Task runs wait in *ready* for room.
    pub backlog: bool,
}

impl Room {
    /// How many task runs it may claim of those that wait.
    pub fn claimable(self) -> usize {
        self.free.min(self.share)
    }

    /// What one transaction may hand to it of what becomes ready.
    pub fn grant(self) -> Grant {
        Grant(if self.backlog { 0 } else { self.claimable() })
    }
}

/// What one transaction may still hand to this node. It is used up as rows are handed over, and cannot be copied.
#[derive(Debug)]
pub struct Grant(usize);

impl Grant {
    /// Nothing is handed over: everything goes into *ready*.
    pub fn none() -> Self {
        Self(0)
    }

    fn take(&mut self) -> bool {
        let some = self.0 > 0;
        self.0 -= usize::from(some);
        some
    }
}

impl ReadyRow {
    /// Hands it to this node, if the grant reaches that far and it waits for no slots.
    pub fn hand(&mut self, grant: &mut Grant) {
        self.handed = self.pools.is_none() && grant.take();
    }

    /// Leaves it to whoever claims it.
    pub fn leave(&mut self) {
        self.handed = false;
    }

    /// Whether this node takes it at once.
    pub fn is_handed(&self) -> bool {
        self.handed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heddle_domain::run::{AttemptKey, TaskKey};

    use super::*;

    fn rows(count: u16, pooled: impl Fn(u16) -> bool) -> Vec<ReadyRow> {
        let at = |task| AttemptKey {
            key: TaskKey { task, item: None },
            attempt: 1,
        };
        (0..count)
            .map(|task| ReadyRow::new(at(task), 0, pooled(task).then(Arc::default)))
            .collect()
    }

    #[track_caller]
    fn check(room: Room, expect: usize) {
        let mut grant = room.grant();
        // Two loops over rows of one transaction use up one grant.
        let (mut first, mut second) = (rows(3, |_| false), rows(500, |_| false));
        first.iter_mut().chain(&mut second).for_each(|row| row.hand(&mut grant));
        let handed = first.iter().chain(&second).filter(|row| row.is_handed()).count();
        assert_eq!(handed, expect, "{room:?}");
    }

    #[test]
    fn a_grant_is_the_least_of_room_and_share_and_nothing_with_a_backlog() {
        let room = |free, share, backlog| Room { free, share, backlog };
        check(room(800, usize::MAX, false), 503);
        check(room(200, usize::MAX, false), 200);
        check(room(800, 128, false), 128);
        check(room(2, 128, false), 2);
        check(room(0, 128, false), 0);
        check(room(800, usize::MAX, true), 0);
        check(room(800, 128, true), 0);
        // A backlog is what is claimed.
        assert_eq!(room(800, 128, true).claimable(), 128);
        assert_eq!(room(5, 128, true).claimable(), 5);
    }

    #[test]
    fn what_waits_for_slots_is_not_handed_over_and_uses_up_nothing() {
        let mut grant = Room {
            free: 2,
            share: 9,
            backlog: false,
        }
        .grant();
        let mut rows = rows(4, |task| task < 2);
        rows.iter_mut().for_each(|row| row.hand(&mut grant));
        let handed: Vec<bool> = rows.iter().map(ReadyRow::is_handed).collect();
        assert_eq!(handed, [false, false, true, true]);
        rows.iter_mut().for_each(ReadyRow::leave);
        assert!(!rows.iter().any(ReadyRow::is_handed));
    }
}
