-- messages_of_day: the next messages of a day's slice ($3), in the order of bucket and id, which is that of the
-- primary key. It returns neither bucket nor instant: an id contains its bucket, and what is due on a day has no
-- instant.
--
-- Locking: none of its own. The topic's lock keeps the frontier ($4, $5) in its position, and the slice is sealed.
-- The planner sees the value of the day (message_lock), so only that day's partition is touched.
SELECT m.id, m.sender, m.receiver, m.payload
  FROM heddle.messages m
 WHERE m.day = $2 AND m.topic = $1 AND (m.bucket, m.id) > ($4, $5) AND m.slice = $3 AND m.state = 0
 ORDER BY m.bucket, m.id
 LIMIT $6
