//! Claims that nobody holds, because the connection to the database broke: while they were made, so that they may exist or not;
//! or afterwards, so that no worker got them and they could not be given back. Without this, their task runs would wait until
//! their leases expire, which may be a day.
//!
//! The node has chosen the ids of these claims, so it looks for them, and gives back what it finds. What it does not find soon
//! was never made, or is given back already.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use heddle_store::live::ClaimKey;
use parking_lot::Mutex;
use uuid::Uuid;

use super::Queues;
use crate::EngineError;
use crate::node::group_commit::Met;
use crate::runs::ending::Ending;

/// How many ids are looked for at most. Claims with further ones end with their leases.
const IDS_MAX: usize = 10_000;

/// For how long an id is looked for, at least. The server may go on with a claim although nobody waits for it: it checks every
/// two seconds.
const LOOKED_FOR: Duration = Duration::from_secs(10);

/// Ids of claims that may exist, each with the time at which its answer was lost (`NodeClock::elapsed`).
#[derive(Default)]
pub(super) struct Unheld(Mutex<HashMap<Uuid, Duration>>);

impl Unheld {
    /// Notes the ids of claims that nobody got. While there is no room, they are not noted.
    pub(super) fn note(&self, unheld: impl IntoIterator<Item = Uuid>, now: Duration) {
        let mut ids = self.0.lock();
        let room = IDS_MAX.saturating_sub(ids.len());
        ids.extend(unheld.into_iter().take(room).map(|id| (id, now)));
    }

    fn ids(&self) -> Vec<Uuid> {
        self.0.lock().keys().copied().collect()
    }

    /// They were looked for at this time, all of them.
    fn looked(&self, at: Duration) {
        self.0.lock().retain(|_, lost| at.saturating_sub(*lost) < LOOKED_FOR);
    }
}

impl Queues {
    /// Gives back claims whose answers were lost. If those of one queue have to wait for other transactions, the other queues
    /// are served nevertheless, and all are looked for again.
    pub(super) async fn give_back_unheld(self: &Arc<Self>) -> Result<(), EngineError> {
        let now = self.node.clock.elapsed();
        let ids = self.unheld.ids();
        if ids.is_empty() {
            return Ok(());
        }
        let mut by_queue: BTreeMap<String, Vec<(ClaimKey, Ending)>> = BTreeMap::new();
        for (claim, queue) in self.node.store.claims_of_ids(&ids).await? {
            by_queue.entry(queue).or_default().push((claim, Ending::Released));
        }
        let mut in_the_way = None;
        for (queue, claims) in by_queue {
            tracing::info!(
                queue,
                claims = claims.len(),
                "giving back claims whose answers were lost"
            );
            // A claim that was given back is not found any more.
            match self.settle_each(claims, Some(&queue)).await {
                Ok(()) => {}
                Err(error) if Met::of(&error) == Met::NoDatabase => return Err(error),
                Err(error) => in_the_way = Some(error),
            }
        }
        if let Some(error) = in_the_way {
            return Err(error);
        }
        self.unheld.looked(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_looked_for_for_a_while_and_are_bounded() {
        let unheld = Unheld::default();
        let fresh = |from: u128, count: u128| (from..from + count).map(Uuid::from_u128);
        let second = Duration::from_secs(1);
        unheld.note(fresh(0, 3), second);
        unheld.looked(LOOKED_FOR);
        assert_eq!(unheld.ids().len(), 3);
        unheld.note(fresh(3, 20_000), 2 * second);
        assert_eq!(unheld.ids().len(), IDS_MAX);
        unheld.looked(second + LOOKED_FOR);
        assert_eq!(unheld.ids().len(), IDS_MAX - 3);
        unheld.looked(2 * second + LOOKED_FOR);
        assert!(unheld.ids().is_empty());
    }
}
