-- Schedules, and groups that follow groups. The stories: runner/store/src/schedule.rs and runner/store/src/upstream.rs.

-- Schedules -------------------------------------------------------------------------------------------------------

-- A row for each schedule of each group's current revision, kept in step by the transaction that changes the group.
CREATE TABLE heddle.schedules (
    group_id     bigint      NOT NULL REFERENCES heddle.groups,
    name         text        COLLATE "C" NOT NULL,
    revision_id  bigint      NOT NULL,
    -- Since when it stands as it is written, and the zone that it is reckoned in: while both stay, so does the rest.
    anchor       timestamptz NOT NULL,
    zone         text        NOT NULL,
    -- It and its group are enabled.
    live         boolean     NOT NULL,
    -- Every instant up to here has been decided.
    cursor       timestamptz NOT NULL,
    -- When it is due again; null: not until something else happens, or never.
    next_fire_at timestamptz,
    -- `after`: the delay, the window that it is clipped to, and the run whose end it is counted from.
    delay        interval,
    starts_at    timestamptz,
    ends_at      timestamptz,
    awaits       uuid,
    -- `once`: when it fired, and so disabled itself.
    fired_at     timestamptz,
    PRIMARY KEY (group_id, name),
    CHECK (live OR next_fire_at IS NULL),
    CHECK (awaits IS NULL OR next_fire_at IS NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedules_due ON heddle.schedules (next_fire_at) WHERE next_fire_at IS NOT NULL;

-- The run that was made for an instant of a group, whoever made it (schedule, backfill, upstream): there is one.
-- Kept for as long as the run is.
CREATE TABLE heddle.run_instants (
    group_id     bigint      NOT NULL,
    logical_time timestamptz NOT NULL,
    run          uuid        NOT NULL,
    -- The group's overlap left it out.
    skipped      boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (group_id, logical_time)
);
CREATE INDEX run_instants_run ON heddle.run_instants (run);

-- Groups that follow groups -----------------------------------------------------------------------------------------

-- Logical times for which a group that is followed has a succeeded run.
CREATE TABLE heddle.successes (
    group_id     bigint      NOT NULL,
    logical_time timestamptz NOT NULL,
    run          uuid        NOT NULL,
    PRIMARY KEY (group_id, logical_time)
);
CREATE INDEX successes_run ON heddle.successes (run);

-- What may let a waiting run begin, or calls for a run: written with the change itself, worked off soon after.
-- kind: 0 a run of a followed group succeeded; 1 a run waits for upstreams; 2 a group has changed.
CREATE TABLE heddle.link_events (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         smallint    NOT NULL CHECK (kind IN (0, 1, 2)),
    group_id     bigint      NOT NULL,
    run          uuid,
    logical_time timestamptz,
    source       uuid,
    -- Whether the run was made by a backfill, which calls for no dependants by itself.
    backfilled   boolean     NOT NULL DEFAULT false,
    CHECK ((kind = 2) = (run IS NULL)),
    CHECK (kind <> 0 OR logical_time IS NOT NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Backfills that bring dependants along: the sources of runs whose success calls for dependants although they were
-- backfilled.
CREATE TABLE heddle.cascades (
    source uuid PRIMARY KEY
);

ALTER TABLE heddle.waits
    -- It waits for upstreams still; only then for its turn.
    ADD COLUMN upstreams boolean NOT NULL DEFAULT false;
CREATE INDEX waits_upstreams ON heddle.waits (run) WHERE upstreams;

-- Instants of upstream groups that a waiting run needs and that have not succeeded, the earliest ones first.
CREATE TABLE heddle.needs (
    run          uuid        NOT NULL,
    upstream_id  bigint      NOT NULL,
    logical_time timestamptz NOT NULL,
    PRIMARY KEY (run, upstream_id, logical_time)
);
CREATE INDEX needs_upstream ON heddle.needs (upstream_id, logical_time);
