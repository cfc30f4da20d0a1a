-- queue_heartbeat: extends leases that are valid, if their runs are live.
--
-- Locking: only the rows of the claims. It can deadlock with a transaction that ends the same claims in another
-- order; then one of the two is repeated. Keys are compared as arrays with one element, so that other claims are not
-- read, whatever the statistics say (runner/store/src/database/server.rs). A claim that is not returned is somebody
-- else's, too old, or of a run that is over. (A pause takes no claim away.)
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
   AND c.id = b.id AND c.lease_expires_at > clock_timestamp()
RETURNING c.id, c.lease_expires_at
