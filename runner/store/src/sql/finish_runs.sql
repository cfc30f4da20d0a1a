-- finish_runs: moves ended runs from *live* to history, tells parents of sub-runs and groups that follow, wakes
-- turnstiles, and makes fixed delays due that are counted from these ends.
--
-- Locking: the caller holds the runs' rows. They are deleted in the order of $1, by id: a scheduler that keeps runs from
-- ending until it has noted that it awaits them (move_schedules) does so in that order. The parent's run is not locked
-- here (that would be a second lock out of order): its settlement is picked up by a transaction of its own; so are the
-- events for followers. A schedule that awaits a run is not due, so no scheduler holds its row; a change of its group may,
-- but locks no run, and both lock the schedules of a group in the order of names.
--
-- complete_single_task ends runs by the same parts, and a test of run/live/complete.rs keeps them alike: sqlx takes a text
-- from one file only. A function of the database for both costs as much (measured with one and with a
-- hundred runs at a time), but its text would stand in a migration, where no macro checks it and no plan shows what it does,
-- and a change of it would reach the old nodes too that are still at work during an upgrade.
WITH ended AS (
    SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::bytea[], $4::text[], $6::boolean[], $7::smallint[],
        $8::boolean[]) AS e (id, state, progress, error, gated, skipped, told)
),
gone AS (
    DELETE FROM heddle.runs_live l USING ended e WHERE l.id = ANY (ARRAY[e.id])
    RETURNING l.*, e.state AS end_state, e.progress AS end_progress, e.error AS end_error, e.gated, e.skipped, e.told,
              greatest($5, l.created_at, l.started_at, l.reopened_at) AS ended_at
),
settlements AS (
    INSERT INTO heddle.settlements (run, task, item, attempt, child, state, error)
    SELECT parent_run, parent_task, parent_item, parent_attempt, id, end_state, end_error
      FROM gone WHERE parent_run IS NOT NULL
),
woken AS (
    INSERT INTO heddle.turnstiles (group_id) SELECT DISTINCT group_id FROM gone WHERE gated
),
-- One that was continued and has only waited since did no work: it was reopened at its end.
recorded AS (
    INSERT INTO heddle.runs_done (id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time,
        interval_start, interval_end, params, task_params, labels, key, dedupe, callback, created_at, started_at,
        deadline_at, parent_run, parent_task, parent_item, parent_attempt, source, created_by, reopened_at, progress,
        finished_at, error, skipped)
    SELECT id, group_id, revision_id, resolution_id, end_state, trigger, priority, logical_time,
        interval_start, interval_end, params, task_params, labels, key, dedupe, callback, created_at, started_at,
        deadline_at, parent_run, parent_task, parent_item, parent_attempt, source, created_by,
        CASE WHEN waiting_for IS NULL OR reopened_at IS NULL THEN reopened_at ELSE ended_at END, end_progress,
        ended_at, end_error, skipped
      FROM gone
),
awaiting AS MATERIALIZED (
    SELECT s.group_id, s.name, g.id, g.ended_at
      FROM gone g JOIN heddle.schedules s ON s.group_id = ANY (ARRAY[g.group_id]) AND s.awaits = g.id
     WHERE g.trigger IN (1, 2, 3)
     ORDER BY s.group_id, s.name FOR NO KEY UPDATE OF s
),
counted AS (
    UPDATE heddle.schedules s
       SET awaits = NULL, cursor = a.ended_at,
           next_fire_at = CASE
               WHEN s.live AND greatest(a.ended_at + s.delay, s.starts_at) < coalesce(s.ends_at, 'infinity')
                   THEN greatest(a.ended_at + s.delay, s.starts_at)
           END
      FROM awaiting a
     WHERE s.group_id = ANY (ARRAY[a.group_id]) AND s.name = a.name AND s.awaits = a.id
),
followed AS (
    INSERT INTO heddle.link_events (kind, group_id, run, logical_time, source, backfilled)
    SELECT 0, g.group_id, g.id, g.logical_time, g.source, g.trigger = 2
      FROM gone g
     WHERE g.end_state = 3
       AND EXISTS (SELECT FROM heddle.group_links l WHERE l.upstream_id = g.group_id AND l.kind = 'depends_on')
    RETURNING run
),
-- One row of the feed for all runs that ended alike; see migration 0006. An end that was told is not told again.
noted AS (
    INSERT INTO heddle.events (kind, at, data)
    SELECT CASE WHEN x.skipped IS NULL THEN (ARRAY['run.succeeded', 'run.failed', 'run.cancelled'])[x.end_state - 2]
                ELSE 'run.skipped' END, max(x.ended_at),
           jsonb_agg(jsonb_build_object('run', x.id, 'group', g.name, 'trigger',
               (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[x.trigger + 1],
               'logical_time', heddle.moment(x.logical_time), 'error', x.end_error,
               'at', heddle.moment(x.ended_at))
               || CASE WHEN x.skipped IS NULL THEN '{}'::jsonb
                       ELSE jsonb_build_object('skipped', (ARRAY['overlap', 'max_waiting'])[x.skipped]) END)
      FROM gone x JOIN heddle.groups g ON g.id = x.group_id
     WHERE NOT x.told
     GROUP BY 1
)
SELECT id AS "id!", parent_run IS NOT NULL AS "has_parent!", id IN (SELECT run FROM followed) AS "followed!" FROM gone
