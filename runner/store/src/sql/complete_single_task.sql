-- complete_single_task: ends runs that consist of one task run, with its attempt, in one statement.
--
-- For these no progress has to be read: the outcome of the attempt is the outcome of the run. (`+ 0`: everybody's only task
-- is number 0; the index would be read whole for it.)
--
-- Locking: runs first, in id order, then their rows in *running*, as in lock_ended; whoever deletes the row in *running* ends
-- the run. The count is an initial plan of that DELETE, so all runs are locked before a row is deleted. Schedules that
-- await them come last, in the order of (group, name), as in finish_runs.
WITH ended AS (
    SELECT * FROM UNNEST($1::uuid[], $2::integer[], $3::smallint[], $4::bytea[], $5::text[], $6::smallint[],
                         $7::boolean[], $8::timestamptz[], $9::text[], $10::smallint[], $11::text[], $12::text[],
                         $13::bigint[], $14::bigint[])
        AS e (run, attempt, run_state, progress, run_error, state, skipped, finished_at, output, error_kind,
              error_message, error_trace, memory_bytes, cpu_micros)
),
locked AS MATERIALIZED (
    SELECT l.id FROM heddle.runs_live l WHERE l.id = ANY ($1) ORDER BY l.id FOR UPDATE
),
logged AS (
    -- What a zombie logged is kept as well: it happened.
    INSERT INTO heddle.logs (run, task, item, attempt, line, at, level, message, fields)
    SELECT l.run, 0, -1, l.attempt, l.line, l.at, l.level, l.message, l.fields
      FROM UNNEST($17::uuid[], $18::integer[], $19::integer[], $20::timestamptz[], $21::smallint[], $22::text[],
                  $23::text[]) AS l (run, attempt, line, at, level, message, fields)
    ON CONFLICT DO NOTHING
),
fenced AS (
    DELETE FROM heddle.running r
     USING ended e
     WHERE r.run = ANY (ARRAY[e.run]) AND r.task + 0 = 0 AND r.item + 0 = -1 AND r.attempt = e.attempt
       AND r.lease = $15 AND (SELECT count(*) FROM locked) >= 0
    RETURNING e.*, r.started_at, greatest(e.finished_at, r.started_at) AS ended_at
),
recorded AS (
    INSERT INTO heddle.attempts (run, task, item, attempt, state, skipped, started_at, finished_at, node, output,
        error_kind, error_message, error_trace, memory_bytes, cpu_micros)
    SELECT run, 0, -1, attempt, state, skipped, started_at, ended_at, $16, output,
        error_kind, error_message, error_trace, memory_bytes, cpu_micros
      FROM fenced
),
gone AS (
    DELETE FROM heddle.runs_live l USING fenced f WHERE l.id = ANY (ARRAY[f.run])
    RETURNING l.*, f.run_state AS end_state, f.progress AS end_progress, f.run_error,
              greatest(f.ended_at, l.created_at, l.started_at, l.reopened_at) AS ended_at
),
done AS (
    INSERT INTO heddle.runs_done (id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time,
        interval_start, interval_end, params, task_params, labels, key, dedupe, callback, created_at, started_at,
        deadline_at, parent_run, parent_task, parent_item, parent_attempt, source, created_by, reopened_at, progress,
        finished_at, error)
    SELECT id, group_id, revision_id, resolution_id, end_state, trigger, priority, logical_time,
        interval_start, interval_end, params, task_params, labels, key, dedupe, callback, created_at, started_at,
        deadline_at, parent_run, parent_task, parent_item, parent_attempt, source, created_by,
        CASE WHEN waiting_for IS NULL OR reopened_at IS NULL THEN reopened_at ELSE ended_at END, end_progress,
        ended_at, run_error
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
-- One row of the feed for all runs that ended alike; see migration 0006.
events AS (
    INSERT INTO heddle.events (kind, at, data)
    SELECT (ARRAY['run.succeeded', 'run.failed', 'run.cancelled'])[x.end_state - 2], max(x.ended_at),
           jsonb_agg(jsonb_build_object('run', x.id, 'group', g.name, 'trigger',
               (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[x.trigger + 1],
               'logical_time', heddle.moment(x.logical_time), 'error', x.run_error,
               'at', heddle.moment(x.ended_at)))
      FROM gone x JOIN heddle.groups g ON g.id = x.group_id
     GROUP BY x.end_state
)
SELECT run AS "run!", run IN (SELECT run FROM followed) AS "followed!" FROM fenced
