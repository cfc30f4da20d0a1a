-- Queues: task runs that workers outside Heddle do. `docs/workers.md` tells what workers see; the order of locks is
-- that of runner/store/src/live/mod.rs.
--
-- A task run of a queue has one row: in queue_ready while it waits, in queue_claims (and in running, as every attempt
-- under way) while a worker holds it. A lease lives in queue_claims only; a heartbeat updates that row in place, and no
-- index names a column that it changes.

-- What operators have said of a queue; a queue of which nothing was said has no row.
CREATE TABLE heddle.queues (
    name        text        PRIMARY KEY,
    paused      boolean     NOT NULL DEFAULT false,
    -- At most so many claims per so many milliseconds: a bucket of rate_count that fills evenly.
    rate_count  integer     CHECK (rate_count BETWEEN 1 AND 1000000),
    rate_per_ms bigint      CHECK (rate_per_ms BETWEEN 1 AND 86400000),
    -- What was in the bucket, and when.
    allowance   double precision NOT NULL DEFAULT 0,
    allowed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    CHECK ((rate_count IS NULL) = (rate_per_ms IS NULL))
);

CREATE TABLE heddle.queue_ready (
    run        uuid        NOT NULL,
    task       smallint    NOT NULL,
    item       integer     NOT NULL, -- -1: not an item
    attempt    integer     NOT NULL,
    queue      text        NOT NULL,
    priority   smallint    NOT NULL,
    -- As in ready: the nth row of a run stands n turns behind the queue's head.
    turn       bigint      NOT NULL,
    -- All of these a worker has to carry.
    tags       text[]      NOT NULL,
    ready_at   timestamptz NOT NULL,
    -- queue_timeout: not claimed by then, the attempt has failed.
    expires_at timestamptz,
    -- The attempt's timeout, from its claim.
    timeout_ms bigint,
    -- Rendered; null where the plan and the run tell them.
    params     text,
    PRIMARY KEY (run, task, item)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.5);
CREATE INDEX queue_ready_order ON heddle.queue_ready (queue, priority DESC, turn, run);
CREATE INDEX queue_ready_expiry ON heddle.queue_ready (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE heddle.queue_claims (
    run              uuid        NOT NULL,
    task             smallint    NOT NULL,
    item             integer     NOT NULL,
    attempt          integer     NOT NULL,
    id               uuid        NOT NULL,
    -- The fence, as nodes' lease numbers, but random: nobody guesses it. The row in running carries the same.
    lease            bigint      NOT NULL CHECK (lease < 0),
    queue            text        NOT NULL,
    worker           text        NOT NULL,
    -- What a heartbeat extends it by, unless it says otherwise.
    lease_ms         bigint      NOT NULL CHECK (lease_ms > 0),
    claimed_at       timestamptz NOT NULL,
    -- The token is old from then on, claimed again or not; never later than deadline_at.
    lease_expires_at timestamptz NOT NULL,
    -- When the attempt's timeout strikes.
    deadline_at      timestamptz,
    PRIMARY KEY (run, task, item)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);

-- Who has polled, and when last.
CREATE TABLE heddle.queue_workers (
    queue   text        NOT NULL,
    worker  text        NOT NULL,
    tags    text[]      NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (queue, worker)
) WITH (fillfactor = 60);
