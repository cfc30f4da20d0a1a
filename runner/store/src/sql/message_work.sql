-- message_work: what there is to do on a topic, and who does it: batches in hand, nodes, a batch that a node left
-- behind, the day of the retry that has been due longest, and the first due slice. A node that still compiles its scripts
-- does not count: the others would leave batches to it.
--
-- Locking: none of its own. It is called under the topic's lock, in a later statement than the one that took it, so
-- it sees what the last holder committed. Later statements of its transaction name a day, and are planned for that
-- day (message_lock).
--
-- $3: this transaction records nothing, it only claims. Then its commit need not wait for the disk. If the server
-- loses it, nothing was claimed. What is later recorded of the batch brings this commit to the disk first.
SELECT (SELECT count(*) FROM heddle.message_batches b WHERE b.topic = $1) AS "in_hand!",
       (SELECT count(*) FROM heddle.message_batches b WHERE b.topic = $1 AND b.lease = $2) AS "mine!",
       (SELECT count(*) FROM heddle.nodes n
         WHERE n.state = 0 AND NOT n.warming AND n.expires_at > clock_timestamp()) AS "nodes!",
       EXISTS (SELECT FROM heddle.nodes n WHERE n.lease = $2 AND n.expires_at > clock_timestamp()) AS "alive!",
       (SELECT b.id FROM heddle.message_batches b
         WHERE b.topic = $1 AND b.run IS NULL
           AND NOT EXISTS (SELECT FROM heddle.nodes n WHERE n.lease = b.lease AND n.expires_at > clock_timestamp())
         LIMIT 1) AS "lost?",
       (SELECT r.day FROM heddle.message_retries r
         WHERE r.topic = $1 AND r.due_at <= clock_timestamp() ORDER BY r.due_at LIMIT 1) AS "retry_day?",
       s.day AS "day?", s.slice AS "slice?", s.bucket AS "bucket?", s.id AS "id?", s.sealed AS "sealed?"
  FROM (SELECT set_config('plan_cache_mode', 'force_custom_plan', true),
               CASE WHEN $3 THEN set_config('synchronous_commit', 'off', true) END) AS planned
  LEFT JOIN (SELECT s.day, s.slice, s.bucket, s.id, s.sealed FROM heddle.message_slices s
              WHERE s.topic = $1 AND s.state = 0 AND s.due_at <= clock_timestamp() ORDER BY s.due_at, s.slice LIMIT 1)
            AS s ON true
