-- queue_put: inserts rows for task runs that workers may claim from now on.
--
-- Locking: the caller holds the runs' rows, or creates the runs in the same transaction, so nobody else makes the
-- same task run ready. The lowest `turn` of a queue is read without a lock: two writers that read the same one only
-- share it.
--
-- The nth row of a run stands n behind the head of its queue: a waiting row that every worker who can do this one can do
-- as well. All nodes see the same head, whoever of them has given out claims. It is the first such row, unless more than 64
-- rows with other tags stand before it, because no worker with these tags comes (see the function queue_head, migration
-- 0139). If no such row waits, it stands behind the highest position that this node knows to be claimed ($12), and never
-- before any row that waits: a node that has just started knows of no claim, and what it puts in would be claimed before all
-- that has waited.
--
-- A row whose ordinal ($7) is 0 returns to its old position, which is $12. $13, if given, says since when a task run is
-- ready: it returns to its old position, or comes from a pool.
WITH rows AS MATERIALIZED (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::text[], $6::smallint[],
                         $7::bigint[], $8::text[], $9::bigint[], $10::bigint[], $11::text[],
                         $12::bigint[], $13::timestamptz[])
        AS r (run, task, item, attempt, queue, priority, ordinal, tags, timeout_ms, queue_timeout_ms,
              params, floor, ready_at)
),
heads AS MATERIALIZED (
    SELECT p.queue, p.priority, p.tags, f.head, f.last
      FROM (SELECT DISTINCT queue, priority, tags FROM rows) AS p
      CROSS JOIN LATERAL heddle.queue_head(p.queue, p.priority, string_to_array(p.tags, E'\x1f')) AS f
)
INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at, expires_at, timeout_ms,
    params)
SELECT r.run, r.task, r.item, r.attempt, r.queue, r.priority,
       CASE r.ordinal WHEN 0 THEN r.floor ELSE coalesce(h.head, greatest(r.floor, h.last)) + r.ordinal END,
       string_to_array(r.tags, E'\x1f'), coalesce(r.ready_at, now.at),
       coalesce(r.ready_at, now.at) + r.queue_timeout_ms * interval '1 millisecond', r.timeout_ms, r.params
  FROM rows r JOIN heads h USING (queue, priority, tags) CROSS JOIN (SELECT clock_timestamp() AS at) AS now
