//! The state of a node, as one value that changes as a whole, and for whose changes services can wait.

use tokio::sync::watch;

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeState {
    /// The current or last lease.
    pub(crate) lease: i64,
    /// The lease is lost, and there is no new one yet.
    pub(crate) fenced: bool,
    /// The node has been asked to stop: it accepts nothing more.
    pub(crate) draining: bool,
    /// Other nodes are alive: they must be woken.
    pub(crate) others: bool,
    /// It still compiles scripts of the enabled groups: their runs would wait here for the compiler.
    pub(crate) warming: bool,
    /// Another node can do its work: that one is active, holds its lease, and is not warming.
    pub(crate) relieved: bool,
    /// How many leases it has lost.
    pub(crate) leases_lost: u64,
}

impl NodeState {
    /// Whether something new may begin.
    pub(crate) fn is_active(&self) -> bool {
        !self.fenced && !self.draining
    }

    /// Whether it leaves task runs to others: they start there at once, and would wait here.
    pub(crate) fn leaves_work(&self) -> bool {
        self.warming && self.relieved
    }

    /// Whether it takes task runs.
    pub(crate) fn takes_work(&self) -> bool {
        self.is_active() && !self.leaves_work()
    }
}

/// The state of a node, with those who wait for it to change.
#[derive(Debug)]
pub(crate) struct State(watch::Sender<NodeState>);

impl Default for State {
    fn default() -> Self {
        Self(watch::Sender::new(NodeState {
            lease: 0,
            fenced: false,
            draining: false,
            // The first heartbeat finds out whether there are others.
            others: true,
            warming: false,
            relieved: false,
            leases_lost: 0,
        }))
    }
}

impl State {
    pub(crate) fn now(&self) -> NodeState {
        *self.0.borrow()
    }

    /// Waits until the state is as wanted; for ever, if it never is.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(&NodeState) -> bool) {
        // The sender is `self`, so the channel is never closed.
        let mut state = self.0.subscribe();
        drop(state.wait_for(|state| wanted(state)).await);
    }

    /// The node has a lease, and may work.
    pub(super) fn hold(&self, lease: i64) {
        self.change(|state| {
            state.lease = lease;
            state.fenced = false;
        });
    }

    /// The lease is lost; `false`: that is known already.
    pub(super) fn fence(&self) -> bool {
        self.change(|state| {
            state.leases_lost += u64::from(!state.fenced);
            state.fenced = true;
        })
    }

    /// The lease is returned: the node ends.
    pub(crate) fn give_up_lease(&self) {
        self.change(|state| state.fenced = true);
    }

    /// The node is to stop.
    pub(crate) fn drain(&self) {
        self.change(|state| state.draining = true);
    }

    /// Whether other nodes are alive.
    pub(super) fn set_others(&self, others: bool) {
        self.change(|state| state.others = others);
    }

    /// Until [`State::end_warming`], the node leaves task runs to others that can do them.
    pub(crate) fn begin_warming(&self) {
        self.change(|state| state.warming = true);
    }

    /// Returns whether the node takes task runs only from now on.
    pub(super) fn end_warming(&self) -> bool {
        self.lets_take(|state| state.warming = false)
    }

    /// Whether another node can do the work of this one. Returns whether the node takes task runs only from now on.
    pub(super) fn set_relieved(&self, relieved: bool) -> bool {
        self.lets_take(|state| state.relieved = relieved)
    }

    /// Returns whether the node takes task runs after the change, and did not before.
    fn lets_take(&self, change: impl FnOnce(&mut NodeState)) -> bool {
        let mut lets = false;
        self.change(|state| {
            let before = state.takes_work();
            change(state);
            lets = state.takes_work() && !before;
        });
        lets
    }

    /// Returns whether the state has changed.
    fn change(&self, change: impl FnOnce(&mut NodeState)) -> bool {
        self.0.send_if_modified(|state| {
            let before = *state;
            change(state);
            *state != before
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_lease_is_lost_once_and_comes_back_as_another() {
        let state = State::default();
        state.hold(7);
        assert!(state.now().is_active());
        assert!(state.fence());
        assert!(!state.fence(), "it is lost already");
        let lost = state.now();
        assert_eq!((lost.lease, lost.leases_lost, lost.is_active()), (7, 1, false));
        state.hold(8);
        assert_eq!((state.now().lease, state.now().is_active()), (8, true));
        // A returned lease is not lost.
        state.give_up_lease();
        assert_eq!((state.now().leases_lost, state.now().is_active()), (1, false));
    }

    #[test]
    fn a_node_that_warms_leaves_work_only_to_others_that_can_do_it() {
        let state = State::default();
        state.hold(1);
        assert!(state.now().takes_work());
        assert!(!state.set_relieved(true) && state.now().takes_work(), "it is warm");
        state.begin_warming();
        assert!(state.now().leaves_work() && !state.now().takes_work());
        assert!(state.set_relieved(false), "the other is gone");
        assert!(state.now().takes_work());
        assert!(!state.set_relieved(false) && !state.set_relieved(true));
        assert!(!state.now().takes_work());
        // Neither a node without a lease nor one that stops begins to take anything.
        state.fence();
        assert!(!state.set_relieved(false) && !state.set_relieved(true));
        state.hold(2);
        assert!(!state.now().takes_work(), "a new lease compiles nothing");
        assert!(state.end_warming() && state.now().takes_work());
        assert!(!state.end_warming(), "it is over already");
        state.begin_warming();
        state.drain();
        assert!(!state.end_warming() && !state.now().takes_work());
    }

    #[test]
    fn who_waits_hears_of_the_change() {
        let state = State::default();
        state.hold(1);
        assert!(state.wait_for(NodeState::is_active).now_or_never().is_some());
        state.fence();
        let mut waits = Box::pin(state.wait_for(NodeState::is_active));
        assert!(waits.as_mut().now_or_never().is_none());
        state.set_others(false);
        assert!(waits.as_mut().now_or_never().is_none());
        state.hold(2);
        assert!(waits.as_mut().now_or_never().is_some());
    }
}
