-- message_finish: ends a batch and counts what of it was sent, by bucket ($5, $6); tells whether the batch was there.
--
-- Locking: called under the topic's lock. Whoever deletes the batch's row owns its outcomes: nothing is counted for
-- somebody who finds it gone.
WITH taken AS (
    DELETE FROM heddle.message_batches WHERE id = $1 AND topic = $2 AND lease = $3 RETURNING id
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, sent)
    SELECT $2, $4, n.bucket, n.count
      FROM UNNEST($5::smallint[], $6::bigint[]) AS n (bucket, count)
     WHERE EXISTS (SELECT FROM taken)
    ON CONFLICT (topic, day, bucket) DO UPDATE SET sent = o.sent + excluded.sent
)
SELECT count(*) = 1 AS "taken!" FROM taken
