-- message_cancel_reading: cancels the messages of a day to one receiver ($3) that are beyond the frontiers of their
-- slices, counts them by bucket, and returns how many there were. It does not return their ids, because a receiver
-- may have millions. The whole day is read and joined with its slices by hash (`by_reading`).
--
-- Locking: called under the topic's lock, so frontiers do not move.
WITH stopped AS (
    UPDATE heddle.messages m
       SET state = 1
      FROM heddle.message_slices s
     WHERE m.day = $2 AND m.topic = $1 AND m.state = 0 AND m.receiver = $3
       AND s.topic = $1 AND s.day = $2 AND s.slice = m.slice AND s.state = 0 AND (m.bucket, m.id) > (s.bucket, s.id)
    RETURNING m.bucket
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, cancelled)
    SELECT $1, $2, c.bucket, count(*) FROM stopped c GROUP BY c.bucket
    ON CONFLICT (topic, day, bucket) DO UPDATE
       SET cancelled = o.cancelled + excluded.cancelled, last_at = excluded.last_at
)
SELECT count(*) AS "cancelled!" FROM stopped
