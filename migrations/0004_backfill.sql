-- Backfills, pools, and the timer tasks of the compatibility calls.

-- Backfills -------------------------------------------------------------------------------------------------------

-- One row is the whole object: what was asked for, and how far it has come. Its runs carry its id in `source`; how
-- they stand is counted from them, never kept here, so that a restart, an override or a deletion cannot make the two
-- disagree. Instants are reckoned from the calendar as it was at the beginning (`calendar_revision_id`), from
-- `position` on: a million of them cost one row.
--
-- Locking: whoever makes runs for a backfill holds its row (FOR UPDATE SKIP LOCKED) from counting its active runs
-- to the commit of the new ones; that is what bounds `max_active` across the cluster. It is always taken first.
CREATE TABLE heddle.backfills (
    id                   uuid        PRIMARY KEY,
    group_id             bigint      NOT NULL REFERENCES heddle.groups,
    calendar_revision_id bigint      NOT NULL REFERENCES heddle.revisions,
    state                smallint    NOT NULL CHECK (state BETWEEN 1 AND 6),
    -- 1 running, 2 paused, 3 succeeded, 4 failed, 5 cancelled; 6 cancelling: its active runs are yet to be cancelled.
    from_at              timestamptz NOT NULL,
    to_at                timestamptz CHECK (to_at >= from_at), -- null: up to now, with what comes due meanwhile
    step_micros          bigint      CHECK (step_micros > 0),
    descending           boolean     NOT NULL,
    max_active           integer     NOT NULL CHECK (max_active > 0),
    on_existing          smallint    NOT NULL CHECK (on_existing IN (0, 1, 2)), -- 0 skip, 1 failed, 2 all
    include_downstream   boolean     NOT NULL,
    pinned               boolean     NOT NULL,
    force                boolean     NOT NULL,
    priority             smallint    NOT NULL,
    params               text        NOT NULL,
    -- Up to where instants have been decided, in the order of the backfill; null: none has.
    position             timestamptz,
    -- `desc` without `to`: the upper end that was fixed at the beginning has been worked down to `from_at`, and
    -- what has come due since is worked off upwards.
    catching_up          boolean     NOT NULL DEFAULT false,
    started_to           timestamptz NOT NULL,
    expected             bigint      NOT NULL CHECK (expected >= 0),
    made                 bigint      NOT NULL DEFAULT 0,
    skipped              bigint      NOT NULL DEFAULT 0,
    -- Why it makes no runs although it could, for people.
    note                 text,
    created_at           timestamptz NOT NULL,
    created_by           text        NOT NULL,
    finished_at          timestamptz,
    CHECK ((finished_at IS NULL) = (state IN (1, 2, 6)))
) WITH (fillfactor = 60);
CREATE INDEX backfills_open ON heddle.backfills (id) WHERE finished_at IS NULL;
CREATE INDEX backfills_group ON heddle.backfills (group_id, id);

-- A backfill's runs: counted while it goes on (live), and for its counts (done; the state is in the index so that a
-- million of them are counted without visiting the table).
CREATE INDEX runs_live_source ON heddle.runs_live (source, group_id) WHERE source IS NOT NULL;
DROP INDEX heddle.runs_done_source;
CREATE INDEX runs_done_source ON heddle.runs_done (source, group_id, state) WHERE source IS NOT NULL;

-- What stands at an instant. A run that was made for the moment of its creation (most manual ones), and sub-runs, are
-- about no instant: they pay nothing for this.
CREATE INDEX runs_live_instant ON heddle.runs_live (group_id, logical_time)
    WHERE logical_time <> created_at AND trigger <> 4;
CREATE INDEX runs_done_instant ON heddle.runs_done (group_id, logical_time)
    WHERE logical_time <> created_at AND trigger <> 4;

-- Pools -----------------------------------------------------------------------------------------------------------

-- Task runs that are ready but for slots of pools. `pools[1]`, the first by name, is the queue that it stands in.
CREATE TABLE heddle.ready_pooled (
    run      uuid     NOT NULL,
    task     smallint NOT NULL,
    item     integer  NOT NULL,
    attempt  integer NOT NULL,
    priority smallint NOT NULL,
    turn     bigint   NOT NULL,
    pool     text COLLATE "C" NOT NULL,
    pools    text[]   NOT NULL,
    slots    integer[] NOT NULL CHECK (cardinality(slots) = cardinality(pools)),
    PRIMARY KEY (run, task, item)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_pooled_order ON heddle.ready_pooled (pool, priority DESC, turn, run);

-- Slots that admitted attempts hold. A row counts for as long as its attempt stands in *ready*, *queue_ready* or *running*.
CREATE TABLE heddle.pool_holds (
    run     uuid     NOT NULL,
    task    smallint NOT NULL,
    item    integer  NOT NULL,
    attempt integer NOT NULL,
    pool    text COLLATE "C" NOT NULL,
    slots   integer  NOT NULL CHECK (slots > 0),
    PRIMARY KEY (run, task, item, attempt, pool)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Compatibility ---------------------------------------------------------------------------------------------------

CREATE SEQUENCE heddle.timer_task_ids;

-- The nodes of trees of timer tasks. A tree is a group; its root's number is in the group's name.
CREATE TABLE heddle.timer_tasks (
    task_id    bigint PRIMARY KEY,
    root       bigint  NOT NULL,
    -- Its place in the tree, parents before children; the root's is 0.
    place      integer NOT NULL,
    parent     bigint,
    definition jsonb   NOT NULL,
    UNIQUE (root, place),
    CHECK ((place = 0) = (task_id = root) AND (parent IS NULL) = (place = 0))
);
