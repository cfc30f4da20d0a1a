-- message_cancel_bucket: cancels the messages of a bucket ($3) of one day that are beyond the frontiers of their
-- slices. If $4 or $5 is given, it cancels only those of this sender, or to this receiver. It counts them, and
-- returns how many there were. The slice is looked up for each message: a join may read all slices of the day for
-- each message, if the planner expects only one slice.
--
-- Locking: called under the topic's lock, so frontiers do not move.
WITH stopped AS (
    UPDATE heddle.messages m
       SET state = 1
     WHERE m.day = $2 AND m.topic = $1 AND m.bucket = $3 AND m.state = 0
       AND ($4::bigint IS NULL OR m.sender = $4) AND ($5::bigint IS NULL OR m.receiver = $5)
       AND (SELECT s.state = 0 AND (m.bucket, m.id) > (s.bucket, s.id)
              FROM heddle.message_slices s
             WHERE s.topic = $1 AND s.day = $2 AND s.slice = m.slice LIMIT 1)
    RETURNING m.bucket
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, cancelled)
    SELECT $1, $2, $3, count(*) FROM stopped HAVING count(*) > 0
    ON CONFLICT (topic, day, bucket) DO UPDATE
       SET cancelled = o.cancelled + excluded.cancelled, last_at = excluded.last_at
)
SELECT count(*) AS "cancelled!" FROM stopped
