-- register_instants: registers instants of a group ($2) for runs ($3) that this transaction creates, and writes the
-- progress of the backfill that creates them ($5 to $8). Instants that it does not get are counted as skipped.
-- Returns the runs that got their instant.
--
-- Locking: the unique key is the lock; the backfill's row is already locked. The statement waits for a row that
-- another transaction is inserting. All transactions that register several instants do so in the order of the
-- instants. An existing row is taken over only if it names the run that the caller has read there before ($4). The
-- statement looks up nothing about that run: what a sub-select says is older than the row that it waited for. A row
-- that was inserted meanwhile was read by nobody, and stays.
WITH got AS (
    INSERT INTO heddle.run_instants AS i (group_id, logical_time, run)
    SELECT $1, w.at, w.run FROM UNNEST($2::timestamptz[], $3::uuid[]) AS w (at, run) ORDER BY w.at
    ON CONFLICT (group_id, logical_time) DO UPDATE SET run = excluded.run, skipped = false
     WHERE (i.logical_time, i.run) IN (SELECT s.at, s.run FROM UNNEST($2::timestamptz[], $4::uuid[]) AS s (at, run))
    RETURNING i.run
),
moved AS (
    UPDATE heddle.backfills b
       SET position = $6, catching_up = $7, note = NULL, made = b.made + n.got,
           skipped = b.skipped + $8 + cardinality($2::timestamptz[]) - n.got
      FROM (SELECT count(*) AS got FROM got) AS n
     WHERE b.id = $5
)
SELECT run AS "run!" FROM got
