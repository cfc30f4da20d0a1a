//! The claimer: takes what waits in *ready*, as far as this node has room. A loop of its own, so that one batch is claimed
//! while the guests of another run and the outcomes of a third are recorded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::Chain;

use crate::Runs;
use crate::node::signals::Signal;

/// How often a node looks for work that nobody told it of; when it has had none for a while, less often.
const POLL_BUSY: Duration = Duration::from_millis(100);
const POLL_IDLE: Duration = Duration::from_millis(1_000);

/// How long to wait before a claim that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// While there is a backlog, so much room has to come free before the next claim: small claims cost as much as large.
const ROOM_MIN: usize = crate::runs::hands::SHORT_TARGET / 4;

/// How long to wait for that much room.
const ROOM_WAIT: Duration = Duration::from_millis(5);

/// Claims what is ready, over and over.
pub(crate) async fn run(runs: Arc<Runs>) {
    let mut idle: u32 = 0;
    loop {
        let backlog = runs.backlog.load(Ordering::Relaxed);
        let poll = match (backlog, idle > 20) {
            (true, _) => ROOM_WAIT,
            (false, true) => POLL_IDLE,
            (false, false) => POLL_BUSY,
        };
        tokio::select! {
            () = runs.node.signals.raised(Signal::Work) => {}
            () = runs.node.signals.raised(Signal::Freed), if backlog => if runs.room().free < ROOM_MIN { continue },
            () = runs.node.stop.cancelled() => return,
            () = tokio::time::sleep(poll) => idle = idle.saturating_add(1),
        }
        claim(&runs, &mut idle).await;
    }
}

/// Claims as much as there is room for.
async fn claim(runs: &Arc<Runs>, idle: &mut u32) {
    let room = runs.room();
    if room.claimable() == 0 {
        // Whatever frees a slot brings the claimer around again.
        runs.backlog.store(true, Ordering::Relaxed);
        return;
    }
    match runs.node.store.claim(runs.lease(), room, runs.now()).await {
        Ok(claimed) => {
            if !claimed.is_empty() {
                *idle = 0;
            }
            runs.backlog.store(claimed.len() >= room.claimable(), Ordering::Relaxed);
            if let Some(last) = claimed.iter().map(|claimed| claimed.turn).max() {
                runs.turn.fetch_max(last, Ordering::Relaxed);
            }
            runs.take(claimed.into_iter().map(|claimed| (claimed.run, claimed.at)).collect());
        }
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "cannot claim");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}
