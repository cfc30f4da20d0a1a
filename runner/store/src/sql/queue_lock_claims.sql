-- queue_lock_claims: locks the runs of claims that end, and deletes the claims. Returns the locked runs, and the
-- attempts of the deleted claims.
--
-- Locking: first the runs, in id order, as in lock_ended.sql; then the rows of the claims, then their rows in
-- *running*. The first DELETE needs the count of the locked runs, which Postgres computes first. So all runs are
-- locked before a row is deleted. A claim that is gone, or has another id, lease or number, is not returned, and
-- nothing of it is written. The same holds for a claim whose lease has expired by the database's clock, unless $7
-- asks for expired claims, and for these only. An expired lease is never extended, so it stays expired. Keys are
-- compared as arrays with one element, so that other claims are not read, whatever the statistics say
-- (runner/store/src/database/server.rs). Claims of runs that are not live any more are deleted as well: nothing
-- refers to them.
WITH ended AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::bigint[], $6::uuid[])
        AS e (run, task, item, attempt, lease, id)
),
locked AS MATERIALIZED (
    SELECT l.id, l.state, l.progress
      FROM heddle.runs_live l
     WHERE l.id = ANY ($1)
     ORDER BY l.id
       FOR NO KEY UPDATE
),
given_up AS (
    DELETE FROM heddle.queue_claims c
     USING ended e
     WHERE c.run = ANY (ARRAY[e.run]) AND c.task = e.task AND c.item = e.item AND c.attempt = e.attempt
       AND c.lease = e.lease
       AND c.id = e.id AND (c.lease_expires_at <= clock_timestamp()) = $7
       AND (SELECT count(*) FROM locked) >= 0
    RETURNING c.run, c.task, c.item, c.attempt, c.lease, c.worker
),
gone AS (
    DELETE FROM heddle.running r
     USING given_up g
     WHERE r.run = ANY (ARRAY[g.run]) AND r.task = g.task AND r.item = g.item AND r.attempt = g.attempt
       AND r.lease = g.lease
    RETURNING r.run, r.task, r.item, r.attempt, r.started_at, g.worker
)
SELECT id AS "run!", state AS "state?", progress AS "progress?", NULL::smallint AS "task?", NULL::integer AS "item?",
       NULL::integer AS "attempt?", NULL::timestamptz AS "started_at?",
       NULL::text AS "worker?"
  FROM locked
UNION ALL
SELECT run, NULL, NULL, task, item, attempt, started_at, worker FROM gone
