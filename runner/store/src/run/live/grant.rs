//! How many task runs one transaction may give to the node that runs it.
//!
//! Task runs that become ready go directly into *running* under the lease of the node whose transaction makes them
//! ready, as far as a [`Grant`] allows. A grant comes only from a node's [`Room`], and only a grant gives a row to the
//! node ([`ReadyRow::hand`]), so that no transaction can forget a part of the rule:
//!
//! * no more than the node can begin at once;
//! * no more than its maximum per transaction while other nodes are alive, so that these are not idle;
//! * none while task runs wait in *ready*: new ones must not overtake them.

use super::ReadyRow;

/// What a node can take when a transaction begins.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// How many attempts the node could begin at once.
    pub free: usize,
    /// How many attempts one transaction may give to the node at most, so that other nodes get some, too.
    pub share: usize,
    /// Task runs wait in *ready* for free slots.
    pub backlog: bool,
}

impl Room {
    /// How many of the waiting task runs it may claim.
    pub fn claimable(self) -> usize {
        self.free.min(self.share)
    }

    /// How many new task runs one transaction may give to it.
    pub fn grant(self) -> Grant {
        Grant(if self.backlog { 0 } else { self.claimable() })
    }
}

/// How many task runs a transaction may still give to this node. It decreases with each row, and cannot be copied.
#[derive(Debug)]
pub struct Grant(usize);

impl Grant {
    /// Gives nothing to this node: everything goes into *ready*.
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
    /// Gives it to this node, if the grant allows that and it waits for no slots.
    pub fn hand(&mut self, grant: &mut Grant) {
        self.handed = self.pools.is_none() && grant.take();
    }

    /// Leaves it in *ready*, for any node to claim.
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
        // Two loops over rows of one transaction share one grant.
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
        // If there is a backlog, task runs are claimed instead.
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
