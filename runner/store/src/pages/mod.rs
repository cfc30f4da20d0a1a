//! Data that only pages need, and no route of the API: read-only, and bounded, however long the history is.
//!
//! Every statement here reads an index from its newest end, and stops at a maximum that its caller gives. Nothing is
//! counted that is not read: if there is more, the result is the maximum. (`timeline` and `failures` go from one group to the
//! next.)

pub mod failures;
pub mod group;
pub mod overview;
pub mod pool;
pub mod run;
pub mod timeline;
pub mod topic;

use uuid::Uuid;

use crate::{Store, StoreError};

/// What tells that pages may have changed: it is another then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFingerprint {
    /// Of the audit: it has an entry more.
    pub audit: String,
    /// Of runs, queued work, offers, messages and anything that people configure.
    pub cluster: String,
}

impl Store {
    /// For each of these runs, a text that changes when what its pages show may have changed: the run has changed or was
    /// removed, its attempts have logged, or somebody has controlled it. Of attempts that run at once, the first fifty
    /// count. The ids are compared once more where tables have partitions by day: only those of the runs' days are planned.
    pub async fn page_run_marks(&self, runs: &[Uuid]) -> Result<Vec<(Uuid, String)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT n.id AS "id!", concat_ws(' ',
                      COALESCE((SELECT l.xmin::text FROM heddle.runs_live l WHERE l.id = ANY (ARRAY[n.id])),
                               (SELECT d.xmin::text FROM heddle.runs_done d
                                 WHERE d.id = ANY (ARRAY[n.id]) AND d.id = ANY ($1))),
                      (SELECT max(o.at) FROM heddle.overrides o WHERE o.run = ANY (ARRAY[n.id])),
                      (SELECT string_agg(concat_ws('-', r.task, r.item, r.attempt, r.lease, c.touched, g.line), ','
                                         ORDER BY r.task, r.item)
                         FROM (SELECT w.task, w.item, w.attempt, w.lease FROM heddle.running w
                                WHERE w.run = ANY (ARRAY[n.id]) ORDER BY w.run, w.task, w.item LIMIT 50) AS r
                         LEFT JOIN LATERAL (
                              SELECT q.xmin::text AS touched FROM heddle.queue_claims q
                               WHERE r.lease < 0 AND q.run = ANY (ARRAY[n.id]) AND q.task = r.task AND q.item = r.item
                               LIMIT 1) AS c ON true
                         LEFT JOIN LATERAL (
                              SELECT e.line FROM heddle.logs e
                               WHERE e.run = n.id AND e.run = ANY ($1)
                                 AND e.task = r.task AND e.item = r.item AND e.attempt = r.attempt
                               ORDER BY e.line DESC LIMIT 1) AS g ON true)) AS "mark!"
                 FROM UNNEST($1::uuid[]) AS n (id)"#,
            runs
        )
        .fetch_all(&self.reads)
        .await?;
        Ok(rows.into_iter().map(|row| (row.id, row.mark)).collect())
    }

    /// Texts that change when runs, queued work, offers, messages, the audit or anything that people configure may have
    /// changed. They cost a few look-ups. (The number of writes to a table is known with a delay of up to some seconds; the
    /// newest row, at once.)
    pub async fn page_fingerprint(&self) -> Result<PageFingerprint, StoreError> {
        Ok(sqlx::query_as!(
            PageFingerprint,
            r#"SELECT concat_ws(' ',
                   (SELECT max(id) FROM heddle.audit),
                   pg_stat_get_tuples_inserted('heddle.audit'::regclass)) AS "audit!",
                   concat_ws(' ',
                   (SELECT max(id) FROM heddle.changes),
                   (SELECT id FROM heddle.runs_live ORDER BY id DESC LIMIT 1),
                   (SELECT id FROM heddle.runs_done ORDER BY id DESC LIMIT 1),
                   (SELECT string_agg((pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid)
                                       + pg_stat_get_tuples_deleted(c.oid))::text, ',' ORDER BY c.oid)
                      FROM pg_class c
                     WHERE c.oid = ANY (ARRAY['heddle.runs_live', 'heddle.queue_ready', 'heddle.queue_claims',
                                              'heddle.notifications', 'heddle.holds', 'heddle.message_slices',
                                              'heddle.message_buckets', 'heddle.message_outcomes', 'heddle.backfills',
                                              'heddle.leases']::regclass[]))) AS "cluster!""#
        )
        .fetch_one(&self.reads)
        .await?)
    }
}
