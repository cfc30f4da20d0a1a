-- claim: moves the next rows of *ready* to *running*, under this node's lease ($1), at most $2 rows.
--
-- Locking: rows that another claim has locked are skipped, so claims never wait for each other. The transaction locks
-- nothing after this. So whoever waits for these rows (a cancel) waits for a commit, never for another lock.
--
-- A node whose lease has expired by the database's clock gets nothing. A row may have become ready after the node
-- read its clock ($3). So an attempt starts at $3 or at the database's time, whichever is later: never before the end
-- of what it waited for.
WITH picked AS MATERIALIZED (
    SELECT r.ctid
      FROM heddle.ready r
     WHERE EXISTS (SELECT FROM heddle.nodes n WHERE n.lease = $1 AND n.expires_at > clock_timestamp())
     ORDER BY r.priority DESC, r.turn, r.run
     LIMIT $2
       FOR UPDATE SKIP LOCKED
),
claimed AS (
    DELETE FROM heddle.ready r
     WHERE r.ctid = ANY (ARRAY(SELECT ctid FROM picked))
    RETURNING r.run, r.task, r.item, r.attempt, r.turn
),
running AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT run, task, item, attempt, $1, greatest($3, clock_timestamp()) FROM claimed
)
SELECT run, task, item, attempt, turn FROM claimed
