-- message_cancel_some: cancels what a filter (bucket $3, sender $4, receiver $5) finds of a day and is neither sent nor
-- in hand: what lies beyond its slice's frontier, and what waits for its next attempt. Counts it by bucket, and
-- answers how many messages there were. Their ids stay here: a receiver may have millions.
--
-- Locking: called under the topic's lock, so frontiers, retries and outcomes stand still; a message is in at most one of
-- the two.
WITH stopped AS (
    UPDATE heddle.messages m
       SET state = 1
      FROM heddle.message_slices s
     WHERE m.day = $2 AND m.topic = $1 AND m.state = 0 AND ($3::smallint IS NULL OR m.bucket = $3)
       AND ($4::bigint IS NULL OR m.sender = $4) AND ($5::bigint IS NULL OR m.receiver = $5)
       AND s.topic = $1 AND s.day = $2 AND s.slice = m.slice AND s.state = 0 AND (m.bucket, m.id) > (s.bucket, s.id)
    RETURNING m.bucket
),
retried AS (
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
           SELECT f.place
             FROM retried r
            CROSS JOIN LATERAL (SELECT m.ctid AS place FROM heddle.messages m
                                 WHERE m.day = $2 AND m.topic = $1 AND m.bucket = r.bucket AND m.id = r.id LIMIT 1) AS f))
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, cancelled)
    SELECT $1, $2, c.bucket, count(*)
      FROM (SELECT bucket FROM stopped UNION ALL SELECT bucket FROM retried) AS c
     GROUP BY c.bucket
    ON CONFLICT (topic, day, bucket) DO UPDATE SET cancelled = o.cancelled + excluded.cancelled
)
SELECT (SELECT count(*) FROM stopped) + (SELECT count(*) FROM retried) AS "cancelled!"
