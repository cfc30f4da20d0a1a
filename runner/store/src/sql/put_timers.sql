-- put_timers: inserts timers, and returns how many.
--
-- Locking: the caller holds their runs, or the attempts that they are for, so nobody else sets the same timers. Where
-- a timer already exists, none is inserted: the unique key would wait for a transaction that is taking the old timer
-- (take_timers), and that transaction may be waiting for one of these runs. The caller deletes the old timers
-- (drop_timers), and tries again.
WITH put AS (
    INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at)
    SELECT g.run, g.task, g.item, g.kind, g.attempt, g.due_at
      FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::smallint[], $5::integer[], $6::timestamptz[])
        AS g (run, task, item, kind, attempt, due_at)
     WHERE NOT EXISTS (SELECT FROM heddle.timers t
                        WHERE t.run = g.run AND t.task = g.task AND t.item = g.item AND t.kind = g.kind OFFSET 0)
    ON CONFLICT (run, task, item, kind) DO NOTHING
    RETURNING 1
)
SELECT count(*) AS "count!" FROM put
