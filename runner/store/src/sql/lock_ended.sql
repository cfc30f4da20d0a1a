-- lock_ended: locks the runs of attempts that ended, and takes the attempts' rows out of *running*.
--
-- Locking: runs first, in id order (every transaction that locks several runs does so in that order), then their rows
-- in *running*; a cancel takes the same locks in the same order. The count is an initial plan of the DELETE,
-- so it is complete, with all its locks, before the first row is deleted. An attempt that is not there any more, or
-- carries another lease or number, is a zombie's: it is not returned, and nothing of it is written.
WITH ended AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::bigint[])
        AS e (run, task, item, attempt, lease)
),
locked AS MATERIALIZED (
    SELECT l.id, l.state, l.progress
      FROM heddle.runs_live l
     WHERE l.id = ANY ($1)
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
