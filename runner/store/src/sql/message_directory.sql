-- message_directory: adds the numbers of messages that a transaction of ingest has brought to the totals of their
-- buckets.
--
-- Locking: rows of *message_buckets* in the order of (day, bucket), which is the order of the arrays. It is the last
-- statement before the commit. Nobody else writes these rows.
INSERT INTO heddle.message_buckets AS b (topic, day, bucket, total)
SELECT $1, n.day, n.bucket, n.count
  FROM UNNEST($2::date[], $3::smallint[], $4::bigint[]) WITH ORDINALITY AS n (day, bucket, count, ordinal)
 ORDER BY n.ordinal
ON CONFLICT (topic, day, bucket) DO UPDATE SET total = b.total + excluded.total
