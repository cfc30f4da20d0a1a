//! What is known of a group's instants, for its followers: which have a run, which were skipped, which succeeded. And
//! the notes of those that were skipped.

use std::collections::{BTreeSet, HashMap, HashSet};

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use uuid::Uuid;

use crate::StoreError;
use crate::live::Completion;

/// What is known of a group's instants within some time.
#[derive(Clone, Debug, Default)]
pub struct KnownInstants {
    /// Instants whose run succeeded.
    pub succeeded: Vec<Time>,
    /// Those that the overlap skipped.
    pub skipped: Vec<Time>,
    /// Those with a run, in any state.
    pub made: Vec<Time>,
}

/// Intervals and instants of a group for which no follower waits.
#[derive(Clone, Debug, Default)]
pub struct ExcusedTimes {
    /// When it was disabled.
    pub disabled: Vec<(Time, Option<Time>)>,
    /// When single schedules were disabled, by their names.
    pub schedules: Vec<(String, (Time, Option<Time>))>,
    /// What its overlap skipped.
    pub skipped: BTreeSet<Time>,
    /// The instants that have a run, if a schedule was disabled: somebody may have made one all the same.
    pub made: BTreeSet<Time>,
}

impl Completion {
    /// What is known of a group's instants from `from` to `to`, both included.
    pub async fn known_instants(&mut self, group_id: i64, from: Time, to: Time) -> Result<KnownInstants, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.logical_time AS "at!", NULL AS "made?", false AS "skipped!"
                 FROM heddle.successes s WHERE s.group_id = $1 AND s.logical_time BETWEEN $2 AND $3
               UNION ALL
               SELECT i.logical_time, i.run, i.skipped
                 FROM heddle.run_instants i WHERE i.group_id = $1 AND i.logical_time BETWEEN $2 AND $3"#,
            group_id,
            from,
            to
        )
        .fetch_all(self.connection())
        .await?;
        let mut known = KnownInstants::default();
        let mut unknown: HashMap<Uuid, Time> = HashMap::new();
        let noted: HashSet<Time> = (rows.iter().filter(|row| row.made.is_none()))
            .map(|row| row.at)
            .collect();
        for row in rows {
            if row.skipped {
                known.skipped.push(row.at);
            }
            match row.made {
                None => known.succeeded.push(row.at),
                Some(run) => {
                    known.made.push(row.at);
                    if !noted.contains(&row.at) {
                        unknown.insert(run, row.at);
                    }
                }
            }
        }
        let runs: Vec<Uuid> = unknown.keys().copied().collect();
        let done = self.succeeded_of(&runs).await?;
        known.succeeded.extend(done.iter().filter_map(|run| unknown.get(run)));
        Ok(known)
    }

    /// Which of these runs are in the history as succeeded. They are named one by one: to plan a join with the history,
    /// Postgres looks at every day that is kept, which takes milliseconds each time.
    async fn succeeded_of(&mut self, runs: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_scalar!(
            "SELECT id FROM heddle.runs_done WHERE id = ANY ($1) AND state = 3",
            runs
        )
        .fetch_all(self.connection())
        .await?)
    }

    /// The times between `from` and `to`, both included, for which no follower of a group waits: the intervals in which
    /// it was disabled, or one of its schedules was (an open one has no end), and the instants that its overlap skipped.
    pub async fn excused_between(&mut self, group_id: i64, from: Time, to: Time) -> Result<ExcusedTimes, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT since AS "at!", until, NULL::text AS "schedule?", false AS "skipped!" FROM heddle.group_disabled
                WHERE group_id = $1 AND since <= $3 AND (until IS NULL OR until >= $2)
               UNION ALL
               SELECT since, until, name, false FROM heddle.schedule_disabled
                WHERE group_id = $1 AND since <= $3 AND (until IS NULL OR until >= $2)
               UNION ALL
               SELECT logical_time, NULL, NULL, true FROM heddle.run_instants
                WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3 AND skipped"#,
            group_id,
            from,
            to
        )
        .fetch_all(self.connection())
        .await?;
        let mut excused = ExcusedTimes::default();
        for row in rows {
            match (row.skipped, row.schedule) {
                (true, _) => drop(excused.skipped.insert(row.at)),
                (false, None) => excused.disabled.push((row.at, row.until)),
                (false, Some(name)) => excused.schedules.push((name, (row.at, row.until))),
            }
        }
        if !excused.schedules.is_empty() {
            let made = sqlx::query_scalar!(
                "SELECT logical_time FROM heddle.run_instants WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3",
                group_id,
                from,
                to
            )
            .fetch_all(self.connection())
            .await?;
            excused.made.extend(made);
        }
        Ok(excused)
    }

    /// When the group's schedules are next due: earlier instants have been decided.
    pub async fn next_of_group(&mut self, group_id: i64) -> Result<Option<Time>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT min(next_fire_at) FROM heddle.schedules WHERE group_id = $1",
            group_id
        )
        .fetch_one(self.connection())
        .await?)
    }

    /// The last instant of a group at or before `at` that got a run, whether the overlap skipped it or not.
    pub async fn last_made_instant(&mut self, group_id: i64, at: Time) -> Result<Option<Time>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT max(logical_time) FROM heddle.run_instants WHERE group_id = $1 AND logical_time <= $2",
            group_id,
            at
        )
        .fetch_one(self.connection())
        .await?)
    }

    /// The first such instant from `from` to `to`, both included.
    pub async fn first_made_instant(
        &mut self,
        group_id: i64,
        from: Time,
        to: Time,
    ) -> Result<Option<Time>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT min(logical_time) FROM heddle.run_instants WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3",
            group_id,
            from,
            to
        )
        .fetch_one(self.connection())
        .await?)
    }

    /// The newest run of a group for a time at or before `at`: that time, and the state of the run.
    pub async fn newest_run_at(&mut self, group_id: i64, at: Time) -> Result<Option<(Time, RunState)>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT logical_time AS "logical_time!", state AS "state!" FROM (
                   (SELECT id, logical_time, state FROM heddle.runs_live
                     WHERE group_id = $1 AND logical_time <= $2 ORDER BY id DESC LIMIT 1)
                   UNION ALL
                   (SELECT id, logical_time, state FROM heddle.runs_done
                     WHERE group_id = $1 AND logical_time <= $2 ORDER BY id DESC LIMIT 1)) AS newest
               ORDER BY id DESC LIMIT 1"#,
            group_id,
            at
        )
        .fetch_optional(self.connection())
        .await?;
        row.map(|row| {
            let of = format!("of group {group_id} at {}", row.logical_time);
            let state = StoreError::known(RunState::from_number, row.state, ("runs", "state"), of)?;
            Ok((row.logical_time, state))
        })
        .transpose()
    }

    /// Which of these (group, logical time) have a succeeded run.
    pub async fn succeeded_at(&mut self, pairs: &[(i64, Time)]) -> Result<HashSet<(i64, Time)>, StoreError> {
        if pairs.is_empty() {
            return Ok(HashSet::new());
        }
        let rows = sqlx::query!(
            r#"SELECT p.group_id AS "group_id!", p.logical_time AS "logical_time!", i.run AS "made?",
                      EXISTS (SELECT FROM heddle.successes s
                               WHERE s.group_id = p.group_id AND s.logical_time = p.logical_time OFFSET 0) AS "noted!"
                 FROM UNNEST($1::bigint[], $2::timestamptz[]) AS p (group_id, logical_time)
                 LEFT JOIN LATERAL (SELECT run FROM heddle.run_instants i
                                     WHERE i.group_id = p.group_id AND i.logical_time = p.logical_time OFFSET 0) AS i
                        ON true"#,
            &pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(),
            &pairs.iter().map(|pair| pair.1).collect::<Vec<_>>()
        )
        .fetch_all(self.connection())
        .await?;
        let mut succeeded = HashSet::new();
        let mut unknown: HashMap<Uuid, (i64, Time)> = HashMap::new();
        for row in rows {
            let pair = (row.group_id, row.logical_time);
            match (row.noted, row.made) {
                (true, _) => drop(succeeded.insert(pair)),
                (false, Some(run)) => drop(unknown.insert(run, pair)),
                (false, None) => {}
            }
        }
        let runs: Vec<Uuid> = unknown.keys().copied().collect();
        let done = self.succeeded_of(&runs).await?;
        succeeded.extend(done.iter().filter_map(|run| unknown.get(run)));
        Ok(succeeded)
    }

    /// Which of these (group, logical time) have a succeeded run without a noted success: it was created manually for
    /// that time, or repeats a run for it, when no group followed yet.
    ///
    /// The arrays come from subqueries, so that Postgres expects equally many pairs with and without their values, and
    /// keeps one plan: a plan for given values looks at every day that is kept, which takes milliseconds each time.
    pub async fn succeeded_unnoted(&mut self, pairs: &[(i64, Time)]) -> Result<Vec<(i64, Time)>, StoreError> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let groups: Vec<i64> = pairs.iter().map(|pair| pair.0).collect();
        let times: Vec<Time> = pairs.iter().map(|pair| pair.1).collect();
        Ok(sqlx::query!(
            r#"SELECT DISTINCT p.group_id AS "group_id!", p.logical_time AS "logical_time!"
                 FROM UNNEST((SELECT $1::bigint[]), (SELECT $2::timestamptz[])) AS p (group_id, logical_time)
                CROSS JOIN LATERAL (SELECT FROM heddle.runs_done d
                                     WHERE d.group_id = p.group_id AND d.logical_time = p.logical_time
                                       AND d.logical_time <> d.created_at AND d.trigger <> 4 AND d.state = 3
                                     LIMIT 1) AS d"#,
            &groups,
            &times
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(|row| (row.group_id, row.logical_time))
        .collect())
    }

    /// Notes that a group's overlap skipped the instants of these runs, and writes the events for its followers. The runs
    /// have ended in this transaction.
    pub async fn note_skipped(&mut self, runs: &[RunId]) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        sqlx::query!(
            "WITH marked AS (UPDATE heddle.run_instants SET skipped = true WHERE run = ANY ($1) RETURNING group_id, logical_time)
             INSERT INTO heddle.link_events (kind, group_id, logical_time)
             SELECT 2, m.group_id, m.logical_time FROM marked m
              WHERE EXISTS (SELECT FROM heddle.group_links l WHERE l.upstream_id = m.group_id AND l.kind = 'depends_on')",
            &ids
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Takes back that a group's overlap skipped the instants of these runs: they go on, or have another state. Their
    /// followers wait for them again, and they keep their instants from getting other runs.
    pub async fn note_unskipped(&mut self, runs: &[RunId]) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        sqlx::query!(
            "UPDATE heddle.run_instants SET skipped = false WHERE run = ANY ($1) AND skipped",
            &ids
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Writes events for the followers of these groups: they skip these instants.
    pub async fn tell_left_out(&mut self, instants: &[(i64, Time)]) -> Result<(), StoreError> {
        if instants.is_empty() {
            return Ok(());
        }
        let groups: Vec<i64> = instants.iter().map(|entry| entry.0).collect();
        let times: Vec<Time> = instants.iter().map(|entry| entry.1).collect();
        sqlx::query!(
            "INSERT INTO heddle.link_events (kind, group_id, logical_time)
             SELECT 2, i.group_id, i.logical_time
               FROM UNNEST($1::bigint[], $2::timestamptz[]) AS i (group_id, logical_time)
              WHERE EXISTS (SELECT FROM heddle.group_links l WHERE l.upstream_id = i.group_id AND l.kind = 'depends_on')",
            &groups,
            &times
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
