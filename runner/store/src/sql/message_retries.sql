-- message_retries: due retries of a day, those that have been due longest first: at least one, and at most $3 divided
-- by 8^k, where k is one less than the attempts of the first one, and 5 at most. So a message that breaks its batch
-- ends up alone in one. The caller then deletes those that fit.
--
-- Locking: called under the topic's lock; nobody else deletes these rows meanwhile.
WITH first AS (
    SELECT greatest(1, $3::bigint / power(8, greatest(1, least(r.attempt, 6)) - 1))::bigint AS most
      FROM heddle.message_retries r
     WHERE r.topic = $1 AND r.day = $2 AND r.due_at <= clock_timestamp()
     ORDER BY r.due_at
     LIMIT 1
)
SELECT r.id, r.attempt, r.retry
  FROM heddle.message_retries r
 WHERE r.topic = $1 AND r.day = $2 AND r.due_at <= clock_timestamp()
 ORDER BY r.due_at
 LIMIT (SELECT most FROM first)
