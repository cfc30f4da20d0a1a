-- queue_claim: moves the next rows of a queue to *running*, each under a lease of its own that a worker holds.
--
-- Locking: as claim.sql: rows that another claimer holds are skipped (by the function, see migration 0019), and nothing
-- is locked after this in its transaction, so a cancel that waits for these rows waits for a commit, never for a lock.
-- $4 and $5 are as many ids and leases as rows may be claimed. A lease and a timeout begin by the database's clock. A
-- queue with a rate limit is claimed from only by who has locked its row ($8); to others it looks empty.
--
-- $9 bounds the bytes of params and contexts (512 each, about) that are claimed, but for the first row: what comes after
-- stays where it is, is locked until the commit, and `cut` says so. Where a row does not carry its params, those of its
-- run count.
WITH picked AS MATERIALIZED (
    SELECT f.* FROM heddle.queue_front($1, $2, $3) AS f
     WHERE NOT EXISTS (SELECT FROM heddle.queues q
                        WHERE q.name = $1 AND (q.paused OR q.rate_count IS NOT NULL AND NOT $8::boolean))
),
weighed AS MATERIALIZED (
    SELECT w.place, w.nth > 1 AND w.bytes > $9::bigint AS cut
      FROM (SELECT p.place, row_number() OVER front AS nth,
                   sum(512 + coalesce(p.bytes, (SELECT octet_length(l.params) + coalesce(octet_length(l.task_params), 0)
                                                  FROM heddle.runs_live l WHERE l.id = p.run LIMIT 1), 0))
                       OVER front AS bytes
              FROM picked p
            WINDOW front AS (ORDER BY p.priority DESC, p.turn, p.run, p.task, p.item ROWS UNBOUNDED PRECEDING)) AS w
),
taken AS (
    DELETE FROM heddle.queue_ready r
     WHERE r.ctid = ANY (ARRAY(SELECT place FROM weighed WHERE NOT cut))
    RETURNING r.run, r.task, r.item, r.attempt, r.priority, r.turn, r.ready_at, r.timeout_ms, r.params
),
placed AS MATERIALIZED (
    SELECT t.*, ($4::uuid[])[t.place] AS id, ($5::bigint[])[t.place] AS lease,
           least(t.claimed_at + $7::bigint * interval '1 millisecond', t.deadline_at) AS lease_expires_at
      FROM (SELECT taken.*, now.at AS claimed_at, now.at + timeout_ms * interval '1 millisecond' AS deadline_at,
                   row_number() OVER (ORDER BY priority DESC, turn, run, task, item)::integer AS place
              FROM taken CROSS JOIN (SELECT clock_timestamp() AS at) AS now) AS t
),
held AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT run, task, item, attempt, lease, claimed_at FROM placed
),
claimed AS (
    INSERT INTO heddle.queue_claims (run, task, item, attempt, id, lease, queue, worker, lease_ms, claimed_at,
        lease_expires_at, deadline_at)
    SELECT run, task, item, attempt, id, lease, $1, $6, $7::bigint, claimed_at, lease_expires_at, deadline_at
      FROM placed
)
SELECT p.run AS "run!", p.task AS "task!", p.item AS "item!", p.attempt AS "attempt!", p.turn AS "turn!",
       p.ready_at AS "ready_at!", p.claimed_at AS "claimed_at!", p.params, p.id AS "id!", p.lease AS "lease!", p.deadline_at,
       p.lease_expires_at AS "lease_expires_at!", EXISTS (SELECT FROM weighed WHERE cut) AS "cut!"
  FROM placed p
 ORDER BY p.place
