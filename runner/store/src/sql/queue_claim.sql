-- queue_claim: moves the next rows of a queue ($1) to *running*. Each gets a lease of its own, which a worker holds.
--
-- Locking: as in claim.sql. Rows that another claim has locked are skipped (by the function queue_front, see
-- migration 0019). No other rows are locked after these in the transaction, so a cancel that waits for these rows
-- waits for a commit, never for another lock. A queue with a rate limit is claimed from only by a caller that has
-- locked the queue's row ($8). To others, the queue looks empty.
--
-- $4 and $5 have as many ids and leases as rows may be claimed ($3). A lease and a timeout begin by the database's
-- clock.
--
-- $9 is the maximum of bytes of the claimed params and contexts (about 512 bytes for each context). The first row is
-- claimed in any case. Rows beyond the maximum stay in the queue, locked until the commit, and `cut` says that there
-- are some. If a row does not contain its params, those of its run count.
WITH picked AS MATERIALIZED (
    SELECT f.* FROM heddle.queue_front($1, $2, $3) AS f
     WHERE NOT EXISTS (SELECT FROM heddle.queues q
                        WHERE q.name = $1 AND (q.paused OR q.rate_count IS NOT NULL AND NOT $8::boolean))
),
weighed AS MATERIALIZED (
    SELECT w.ctid, w.nth > 1 AND w.bytes > $9::bigint AS cut
      FROM (SELECT p.place AS ctid, row_number() OVER front AS nth,
                   sum(512 + coalesce(p.bytes, (SELECT octet_length(l.params) + coalesce(octet_length(l.task_params), 0)
                                                  FROM heddle.runs_live l WHERE l.id = p.run LIMIT 1), 0))
                       OVER front AS bytes
              FROM picked p
            WINDOW front AS (ORDER BY p.priority DESC, p.turn, p.run, p.task, p.item ROWS UNBOUNDED PRECEDING)) AS w
),
removed AS (
    DELETE FROM heddle.queue_ready r
     WHERE r.ctid = ANY (ARRAY(SELECT ctid FROM weighed WHERE NOT cut))
    RETURNING r.run, r.task, r.item, r.attempt, r.priority, r.turn, r.ready_at, r.timeout_ms, r.params
),
leased AS MATERIALIZED (
    SELECT t.*, ($4::uuid[])[t.ordinal] AS id, ($5::bigint[])[t.ordinal] AS lease,
           least(t.claimed_at + $7::bigint * interval '1 millisecond', t.deadline_at) AS lease_expires_at
      FROM (SELECT removed.*, now.at AS claimed_at, now.at + timeout_ms * interval '1 millisecond' AS deadline_at,
                   row_number() OVER (ORDER BY priority DESC, turn, run, task, item)::integer AS ordinal
              FROM removed CROSS JOIN (SELECT clock_timestamp() AS at) AS now) AS t
),
running AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT run, task, item, attempt, lease, claimed_at FROM leased
),
claimed AS (
    INSERT INTO heddle.queue_claims (run, task, item, attempt, id, lease, queue, worker, lease_ms, claimed_at,
        lease_expires_at, deadline_at)
    SELECT run, task, item, attempt, id, lease, $1, $6, $7::bigint, claimed_at, lease_expires_at, deadline_at
      FROM leased
)
SELECT p.run AS "run!", p.task AS "task!", p.item AS "item!", p.attempt AS "attempt!", p.turn AS "turn!",
       p.ready_at AS "ready_at!", p.claimed_at AS "claimed_at!", p.params, p.id AS "id!", p.lease AS "lease!", p.deadline_at,
       p.lease_expires_at AS "lease_expires_at!", EXISTS (SELECT FROM weighed WHERE cut) AS "cut!"
  FROM leased p
 ORDER BY p.ordinal
