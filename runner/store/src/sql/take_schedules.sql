-- take_schedules: the schedules that are due by the database's clock, those that have been due longest first; at most
-- $1.
--
-- Locking: rows that another node is firing are skipped, so nodes share the due schedules and never wait for each
-- other. A change of a group waits for these locks. After it, its schedules are not due any more, or due as the
-- change says. A sub-select reads the clock once: if it were read for each row, it could not limit the index scan.
-- `previous`, only for `after`, which has no instants of its own: the group's last instant before this one.
SELECT s.group_id, s.name, s.revision_id, s.cursor, s.next_fire_at AS "due_at!", clock_timestamp() AS "now!",
       CASE WHEN s.delay IS NOT NULL THEN (
           SELECT i.logical_time FROM heddle.run_instants i
            WHERE i.group_id = s.group_id AND i.logical_time < s.next_fire_at
            ORDER BY i.logical_time DESC LIMIT 1)
       END AS "previous?"
  FROM heddle.schedules s
 WHERE s.next_fire_at <= (SELECT clock_timestamp())
 ORDER BY s.next_fire_at
 LIMIT $1
   FOR UPDATE SKIP LOCKED
