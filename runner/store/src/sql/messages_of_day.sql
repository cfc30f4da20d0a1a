-- messages_of_day: the next messages of a day, in the order of bucket and id: the primary key's. (Their ids tell the
-- bucket, and what is due on a day has no instant: what is not asked for need not be written and read.)
--
-- Locking: none; the topic's lock keeps the frontier ($4, $5), and the slice is sealed. The day is a parameter that the
-- planner sees (message_lock), so only its partition is touched.
SELECT m.id, m.sender, m.receiver, m.payload
  FROM heddle.messages m
 WHERE m.day = $2 AND m.topic = $1 AND (m.bucket, m.id) > ($4, $5) AND m.slice = $3 AND m.state = 0
 ORDER BY m.bucket, m.id
 LIMIT $6
