-- message_keys: takes the keys of messages, and returns the ids of those whose key is new.
--
-- Locking: the statement waits for a key that another transaction has taken and not committed. A transaction takes
-- its keys in their order and in one statement, so two transactions with the same keys wait for each other in one
-- direction only. The bucket is that of the key: so the primary key makes a key unique within its day, whoever sends.
INSERT INTO heddle.message_keys (day, topic, bucket, key, id)
SELECT k.day, $1, k.bucket, k.key, k.id
  FROM (SELECT n.day, n.key, n.id, n.ordinal,
               (('x' || substr(md5(n.key), 1, 7))::bit(28)::integer % 10000)::smallint AS bucket
          FROM UNNEST($2::date[], $3::text[], $4::uuid[]) WITH ORDINALITY AS n (day, key, id, ordinal)) AS k
 ORDER BY k.day, k.bucket, k.key, k.ordinal
ON CONFLICT DO NOTHING
RETURNING id
