-- message_lock: takes a topic's turn. The first lock of every transaction that claims, checkpoints or cancels.
--
-- Locking: one row of *topic_drains*, waited for. The settings hold for the transaction: plans are made for the day that
-- a statement names (a generic one locks the partitions of all days), and no plan may sort or collect what an index
-- gives in order.
SELECT d.allowance AS "allowance!",
       greatest(0, extract(epoch FROM clock_timestamp() - d.allowed_at) * 1000)::double precision AS "since_ms!",
       CASE WHEN set_config('plan_cache_mode', 'force_custom_plan', true) <> ''
             AND set_config('enable_sort', 'off', true) <> '' AND set_config('enable_bitmapscan', 'off', true) <> ''
            THEN d.problem END AS "problem?"
  FROM heddle.topic_drains d
 WHERE d.topic = $1
   FOR UPDATE
