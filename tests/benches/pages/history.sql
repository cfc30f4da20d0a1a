-- A history of `bench.runs` runs in `bench.groups` groups over `bench.days` days, made of runs that a node has really
-- made: `one` succeeded, `fails` failed, `spins` was cancelled, `wide` has a thousand tasks. What is written is what the
-- engine would have written (create_runs, complete_single_task): a run's row, its attempt, its key or its instant, and
-- the feed of the last week, some of it one run a row, some of it a hundred.
SELECT setseed(0.14);
SELECT heddle.make_partitions((now() AT TIME ZONE 'UTC')::date - current_setting('bench.days')::integer,
                              current_setting('bench.days')::integer);
SELECT heddle.make_dispatch_partitions((now() AT TIME ZONE 'UTC')::date - 7, 7);

-- Groups like `one`: half of them with a schedule that is due tomorrow, one in ten disabled.
CREATE TEMP TABLE made AS
SELECT n, 'shop-' || lpad(n::text, 5, '0') AS name, nextval(pg_get_serial_sequence('heddle.groups', 'id')) AS group_id,
       nextval(pg_get_serial_sequence('heddle.revisions', 'id')) AS revision_id,
       date_trunc('day', now()) + interval '1 day 1 hour' + n % 1440 * interval '1 minute' AS due
  FROM generate_series(1, current_setting('bench.groups')::integer) AS n;
INSERT INTO heddle.groups (id, name, revision, revision_id, enabled, category, created_at, updated_at)
OVERRIDING SYSTEM VALUE
SELECT m.group_id, m.name, 1, m.revision_id, m.n % 10 <> 0, g.category,
       g.created_at - (current_setting('bench.days')::integer + 1) * interval '1 day', g.updated_at
  FROM made m, heddle.groups g WHERE g.name = 'one';
INSERT INTO heddle.revisions (id, group_id, revision, spec, schedule_anchors, created_at, created_by)
OVERRIDING SYSTEM VALUE
SELECT m.revision_id, m.group_id, 1,
       r.spec || jsonb_build_object('labels', jsonb_build_object('team', 'team-' || m.n % 50),
                                    'description', 'Shop number ' || m.n),
       r.schedule_anchors, r.created_at - (current_setting('bench.days')::integer + 1) * interval '1 day', r.created_by
  FROM made m, heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id WHERE g.name = 'one';
INSERT INTO heddle.resolutions (revision_id, scripts)
SELECT m.revision_id, o.scripts
  FROM made m, heddle.groups g JOIN heddle.resolutions o ON o.revision_id = g.revision_id WHERE g.name = 'one';
INSERT INTO heddle.script_uses (group_id, script_id, version)
SELECT m.group_id, u.script_id, u.version
  FROM made m, heddle.groups g JOIN heddle.script_uses u ON u.group_id = g.id WHERE g.name = 'one';
UPDATE heddle.revisions r
   SET spec = jsonb_set(r.spec, '{schedules}', jsonb_build_object('daily', jsonb_build_object(
                  'cron', format('%s %s * * *', extract(minute FROM m.due), extract(hour FROM m.due)))))
  FROM made m WHERE r.id = m.revision_id AND m.n % 2 = 0;
INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, next_fire_at)
SELECT group_id, 'daily', revision_id, due - interval '30 days', 'UTC', n % 10 <> 0, now(),
       CASE WHEN n % 10 <> 0 THEN due END
  FROM made WHERE n % 2 = 0;

-- Runs: half of them of any group, half of few groups that run often. Two in a hundred failed, one was cancelled; one in
-- ten has a key, one in ten a customer.
CREATE TEMP TABLE pasts AS
SELECT d.state, d.progress, d.error, a.state AS attempt_state, a.output, a.error_kind, a.error_message, a.error_trace,
       a.memory_bytes, a.cpu_micros, a.node
  FROM heddle.groups g
  JOIN LATERAL (SELECT * FROM heddle.runs_done d WHERE d.group_id = g.id ORDER BY id DESC LIMIT 1) AS d ON true
  JOIN heddle.attempts a ON a.run = d.id
 WHERE g.name = ANY ('{one,fails,spins}');
CREATE TEMP TABLE drawn AS
SELECT n, heddle.uuid_v7(at) AS id, at, x.chosen, x.state, x.took,
       CASE WHEN n % 10 = 3 THEN 'order-' || n END AS key, n % 10 = 4 AS labelled
  FROM (SELECT n, now() - interval '1 minute'
                  - (1 - n::double precision / current_setting('bench.runs')::integer)
                    * current_setting('bench.days')::integer * interval '1 day' AS at,
               CASE WHEN random() < 0.5 THEN 1 + floor(random() * current_setting('bench.groups')::integer)
                    ELSE 1 + floor(random() ^ 4 * current_setting('bench.groups')::integer) END::integer AS chosen,
               CASE WHEN draw < 0.97 THEN 3 WHEN draw < 0.99 THEN 4 ELSE 5 END::smallint AS state,
               random() * interval '3 seconds' AS took
          FROM (SELECT n, random() AS draw
                  FROM generate_series(1, current_setting('bench.runs')::integer) AS n) AS drawn) AS x;
CREATE INDEX ON made (n);
ANALYZE made;
INSERT INTO heddle.runs_done (id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time,
    interval_start, interval_end, params, labels, key, created_at, started_at, progress, finished_at, error)
SELECT d.id, m.group_id, m.revision_id, o.id, d.state, CASE WHEN d.key IS NULL THEN 1 ELSE 0 END, 0, d.at, d.at, d.at,
       '{}', jsonb_build_object('team', 'team-' || m.n % 50)
             || CASE WHEN d.labelled THEN jsonb_build_object('customer', 'c' || d.n / 10 % 1000) ELSE '{}' END,
       d.key, d.at, d.at, p.progress, d.at + d.took, p.error
  FROM drawn d
  JOIN made m ON m.n = d.chosen
  JOIN heddle.resolutions o ON o.revision_id = m.revision_id
  JOIN pasts p ON p.state = d.state
 ORDER BY d.n;
INSERT INTO heddle.attempts (run, task, item, attempt, state, started_at, finished_at, node, output, error_kind,
    error_message, error_trace, memory_bytes, cpu_micros)
SELECT d.id, 0, -1, 1, p.attempt_state, d.at, d.at + d.took, p.node, p.output, p.error_kind, p.error_message,
       p.error_trace, p.memory_bytes, p.cpu_micros
  FROM drawn d JOIN pasts p ON p.state = d.state
 ORDER BY d.n;
INSERT INTO heddle.run_keys (group_id, key, run)
SELECT m.group_id, d.key, d.id FROM drawn d JOIN made m ON m.n = d.chosen WHERE d.key IS NOT NULL ORDER BY d.n;
INSERT INTO heddle.run_instants (group_id, logical_time, run)
SELECT m.group_id, d.at, d.id FROM drawn d JOIN made m ON m.n = d.chosen WHERE d.key IS NULL ORDER BY d.n
    ON CONFLICT DO NOTHING;

-- The group of a thousand tasks: a hundred runs more, each of them as the first.
CREATE TEMP TABLE wides AS
SELECT n, heddle.uuid_v7(at) AS id, at
  FROM (SELECT n, now() - n * current_setting('bench.days')::integer / 101.0 * interval '1 day' AS at
          FROM generate_series(1, 99) AS n) AS x;
CREATE TEMP TABLE wide AS
SELECT d.* FROM heddle.groups g
  JOIN LATERAL (SELECT * FROM heddle.runs_done d WHERE d.group_id = g.id ORDER BY id DESC LIMIT 1) AS d ON true
 WHERE g.name = 'wide';
INSERT INTO heddle.runs_done (id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time,
    interval_start, interval_end, params, labels, created_at, started_at, progress, finished_at)
SELECT n.id, w.group_id, w.revision_id, w.resolution_id, w.state, w.trigger, w.priority, n.at, n.at, n.at, w.params,
       w.labels, n.at, n.at, w.progress, n.at + (w.finished_at - w.created_at)
  FROM wides n, wide w ORDER BY n.n DESC;
INSERT INTO heddle.attempts (run, task, item, attempt, state, started_at, finished_at, node, output, memory_bytes, cpu_micros)
SELECT n.id, a.task, a.item, a.attempt, a.state, n.at + (a.started_at - w.created_at),
       n.at + (a.finished_at - w.created_at), a.node, a.output, a.memory_bytes, a.cpu_micros
  FROM wides n, wide w JOIN heddle.attempts a ON a.run = w.id
 ORDER BY n.n DESC;

-- The feed of a week.
INSERT INTO heddle.events (kind, at, data)
SELECT (ARRAY['run.succeeded', 'run.failed', 'run.cancelled'])[x.state - 2], max(x.at),
       jsonb_agg(jsonb_build_object('run', x.id, 'group', m.name, 'trigger', 'schedule',
           'logical_time', heddle.moment(x.at), 'error', CASE WHEN x.state = 4 THEN 'task t: trap' END))
  FROM (SELECT d.*, CASE WHEN d.n / 5000 % 2 = 0 THEN d.n ELSE -(d.n / 100) END AS row
          FROM drawn d WHERE d.at >= now() - interval '7 days') AS x
  JOIN made m ON m.n = x.chosen
 GROUP BY x.row, x.state
 ORDER BY max(x.at);
DROP TABLE made, pasts, drawn, wides, wide;
