-- move_schedules: advances schedules, in the transaction that inserts the runs that they called for.
--
-- Locking: this transaction already holds the schedules' rows (take_schedules). It locks the runs that a fixed delay
-- counts from, in id order. If an instant already had a run, that run may have ended before this transaction could
-- write that the schedule waits for it. Then the delay counts from now. A run that ends later finds `awaits` after
-- this commit: either this transaction has inserted it, or its row is locked here.
WITH moved AS (
    SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::uuid[], $6::timestamptz[])
        AS m (group_id, name, cursor, next, awaits, fired_at)
),
awaited AS MATERIALIZED (
    SELECT l.id FROM heddle.runs_live l WHERE l.id = ANY ($5)
     ORDER BY l.id FOR KEY SHARE
)
UPDATE heddle.schedules s
   SET cursor = m.cursor,
       fired_at = m.fired_at,
       awaits = CASE WHEN m.awaits IN (SELECT id FROM awaited) THEN m.awaits END,
       next_fire_at = CASE
           WHEN m.awaits IS NULL THEN m.next
           WHEN m.awaits IN (SELECT id FROM awaited) THEN NULL
           WHEN greatest(m.cursor + s.delay, s.starts_at) < coalesce(s.ends_at, 'infinity')
               THEN greatest(m.cursor + s.delay, s.starts_at)
       END
  FROM moved m
 WHERE s.group_id = ANY (ARRAY[m.group_id]) AND s.name = m.name
