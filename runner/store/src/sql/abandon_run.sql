-- abandon_run: takes a live run's work out of every table that work passes through, whatever its progress says.
--
-- Locking: the caller holds the run's row, and has seen that the attempt it gives up is still its own. The order is that
-- of a cancel: *ready_pooled*, *running*, *ready*, *timers*. Slots that its attempts hold come free when pools are looked
-- at next, sub-runs and offers of its tasks are found by those who look for what has lost its attempt. A timer that the inbox
-- has in its hand is skipped: it goes with that (drop_timers).
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
