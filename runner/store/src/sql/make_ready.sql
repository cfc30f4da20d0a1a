-- make_ready: inserts rows for task runs that have become ready: in *running* if this node takes them at once,
-- otherwise in *ready*.
--
-- Locking: the caller holds the runs' rows, so nobody else makes the same task run ready.
WITH rows AS MATERIALIZED (
    SELECT w.*, w.handed AND EXISTS (
               SELECT FROM heddle.nodes n WHERE n.lease = $8 AND n.expires_at > clock_timestamp()) AS here
      FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::smallint[], $6::bigint[], $7::boolean[])
        AS w (run, task, item, attempt, priority, turn, handed)
),
queued AS (
    INSERT INTO heddle.ready (run, task, item, attempt, priority, turn)
    SELECT run, task, item, attempt, priority, turn FROM rows WHERE NOT here
),
running AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT run, task, item, attempt, $8, $9 FROM rows WHERE here
)
SELECT coalesce(bool_and(here), true) AS "fit!" FROM rows WHERE handed
