-- abandon_run: removes all work of a live run from the tables that hold work, whatever the run's progress says.
-- Returns the attempts that were in *running*.
--
-- Locking: the caller holds the run's row, and has seen that the attempt that it gives up is still its own. The order
-- of tables is that of a cancel: *ready_pooled*, *running*, *ready*, *timers*. Slots that the attempts hold become
-- free when pools are counted next (count_holds). Sweeps find the sub-runs and offers of its tasks, because their
-- attempts are gone. A timer that the inbox is taking is skipped: it goes with the inbox's transaction (drop_timers).
WITH pooled AS (DELETE FROM heddle.ready_pooled WHERE run = $1),
stopped AS (
    DELETE FROM heddle.running WHERE run = $1 RETURNING run, task, item, attempt, lease, started_at
),
unclaimed AS (DELETE FROM heddle.ready WHERE run = $1),
queued AS (DELETE FROM heddle.queue_ready WHERE run = $1),
revoked AS (DELETE FROM heddle.queue_claims WHERE run = $1),
timed AS (
    DELETE FROM heddle.timers t
     WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM heddle.timers WHERE run = $1 FOR UPDATE SKIP LOCKED))
)
SELECT s.task, s.item, s.attempt, s.lease, s.started_at, l.node AS "node?"
  FROM stopped s LEFT JOIN heddle.leases l ON l.lease = s.lease
