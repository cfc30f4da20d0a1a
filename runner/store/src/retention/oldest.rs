//! The oldest due rows. People see them, together with the counts (`due`), before anything is removed.

use heddle_domain::Time;
use heddle_domain::id::uuid_v7_time;
use heddle_domain::retention::{EndState, Retention};

use super::rules::{COUNT_MAX, RunRules, id_floor};
use crate::retention::others::Cutoffs;
use crate::{Store, StoreError};

/// For each kind that has due rows: when the oldest was created (for runs: when it ended).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldestDue {
    /// By the number of their state; for the runs that were created first.
    pub runs: Vec<(i16, Time)>,
    pub audit: Option<Time>,
    pub events: Option<Time>,
    pub assignments: Option<Time>,
    pub notifications: Option<Time>,
}

impl Store {
    /// The oldest rows that are due now. Reads each table from its oldest rows on; of the assignments as many as the count.
    pub async fn oldest_due(&self, retention: &Retention, now: Time) -> Result<OldestDue, StoreError> {
        let rules: RunRules = self.run_rules(retention).await?;
        let mut oldest = OldestDue::default();
        for state in EndState::ALL {
            let number = state.state().number();
            let behind = rules.made_before(number, now);
            // The same condition as for the counts, and so the same runs.
            let found = sqlx::query_scalar!(
                r#"SELECT d.finished_at AS "at!"
                     FROM heddle.runs_done d
                     JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
                       ON every.group_id = 0 AND every.state = d.state
                     LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
                       ON own.group_id = d.group_id AND own.state = d.state
                    WHERE d.state = $4 AND d.id < $6
                      AND d.finished_at < $5::timestamptz - coalesce(own.keep, every.keep) * interval '1 microsecond'
                    ORDER BY d.id LIMIT 1"#,
                &rules.groups,
                &rules.states,
                &rules.runs_micros,
                number,
                now,
                behind
            )
            .fetch_optional(&self.pool)
            .await?;
            oldest.runs.extend(found.map(|at| (number, at)));
        }
        let before = Cutoffs::of(retention, now);
        // Each offer is looked up once, as for the count, not for each of its assignments. Postgres 15 has no `min` of UUIDs;
        // their texts are in the same order.
        let others = sqlx::query!(
            r#"SELECT (SELECT at FROM heddle.audit WHERE at < $1 ORDER BY at LIMIT 1) AS audit,
                      (SELECT at FROM heddle.events WHERE at < $2 ORDER BY xid, id LIMIT 1) AS events,
                      (SELECT min(s.first)::uuid FROM (
                         SELECT l.offer_id, min(l.id::text COLLATE "C") AS first
                           FROM (SELECT a.id, a.offer_id FROM heddle.assignments a
                                  WHERE a.id < $3 ORDER BY a.id LIMIT $5) AS l
                          GROUP BY l.offer_id) AS s
                        WHERE NOT EXISTS (SELECT FROM heddle.needed_offers o WHERE o.id = s.offer_id OFFSET 0)
                      ) AS assignment,
                      (SELECT created_at FROM heddle.notifications
                        WHERE created_at < $4 AND state <> 0 ORDER BY created_at LIMIT 1) AS notification"#,
            now - retention.audit.chrono(),
            now - retention.events.chrono(),
            id_floor(before.assignments),
            before.notifications,
            COUNT_MAX
        )
        .fetch_one(&self.pool)
        .await?;
        oldest.audit = others.audit;
        oldest.events = others.events;
        oldest.assignments = others.assignment.and_then(uuid_v7_time);
        oldest.notifications = others.notification;
        Ok(oldest)
    }
}
