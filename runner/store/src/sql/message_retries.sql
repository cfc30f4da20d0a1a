-- message_retries: takes due retries of a day out, the longest due first; fewer the more often the first of them has
-- failed (an eighth for each attempt), so that a message that breaks its batch ends up alone.
--
-- Locking: called under the topic's lock; nobody else deletes here.
WITH first AS (
    SELECT greatest(1, $3::bigint / power(8, least(r.attempt, 6) - 1))::bigint AS most
      FROM heddle.message_retries r
     WHERE r.topic = $1 AND r.day = $2 AND r.due_at <= clock_timestamp()
     ORDER BY r.due_at
     LIMIT 1
),
picked AS (
    SELECT r.bucket, r.id
      FROM heddle.message_retries r
     WHERE r.topic = $1 AND r.day = $2 AND r.due_at <= clock_timestamp()
     ORDER BY r.due_at
     LIMIT (SELECT most FROM first)
)
DELETE FROM heddle.message_retries r
 USING picked p
 WHERE r.topic = $1 AND r.day = $2 AND r.bucket = p.bucket AND r.id = p.id
RETURNING r.id, r.attempt, r.retry
