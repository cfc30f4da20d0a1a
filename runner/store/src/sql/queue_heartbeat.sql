-- queue_heartbeat: extends leases that hold and whose runs go on.
--
-- Locking: the claims' rows only. Beside a transaction that ends the same claims in another order this can deadlock;
-- one of the two is then repeated. The arrays are there so that, whatever the statistics say, others'
-- claims are not read (`runner/store/src/lib.rs`). Claims that are not returned are somebody else's, too old, or of a paused run.
WITH beats AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::bigint[], $6::uuid[],
                         $7::bigint[])
        AS b (run, task, item, attempt, lease, id, lease_ms)
)
UPDATE heddle.queue_claims c
   SET lease_ms = coalesce(b.lease_ms, c.lease_ms),
       lease_expires_at = least(
           greatest(clock_timestamp() + coalesce(b.lease_ms, c.lease_ms) * interval '1 millisecond', c.lease_expires_at),
           c.deadline_at)
  FROM beats b JOIN heddle.runs_live l ON l.id = ANY (ARRAY[b.run])
 WHERE c.run = ANY (ARRAY[b.run]) AND c.task = b.task AND c.item = b.item AND c.attempt = b.attempt AND c.lease = b.lease
   AND c.id = b.id AND c.lease_expires_at > clock_timestamp() AND l.state <> 2
RETURNING c.id, c.lease_expires_at
