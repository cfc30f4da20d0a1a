//! Schedules as the scheduler sees them: one row each, with its next due time.
//!
//! # The story
//!
//! A row of *schedules* is one schedule of a group's current revision. Every change of the group (a PUT, enable,
//! disable, detach, delete) updates the rows in the same transaction (`sync`), so there is no moment, and no crash,
//! after which rows and spec differ.
//!
//! Schedules that are not due are not read. A node takes the rows whose `next_fire_at` has passed, by the database's
//! clock, in batches, skipping those that another node has locked ([`Completion::take_schedules`]).
//! [`heddle_domain::schedule`] decides which runs are due; the runs are inserted and the rows advanced
//! ([`Completion::move_schedules`]) in that transaction. If the node dies before the commit, nothing has happened;
//! after it, everything has. If two schedules have one instant, or a backfill was first, *run_instants* detects that.
//!
//! `after` has no instants of its own: when it has fired, it waits for the end of that run (`awaits`), and the
//! transaction that ends the run makes it due again (`run/live/end.rs`).
//!
//! `cursor` only moves forward. So the scheduler does not need the rows of *run_instants* for earlier instants any
//! more; [`crate::upstream`] says when these rows may be deleted.
//!
//! # Disabled time
//!
//! Disabling locks the rows: a node that is firing one of them commits first, and later ticks find nothing due.
//! Enabling sets the cursor to the present, so that runs of the disabled time are never created later.
//!
//! Followers do not wait for what was due in that time. *group_disabled* has the times of groups, which the change of a
//! group's switch writes; *schedule_disabled* has those of schedules, which a trigger of the database writes with each
//! revision, so that nodes of the release before write them too. Both stay as long as the group; rows of a schedule are
//! deleted when a revision leaves it out.

mod anchor;
mod instants;
mod origin;
pub mod upstream;

use std::collections::BTreeMap;

use heddle_domain::fault::pointer_token;
use heddle_domain::schedule::{Calendar, Kind, Schedule, local};
use heddle_domain::spec::{ScheduleSpec, validate};
use heddle_domain::{Fault, Time};
use serde_json::Value;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use crate::database::{PgSession, column};
use crate::group::GroupRow;
use crate::live::Completion;
use crate::{Store, StoreError};

use anchor::anchor_of;
pub(crate) use anchor::is_unchanged;

/// A schedule whose next instant has come, locked by the transaction that took it.
#[derive(Clone, Debug)]
pub struct DueSchedule {
    pub group_id: i64,
    pub name: String,
    /// The group's current revision.
    pub revision_id: i64,
    /// All instants up to this one have been decided.
    pub cursor: Time,
    /// When it was due.
    pub due_at: Time,
    /// `after`: the group's last instant before that.
    pub previous: Option<Time>,
}

/// The new position of a schedule.
#[derive(Clone, Debug)]
pub struct MovedSchedule {
    pub group_id: i64,
    pub name: String,
    /// All instants up to this one have been decided.
    pub cursor: Time,
    /// When it is next due.
    pub next_fire_at: Option<Time>,
    /// The run for whose end it waits; if that has ended already, the schedule is due after its delay from now.
    pub awaits: Option<Uuid>,
    /// When it fired for the only time.
    pub fired_at: Option<Time>,
}

/// A schedule as the API shows it.
#[derive(Clone, Debug)]
pub struct ScheduleRow {
    pub name: String,
    /// All instants up to this one have been decided.
    pub cursor: Time,
    /// When it is next due.
    pub next_fire_at: Option<Time>,
    /// `once`: when it fired.
    pub fired_at: Option<Time>,
}

/// The schedules of a spec by name, since when each has been unchanged, and their time zone.
pub struct Compiled {
    pub schedules: BTreeMap<String, Schedule>,
    /// All that are enabled.
    pub calendar: Calendar,
    /// For a backfill without a step: the same, or all schedules if no enabled one has instants in the past.
    pub past: Calendar,
}

/// Reads the schedules of an accepted spec. `anchors` says since when each has been unchanged; `created_at` is for
/// those that it does not contain.
///
/// `revision` names the row if it is unreadable.
pub fn compile(revision: i64, spec: &Value, anchors: &Value, created_at: Time) -> Result<Compiled, StoreError> {
    let unreadable = |detail: String| StoreError::unreadable("revisions", "spec", revision, detail);
    let mut schedules = BTreeMap::new();
    let zone = zone_of(spec);
    for (name, written) in spec.get("schedules").and_then(Value::as_object).into_iter().flatten() {
        let zone = local::parse_zone(zone).map_err(|error| unreadable(error.to_string()))?;
        let written: ScheduleSpec =
            serde_json::from_value(written.clone()).map_err(|error| unreadable(format!("schedule {name}: {error}")))?;
        let anchor = anchor_of(revision, anchors, name)?.unwrap_or(created_at);
        let schedule = Schedule::compile_stored(&written, zone, anchor)
            .map_err(|fault| unreadable(format!("schedule {name}: {fault}")))?;
        schedules.insert(name.clone(), schedule);
    }
    let calendar = Calendar::new(schedules.values().filter(|schedule| schedule.enabled()).cloned());
    let past = match calendar.has_grid() {
        true => calendar.clone(),
        false => Calendar::new(schedules.values().cloned()),
    };
    Ok(Compiled {
        schedules,
        calendar,
        past,
    })
}

/// Why a schedule of a stored spec cannot be enabled at `at`, with a pointer into the spec; `None`: it can. `revision` names the
/// row if it is unreadable.
pub(crate) fn cannot_be_enabled(
    revision: i64,
    spec: &Value,
    name: &str,
    at: Time,
) -> Result<Option<Fault>, StoreError> {
    let unreadable = |detail: String| StoreError::unreadable("revisions", "spec", revision, detail);
    let pointer = format!("/schedules/{}", pointer_token(name));
    let written = spec.pointer(&pointer).cloned().unwrap_or_default();
    let written: ScheduleSpec =
        serde_json::from_value(written).map_err(|error| unreadable(format!("schedule {name}: {error}")))?;
    let zone = local::parse_zone(zone_of(spec)).map_err(unreadable)?;
    let history = spec.get("history").and_then(Value::as_bool).unwrap_or_default();
    let fault = validate::cannot_be_enabled(&written, zone, history, at);
    Ok(fault.map(|fault| fault.below(&pointer)))
}

/// Whether a schedule has fired for the only time.
pub(crate) async fn has_fired(connection: &mut PgSession, group_id: i64, name: &str) -> Result<bool, StoreError> {
    let fired = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM heddle.schedules
                           WHERE group_id = $1 AND name = $2 AND fired_at IS NOT NULL) AS "fired!""#,
        group_id,
        name
    )
    .fetch_one(connection)
    .await?;
    Ok(fired)
}

/// The zone of the schedules that name none.
fn zone_of(spec: &Value) -> &str {
    spec.get("timezone").and_then(Value::as_str).unwrap_or("UTC")
}

struct Known {
    anchor: Time,
    live: bool,
    cursor: Time,
    next_fire_at: Option<Time>,
    awaits: Option<Uuid>,
    awaited_lives: bool,
    fired_at: Option<Time>,
}

/// The rows of the schedules of a group, locked.
///
/// Locking: in the order of names, as the ends of runs lock schedules that await them. Waits for a node that is firing
/// one of them. The caller holds the lock of all groups, and locks no run afterwards.
async fn known_of(connection: &mut PgSession, group_id: i64) -> Result<BTreeMap<String, Known>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT name, anchor, live, cursor, next_fire_at, awaits, fired_at,
                  EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = s.awaits) AS "awaited_lives!"
             FROM heddle.schedules s WHERE group_id = $1 ORDER BY name FOR UPDATE"#,
        group_id
    )
    .fetch_all(&mut *connection)
    .await?;
    let known = rows.into_iter().map(|row| {
        let known = Known {
            anchor: row.anchor,
            live: row.live,
            cursor: row.cursor,
            next_fire_at: row.next_fire_at,
            awaits: row.awaits,
            awaited_lives: row.awaited_lives,
            fired_at: row.fired_at,
        };
        (row.name, known)
    });
    Ok(known.collect())
}

/// The schedules `once: {delay}` of a new spec that have had their only instant in the group's current revision, so that they
/// would never fire again. (The caller holds the lock of all groups. A schedule that fires meanwhile is not among them.)
pub(crate) async fn over(
    connection: &mut PgSession,
    before: &GroupRow,
    spec: &Value,
    at: Time,
) -> Result<Vec<String>, StoreError> {
    let mut names = sqlx::query_scalar!(
        "SELECT name FROM heddle.schedules WHERE group_id = $1 AND next_fire_at IS NULL ORDER BY name",
        before.id
    )
    .fetch_all(connection)
    .await?;
    names.retain(|name| {
        let written = &spec["schedules"][name.as_str()];
        !written["once"]["delay"].is_null() && written["enabled"] != Value::Bool(false)
    });
    if names.is_empty() {
        return Ok(names);
    }
    // One that is disabled has no next instant, but its only one may still come.
    let compiled = compile(
        before.revision_id,
        &before.spec,
        &before.schedule_anchors,
        before.created_at,
    )?;
    names.retain(|name| {
        let schedule = compiled.schedules.get(name);
        schedule.is_some_and(|schedule| schedule.next_after(at).is_none())
    });
    Ok(names)
}

/// Updates the rows of a group's schedules; `at` is the moment of the change.
pub(crate) async fn sync(connection: &mut PgSession, group: &GroupRow, at: Time) -> Result<(), StoreError> {
    let compiled = compile(
        group.revision_id,
        &group.spec,
        &group.schedule_anchors,
        group.created_at,
    )?;
    let mut known = known_of(connection, group.id).await?;
    let (mut names, mut anchors, mut zones, mut lives) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut cursors, mut nexts, mut awaits, mut fired) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut delays, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (name, schedule) in &compiled.schedules {
        let anchor = anchor_of(group.revision_id, &group.schedule_anchors, name)?.unwrap_or(group.created_at);
        let live = group.enabled && schedule.enabled();
        let before = known.remove(name).filter(|before| before.anchor == anchor);
        let values = values_after(schedule, before, live, anchor, at);
        names.push(name.clone());
        anchors.push(anchor);
        // Nodes of older versions, which may be at work during an upgrade, compare it.
        zones.push(schedule.zone().name().to_owned());
        lives.push(live);
        cursors.push(values.cursor);
        nexts.push(values.next_fire_at);
        awaits.push(values.awaits);
        fired.push(values.fired_at);
        delays.push(schedule.delay().map(|delay| micros(delay.micros())));
        starts.push(schedule.window().0);
        ends.push(schedule.window().1);
    }
    sqlx::query!(
        "DELETE FROM heddle.schedules WHERE group_id = $1 AND NOT (name = ANY ($2))",
        group.id,
        &names
    )
    .execute(&mut *connection)
    .await?;
    if names.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, next_fire_at, awaits,
                                       fired_at, delay, starts_at, ends_at)
         SELECT $1, s.name, $2, s.anchor, s.zone, s.live, s.cursor, s.next, s.awaits, s.fired_at, s.delay, s.starts_at,
                s.ends_at
           FROM UNNEST($3::text[], $4::timestamptz[], $5::text[], $6::boolean[], $7::timestamptz[],
                       $8::timestamptz[], $9::uuid[], $10::timestamptz[], $11::interval[], $12::timestamptz[],
                       $13::timestamptz[])
             AS s (name, anchor, zone, live, cursor, next, awaits, fired_at, delay, starts_at, ends_at)
         ON CONFLICT (group_id, name) DO UPDATE
            SET revision_id = excluded.revision_id, anchor = excluded.anchor, zone = excluded.zone,
                live = excluded.live, cursor = excluded.cursor, next_fire_at = excluded.next_fire_at,
                awaits = excluded.awaits, fired_at = excluded.fired_at, delay = excluded.delay,
                starts_at = excluded.starts_at, ends_at = excluded.ends_at",
        group.id,
        group.revision_id,
        &names,
        &anchors,
        &zones,
        &lives,
        &cursors,
        &nexts as &[Option<Time>],
        &awaits as &[Option<Uuid>],
        &fired as &[Option<Time>],
        &delays as &[Option<PgInterval>],
        &starts as &[Option<Time>],
        &ends as &[Option<Time>],
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Values in a schedule's row.
struct Values {
    cursor: Time,
    next_fire_at: Option<Time>,
    /// The run for whose end it waits.
    awaits: Option<Uuid>,
    /// When it fired, if it fires only once.
    fired_at: Option<Time>,
}

/// The values of a schedule's row after a change.
fn values_after(schedule: &Schedule, before: Option<Known>, live: bool, anchor: Time, at: Time) -> Values {
    let Some(before) = before else {
        // A new schedule begins just before its first live instant, or earlier, at its anchor. (The instant of `once` may
        // have just passed.)
        let cursor = anchor.min(schedule.live_from() - chrono::TimeDelta::microseconds(1));
        return Values {
            cursor,
            next_fire_at: schedule.next_after(cursor).filter(|_| live),
            awaits: None,
            fired_at: None,
        };
    };
    if before.fired_at.is_some() {
        return Values {
            cursor: before.cursor,
            next_fire_at: None,
            awaits: None,
            fired_at: before.fired_at,
        };
    }
    if live && before.live {
        return Values {
            cursor: before.cursor,
            next_fire_at: before.next_fire_at,
            awaits: before.awaits,
            fired_at: None,
        };
    }
    let awaits = before.awaits.filter(|_| before.awaited_lives);
    // A schedule that is enabled again is due only from now on; a disabled one is never due.
    let next_fire_at = match schedule.kind() {
        _ if !live => None,
        Kind::After if awaits.is_some() => None,
        Kind::After => schedule.next_after(at).or_else(|| schedule.after_run(at)),
        _ => schedule.next_after(at),
    };
    Values {
        cursor: before.cursor.max(at),
        next_fire_at,
        awaits,
        fired_at: None,
    }
}

fn micros(micros: u64) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(micros).unwrap_or(i64::MAX),
    }
}

/// A deleted group has no schedules.
pub(crate) async fn remove(connection: &mut PgSession, group_id: i64) -> Result<(), StoreError> {
    known_of(connection, group_id).await?;
    sqlx::query!("DELETE FROM heddle.schedules WHERE group_id = $1", group_id)
        .execute(&mut *connection)
        .await?;
    sqlx::query!("DELETE FROM heddle.schedule_disabled WHERE group_id = $1", group_id)
        .execute(connection)
        .await?;
    Ok(())
}

impl Store {
    /// Makes schedules due that wait for a run that is not live any more, among `limit` that wait, in the order of the
    /// runs from `from` on. Returns how many, and the run from which to continue unless these were the last.
    ///
    /// The end of a run does this itself (`counted` in `run/live/end.rs`), except for a schedule that began to wait for
    /// the run while that statement was under way: it reads schedules as they were when it began. That can happen if the
    /// schedule's instant already had a run.
    ///
    /// Locking: one schedule, and no other row. If it waits for another run by now, it is not changed.
    pub async fn free_schedules(&self, from: Uuid, limit: i64, now: Time) -> Result<(u64, Option<Uuid>), StoreError> {
        let waiting = sqlx::query!(
            // OFFSET keeps this a look-up for each schedule: as a join it may read all live runs.
            r#"SELECT group_id, name, awaits AS "awaits!",
                      EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = s.awaits OFFSET 0) AS "lives!"
                 FROM heddle.schedules s WHERE awaits >= $1 ORDER BY awaits LIMIT $2"#,
            from,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        let mut freed = 0;
        for left in waiting.iter().filter(|one| !one.lives) {
            let done = sqlx::query!(
                "WITH ended AS MATERIALIZED (
                     SELECT coalesce((SELECT finished_at FROM heddle.runs_done WHERE id = $3), $4) AS at
                 )
                 UPDATE heddle.schedules s
                    SET awaits = NULL, cursor = e.at,
                        next_fire_at = CASE
                            WHEN s.live AND greatest(e.at + s.delay, s.starts_at) < coalesce(s.ends_at, 'infinity')
                                THEN greatest(e.at + s.delay, s.starts_at)
                        END
                   FROM ended e
                  WHERE s.group_id = $1 AND s.name = $2 AND s.awaits = $3
                    AND NOT EXISTS (SELECT FROM heddle.runs_live WHERE id = $3)",
                left.group_id,
                left.name,
                left.awaits,
                now
            )
            .execute(&self.pool)
            .await?;
            freed += done.rows_affected();
        }
        let full = waiting.len() as i64 == limit;
        Ok((freed, waiting.last().map(|one| one.awaits).filter(|_| full)))
    }

    /// When the next schedule is due, and the database's time.
    pub async fn next_schedule(&self) -> Result<(Option<Time>, Time), StoreError> {
        let row = sqlx::query!(
            r#"SELECT (SELECT min(next_fire_at) FROM heddle.schedules WHERE next_fire_at IS NOT NULL) AS next,
                      clock_timestamp() AS "now!""#
        )
        .fetch_one(&self.pool)
        .await?;
        Ok((row.next, row.now))
    }

    /// The revisions of schedules that are due after `after` and at or before `until`, the earliest first, up to
    /// `limit` schedules.
    pub async fn revisions_due(&self, after: Time, until: Time, limit: i64) -> Result<Vec<i64>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT revision_id FROM heddle.schedules WHERE next_fire_at > $1 AND next_fire_at <= $2
              ORDER BY next_fire_at LIMIT $3",
            after,
            until,
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// The schedules of a group.
    pub async fn schedules_of(&self, group_id: i64) -> Result<Vec<ScheduleRow>, StoreError> {
        Ok(sqlx::query_as!(
            ScheduleRow,
            "SELECT name, cursor, next_fire_at, fired_at FROM heddle.schedules WHERE group_id = $1 ORDER BY name",
            group_id
        )
        .fetch_all(&self.pool)
        .await?)
    }
}

impl Completion {
    /// Takes up to `limit` due schedules, and the database's time; see `sql/take_schedules.sql`.
    pub async fn take_schedules(&mut self, limit: usize) -> Result<(Vec<DueSchedule>, Option<Time>), StoreError> {
        let rows = sqlx::query_file!("src/sql/take_schedules.sql", limit as i64)
            .fetch_all(self.connection())
            .await?;
        let now = rows.first().map(|row| row.now);
        let due = rows
            .into_iter()
            .map(|row| DueSchedule {
                group_id: row.group_id,
                name: row.name,
                revision_id: row.revision_id,
                cursor: row.cursor,
                due_at: row.due_at,
                previous: row.previous,
            })
            .collect();
        Ok((due, now))
    }

    /// Advances schedules that this transaction has taken; see `sql/move_schedules.sql`.
    pub async fn move_schedules(&mut self, moved: &[MovedSchedule]) -> Result<(), StoreError> {
        sqlx::query_file!(
            "src/sql/move_schedules.sql",
            &column(moved, |row| row.group_id),
            &column(moved, |row| row.name.as_str()) as &[&str],
            &column(moved, |row| row.cursor),
            &column(moved, |row| row.next_fire_at) as &[Option<Time>],
            &column(moved, |row| row.awaits) as &[Option<Uuid>],
            &column(moved, |row| row.fired_at) as &[Option<Time>],
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_anchor_that_cannot_be_read_is_not_taken_for_another_time() {
        let spec = json!({"schedules": {"s": {"every": "1h"}}});
        let created: Time = "2026-01-01T00:00:00Z".parse().expect("a time");
        // At which minute of each hour it fires.
        let minute = |anchors: Value| -> Result<i64, StoreError> {
            let compiled = compile(1, &spec, &anchors, created)?;
            let next = compiled.schedules["s"].next_after(created).expect("an instant");
            Ok((next - created).num_minutes() % 60)
        };
        assert_eq!(minute(json!({"s": created + TimeDelta::minutes(10)})).unwrap(), 10);
        assert_eq!(minute(json!({})).unwrap(), 0);
        for unreadable in [json!("yesterday"), json!(5), json!(null)] {
            let said = minute(json!({"s": unreadable})).expect_err("no time").to_string();
            assert!(
                said.contains("schedule_anchors") && said.contains("schedule s"),
                "{said}"
            );
        }
    }
}
