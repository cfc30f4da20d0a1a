-- message_lock: takes a topic's turn. The first lock of every transaction that claims, checkpoints or cancels.
--
-- Locking: one row of *topic_drains*, waited for; a batch whose messages were all sent may be recorded meanwhile
-- (message_finish). Cancels lock that out too, by a second, stronger lock of the row. The settings hold for the
-- transaction: no plan may sort or collect what an index gives in order, and how plans are kept is $2. Statements that
-- name a day of *messages* need 'force_custom_plan': a plan that is kept for all days locks the partitions of all of them.
SELECT d.allowance AS "allowance!",
       greatest(0, extract(epoch FROM clock_timestamp() - d.allowed_at) * 1000)::double precision AS "since_ms!",
       CASE WHEN set_config('plan_cache_mode', $2, true) <> ''
             AND set_config('enable_sort', 'off', true) <> '' AND set_config('enable_bitmapscan', 'off', true) <> ''
            THEN d.problem END AS "problem?"
  FROM heddle.topic_drains d
 WHERE d.topic = $1
   FOR NO KEY UPDATE
