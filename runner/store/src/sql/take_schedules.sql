-- take_schedules: the schedules that are due by the database's clock, those that have been due longest first; at most
-- $1.
--
-- Locking: rows that another node is firing are skipped, so nodes share the due schedules and never wait for each
-- other. A change of a group waits for these locks. After it, its schedules are not due any more, or due as the
-- change says. A sub-select reads the clock once: if it were read for each row, it could not limit the index scan.
SELECT group_id, name, revision_id, cursor, next_fire_at AS "due_at!", clock_timestamp() AS "now!"
  FROM heddle.schedules
 WHERE next_fire_at <= (SELECT clock_timestamp())
 ORDER BY next_fire_at
 LIMIT $1
   FOR UPDATE SKIP LOCKED
