//! What is known of a group's instants, for its followers: which have a run, which were skipped, which succeeded.

use heddle_domain::Time;
use heddle_domain::state::RunState;

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

impl Completion {
    /// What is known of a group's instants from `from` to `to`, both included.
    pub async fn known_instants(&mut self, group_id: i64, from: Time, to: Time) -> Result<KnownInstants, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.logical_time AS "at!", true AS "succeeded!", false AS "skipped!", false AS "made!"
                 FROM heddle.successes s WHERE s.group_id = $1 AND s.logical_time BETWEEN $2 AND $3
               UNION ALL
               SELECT i.logical_time, coalesce(d.state = 3, false), i.skipped, true
                 FROM heddle.run_instants i LEFT JOIN heddle.runs_done d ON d.id = i.run
                WHERE i.group_id = $1 AND i.logical_time BETWEEN $2 AND $3"#,
            group_id,
            from,
            to
        )
        .fetch_all(self.connection())
        .await?;
        let mut known = KnownInstants::default();
        for row in rows {
            if row.succeeded {
                known.succeeded.push(row.at);
            }
            if row.skipped {
                known.skipped.push(row.at);
            }
            if row.made {
                known.made.push(row.at);
            }
        }
        Ok(known)
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

    /// The intervals in which a group was disabled that overlap [from, to]; an open one has no end.
    pub async fn disabled_between(
        &mut self,
        group_id: i64,
        from: Time,
        to: Time,
    ) -> Result<Vec<(Time, Option<Time>)>, StoreError> {
        Ok(sqlx::query!(
            "SELECT since, until FROM heddle.group_disabled
              WHERE group_id = $1 AND since <= $3 AND (until IS NULL OR until >= $2) ORDER BY since",
            group_id,
            from,
            to
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(|row| (row.since, row.until))
        .collect())
    }

    /// Which of these (group, logical time) have a succeeded run.
    pub async fn succeeded_at(&mut self, pairs: &[(i64, Time)]) -> Result<Vec<(i64, Time)>, StoreError> {
        let groups: Vec<i64> = pairs.iter().map(|pair| pair.0).collect();
        let times: Vec<Time> = pairs.iter().map(|pair| pair.1).collect();
        Ok(sqlx::query!(
            r#"SELECT DISTINCT p.group_id AS "group_id!", p.logical_time AS "logical_time!"
                 FROM UNNEST($1::bigint[], $2::timestamptz[]) AS p (group_id, logical_time)
                WHERE EXISTS (SELECT FROM heddle.successes s
                               WHERE s.group_id = p.group_id AND s.logical_time = p.logical_time)
                   OR EXISTS (SELECT FROM heddle.run_instants i JOIN heddle.runs_done d ON d.id = i.run
                               WHERE i.group_id = p.group_id AND i.logical_time = p.logical_time AND d.state = 3)"#,
            &groups,
            &times
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(|row| (row.group_id, row.logical_time))
        .collect())
    }

    /// Which of these (group, logical time) have a succeeded run without a noted success: it was created manually for
    /// that time, when no group followed yet.
    pub async fn succeeded_unnoted(&mut self, pairs: &[(i64, Time)]) -> Result<Vec<(i64, Time)>, StoreError> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let groups: Vec<i64> = pairs.iter().map(|pair| pair.0).collect();
        let times: Vec<Time> = pairs.iter().map(|pair| pair.1).collect();
        Ok(sqlx::query!(
            r#"SELECT DISTINCT p.group_id AS "group_id!", p.logical_time AS "logical_time!"
                 FROM UNNEST($1::bigint[], $2::timestamptz[]) AS p (group_id, logical_time)
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
}
