-- take_outgoing: takes due notifications under a node's lease ($1): at most $3, and only a few of each destination
-- ($2, minus those that the node already has in hand). The column `lane` is the destination: a channel, or the host
-- that is called back.
--
-- The index is read from one destination to the next. So a destination with a hundred thousand rows costs as little
-- as one with a single row, and none can fill the batch.
--
-- Locking: due rows of *outgoing*, skipping locked ones: two nodes take different rows, and nobody waits. A row
-- belongs to a node while the node's lease is valid by the database's clock, as in *running*. Rows of a dead node are
-- due again at once. A row under the node's own lease that the node does not have in hand ($6) is taken again: the
-- answer that gave it to the node was lost. A digest that was taken does not grow any more: whoever adds to it locks
-- the row first, and checks that.
WITH RECURSIVE destinations AS (
    (SELECT lane FROM heddle.outgoing ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT o.lane FROM heddle.outgoing o WHERE o.lane > l.lane ORDER BY o.lane LIMIT 1)
      FROM destinations l WHERE l.lane IS NOT NULL
),
due AS MATERIALIZED (
    SELECT d.notification
      FROM destinations l
      LEFT JOIN UNNEST($4::text[], $5::bigint[]) AS b (lane, busy) ON b.lane = l.lane
     CROSS JOIN LATERAL (
           SELECT o.notification
             FROM heddle.outgoing o
            WHERE o.lane = l.lane AND o.due_at <= clock_timestamp() AND o.notification <> ALL ($6)
              AND (o.lease IN (0, $1)
                   OR NOT EXISTS (SELECT FROM heddle.nodes n
                                   WHERE n.lease = o.lease AND n.expires_at > clock_timestamp()))
            ORDER BY o.due_at
            LIMIT greatest($2::bigint - coalesce(b.busy, 0), 0)
              FOR UPDATE SKIP LOCKED) d
     WHERE l.lane IS NOT NULL
     LIMIT $3
),
leased AS (
    UPDATE heddle.outgoing o SET lease = $1, digest = false
      FROM due WHERE o.notification = due.notification AND o.notification = ANY (ARRAY(SELECT notification FROM due))
    RETURNING o.notification, o.lane
)
SELECT n.id AS "id!", n.channel AS "channel!", t.lane AS "destination!", n.event AS "event!", n.run AS "run?",
       n.facts AS "facts!", n.payload AS "payload?", n.attempts AS "attempts!",
       ARRAY(SELECT r FROM UNNEST(n.recipients) AS r WHERE r <> ALL (n.delivered)) AS waiting
  FROM leased t JOIN heddle.notifications n ON n.id = t.notification
