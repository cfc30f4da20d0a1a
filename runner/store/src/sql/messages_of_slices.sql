-- messages_of_slices: the next messages of slices of one day ($3, with their frontiers $4 and $5), one slice after
-- the other, each in the order of bucket and id.
--
-- Locking: as in messages_of_day.
SELECT f.slice AS "slice!", m.id AS "id!", m.bucket AS "bucket!", m.sender AS "sender!", m.receiver AS "receiver!",
       m.due_at, m.payload AS "payload!"
  FROM UNNEST($3::bigint[], $4::smallint[], $5::uuid[]) WITH ORDINALITY AS f (slice, bucket, id, ordinal)
 CROSS JOIN LATERAL (
       SELECT m.id, m.bucket, m.sender, m.receiver, m.due_at, m.payload
         FROM heddle.messages m
        WHERE m.day = $2 AND m.topic = $1 AND m.slice = f.slice AND m.slice > 0
          AND (m.bucket, m.id) > (f.bucket, f.id) AND m.state = 0
        ORDER BY m.bucket, m.id
        LIMIT $6) AS m
 LIMIT $6
