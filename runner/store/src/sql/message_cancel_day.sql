-- message_cancel_day: marks the slices of a day as cancelled, and counts by bucket what that takes away: all that has
-- come, less what has ended and what is in hand.
--
-- Locking: called under the topic's lock, so outcomes and batches stand still; a topic of days holds the day's advisory
-- lock besides. One statement, one snapshot: a slice of an instant that is committed meanwhile is in neither the slices
-- nor the counts.
WITH slices AS (
    UPDATE heddle.message_slices SET state = 2 WHERE topic = $1 AND day = $2 AND state <> 2
),
left_over AS (
    -- Added up, not joined: a join may become ten thousand scans of ten thousand rows, while the planner believes that a
    -- day has one.
    SELECT n.bucket, sum(n.count)::bigint AS count
      FROM (SELECT b.bucket, b.total AS count FROM heddle.message_buckets b WHERE b.topic = $1 AND b.day = $2
            UNION ALL
            SELECT o.bucket, -(o.sent + o.failed + o.cancelled) FROM heddle.message_outcomes o
             WHERE o.topic = $1 AND o.day = $2
            UNION ALL
            SELECT heddle.message_bucket(h.id), -1
              FROM (SELECT UNNEST(b.ids) AS id FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = $2) AS h) AS n
     GROUP BY n.bucket
),
counted AS (
    INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, cancelled)
    SELECT $1, $2, l.bucket, l.count FROM left_over l WHERE l.count > 0
    ON CONFLICT (topic, day, bucket) DO UPDATE
       SET cancelled = o.cancelled + excluded.cancelled, last_at = excluded.last_at
),
retries AS (
    -- Their rows are marked, since their slices' frontiers are past them.
    UPDATE heddle.messages m SET state = 1
     WHERE m.day = $2 AND m.topic = $1
       AND m.ctid = ANY (ARRAY(
           SELECT f.place
             FROM heddle.message_retries r
            CROSS JOIN LATERAL (SELECT m.ctid AS place FROM heddle.messages m
                                 WHERE m.day = $2 AND m.topic = $1 AND m.bucket = r.bucket AND m.id = r.id LIMIT 1) AS f
            WHERE r.topic = $1 AND r.day = $2 AND r.due_at IS NOT NULL))
)
SELECT coalesce(sum(count) FILTER (WHERE count > 0), 0)::bigint AS "cancelled!" FROM left_over
