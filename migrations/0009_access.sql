-- Sessions of the UI, and what the pruner needs. The stories: docs/security.md and docs/retention.md.

-- Sessions ----------------------------------------------------------------------------------------------------------

-- Who has signed in with a token: the cookie's SHA-256, never its text. A session ends with its token.
CREATE TABLE heddle.sessions (
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    token_id   uuid NOT NULL REFERENCES heddle.tokens ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_token ON heddle.sessions (token_id, created_at);
CREATE INDEX sessions_expires ON heddle.sessions (expires_at);

CREATE INDEX audit_actor ON heddle.audit (actor, id);

-- Retention ---------------------------------------------------------------------------------------------------------

-- When what is to be done once in a while by some node is due: whoever moves `due_at` on does it.
CREATE TABLE heddle.upkeep (
    name   text        PRIMARY KEY,
    due_at timestamptz NOT NULL
);
INSERT INTO heddle.upkeep (name, due_at) VALUES ('prune', now()), ('instants', now());

-- Days whose partitions have been dropped, and whose keys, instants and overrides have yet to follow: written in the
-- transaction of the drop, so that a node that dies in between leaves nothing behind for ever.
CREATE TABLE heddle.pruned_days (
    day date PRIMARY KEY,
    at  timestamptz NOT NULL
);

-- Days of the past that have a partition of a table of this schema, oldest first.
CREATE FUNCTION heddle.partition_days(base text) RETURNS SETOF date
    LANGUAGE sql STABLE STRICT AS $$
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = to_regclass('heddle.' || quote_ident(base)) AND c.relname ~ ('^' || base || '_[0-9]{8}$')
     ORDER BY 1
$$;

-- Drops the partition of a day; whether there was one. The caller holds the parent.
CREATE FUNCTION heddle.drop_partition(base text, day date) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    name text := base || '_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass('heddle.' || quote_ident(name)) IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE heddle.%I', name);
    RETURN true;
END
$$;

-- As before, but for this: a day of which rows stand in the default partition already (nobody was there to make its own
-- in time) stays there, and does not keep the following days from getting theirs.
CREATE OR REPLACE FUNCTION heddle.make_partitions(first date, days integer) RETURNS integer
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
                BEGIN
                    EXECUTE format('CREATE TABLE heddle.%I PARTITION OF heddle.%I FOR VALUES FROM (%L) TO (%L)', name,
                        base, heddle.uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                        heddle.uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
                    made := made + 1;
                EXCEPTION WHEN check_violation THEN
                    NULL;
                END;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;

CREATE OR REPLACE FUNCTION heddle.make_dispatch_partitions(first date, days integer) RETURNS integer
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
                BEGIN
                    EXECUTE format('CREATE TABLE heddle.%I PARTITION OF heddle.%I FOR VALUES %s', name, base, bounds);
                    made := made + 1;
                EXCEPTION WHEN check_violation THEN
                    NULL;
                END;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;
