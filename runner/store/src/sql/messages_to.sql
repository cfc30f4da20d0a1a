-- messages_to: the next messages of one day to a receiver ($5) after ($3, $4), in the order of bucket and id. Only
-- reading the day finds the messages of a receiver: an index would halve the rate of ingest (docs/scale.md).
--
-- Locking: none. The planner sees the value of the day, so only that day's partition is touched.
SELECT m.id
  FROM heddle.messages m
 WHERE m.day = $2 AND m.topic = $1 AND m.receiver = $5 AND (m.bucket, m.id) > ($3::smallint, $4::uuid)
 ORDER BY m.bucket, m.id
 LIMIT $6
