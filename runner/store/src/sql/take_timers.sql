-- take_timers: takes timers that are due, by the database's clock: those of some runs, or all but those ($2, $3).
--
-- Locking: whoever takes timers locks their runs afterwards, while everybody else locks a run first and then comes to its
-- timers. So rows that another transaction holds are skipped here, and those who hold a run skip what is held here (see
-- run/live/timers.rs): nobody waits for a timer.
DELETE FROM heddle.timers t
 WHERE t.ctid = ANY (ARRAY(
       SELECT ctid FROM heddle.timers
        WHERE due_at <= (SELECT clock_timestamp()) AND (run = ANY ($2)) = $3
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING t.run, t.task, t.item, t.kind, t.attempt, t.due_at
