//! What this node, and the cluster, report of themselves.

use std::time::Duration;

use heddle_api::{Node, NodeStats, NotificationStats, Stats};
use heddle_domain::Chain;
use heddle_domain::state::ReportedState;
use heddle_engine::Engine;

use super::Refusal;

/// A node is not ready when its data plane has had no answer for so long, although its heartbeat may have.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// A node is not ready when the database has refused writes for so long because its disk is full.
const FULL_MAX: Duration = Duration::from_secs(5);

/// How long the query for `/readyz` may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Whether this node accepts work: `Err` says what is missing.
pub(crate) async fn ready(engine: &Engine) -> Result<(), String> {
    if !engine.is_ready() && engine.is_healthy() {
        let starting = match (engine.is_warming() && !engine.is_leaving(), engine.leaves_work()) {
            (true, true) => "this node is starting and still compiles scripts; other nodes do the work",
            (true, false) => "this node is starting and still compiles scripts",
            (false, _) => "this node is still starting, or is stopping",
        };
        return Err(starting.into());
    }
    let full = engine.store().full_for();
    if !engine.is_healthy() {
        if full > FULL_MAX {
            return Err("this node has lost its lease: the disk of the database is full".into());
        }
        let answer = tokio::time::timeout(ANSWER_MAX, engine.store().takes_writes());
        return Err(match answer.await {
            Ok(Ok(false) | Err(heddle_store::StoreError::ReadOnly(_))) => {
                "this node has lost its lease: the database is read-only".into()
            }
            _ => "this node has lost its lease and is requesting a new one".into(),
        });
    }
    let stalled = engine.store().stalled_for();
    if stalled > STALLED_MAX {
        let seconds = stalled.as_secs();
        return Err(format!(
            "the database has not answered any statement of this node for {seconds} s"
        ));
    }
    if full > FULL_MAX {
        let seconds = full.as_secs();
        return Err(format!(
            "the disk of the database is full; it has refused writes for {seconds} s"
        ));
    }
    match tokio::time::timeout(ANSWER_MAX, engine.store().takes_writes()).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err("the database is read-only".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the database does not answer".into()),
    }
}

/// Follows what has been changed so far: after each change, so that the next request on this node sees it.
pub(crate) async fn follow(engine: &Engine) {
    if let Err(error) = engine.follow_changes().await {
        tracing::warn!(error = %Chain(&error), "cannot apply a change on this node immediately; it is applied at the \
            next poll");
    }
}

/// The nodes of the cluster.
pub(crate) async fn list(engine: &Engine) -> Result<Vec<Node>, Refusal> {
    let newest = engine.store().changes_position().await?;
    let margin = chrono::TimeDelta::from_std(engine.lease_margin()).unwrap_or_default();
    let rows = engine.store().nodes(margin).await?;
    let (own, fenced) = (engine.node(), !engine.is_healthy() && !engine.is_leaving());
    let nodes = rows.into_iter().map(|row| Node {
        id: row.id.to_string(),
        name: row.name,
        address: Some(row.address),
        state: match (row.state, row.alive) {
            (ReportedState::Stopped, _) => "stopped",
            (_, false) => "lost",
            (_, true) if row.fenced || fenced && row.id == own => "fenced",
            (ReportedState::Draining, true) => "draining",
            (ReportedState::Active, true) => "active",
        }
        .to_owned(),
        version: row.version,
        started_at: row.started_at.into(),
        heartbeat_at: row.heartbeat_at.into(),
        position: row.position,
        position_newest: newest,
        slots: row.slots,
        running: row.in_hand,
        warming: row.warming && row.alive,
    });
    Ok(nodes.collect())
}

/// Counts of the cluster and of this node, without the requests that wait: the engine does not know them.
pub(crate) async fn stats(engine: &Engine) -> Result<Stats, Refusal> {
    let runs = engine.store().live_counts().await?;
    let depths = engine.store().depths().await?;
    let (waiting, notices) = engine.store().waiting_notifications().await?;
    let counters = engine.counters();
    Ok(Stats {
        runs: runs
            .into_iter()
            .map(|(state, count)| (state.to_string(), count))
            .collect(),
        ready: depths.ready,
        queued: depths.queued,
        claimed: depths.claimed,
        running: depths.running,
        retrying: depths.timers,
        notifications: NotificationStats {
            waiting: waiting.into_iter().collect(),
            notices,
        },
        node: NodeStats {
            id: engine.node(),
            in_hand: counters.in_hand,
            runs_ended: counters.runs_ended,
            attempts_ended: counters.attempts_ended,
            waiting: 0,
        },
    })
}
