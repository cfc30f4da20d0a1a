//! How much is due: the result of a dry run.

use heddle_domain::Time;
use heddle_domain::retention::{EndState, Retention};
use heddle_domain::state::RunState;

use super::rules::{COUNT_MAX, Day, RunRules, id_floor};
use crate::retention::others::Cutoffs;
use crate::{Store, StoreError};

/// What is due in tables that do not contain runs.
#[derive(Clone, Copy, Debug)]
pub struct DueRows {
    pub audit: i64,
    pub events: i64,
    pub assignments: i64,
}

impl Store {
    /// How many runs are due, by their state; each up to [`COUNT_MAX`].
    pub async fn count_due_runs(&self, rules: &RunRules, now: Time) -> Result<Vec<(RunState, i64)>, StoreError> {
        let mut counts = Vec::new();
        for state in EndState::ALL.map(EndState::state) {
            let number = state.number();
            let behind = rules.made_before(number, now);
            let count = sqlx::query_scalar!(
                r#"SELECT count(*) AS "count!" FROM (
                     SELECT FROM heddle.runs_done d
                       JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
                         ON every.group_id = 0 AND every.state = d.state
                       LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
                         ON own.group_id = d.group_id AND own.state = d.state
                      WHERE d.state = $4 AND d.id < $7
                        AND d.finished_at < $5::timestamptz
                            - coalesce(own.keep, every.keep) * interval '1 microsecond'
                      LIMIT $6) AS due"#,
                &rules.groups,
                &rules.states,
                &rules.runs_micros,
                number,
                now,
                COUNT_MAX,
                behind
            )
            .fetch_one(&self.pool)
            .await?;
            counts.push((state, count));
        }
        Ok(counts)
    }

    /// How many runs of a day have ended, by their state.
    pub async fn count_day_runs(&self, day: Day) -> Result<Vec<(RunState, i64)>, StoreError> {
        let (first, behind) = day.ids();
        let rows = sqlx::query!(
            r#"SELECT state, count(*) AS "count!" FROM heddle.runs_done WHERE id >= $1 AND id < $2 GROUP BY state"#,
            first,
            behind
        )
        .fetch_all(&self.pool)
        .await?;
        let mut counts = Vec::with_capacity(rows.len());
        for row in rows {
            let column = ("runs_done", "state");
            let state = StoreError::known(
                RunState::from_number,
                row.state,
                column,
                format_args!("of a run of {}", day.0),
            )?;
            counts.push((state, row.count));
        }
        Ok(counts)
    }

    /// How many audit rows, events and ended assignments are due; each up to [`COUNT_MAX`]. Of the assignments, the oldest
    /// [`COUNT_MAX`] that ended long enough ago are looked at: those that tasks need may be very many.
    pub async fn count_due_rows(&self, retention: &Retention, now: Time) -> Result<DueRows, StoreError> {
        Ok(sqlx::query_as!(
            DueRows,
            r#"SELECT (SELECT count(*) FROM (SELECT FROM heddle.audit WHERE at < $1 LIMIT $4) AS a) AS "audit!",
                      (SELECT count(*) FROM (SELECT FROM heddle.events WHERE at < $2 LIMIT $4) AS e) AS "events!",
                      (SELECT coalesce(sum(s.due), 0)::bigint FROM (
                         SELECT l.offer_id, count(*) AS due
                           FROM (SELECT a.offer_id FROM heddle.assignments a
                                  WHERE a.id < $3 ORDER BY a.id LIMIT $4) AS l
                          GROUP BY l.offer_id) AS s
                        WHERE NOT EXISTS (SELECT FROM heddle.needed_offers o WHERE o.id = s.offer_id OFFSET 0)
                      ) AS "assignments!""#,
            now - retention.audit.chrono(),
            now - retention.events.chrono(),
            id_floor(Cutoffs::of(retention, now).assignments),
            COUNT_MAX
        )
        .fetch_one(&self.pool)
        .await?)
    }
}
