-- queue_put: inserts rows for task runs that workers may claim from now on.
--
-- Locking: the caller holds the runs' rows, or creates the runs in the same transaction, so nobody else makes the
-- same task run ready. The lowest `turn` of a queue is read without a lock: two writers that read the same one only
-- share it.
--
-- $13, if given, says since when a task run is ready: it returns to its old position, or comes from a pool.
WITH rows AS MATERIALIZED (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::text[], $6::smallint[],
                         $7::bigint[], $8::text[], $9::bigint[], $10::bigint[], $11::text[],
                         $12::bigint[], $13::timestamptz[])
        AS r (run, task, item, attempt, queue, priority, ordinal, tags, timeout_ms, queue_timeout_ms,
              params, floor, ready_at)
),
heads AS MATERIALIZED (
    SELECT p.queue, p.priority,
           coalesce((SELECT q.turn FROM heddle.queue_ready q
                      WHERE q.queue = p.queue AND q.priority = p.priority ORDER BY q.turn LIMIT 1), 0) AS turn
      FROM (SELECT DISTINCT queue, priority FROM rows) AS p
)
INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at, expires_at, timeout_ms,
    params)
SELECT r.run, r.task, r.item, r.attempt, r.queue, r.priority, greatest(h.turn, r.floor) + r.ordinal,
       string_to_array(r.tags, E'\x1f'), coalesce(r.ready_at, now.at),
       coalesce(r.ready_at, now.at) + r.queue_timeout_ms * interval '1 millisecond', r.timeout_ms, r.params
  FROM rows r JOIN heads h USING (queue, priority) CROSS JOIN (SELECT clock_timestamp() AS at) AS now
