-- step_backfill: a round of a backfill whose runs follow one another (max_active 1), in one statement. It locks the
-- backfill's row, registers the next instant, creates its run, and hands the run's first attempts to this node. What
-- other rounds read before that is given here, as the last round on this node left it ($2 to $4). If something of it
-- is different now, or somebody else has the row or the instant, the statement does nothing and returns nothing, and
-- a round of several statements follows.
--
-- Locking: the backfill's row first, as in every round; if somebody else has it, the statement does not wait. That
-- none of its runs is active is seen in the statement's snapshot, which may be older than the locked row. In that
-- case there was another round in between, and `made` or `position` differ from $2 or $3, because both are compared
-- again in the row as it was locked. The instant's unique key is the second lock; an existing row is never taken
-- over. Between both, the group is held open (`heddle.closed_groups`): if it was deleted or disabled meanwhile ($24: a
-- forced backfill goes on in a disabled one), nothing is done; whoever stops it later finds the run.
--
-- The previous run may have ended after the node read its clock ($16). So the database's clock is read as well, after
-- the locks: the next run is created after that end.
WITH locked_backfill AS MATERIALIZED (
    SELECT b.id, b.group_id
      FROM heddle.backfills b JOIN heddle.groups g ON g.id = b.group_id
     WHERE b.id = $1 AND b.state = 1 AND b.finished_at IS NULL AND b.max_active = 1
       AND b.made = $2 AND b.position IS NOT DISTINCT FROM $3 AND b.catching_up = $4
       AND b.group_id = $5 AND g.deleted_at IS NULL
       AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.source = $1 AND l.group_id = $5)
       FOR NO KEY UPDATE OF b SKIP LOCKED
),
-- A function, which reads what was committed while it waited, for each row that is locked.
open_backfill AS MATERIALIZED (
    SELECT b.id, b.group_id
      FROM locked_backfill b
     WHERE NOT EXISTS (SELECT FROM heddle.closed_groups(ARRAY[b.group_id], NULL) c WHERE c.deleted OR NOT $24)
),
got AS (
    INSERT INTO heddle.run_instants (group_id, logical_time, run)
    SELECT group_id, $6, $7 FROM open_backfill
    ON CONFLICT (group_id, logical_time) DO NOTHING
    RETURNING group_id
),
moved AS (
    UPDATE heddle.backfills b SET position = $6, made = b.made + 1, note = NULL FROM got WHERE b.id = $1
),
begun AS MATERIALIZED (SELECT group_id, greatest($16, clock_timestamp()) AS at FROM got),
-- From here on, as in create_runs.
new_run AS (
    INSERT INTO heddle.runs_live (id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time,
        interval_start, interval_end, params, labels, created_at, started_at, source, progress)
    SELECT $7, group_id, $8, $9, 1, $10, $11, $6, $12, $13, $14, $15, at, at, $1, $17
      FROM begun
    RETURNING id, group_id, trigger, logical_time, created_at
),
events AS (
    INSERT INTO heddle.events (kind, at, data)
    SELECT 'run.started', x.created_at,
           jsonb_agg(jsonb_build_object('run', x.id, 'group', g.name, 'trigger',
               (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[x.trigger + 1],
               'logical_time', heddle.moment(x.logical_time)))
      FROM new_run x JOIN heddle.groups g ON g.id = x.group_id GROUP BY x.created_at
),
rows AS MATERIALIZED (
    SELECT w.*, w.handed AND EXISTS (
               SELECT FROM heddle.nodes n WHERE n.lease = $23 AND n.expires_at > clock_timestamp()) AS here
      FROM got, UNNEST($18::smallint[], $19::integer[], $20::integer[], $21::bigint[], $22::boolean[])
             AS w (task, item, attempt, turn, handed)
),
queued AS (
    INSERT INTO heddle.ready (run, task, item, attempt, priority, turn)
    SELECT $7, task, item, attempt, $11, turn FROM rows WHERE NOT here
),
running AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT $7, task, item, attempt, $23, begun.at FROM rows, begun WHERE here
)
SELECT coalesce((SELECT bool_and(here) FROM rows WHERE handed), true) AS "fit!", at AS "at!" FROM begun
