-- message_lock: takes a topic's lock, the first one of every transaction that claims, checkpoints or cancels.
--
-- Locking: one row of *topic_drains*; the statement waits for it. A batch whose messages were all sent may be
-- recorded meanwhile (message_finish). Cancels exclude that too, by a second, stronger lock on the row. The settings
-- last until the end of the transaction: no plan may sort or collect what an index gives in order, and $2 says how
-- plans are kept. Statements that name a day of *messages* need 'force_custom_plan': a plan that is kept for all days
-- locks the partitions of all days.
SELECT d.allowance AS "allowance!",
       greatest(0, extract(epoch FROM clock_timestamp() - d.allowed_at) * 1000)::double precision AS "since_ms!",
       CASE WHEN set_config('plan_cache_mode', $2, true) <> ''
             AND set_config('enable_sort', 'off', true) <> '' AND set_config('enable_bitmapscan', 'off', true) <> ''
            THEN d.problem END AS "problem?"
  FROM heddle.topic_drains d
 WHERE d.topic = $1
   FOR NO KEY UPDATE
