-- admit_pooled: moves rows from *ready_pooled* to *ready*, and writes the slots that they hold. Returns how many rows
-- were moved.
--
-- Locking: the caller holds the rows of all pools. If a control (a cancel, a pause) is taking back a row at this
-- moment, the statement waits for it. A row that was taken back before is not admitted.
WITH picked AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS p (run, task, item)
),
admitted AS (
    DELETE FROM heddle.ready_pooled r USING picked p
     WHERE r.run = ANY (ARRAY[p.run]) AND r.task = p.task AND r.item = p.item
    RETURNING r.*
),
holds AS (
    INSERT INTO heddle.pool_holds (run, task, item, attempt, pool, slots)
    SELECT t.run, t.task, t.item, t.attempt, n.pool, n.slots
      FROM admitted t CROSS JOIN LATERAL UNNEST(t.pools, t.slots) AS n (pool, slots)
),
queued AS (
    INSERT INTO heddle.ready (run, task, item, attempt, priority, turn)
    SELECT run, task, item, attempt, priority, turn FROM admitted
)
SELECT count(*) AS "moved!" FROM admitted
