-- message_advance: moves the frontiers of slices ($3 to $6), and writes the batch ($7 to $9) of the messages that
-- they have passed, if there are any.
--
-- Locking: called under the topic's lock. One statement moves the frontiers and writes the batch, so each message is
-- either beyond its frontier or in the batch.
WITH moved AS (
    UPDATE heddle.message_slices s
       SET bucket = ($4::smallint[])[array_position($3::bigint[], s.slice)],
           id = ($5::uuid[])[array_position($3::bigint[], s.slice)],
           state = CASE WHEN ($6::boolean[])[array_position($3::bigint[], s.slice)] THEN 1 ELSE s.state END
     WHERE s.topic = $1 AND s.day = $2 AND s.slice = ANY ($3)
)
INSERT INTO heddle.message_batches (id, topic, day, lease, ids)
SELECT $7, $1, $2, $8, $9::uuid[]
 WHERE cardinality($9::uuid[]) > 0
