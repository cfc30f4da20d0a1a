-- Pull dispatch: offers, who they are for, who holds what, and the feed of events. `docs/dispatch.md` and
-- `docs/events.md` tell the story; the order of locks stands in runner/store/src/assignment.rs.

-- An instant as the API writes it.
CREATE FUNCTION heddle.moment(at timestamptz) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- Offers ------------------------------------------------------------------------------------------------------------

-- What can be taken. A deleted offer keeps its row for the assignments that are kept; one of the same name that is
-- made later is another row. Task runs of the executor `audience` have offers, too: those carry `run`.
CREATE TABLE heddle.offers (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 63),
    audience      text COLLATE "C" NOT NULL CHECK (audience ~ '^[ug]id_.' AND char_length(audience) <= 255),
    -- Every change counts it up; a node that takes with an old one is refused.
    version       int NOT NULL CHECK (version >= 1),
    kind          smallint NOT NULL CHECK (kind IN (0, 1, 2)), -- 0 once, 1 interval, 2 daily
    -- When a `once` offer is due; the anchor or the start of the others.
    starts_at     timestamptz NOT NULL,
    -- Per occurrence; null: each member once.
    stock         integer CHECK (stock >= 1),
    repeats       boolean NOT NULL,
    return_failed boolean NOT NULL,
    max_hold      bigint CHECK (max_hold > 0), -- microseconds
    enabled       boolean NOT NULL,
    template      text COLLATE "C",
    -- The whole of it, with every default written out.
    spec          jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    -- The task run that it stands for, and until when its attempt may take.
    run           uuid,
    task          smallint,
    item          integer,
    attempt       integer,
    overdue_at    timestamptz,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    deleted_at    timestamptz,
    CHECK (stock IS NOT NULL OR NOT repeats),
    CHECK ((run IS NULL) = (attempt IS NULL))
);
CREATE UNIQUE INDEX offers_name ON heddle.offers (name) WHERE deleted_at IS NULL;
CREATE INDEX offers_audience ON heddle.offers (audience, starts_at) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX offers_task ON heddle.offers (run, task, item) WHERE run IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX offers_template ON heddle.offers (template) WHERE template IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX offers_overdue ON heddle.offers (overdue_at) WHERE overdue_at IS NOT NULL AND deleted_at IS NULL;

-- Immutable: what an assignment was given stays what it was when the offer changes.
CREATE TABLE heddle.offer_versions (
    offer_id bigint NOT NULL REFERENCES heddle.offers,
    version  int NOT NULL,
    params   jsonb NOT NULL CHECK (jsonb_typeof(params) = 'object'),
    PRIMARY KEY (offer_id, version)
);

-- User groups; a user (`uid_x`) is an audience of one and stands nowhere.
CREATE TABLE heddle.audiences (
    name       text COLLATE "C" PRIMARY KEY CHECK (name ~ '^gid_.' AND char_length(name) <= 255),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE TABLE heddle.members (
    audience text COLLATE "C" NOT NULL REFERENCES heddle.audiences,
    uid      text COLLATE "C" NOT NULL CHECK (char_length(uid) BETWEEN 1 AND 250),
    PRIMARY KEY (audience, uid)
);
CREATE INDEX members_uid ON heddle.members (uid);

-- Occurrences that somebody has taken; those that nobody has are not written. One row of a hot offer is updated by
-- every batch of takes and completions: no index names what is updated, so it stays HOT.
CREATE TABLE heddle.occurrences (
    offer_id   bigint NOT NULL REFERENCES heddle.offers,
    occurrence timestamptz NOT NULL,
    -- Stock that is held or used up.
    taken      integer NOT NULL CHECK (taken >= 0),
    -- How many of the last batch that asked got one.
    granted    integer NOT NULL CHECK (granted >= 0),
    completed  integer NOT NULL DEFAULT 0,
    failed     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (offer_id, occurrence)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- Assignments -------------------------------------------------------------------------------------------------------

-- Who holds what. One row per user: the primary key is what keeps one in flight.
CREATE TABLE heddle.holds (
    uid         text COLLATE "C" PRIMARY KEY,
    id          uuid NOT NULL UNIQUE,
    offer_id    bigint NOT NULL,
    version     int NOT NULL,
    audience    text COLLATE "C" NOT NULL,
    occurrence  timestamptz NOT NULL,
    assigned_at timestamptz NOT NULL,
    expires_at  timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.5);
CREATE INDEX holds_offer ON heddle.holds (offer_id);
CREATE INDEX holds_expires ON heddle.holds (expires_at) WHERE expires_at IS NOT NULL;

-- What has ended: insert-only, partitioned by the day in the UUIDv7.
CREATE TABLE heddle.assignments (
    id          uuid NOT NULL,
    offer_id    bigint NOT NULL,
    version     int NOT NULL,
    uid         text COLLATE "C" NOT NULL,
    audience    text COLLATE "C" NOT NULL,
    occurrence  timestamptz NOT NULL,
    state       smallint NOT NULL CHECK (state IN (1, 2, 3, 4)), -- completed, failed, revoked, expired
    assigned_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    result      text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- Both "has this user had it" and "the last occurrence that this user has finished".
CREATE INDEX assignments_user ON heddle.assignments (uid, occurrence, offer_id) INCLUDE (state);
CREATE INDEX assignments_offer ON heddle.assignments (offer_id, occurrence);
CREATE TABLE heddle.assignments_default PARTITION OF heddle.assignments DEFAULT;

-- Attempts of audience tasks that are over: picked up like `settlements`.
CREATE TABLE heddle.offer_settlements (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    offer_id bigint NOT NULL,
    run      uuid NOT NULL,
    task     smallint NOT NULL,
    item     integer NOT NULL,
    attempt  integer NOT NULL,
    -- Null: it is done.
    error_kind smallint,
    error    text
);

-- Events ------------------------------------------------------------------------------------------------------------

-- Insert-only. A reader goes by (xid, id) and reads only what lies below the oldest transaction that is still open, so
-- nothing is ever committed behind it. `data` is an object, or an array that stands for as many events (runs end by the
-- thousand; a row for each would cost as much as the run).
CREATE TABLE heddle.events (
    xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id   bigint GENERATED ALWAYS AS IDENTITY,
    kind text COLLATE "C" NOT NULL,
    at   timestamptz NOT NULL,
    data jsonb NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX events_order ON heddle.events (xid, id);
CREATE TABLE heddle.events_default PARTITION OF heddle.events DEFAULT;

CREATE PUBLICATION heddle_events FOR TABLE heddle.events WITH (publish = 'insert', publish_via_partition_root = true);

-- Makes the partitions of the days from `first` on, in UTC; those that exist are left alone.
CREATE FUNCTION heddle.make_dispatch_partitions(first date, days integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    base text;
    day date;
    name text;
    bounds text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('heddle.make_partitions'));
    FOREACH base IN ARRAY ARRAY['assignments', 'events'] LOOP
        FOR offset_days IN 0 .. days - 1 LOOP
            day := first + offset_days;
            name := base || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('heddle.' || name) IS NULL THEN
                IF base = 'events' THEN
                    bounds := format('FROM (%L) TO (%L)', day::timestamp AT TIME ZONE 'UTC',
                        (day + 1)::timestamp AT TIME ZONE 'UTC');
                ELSE
                    bounds := format('FROM (%L) TO (%L)', heddle.uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                        heddle.uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
                END IF;
                EXECUTE format('CREATE TABLE heddle.%I PARTITION OF heddle.%I FOR VALUES %s', name, base, bounds);
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;
SELECT heddle.make_dispatch_partitions((now() AT TIME ZONE 'UTC')::date - 1, 9);
