-- count_holds: counts the held slots of each pool, and deletes holds whose attempt is over.
--
-- Locking: the caller holds the rows of all pools, so nobody adds holds meanwhile. Every snapshot shows an attempt
-- that is being claimed in *ready*, *queue_ready* or *running*. An attempt that is ending counts until its end is
-- committed.
WITH holds AS MATERIALIZED (
    SELECT h.run, h.task, h.item, h.attempt, h.pool, h.slots,
           EXISTS (SELECT FROM heddle.ready r
                    WHERE r.run = h.run AND r.task = h.task AND r.item = h.item AND r.attempt = h.attempt)
        OR EXISTS (SELECT FROM heddle.queue_ready r
                    WHERE r.run = h.run AND r.task = h.task AND r.item = h.item AND r.attempt = h.attempt)
        OR EXISTS (SELECT FROM heddle.running r
                    WHERE r.run = h.run AND r.task = h.task AND r.item = h.item AND r.attempt = h.attempt) AS alive
      FROM heddle.pool_holds h
),
over AS (
    DELETE FROM heddle.pool_holds h USING holds s
     WHERE NOT s.alive AND h.run = s.run AND h.task = s.task AND h.item = s.item AND h.attempt = s.attempt
       AND h.pool = s.pool
)
SELECT pool AS "pool!", sum(slots) AS "slots!" FROM holds WHERE alive GROUP BY pool
