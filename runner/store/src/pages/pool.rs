//! Pools: which task runs hold slots, and which wait for them.

use heddle_domain::Time;
use uuid::Uuid;

use crate::{Store, StoreError};

/// A task run that holds slots of a pool, or waits for some.
#[derive(Clone, Debug)]
pub struct PoolLine {
    pub pool: String,
    pub slots: i64,
    pub run: Uuid,
    /// The task's number in the run's revision.
    pub task: i16,
    /// The item of a mapped task; negative: none.
    pub item: i32,
    pub group_name: String,
    /// The revision of the run.
    pub revision_id: i64,
    /// What time the run is about.
    pub logical_time: Time,
}

impl Store {
    /// The holders of slots: attempts that are ready, claimed by a worker or running. The holds of others are deleted
    /// by the next admission.
    pub async fn page_pool_holds(&self, limit: i64) -> Result<Vec<PoolLine>, StoreError> {
        Ok(sqlx::query_as!(
            PoolLine,
            r#"SELECT h.pool, h.slots::bigint AS "slots!", h.run, h.task, h.item, g.name AS group_name, v.revision_id,
                      v.logical_time
                 FROM heddle.pool_holds h
                CROSS JOIN LATERAL (
                    SELECT r.group_id, r.revision_id, r.logical_time FROM heddle.runs_live r WHERE r.id = h.run LIMIT 1) AS v
                 JOIN heddle.groups g ON g.id = v.group_id
                WHERE EXISTS (SELECT FROM heddle.ready r
                               WHERE r.run = h.run AND r.task = h.task AND r.item = h.item AND r.attempt = h.attempt)
                   OR EXISTS (SELECT FROM heddle.queue_ready r
                               WHERE r.run = h.run AND r.task = h.task AND r.item = h.item AND r.attempt = h.attempt)
                   OR EXISTS (SELECT FROM heddle.running r
                               WHERE r.run = h.run AND r.task = h.task AND r.item = h.item AND r.attempt = h.attempt)
                ORDER BY h.pool, h.run, h.task, h.item LIMIT $1"#,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// The task runs that wait for slots of these pools, in the order in which they get them: the first `each` of every
    /// pool.
    pub async fn page_pool_waits(&self, pools: &[String], each: i64) -> Result<Vec<PoolLine>, StoreError> {
        Ok(sqlx::query_as!(
            PoolLine,
            r#"SELECT w.pool AS "pool!", w.slots AS "slots!", w.run AS "run!", w.task AS "task!", w.item AS "item!",
                      g.name AS "group_name!", v.revision_id AS "revision_id!", v.logical_time AS "logical_time!"
                 FROM UNNEST($1::text[]) AS n (pool)
                CROSS JOIN LATERAL (
                    SELECT r.pool, r.slots[1]::bigint AS slots, r.run, r.task, r.item, r.priority, r.turn
                      FROM heddle.ready_pooled r WHERE r.pool = n.pool
                     ORDER BY r.priority DESC, r.turn, r.run LIMIT $2) AS w
                CROSS JOIN LATERAL (
                    SELECT r.group_id, r.revision_id, r.logical_time FROM heddle.runs_live r WHERE r.id = w.run LIMIT 1) AS v
                 JOIN heddle.groups g ON g.id = v.group_id
                ORDER BY w.pool, w.priority DESC, w.turn, w.run"#,
            pools,
            each
        )
        .fetch_all(&self.reads)
        .await?)
    }
}
