-- message_cancel_day: marks the slices of a day as cancelled, and counts by bucket how many messages that cancels:
-- all that have come, minus those that have ended and those in hand.
--
-- Locking: called under the topic's lock, so outcomes and batches do not change. For a topic of days, the caller also
-- holds the day's advisory lock. The statement has one snapshot: a slice of an instant that is committed meanwhile is
-- neither in the slices nor in the counts.
WITH slices AS (
    UPDATE heddle.message_slices SET state = 2 WHERE topic = $1 AND day = $2 AND state <> 2
),
left_over AS (
    -- Added up, not joined: if the planner expects one row of a day, a join may become ten thousand scans of ten
    -- thousand rows.
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
    -- Their rows are marked, because the frontiers of their slices have passed them.
    UPDATE heddle.messages m SET state = 1
     WHERE m.day = $2 AND m.topic = $1
       AND m.ctid = ANY (ARRAY(
           SELECT f.ctid
             FROM heddle.message_retries r
            CROSS JOIN LATERAL (SELECT m.ctid FROM heddle.messages m
                                 WHERE m.day = $2 AND m.topic = $1 AND m.bucket = r.bucket AND m.id = r.id LIMIT 1) AS f
            WHERE r.topic = $1 AND r.day = $2 AND r.due_at IS NOT NULL))
)
SELECT coalesce(sum(count) FILTER (WHERE count > 0), 0)::bigint AS "cancelled!" FROM left_over
