-- message_cancel_bucket: cancels what a bucket ($3) of a day has beyond the frontiers of its slices, of one sender ($4) or to
-- one receiver ($5) if these are named; counts it, and answers how many messages there were. A message's slice is looked
-- up for each: a join may read all slices of the day for each message, while the planner believes that there is one.
--
-- Locking: called under the topic's lock, so frontiers stand still.
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
