-- take_timers: takes timers that are due by the database's clock, at most $1: those of some runs ($2) if $3 is true,
-- otherwise all except those.
--
-- Locking: whoever takes timers locks their runs afterwards, but everybody else locks a run first, and then its
-- timers. So rows that another transaction holds are skipped here, and those who hold a run skip rows that are held
-- here (see run/live/timers.rs): nobody waits for a timer.
DELETE FROM heddle.timers t
 WHERE t.ctid = ANY (ARRAY(
       SELECT ctid FROM heddle.timers
        WHERE due_at <= (SELECT clock_timestamp()) AND (run = ANY ($2)) = $3
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING t.run, t.task, t.item, t.kind, t.attempt, t.due_at
