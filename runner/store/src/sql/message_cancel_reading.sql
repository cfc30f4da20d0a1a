-- message_cancel_reading: cancels what a day has for a receiver ($3) beyond the frontiers of its slices, and counts it by
-- bucket; answers how many messages there were. Their ids stay here: a receiver may have millions. The day is read
-- through, and its slices are joined by hash (`by_reading`).
--
-- Locking: called under the topic's lock, so frontiers stand still.
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
