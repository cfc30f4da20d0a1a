-- queue_lock_overdue: locks the runs of task runs that nobody has claimed in time, and deletes their rows from
-- *queue_ready*.
--
-- Locking: first the runs, in id order, as in lock_ended.sql, then the rows in *queue_ready*. If a row is being
-- claimed at this moment, the statement waits, and then the row is gone.
WITH ended AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[]) AS e (run, task, item, attempt)
),
locked AS MATERIALIZED (
    SELECT l.id, l.state, l.progress
      FROM heddle.runs_live l
     WHERE l.id = ANY ($1)
     ORDER BY l.id
       FOR NO KEY UPDATE
),
gone AS (
    DELETE FROM heddle.queue_ready r
     USING ended e
     WHERE r.run = ANY (ARRAY[e.run]) AND r.task = e.task AND r.item = e.item AND r.attempt = e.attempt
       AND coalesce(r.expires_at <= clock_timestamp(), false) AND (SELECT count(*) FROM locked) >= 0
    RETURNING r.run, r.task, r.item, r.attempt, r.ready_at
)
SELECT id AS "run!", state AS "state?", progress AS "progress?", NULL::smallint AS "task?", NULL::integer AS "item?",
       NULL::integer AS "attempt?", NULL::timestamptz AS "started_at?"
  FROM locked
UNION ALL
SELECT run, NULL, NULL, task, item, attempt, ready_at FROM gone
