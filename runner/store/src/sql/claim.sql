-- claim: moves the next rows of *ready* to *running*, under this node's lease.
--
-- Locking: rows that another claimer holds are skipped, so claimers never wait for each other; nothing is locked after
-- this in its transaction, so whoever waits for these rows (a cancel) waits for a commit, never for a lock.
-- A node whose lease has run out gets nothing: the database's clock decides.
-- What is claimed may have become ready after the node's clock was read ($3), so the database's is asked as well: nothing
-- begins before what it waited for has ended.
WITH picked AS MATERIALIZED (
    SELECT r.ctid AS place
      FROM heddle.ready r
     WHERE EXISTS (SELECT FROM heddle.nodes n WHERE n.lease = $1 AND n.expires_at > clock_timestamp())
     ORDER BY r.priority DESC, r.turn, r.run
     LIMIT $2
       FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM heddle.ready r
     WHERE r.ctid = ANY (ARRAY(SELECT place FROM picked))
    RETURNING r.run, r.task, r.item, r.attempt, r.turn
),
held AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT run, task, item, attempt, $1, greatest($3, clock_timestamp()) FROM taken
)
SELECT run, task, item, attempt, turn FROM taken
