-- take_schedules: the schedules that are due, the longest overdue first, by the database's clock.
--
-- Locking: rows that another node is firing are skipped, so nodes share what is due and never wait for each other. A
-- change of the group waits for these locks, and what it has changed is then not due any more, or due as it says.
-- The clock is asked in a sub-select, once: asked for each row it could not bound the index scan.
SELECT group_id, name, revision_id, cursor, next_fire_at AS "due_at!", clock_timestamp() AS "now!"
  FROM heddle.schedules
 WHERE next_fire_at <= (SELECT clock_timestamp())
 ORDER BY next_fire_at
 LIMIT $1
   FOR UPDATE SKIP LOCKED
