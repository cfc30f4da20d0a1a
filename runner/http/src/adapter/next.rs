//! When a group's schedules are due next.

use std::collections::BTreeMap;

use heddle_domain::schedule::Kind;
use heddle_domain::{Clock, Time};
use heddle_engine::Engine;
use heddle_store::group::GroupRow;
use heddle_store::schedule;

use super::Refusal;

/// When a group's schedules are due next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NextInstants {
    /// The next instants of all of them together, at most as many as were asked for.
    pub(crate) instants: Vec<(Time, Vec<String>)>,
    /// The next instant of each.
    pub(crate) by_schedule: BTreeMap<String, Option<Time>>,
    /// Those that have fired for the only time (`once`), and when.
    pub(crate) fired: BTreeMap<String, Time>,
}

/// The next `count` instants of a group's enabled schedules; none while the group is disabled.
///
/// The instants of cron, every and daily are known in advance. `after` and `once` depend on what has happened: they
/// have at most one, as the scheduler has it.
pub(crate) async fn next(engine: &Engine, group: GroupRow, count: usize) -> Result<NextInstants, Refusal> {
    let compiled = schedule::compile(
        group.revision_id,
        &group.spec,
        &group.schedule_anchors,
        group.created_at,
    )?;
    let now = engine.clock().now();
    let eventful = compiled.schedules.values().any(|schedule| !schedule.has_grid());
    let rows: BTreeMap<String, schedule::ScheduleRow> = if eventful {
        let rows = engine.store().schedules_of(group.id).await?;
        rows.into_iter().map(|row| (row.name.clone(), row)).collect()
    } else {
        BTreeMap::new()
    };
    let mut next = NextInstants::default();
    let mut instants: BTreeMap<Time, Vec<String>> = BTreeMap::new();
    for (name, schedule) in &compiled.schedules {
        let row = rows.get(name);
        if let Some(fired_at) = row.and_then(|row| row.fired_at) {
            next.fired.insert(name.clone(), fired_at);
        }
        let live = group.enabled && schedule.enabled();
        let mut at = match schedule.kind() {
            _ if !live => None,
            Kind::After | Kind::Once => row.and_then(|row| row.next_fire_at),
            Kind::Cron | Kind::Every | Kind::Daily => schedule.next_after(now),
        };
        next.by_schedule.insert(name.clone(), at);
        for _ in 0..count {
            let Some(instant) = at else { break };
            instants.entry(instant).or_default().push(name.clone());
            at = if schedule.has_grid() {
                schedule.next_after(instant)
            } else {
                None
            };
        }
    }
    next.instants = instants.into_iter().take(count).collect();
    Ok(next)
}
