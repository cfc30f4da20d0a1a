-- message_cancel_retries: cancels the messages of a day that wait for their next attempt and match a filter (bucket
-- $3, sender $4, receiver $5), counts them by bucket, and returns how many there were.
--
-- Locking: called under the topic's lock, so retries and outcomes do not change. A message that waits for its next
-- attempt is behind the frontier of its slice.
WITH retried AS (
    DELETE FROM heddle.message_retries r
     WHERE r.topic = $1 AND r.day = $2 AND r.due_at IS NOT NULL AND ($3::smallint IS NULL OR r.bucket = $3)
       AND (SELECT ($4::bigint IS NULL OR m.sender = $4) AND ($5::bigint IS NULL OR m.receiver = $5)
              FROM heddle.messages m
             WHERE m.day = $2 AND m.topic = $1 AND m.bucket = r.bucket AND m.id = r.id LIMIT 1)
    RETURNING r.bucket, r.id
),
marked AS (
    UPDATE heddle.messages m SET state = 1
     WHERE m.day = $2 AND m.topic = $1
       AND m.ctid = ANY (ARRAY(
           SELECT f.ctid
             FROM retried r
            CROSS JOIN LATERAL (SELECT m.ctid FROM heddle.messages m
                                 WHERE m.day = $2 AND m.topic = $1 AND m.bucket = r.bucket AND m.id = r.id LIMIT 1) AS f))
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, cancelled)
    SELECT $1, $2, c.bucket, count(*) FROM retried c GROUP BY c.bucket
    ON CONFLICT (topic, day, bucket) DO UPDATE
       SET cancelled = o.cancelled + excluded.cancelled, last_at = excluded.last_at
)
SELECT count(*) AS "cancelled!" FROM retried
