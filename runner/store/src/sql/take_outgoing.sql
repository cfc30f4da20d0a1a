-- take_outgoing: takes due notifications of channels, or callbacks to URLs ($8), under a node's lease ($1): at most $3, at
-- most $9 of them to slow destinations. The column `lane` is the destination: a channel, or `://`, the host that is called
-- back, a slash, and who submitted the runs.
--
-- Of one destination, at most $2 are taken; of those in $4, at most as many as in $5, and $6 says which are slow. Of one
-- submitter's callbacks, at most $10 are taken; of those in $11, at most as many as in $12. What a destination or a
-- submitter has above that does not count: it delays nobody else. Then the oldest ones are taken.
--
-- The index is read from one destination to the next. So a destination with a hundred thousand rows costs as little
-- as one with a single row, and none can fill the batch. Destinations of callbacks lie between `://` and `:/0`: who reads
-- channels skips them, however many there are.
--
-- Locking: the chosen rows of *outgoing*, skipping locked ones: two nodes take different rows, and nobody waits. A row
-- belongs to a node while the node's lease is valid by the database's clock, as in *running*. Rows of a dead node are
-- due again at once. A row under the node's own lease that is not among those that the node has in hand, or passes over
-- because it cannot read them ($7), is taken again: the answer that gave it to the node was lost. Rows are chosen without locks, so each is checked once more when it is locked.
-- A digest that was taken does not grow any more: whoever adds to it locks the row first, and checks that.
WITH RECURSIVE destinations AS (
    (SELECT lane FROM heddle.outgoing WHERE lane >= CASE WHEN $8::boolean THEN '://' ELSE '' END ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT o.lane FROM heddle.outgoing o
             WHERE o.lane > CASE WHEN NOT $8::boolean AND l.lane LIKE '://%' THEN ':/0' ELSE l.lane END
             ORDER BY o.lane LIMIT 1)
      FROM destinations l WHERE l.lane IS NOT NULL AND (NOT $8::boolean OR l.lane LIKE '://%')
),
candidates AS MATERIALIZED (
    SELECT d.notification, d.due_at, coalesce(b.slow, false) AS slow,
           coalesce(substring(l.lane FROM '^://[^/]*/(.*)$'), '') AS owner
      FROM destinations l
      LEFT JOIN UNNEST($4::text[], $5::bigint[], $6::boolean[]) AS b (lane, free, slow) ON b.lane = l.lane
     CROSS JOIN LATERAL (
           SELECT o.notification, o.due_at
             FROM heddle.outgoing o
            WHERE o.lane = l.lane AND o.due_at <= clock_timestamp() AND o.notification <> ALL ($7::uuid[])
              AND (o.lease IN (0, $1)
                   OR NOT EXISTS (SELECT FROM heddle.nodes n
                                   WHERE n.lease = o.lease AND n.expires_at > clock_timestamp()))
            ORDER BY o.due_at
            LIMIT greatest(coalesce(b.free, $2::bigint), 0)) d
     WHERE l.lane IS NOT NULL AND (l.lane LIKE '://%') = $8::boolean
),
of_owners AS (
    SELECT c.notification, c.due_at, c.slow, c.owner,
           row_number() OVER (PARTITION BY c.owner ORDER BY c.slow, c.due_at, c.notification) AS place
      FROM candidates c
),
allowed AS (
    SELECT p.notification, p.due_at, p.slow,
           row_number() OVER (PARTITION BY p.slow ORDER BY p.due_at, p.notification) AS place
      FROM of_owners p LEFT JOIN UNNEST($11::text[], $12::bigint[]) AS u (owner, free) ON u.owner = p.owner
     WHERE p.place <= coalesce(u.free, $10::bigint)
),
chosen AS (
    SELECT a.notification FROM allowed a WHERE NOT a.slow OR a.place <= $9::bigint
     ORDER BY a.due_at, a.notification LIMIT $3
),
due AS MATERIALIZED (
    SELECT o.notification
      FROM heddle.outgoing o
     WHERE o.notification = ANY (ARRAY(SELECT notification FROM chosen)) AND o.due_at <= clock_timestamp()
       AND (o.lease IN (0, $1)
            OR NOT EXISTS (SELECT FROM heddle.nodes n
                            WHERE n.lease = o.lease AND n.expires_at > clock_timestamp()))
       FOR UPDATE OF o SKIP LOCKED
),
leased AS (
    UPDATE heddle.outgoing o SET lease = $1, digest = false
      FROM due WHERE o.notification = due.notification AND o.notification = ANY (ARRAY(SELECT notification FROM due))
    RETURNING o.notification, o.lane, o.due_at
)
SELECT n.id AS "id!", n.channel AS "channel!", t.lane AS "destination!", n.event AS "event!", n.run AS "run?",
       n.facts AS "facts!", n.payload AS "payload?", n.attempts AS "attempts!", n.refused AS "refused!",
       n.recipients AS "recipients!", n.delivered AS "delivered!", t.due_at AS "due_at!"
  FROM leased t JOIN heddle.notifications n ON n.id = t.notification
