-- message_advance: moves the frontiers of slices ($3 to $6) and writes the batch of what they passed, if that is
-- anything ($7 to $9).
--
-- Locking: called under the topic's lock; the frontier and the batch are one statement, so no message is in neither.
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
