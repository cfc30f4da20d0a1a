//! Look-ups of users, takes and ends: many users share one statement or transaction (see
//! [`crate::node::group_commit`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Time;
use heddle_store::assignment::{BATCH_MAX, End, Ended, Proposal, UserFacts, Verdict};

use super::{Dispatch, DispatchError};
use crate::EngineError;
use crate::node::Node;
use crate::node::group_commit::{Asked, Commits, Committed, Gathering, GroupCommit, Policy, chunks};

/// How batches of each kind are committed: two at once; a conflict with another transaction is tried again a few times.
const fn policy(what: &'static str, repeatable: bool) -> Policy {
    Policy {
        what,
        queue_max: 16_384,
        batch_max: BATCH_MAX,
        workers: 2,
        tries_max: Some(5),
        again_after: Duration::from_millis(2),
        repeatable,
    }
}

/// What is known of users.
pub(crate) struct ReadUsers(Arc<Dispatch>);

impl Commits for ReadUsers {
    type Request = String;
    type Answer = UserFacts;
    type Then = ();
    const POLICY: Policy = policy("looks of users", true);

    fn node(&self) -> &Node {
        &self.0.node
    }

    async fn commit(&self, batch: &mut [String]) -> Committed<Self> {
        let mut uids = batch.to_vec();
        uids.sort_unstable();
        uids.dedup();
        let facts = self.0.look_up(&uids).await?;
        let facts: HashMap<&str, &UserFacts> = facts.iter().map(|facts| (facts.uid.as_str(), facts)).collect();
        let found = |uid: &String| facts.get(uid.as_str()).map(|facts| UserFacts::clone(facts));
        let answers: Option<Vec<UserFacts>> = batch.iter().map(found).collect();
        let answers = answers.ok_or_else(|| EngineError::unreadable("a user was not looked up"))?;
        Ok((answers, ()))
    }
}

/// The database's verdict on proposals, and for given ones, since when the users have them.
pub(crate) struct Takes(Arc<Dispatch>);

impl Commits for Takes {
    type Request = Proposal;
    type Answer = (Verdict, Time);
    type Then = ();
    const POLICY: Policy = policy("proposals to users", false);

    fn node(&self) -> &Node {
        &self.0.node
    }

    async fn commit(&self, batch: &mut [Proposal]) -> Committed<Self> {
        let now = self.0.node.now();
        let verdicts = self.0.node.store.take(batch, self.0.config.horizon, now).await?;
        Ok((verdicts.into_iter().map(|verdict| (verdict, now)).collect(), ()))
    }
}

/// The ends of assignments, as users report them.
pub(crate) struct Ends(Arc<Dispatch>);

impl Commits for Ends {
    type Request = End;
    type Answer = Option<Ended>;
    type Then = ();
    const POLICY: Policy = policy("ends of assignments", false);

    fn node(&self) -> &Node {
        &self.0.node
    }

    fn batches(&self, gathered: Vec<Asked<Self>>) -> Vec<Vec<Asked<Self>>> {
        // By user and id: a request of another user with the same id must not count as a repeat of this one.
        let mut seen = HashSet::with_capacity(gathered.len());
        let (first, again) = gathered
            .into_iter()
            .partition(|asked: &Asked<Self>| seen.insert((asked.request.uid.clone(), asked.request.id)));
        let mut batches = chunks(first, Self::POLICY.batch_max);
        // A repeat gets a later batch: it finds the first one in the history, once that is committed.
        batches.extend(Vec::into_iter(again).map(|asked| vec![asked]));
        batches
    }

    async fn commit(&self, batch: &mut [End]) -> Committed<Self> {
        let ended = self.0.node.store.end_holds(batch, self.0.node.now()).await?;
        let mut ended: HashMap<(String, uuid::Uuid), Ended> = ended
            .into_iter()
            .map(|one| ((one.assignment.uid.clone(), one.assignment.id), one))
            .collect();
        let answers = batch.iter().map(|end| ended.remove(&(end.uid.clone(), end.id)));
        Ok((answers.collect(), ()))
    }
}

/// The queue in which requests wait for the next transaction.
pub(crate) struct Batches {
    reads: GroupCommit<ReadUsers>,
    takes: GroupCommit<Takes>,
    ends: GroupCommit<Ends>,
}

/// What commits the batches: not started yet.
pub(crate) struct GatheringUsers(Gathering<ReadUsers>, Gathering<Takes>, Gathering<Ends>);

impl GatheringUsers {
    pub(crate) fn start(self, dispatch: &Arc<Dispatch>) {
        self.0.start(ReadUsers(dispatch.clone()));
        self.1.start(Takes(dispatch.clone()));
        self.2.start(Ends(dispatch.clone()));
    }
}

/// The database's refusal is already in the log.
fn refused(error: EngineError) -> DispatchError {
    match error {
        EngineError::Overloaded => DispatchError::Overloaded,
        _ => DispatchError::Unavailable,
    }
}

impl Batches {
    pub(super) fn new() -> (Self, GatheringUsers) {
        let (reads, gathering_reads) = GroupCommit::new();
        let (takes, gathering_takes) = GroupCommit::new();
        let (ends, gathering_ends) = GroupCommit::new();
        let batches = Self { reads, takes, ends };
        (
            batches,
            GatheringUsers(gathering_reads, gathering_takes, gathering_ends),
        )
    }

    pub(super) async fn read_user(&self, uid: &str) -> Result<UserFacts, DispatchError> {
        self.reads.ask(uid.to_owned()).await.map_err(refused)
    }

    /// The database's verdict on a proposal, and if it was given, since when the user has it.
    pub(super) async fn take(&self, proposal: Proposal) -> Result<(Verdict, Time), DispatchError> {
        self.takes.ask(proposal).await.map_err(refused)
    }

    pub(super) async fn end(&self, end: End) -> Result<Option<Ended>, DispatchError> {
        self.ends.ask(end).await.map_err(refused)
    }
}
