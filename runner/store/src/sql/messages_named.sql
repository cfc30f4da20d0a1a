-- messages_named: messages of one day by their ids ($3), in the order of bucket and id, with their states.
--
-- Locking: none, as in messages_search.
SELECT m.id AS "id!", m.sender AS "sender!", m.receiver AS "receiver!", m.day AS "day!", m.bucket AS "bucket!", m.due_at,
       m.payload AS "payload!", m.state AS "state!", s.state = 2 AS "stopped!", (m.bucket, m.id) > (s.bucket, s.id) AS "waits!",
       EXISTS (SELECT FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = $2 AND m.id = ANY (b.ids)) AS "in_batch!",
       r.due_at IS NOT NULL AS "retries!", r.attempt AS "attempt?", r.due_at AS "retry_at?", r.error AS "error?"
  FROM UNNEST($3::uuid[]) AS i (id)
 CROSS JOIN LATERAL (SELECT m.* FROM heddle.messages m
                      WHERE m.day = $2 AND m.topic = $1 AND m.bucket = heddle.message_bucket(i.id) AND m.id = i.id
                      LIMIT 1) AS m
 CROSS JOIN LATERAL (SELECT s.bucket, s.id, s.state FROM heddle.message_slices s
                      WHERE s.topic = $1 AND s.day = $2 AND s.slice = m.slice LIMIT 1) AS s
  LEFT JOIN LATERAL (SELECT r.attempt, r.due_at, r.error FROM heddle.message_retries r
                      WHERE r.topic = $1 AND r.day = $2 AND r.bucket = m.bucket AND r.id = m.id LIMIT 1) AS r ON true
 ORDER BY m.bucket, m.id
