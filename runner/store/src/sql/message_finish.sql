-- message_finish: ends a batch, and counts its sent messages by bucket ($5, $6). Returns whether the batch was there.
--
-- Locking: the topic's row, FOR KEY SHARE. The lock of a claim in progress allows that, the lock of a cancel does
-- not. If there is more to record than sent messages, the caller holds the topic's lock. Whoever deletes the batch's
-- row owns its outcomes: if the row is gone, nothing is counted. Counts are written in the order of buckets ($5 is
-- sorted), here and wherever several are changed without the lock of cancels.
WITH locked_topic AS (
    SELECT d.topic FROM heddle.topic_drains d WHERE d.topic = $2 FOR KEY SHARE
),
ended AS (
    DELETE FROM heddle.message_batches WHERE id = $1 AND topic = $2 AND lease = $3 AND EXISTS (SELECT FROM locked_topic)
    RETURNING id
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, sent)
    SELECT $2, $4, n.bucket, n.count
      FROM UNNEST($5::smallint[], $6::bigint[]) AS n (bucket, count)
     WHERE EXISTS (SELECT FROM ended)
    ON CONFLICT (topic, day, bucket) DO UPDATE
       SET sent = o.sent + excluded.sent, last_at = excluded.last_at
)
SELECT count(*) = 1 AS "ended!" FROM ended
