-- messages_search: messages of one day after ($3, $4), in the order of bucket and id, with their states. $5, $6 and
-- $7 select a bucket, a sender, a receiver, if they are given.
--
-- Locking: none. The planner sees the value of the day, so only that day's partition is touched.
SELECT m.id AS "id!", m.sender AS "sender!", m.receiver AS "receiver!", m.day AS "day!", m.bucket AS "bucket!", m.due_at,
       m.payload AS "payload!", m.state AS "state!", s.state = 2 AS "stopped!", (m.bucket, m.id) > (s.bucket, s.id) AS "waits!",
       EXISTS (SELECT FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = $2 AND m.id = ANY (b.ids)) AS "in_batch!",
       r.due_at IS NOT NULL AS "retries!", r.attempt AS "attempt?", r.due_at AS "retry_at?", r.error AS "error?"
  FROM heddle.messages m
 CROSS JOIN LATERAL (SELECT s.bucket, s.id, s.state FROM heddle.message_slices s
                      WHERE s.topic = $1 AND s.day = $2 AND s.slice = m.slice LIMIT 1) AS s
  LEFT JOIN LATERAL (SELECT r.attempt, r.due_at, r.error FROM heddle.message_retries r
                      WHERE r.topic = $1 AND r.day = $2 AND r.bucket = m.bucket AND r.id = m.id LIMIT 1) AS r ON true
 WHERE m.day = $2 AND m.topic = $1 AND (m.bucket, m.id) > ($3::smallint, $4::uuid)
   AND ($5::smallint IS NULL OR m.bucket = $5) AND ($6::bigint IS NULL OR m.sender = $6)
   AND ($7::bigint IS NULL OR m.receiver = $7)
 ORDER BY m.bucket, m.id
 LIMIT $8
