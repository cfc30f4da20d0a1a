-- message_keys: takes the keys of messages; returns the ids of those whose key is new.
--
-- Locking: a key that another transaction has taken and not committed is waited for. Keys are taken in their order, in
-- one statement of a transaction, so two that take the same ones wait for each other one way only. The bucket is the
-- key's own, so that the primary key makes it unique in its day whoever sends.
INSERT INTO heddle.message_keys (day, topic, bucket, key, id)
SELECT k.day, $1, k.bucket, k.key, k.id
  FROM (SELECT n.day, n.key, n.id, n.place,
               (('x' || substr(md5(n.key), 1, 7))::bit(28)::integer % 10000)::smallint AS bucket
          FROM UNNEST($2::date[], $3::text[], $4::uuid[]) WITH ORDINALITY AS n (day, key, id, place)) AS k
 ORDER BY k.day, k.bucket, k.key, k.place
ON CONFLICT DO NOTHING
RETURNING id
