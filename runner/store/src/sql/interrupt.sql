-- interrupt: removes task runs from *ready* and *running*, with their claims. An attempt that was running is recorded
-- as cancelled.
--
-- Locking: the caller holds the runs' rows. A node that is about to report one of these attempts waits for that lock.
-- Then it finds no row, and its outcome is refused.
WITH hit AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS h (run, task, item)
),
unclaimed AS (
    DELETE FROM heddle.ready r USING hit h
     WHERE r.run = ANY (ARRAY[h.run]) AND r.task = h.task AND r.item = h.item
),
stopped AS (
    DELETE FROM heddle.running r USING hit h
     WHERE r.run = ANY (ARRAY[h.run]) AND r.task = h.task AND r.item = h.item
    RETURNING r.run, r.task, r.item, r.attempt, r.lease, r.started_at
),
revoked AS (
    DELETE FROM heddle.queue_claims c USING hit h
     WHERE c.run = ANY (ARRAY[h.run]) AND c.task = h.task AND c.item = h.item
    RETURNING c.lease, c.worker
),
-- The worker of each lease, in one object: an attempt costs a look-up, not a scan of all revoked claims. Materialized,
-- because inlined it would be built for each attempt.
workers AS MATERIALIZED (
    SELECT coalesce(jsonb_object_agg(lease::text, worker), '{}') AS by_lease FROM revoked
),
recorded AS (
    INSERT INTO heddle.attempts (run, task, item, attempt, state, started_at, finished_at, node, worker)
    SELECT s.run, s.task, s.item, s.attempt, 5, s.started_at, greatest($4, s.started_at), l.node,
           (SELECT w.by_lease ->> s.lease::text FROM workers w)
      FROM stopped s LEFT JOIN heddle.leases l ON l.lease = s.lease
)
SELECT s.run, s.task, s.item, s.attempt, s.lease, s.started_at, greatest($4, s.started_at) AS "finished_at!",
       l.node AS "node?"
  FROM stopped s LEFT JOIN heddle.leases l ON l.lease = s.lease
