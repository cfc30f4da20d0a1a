-- create_runs: inserts runs, and a row for each of their task runs that is ready: in *running* if it is handed to
-- this node, otherwise in *ready*.
--
-- Locking: only the new rows. The same transaction has settled uniqueness (keys, dedupe, parents) before. The lease
-- is checked: a node that has lost its lease may create runs, but is handed nothing. If one of the groups in $37 takes no
-- runs, nothing is created; the others stay open until the end of the transaction (`heddle.closed_groups`).
--
-- Nothing is created either if one of the revisions in $38 or of the resolutions in $39 (each named once) does not exist: a
-- node may know some that the server has lost with its last commits. One look for each of them, not for each run.
WITH closed AS MATERIALIZED (
    SELECT id FROM heddle.closed_groups($37, NULL) WHERE cardinality($37::bigint[]) > 0
),
outdated AS MATERIALIZED (
    SELECT WHERE (SELECT count(*) FROM heddle.revisions v WHERE v.id = ANY ($38::bigint[])) < cardinality($38::bigint[])
              OR (SELECT count(*) FROM heddle.resolutions s WHERE s.id = ANY ($39::bigint[])) < cardinality($39::bigint[])
),
new_runs AS (
    INSERT INTO heddle.runs_live (id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time,
        interval_start, interval_end, params, task_params, labels, key, dedupe, callback, created_at, started_at,
        deadline_at, parent_run, parent_task, parent_item, parent_attempt, source, waiting_for, progress,
        created_by)
    SELECT n.*
      FROM UNNEST($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::smallint[], $7::smallint[],
                  $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::jsonb[],
                  $14::text[], $15::bytea[], $16::text[], $17::timestamptz[], $18::timestamptz[], $19::timestamptz[],
                  $20::uuid[], $21::smallint[], $22::integer[], $23::integer[], $24::uuid[], $25::jsonb[],
                  $26::bytea[], $36::text[]) AS n
     WHERE NOT EXISTS (SELECT FROM closed) AND NOT EXISTS (SELECT FROM outdated)
    RETURNING id, group_id, state, trigger, logical_time
),
-- All runs that start share one row of the event feed; see migration 0006.
events AS (
    INSERT INTO heddle.events (kind, at, data)
    SELECT 'run.started', $35,
           jsonb_agg(jsonb_build_object('run', x.id, 'group', g.name, 'trigger',
               (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[x.trigger + 1],
               'logical_time', heddle.moment(x.logical_time)))
      FROM new_runs x JOIN heddle.groups g ON g.id = x.group_id
     WHERE x.state = 1 HAVING count(*) > 0
),
rows AS MATERIALIZED (
    SELECT w.*, w.handed AND EXISTS (
               SELECT FROM heddle.nodes n WHERE n.lease = $34 AND n.expires_at > clock_timestamp()) AS here
      FROM UNNEST($27::uuid[], $28::smallint[], $29::integer[], $30::integer[], $31::smallint[], $32::bigint[],
                  $33::boolean[])
        AS w (run, task, item, attempt, priority, turn, handed)
     WHERE NOT EXISTS (SELECT FROM closed) AND NOT EXISTS (SELECT FROM outdated)
),
queued AS (
    INSERT INTO heddle.ready (run, task, item, attempt, priority, turn)
    SELECT run, task, item, attempt, priority, turn FROM rows WHERE NOT here
),
running AS (
    INSERT INTO heddle.running (run, task, item, attempt, lease, started_at)
    SELECT run, task, item, attempt, $34, $35 FROM rows WHERE here
)
SELECT coalesce(bool_and(here), true) AS "fit!", EXISTS (SELECT FROM closed) AS "closed!",
       EXISTS (SELECT FROM outdated) AS "outdated!"
  FROM rows WHERE handed
