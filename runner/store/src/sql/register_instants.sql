-- register_instants: takes instants of a group for runs that are made in the same transaction, and writes how far that
-- has brought the backfill that makes them ($5 to $8): those that it did not get count as left alone.
--
-- Locking: the unique key is the lock. A row that another transaction is inserting is waited for; in the order of
-- instants, as everybody does who registers several. A row that stands is taken over only if it names the run that was
-- seen there before: what a sub-select would say of that run is older than the row that was waited for, so nothing is
-- looked up here. A row that came meanwhile was seen by nobody, and stays. The backfill's row is locked already.
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
