-- queue_claim: moves the next rows of a queue to *running*, each under a lease of its own that a worker holds.
--
-- Locking: as claim.sql: rows that another claimer holds are skipped, and nothing is locked after this in its
-- transaction, so a cancel that waits for these rows waits for a commit, never for a lock. $4 and $5 are as many ids
-- and leases as rows may be claimed. A lease and a timeout begin by the database's clock. A queue with a rate limit is
-- claimed from only by who has locked its row ($8); to others it looks empty.
WITH picked AS MATERIALIZED (
    SELECT r.ctid AS place
      FROM heddle.queue_ready r
     WHERE r.queue = $1 AND r.tags <@ $2 AND (r.expires_at IS NULL OR r.expires_at > clock_timestamp())
       AND NOT EXISTS (SELECT FROM heddle.queues q
                        WHERE q.name = $1 AND (q.paused OR q.rate_count IS NOT NULL AND NOT $8::boolean))
     ORDER BY r.priority DESC, r.turn, r.run
     LIMIT $3
       FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM heddle.queue_ready r
     WHERE r.ctid = ANY (ARRAY(SELECT place FROM picked))
    RETURNING r.run, r.task, r.item, r.attempt, r.priority, r.turn, r.timeout_ms, r.params
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
SELECT p.run AS "run!", p.task AS "task!", p.item AS "item!", p.attempt AS "attempt!", p.turn AS "turn!", p.params,
       p.id AS "id!", p.lease AS "lease!", p.deadline_at, p.lease_expires_at AS "lease_expires_at!"
  FROM placed p
 ORDER BY p.place
