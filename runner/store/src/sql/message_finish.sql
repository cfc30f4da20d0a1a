-- message_finish: ends a batch and counts what of it was sent, by bucket ($5, $6); tells whether the batch was there.
--
-- Locking: its share of the topic's row, which goes with a claim that is under way, but not with a cancel; called under
-- the topic's lock when there is more to record than what was sent. Whoever deletes the batch's row owns its outcomes:
-- nothing is counted for somebody who finds it gone. Counts are taken in the order of buckets ($5 is), here and
-- wherever several are changed without the cancels' lock.
WITH turn AS (
    SELECT d.topic FROM heddle.topic_drains d WHERE d.topic = $2 FOR KEY SHARE
),
taken AS (
    DELETE FROM heddle.message_batches WHERE id = $1 AND topic = $2 AND lease = $3 AND EXISTS (SELECT FROM turn)
    RETURNING id
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, sent)
    SELECT $2, $4, n.bucket, n.count
      FROM UNNEST($5::smallint[], $6::bigint[]) AS n (bucket, count)
     WHERE EXISTS (SELECT FROM taken)
    ON CONFLICT (topic, day, bucket) DO UPDATE
       SET sent = o.sent + excluded.sent, last_at = excluded.last_at
)
SELECT count(*) = 1 AS "taken!" FROM taken
