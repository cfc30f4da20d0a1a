-- Runs: the data plane. `docs/data-plane.md` tells the story; the locking order is in runner/store/src/live/mod.rs.
--
-- Small hot tables (runs_live, ready, running, timers, settlements) are moved through by DELETE ... RETURNING and
-- INSERT; what has ended stands in insert-only history (runs_done, attempts, logs), partitioned by the day that is
-- written in a run's UUIDv7. No index and no predicate names a column that is updated, so that updates stay HOT.

-- Nodes -----------------------------------------------------------------------------------------------------------

CREATE SEQUENCE heddle.lease_numbers;

CREATE TABLE heddle.nodes (
    id           uuid        PRIMARY KEY,
    -- The fence: everything that a node holds carries this number; a process that starts anew gets a new one.
    lease        bigint      NOT NULL UNIQUE,
    name         text        NOT NULL,
    address      text        NOT NULL,
    version      text        NOT NULL,
    state        smallint    NOT NULL CHECK (state IN (0, 1, 2)), -- 0 active, 1 draining, 2 stopped
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    -- The last entry of heddle.changes that it has followed.
    position     bigint      NOT NULL DEFAULT 0,
    slots        integer     NOT NULL DEFAULT 0,
    in_hand      integer     NOT NULL DEFAULT 0
);

-- Runs ------------------------------------------------------------------------------------------------------------

-- Which script versions a revision's unversioned names stand for: one row for many runs.
CREATE TABLE heddle.resolutions (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    revision_id bigint NOT NULL,
    scripts     jsonb  NOT NULL -- {"task": {"script": name, "version": n, "digest": text}}
);
-- By digest: of a group of ten thousand tasks the whole would not fit into an index.
CREATE UNIQUE INDEX resolutions_scripts ON heddle.resolutions (revision_id, md5(scripts::text));

CREATE TABLE heddle.runs_live (
    id             uuid        PRIMARY KEY,
    group_id       bigint      NOT NULL,
    revision_id    bigint      NOT NULL,
    resolution_id  bigint,
    state          smallint    NOT NULL CHECK (state IN (0, 1, 2)),
    trigger        smallint    NOT NULL CHECK (trigger BETWEEN 0 AND 5),
    priority       smallint    NOT NULL,
    logical_time   timestamptz NOT NULL,
    interval_start timestamptz NOT NULL,
    interval_end   timestamptz NOT NULL,
    params         text        NOT NULL,
    task_params    text,
    labels         jsonb,
    key            text,
    dedupe         bytea,
    callback       text,
    created_at     timestamptz NOT NULL,
    started_at     timestamptz,
    deadline_at    timestamptz,
    parent_run     uuid,
    parent_task    smallint,
    parent_item    integer,
    parent_attempt integer,
    source         uuid, -- the backfill or the run that it was made by
    waiting_for    jsonb,
    progress       bytea       NOT NULL,
    CHECK ((state = 0) = (started_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
ALTER TABLE heddle.runs_live ALTER COLUMN progress SET STORAGE EXTERNAL;
CREATE INDEX runs_live_group ON heddle.runs_live (group_id, id);
CREATE INDEX runs_live_parent ON heddle.runs_live (parent_run) WHERE parent_run IS NOT NULL;

CREATE TABLE heddle.runs_done (
    id             uuid        NOT NULL,
    group_id       bigint      NOT NULL,
    revision_id    bigint      NOT NULL,
    resolution_id  bigint,
    state          smallint    NOT NULL CHECK (state IN (3, 4, 5)),
    trigger        smallint    NOT NULL,
    priority       smallint    NOT NULL,
    logical_time   timestamptz NOT NULL,
    interval_start timestamptz NOT NULL,
    interval_end   timestamptz NOT NULL,
    params         text        NOT NULL,
    task_params    text,
    labels         jsonb,
    key            text,
    dedupe         bytea,
    callback       text,
    created_at     timestamptz NOT NULL,
    started_at     timestamptz,
    deadline_at    timestamptz,
    parent_run     uuid,
    parent_task    smallint,
    parent_item    integer,
    parent_attempt integer,
    source         uuid,
    progress       bytea       NOT NULL,
    finished_at    timestamptz NOT NULL,
    error          text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX runs_done_group ON heddle.runs_done (group_id, id);
CREATE INDEX runs_done_labels ON heddle.runs_done USING gin (labels) WHERE labels IS NOT NULL;
CREATE INDEX runs_done_source ON heddle.runs_done (source) WHERE source IS NOT NULL;

-- What makes a run unique; kept for as long as the run is.
CREATE TABLE heddle.run_keys (
    group_id bigint NOT NULL,
    key      text   NOT NULL,
    run      uuid   NOT NULL,
    PRIMARY KEY (group_id, key)
);
CREATE INDEX run_keys_run ON heddle.run_keys (run);

CREATE TABLE heddle.run_dedupes (
    group_id bigint NOT NULL,
    hash     bytea  NOT NULL,
    run      uuid   NOT NULL,
    PRIMARY KEY (group_id, hash)
);
CREATE INDEX run_dedupes_run ON heddle.run_dedupes (run);

-- Runs that wait for their turn (max_active_runs, overlap) or for upstreams.
CREATE TABLE heddle.waits (
    run      uuid   PRIMARY KEY,
    group_id bigint NOT NULL
);
CREATE INDEX waits_group ON heddle.waits (group_id, run);

-- Runs submitted in SQL that a node has yet to start.
CREATE TABLE heddle.starts (
    run uuid PRIMARY KEY
);

-- Groups whose waiting runs are to be looked at: written with the end of a run that may have held others up.
CREATE TABLE heddle.turnstiles (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id bigint NOT NULL
);

-- Work ------------------------------------------------------------------------------------------------------------

CREATE TABLE heddle.ready (
    run      uuid     NOT NULL,
    task     smallint NOT NULL,
    item     integer  NOT NULL, -- -1: not an item
    attempt  integer NOT NULL,
    priority smallint NOT NULL,
    -- Start-time fair queueing: the nth row of a run stands n turns behind those that were claimed last.
    turn     bigint   NOT NULL,
    PRIMARY KEY (run, task, item)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.5);
CREATE INDEX ready_order ON heddle.ready (priority DESC, turn, run);

CREATE TABLE heddle.running (
    run        uuid        NOT NULL,
    task       smallint    NOT NULL,
    item       integer     NOT NULL,
    attempt    integer     NOT NULL,
    lease      bigint      NOT NULL, -- 0: held by a sub-run
    started_at timestamptz NOT NULL,
    PRIMARY KEY (run, task, item)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.5);

-- What is due later. kind: 0 retry, 1 deadline of the run, 2 timeout of an attempt that no node watches.
CREATE TABLE heddle.timers (
    run     uuid        NOT NULL,
    task    smallint    NOT NULL,
    item    integer     NOT NULL,
    kind    smallint    NOT NULL CHECK (kind IN (0, 1, 2)),
    attempt integer     NOT NULL,
    due_at  timestamptz NOT NULL,
    PRIMARY KEY (run, task, item, kind)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX timers_due ON heddle.timers (due_at);

-- Outcomes that come from another transaction than a node's own: a sub-run's end tells its parent here.
CREATE TABLE heddle.settlements (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run      uuid     NOT NULL,
    task     smallint NOT NULL,
    item     integer  NOT NULL,
    attempt  integer NOT NULL,
    -- The sub-run that ended.
    child    uuid     NOT NULL,
    state    smallint NOT NULL,
    error    text
);

-- The array that a mapped task maps over.
CREATE TABLE heddle.maps (
    run   uuid     NOT NULL,
    task  smallint NOT NULL,
    items text     NOT NULL,
    PRIMARY KEY (run, task)
) PARTITION BY RANGE (run);

CREATE TABLE heddle.attempts (
    run           uuid        NOT NULL,
    task          smallint    NOT NULL,
    item          integer     NOT NULL,
    attempt       integer     NOT NULL,
    state         smallint    NOT NULL CHECK (state BETWEEN 1 AND 5),
    -- The outcome was `skip`: it succeeded in having nothing to do.
    skipped       boolean     NOT NULL DEFAULT false,
    started_at    timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL,
    node          uuid,
    output        text,
    error_kind    smallint    CHECK (error_kind BETWEEN 0 AND 8),
    error_message text,
    error_trace   text,
    memory_bytes  bigint,
    cpu_micros    bigint,
    PRIMARY KEY (run, task, item, attempt)
) PARTITION BY RANGE (run);

-- What operators have set by hand.
CREATE TABLE heddle.overrides (
    run    uuid        NOT NULL,
    task   smallint    NOT NULL,
    item   integer     NOT NULL,
    at     timestamptz NOT NULL,
    state  smallint    NOT NULL,
    reason text        NOT NULL,
    actor  text        NOT NULL,
    output text
);
CREATE INDEX overrides_run ON heddle.overrides (run, task, item, at);

CREATE TABLE heddle.logs (
    run     uuid        NOT NULL,
    task    smallint    NOT NULL,
    item    integer     NOT NULL,
    attempt integer     NOT NULL,
    line    integer     NOT NULL,
    at      timestamptz NOT NULL,
    level   smallint    NOT NULL CHECK (level BETWEEN 0 AND 4),
    message text        NOT NULL,
    fields  text,
    PRIMARY KEY (run, task, item, attempt, line)
) PARTITION BY RANGE (run);

-- Key/value state of groups, written with the outcomes of scripts.
CREATE TABLE heddle.script_state (
    group_id   bigint      NOT NULL,
    key        text        NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 256),
    value      text        NOT NULL,
    version    bigint      NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_id, key)
);

-- Notifications that scripts asked for, committed with their outcomes; the notifier sends them.
CREATE TABLE heddle.notices (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run     uuid        NOT NULL,
    task    smallint    NOT NULL,
    channel text        NOT NULL,
    subject text        NOT NULL,
    body    text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);

-- Partitions --------------------------------------------------------------------------------------------------------

-- The smallest UUID whose UUIDv7 timestamp is an instant's millisecond.
CREATE FUNCTION heddle.uuid_floor(at timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- A UUIDv7 (RFC 9562) of an instant.
CREATE FUNCTION heddle.uuid_v7(at timestamptz) RETURNS uuid
    LANGUAGE sql VOLATILE STRICT PARALLEL SAFE
    RETURN (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14, 3)
            || substr(replace(gen_random_uuid()::text, '-', ''), 17, 16))::uuid;

-- Makes the partitions of the days from `first` on, in UTC; those that exist are left alone.
CREATE FUNCTION heddle.make_partitions(first date, days integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    base text;
    day date;
    name text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('heddle.make_partitions'));
    FOREACH base IN ARRAY ARRAY['runs_done', 'attempts', 'logs', 'maps'] LOOP
        FOR offset_days IN 0 .. days - 1 LOOP
            day := first + offset_days;
            name := base || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('heddle.' || name) IS NULL THEN
                EXECUTE format('CREATE TABLE heddle.%I PARTITION OF heddle.%I FOR VALUES FROM (%L) TO (%L)', name, base,
                    heddle.uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                    heddle.uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;

CREATE TABLE heddle.runs_done_default PARTITION OF heddle.runs_done DEFAULT;
CREATE TABLE heddle.attempts_default PARTITION OF heddle.attempts DEFAULT;
CREATE TABLE heddle.logs_default PARTITION OF heddle.logs DEFAULT;
CREATE TABLE heddle.maps_default PARTITION OF heddle.maps DEFAULT;
SELECT heddle.make_partitions((now() AT TIME ZONE 'UTC')::date - 1, 9);

-- Submission in SQL -------------------------------------------------------------------------------------------------

-- Submits a run within the caller's transaction: it is there when that commits, and never was if it does not.
-- Returns the run's id. Raises `no_data_found` for an unknown group, `object_not_in_prerequisite_state` for a disabled
-- one, `unique_violation` for a key that a kept run of the group has, `invalid_parameter_value` for bad params.
CREATE FUNCTION heddle.submit("group" text, params jsonb DEFAULT '{}', key text DEFAULT NULL) RETURNS uuid
    LANGUAGE plpgsql AS $$
DECLARE
    target record;
    run uuid := heddle.uuid_v7(clock_timestamp());
    at timestamptz := clock_timestamp();
BEGIN
    SELECT g.id, g.enabled, g.revision_id, coalesce((r.spec ->> 'priority')::smallint, 0::smallint) AS priority
      INTO target
      FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
     WHERE g.name = submit."group" AND g.deleted_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', submit."group" USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT target.enabled THEN
        RAISE EXCEPTION 'group "%" is disabled', submit."group" USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF jsonb_typeof(submit.params) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF submit.key IS NOT NULL AND (submit.key = '' OR octet_length(submit.key) > 512) THEN
        RAISE EXCEPTION 'key must have 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF submit.key IS NOT NULL THEN
        INSERT INTO heddle.run_keys (group_id, key, run) VALUES (target.id, submit.key, run);
    END IF;
    INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                  interval_end, params, key, created_at, progress)
    VALUES (run, target.id, target.revision_id, 0, 0, target.priority, at, at, at, submit.params::text, submit.key, at,
            '\x0000000000');
    INSERT INTO heddle.starts (run) VALUES (run);
    RETURN run;
END
$$;
