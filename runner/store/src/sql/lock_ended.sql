-- lock_ended: locks the runs of ended attempts, and deletes the attempts' rows from *running*. Returns the locked
-- runs, and the deleted attempts.
--
-- Locking: first the runs, in id order (as in every transaction that locks several runs), then their rows in
-- *running*. A cancel takes the same locks in the same order. The DELETE needs the count of the locked runs, which
-- Postgres computes first. So all runs are locked before the first row is deleted. An attempt whose row is gone, or
-- has another lease or number, is not returned, and nothing of it is written: it was reported by a node that had lost
-- it.
--
-- The ids come from a subquery: Postgres keeps a plan if it expects equally many rows without the values, and otherwise
-- makes one each time.
WITH ended AS (
    SELECT * FROM UNNEST((SELECT $1::uuid[]), $2::smallint[], $3::integer[], $4::integer[], $5::bigint[])
        AS e (run, task, item, attempt, lease)
),
locked AS MATERIALIZED (
    SELECT l.id, l.state, l.progress
      FROM heddle.runs_live l
     WHERE l.id = ANY ((SELECT $1::uuid[])::uuid[])
     ORDER BY l.id
       FOR NO KEY UPDATE
),
gone AS (
    DELETE FROM heddle.running r
     USING ended e
     WHERE r.run = ANY (ARRAY[e.run]) AND r.task = e.task AND r.item = e.item AND r.attempt = e.attempt
       AND r.lease = e.lease AND (SELECT count(*) FROM locked) >= 0
    RETURNING r.run, r.task, r.item, r.attempt, r.started_at
)
SELECT id AS "run!", state AS "state?", progress AS "progress?", NULL::smallint AS "task?", NULL::integer AS "item?",
       NULL::integer AS "attempt?", NULL::timestamptz AS "started_at?"
  FROM locked
UNION ALL
SELECT run, NULL, NULL, task, item, attempt, started_at FROM gone
