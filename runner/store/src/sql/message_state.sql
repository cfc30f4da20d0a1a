-- message_state: sets the state of messages.
--
-- Locking: called under the topic's lock. Nobody else writes rows of the topic's messages, so the positions of rows
-- (`ctid`) that were found stay valid. Each message is looked up by itself, whatever the planner knows about a
-- partition that has just grown.
UPDATE heddle.messages m
   SET state = $4
 WHERE m.day = $2 AND m.topic = $1
   AND m.ctid = ANY (ARRAY(
       SELECT f.ctid
         FROM UNNEST($3::uuid[]) AS i (id)
        CROSS JOIN LATERAL (SELECT m.ctid FROM heddle.messages m
                             WHERE m.day = $2 AND m.topic = $1 AND m.bucket = heddle.message_bucket(i.id) AND m.id = i.id
                             LIMIT 1) AS f))
