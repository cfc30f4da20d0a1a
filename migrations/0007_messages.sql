-- Scheduled messages. `docs/messages.md` tells what people see, runner/store/src/message/mod.rs the story and the order
-- of locks.
--
-- The big tables (messages, message_keys) are partitioned by due day, and every primary key of a table that grows with
-- messages holds `bucket` (sender mod 10,000; of a key its own hash): whoever outgrows one Postgres distributes them by
-- it (docs/scale.md). The small ones (topics, days, slices, batches) stay in one place.

CREATE TABLE heddle.topics (
    id         integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL UNIQUE,
    -- What takes the messages: a script (its name, without a version) or a queue.
    script     text,
    queue      text,
    spec       jsonb       NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CHECK ((script IS NULL) <> (queue IS NULL))
);
CREATE INDEX topics_script ON heddle.topics (script);

-- One row for each topic: whoever claims, checkpoints or cancels holds it, and so does one thing at a time.
CREATE TABLE heddle.topic_drains (
    topic      integer          PRIMARY KEY,
    -- What is in the bucket of its rate, and since when.
    allowance  double precision NOT NULL DEFAULT 0,
    allowed_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    -- Why nothing is sent, for people; null while all is well.
    problem    text
) WITH (fillfactor = 50);

CREATE TABLE heddle.messages (
    sender   bigint      NOT NULL CHECK (sender >= 0),
    receiver bigint      NOT NULL CHECK (receiver >= 0),
    -- Positive: an instant's slice. 0 and below: a day's, one less for each time that the day was cancelled.
    slice    bigint      NOT NULL,
    -- Of topics of instants: what was asked for; it may be past.
    due_at   timestamptz,
    day      date        NOT NULL,
    topic    integer     NOT NULL,
    bucket   smallint    NOT NULL CHECK (bucket BETWEEN 0 AND 9999),
    -- 0: as its slice says, 1: cancelled, 2: given up, 3: in hand when it was cancelled, not to be tried again.
    state    smallint    NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    id       uuid        NOT NULL,
    -- A JSON text, as it came.
    payload  text        NOT NULL,
    PRIMARY KEY (day, topic, bucket, id)
) PARTITION BY LIST (day);
CREATE INDEX messages_slice ON heddle.messages (topic, slice, bucket, id) WHERE slice > 0;

-- What makes a message unique within its day.
CREATE TABLE heddle.message_keys (
    day    date     NOT NULL,
    topic  integer  NOT NULL,
    -- Of the key, not of the sender: a repeat may name another sender.
    bucket smallint NOT NULL CHECK (bucket BETWEEN 0 AND 9999),
    key    text     NOT NULL,
    id     uuid     NOT NULL,
    PRIMARY KEY (day, topic, bucket, key)
) PARTITION BY LIST (day);

-- The days that have partitions.
CREATE TABLE heddle.message_partitions (
    day date PRIMARY KEY
);

-- The days that topics have messages for.
CREATE TABLE heddle.message_days (
    topic      integer     NOT NULL,
    day        date        NOT NULL,
    -- When nothing was left to be sent.
    drained_at timestamptz,
    -- When its messages were dropped, and the counts as they were then.
    dropped_at timestamptz,
    total      bigint,
    sent       bigint,
    failed     bigint,
    cancelled  bigint,
    PRIMARY KEY (topic, day)
) WITH (fillfactor = 70);
CREATE INDEX message_days_open ON heddle.message_days (day) WHERE dropped_at IS NULL;

-- Stretches of messages that are due at once, each drained from its beginning to its end: a day of a topic of days, or
-- what one transaction brought for one instant.
CREATE TABLE heddle.message_slices (
    topic  integer     NOT NULL,
    day    date        NOT NULL,
    slice  bigint      NOT NULL,
    due_at timestamptz NOT NULL,
    -- How far it has been claimed: all up to and with this message.
    bucket smallint    NOT NULL DEFAULT -1,
    id     uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    -- 0: open, 1: claimed to its end, 2: cancelled.
    state  smallint    NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    -- Nothing is added any more.
    sealed boolean     NOT NULL,
    PRIMARY KEY (topic, day, slice)
) WITH (fillfactor = 50);
CREATE INDEX message_slices_due ON heddle.message_slices (topic, due_at, slice) WHERE state = 0;

-- The directory: the buckets that are not empty. Written by ingest, once for each of its transactions.
CREATE TABLE heddle.message_buckets (
    topic  integer  NOT NULL,
    day    date     NOT NULL,
    bucket smallint NOT NULL CHECK (bucket BETWEEN 0 AND 9999),
    total  bigint   NOT NULL CHECK (total > 0),
    PRIMARY KEY (topic, day, bucket)
) WITH (fillfactor = 70);

-- What became of a bucket's messages. Written under the topic's lock, so never in ingest's way.
CREATE TABLE heddle.message_outcomes (
    topic     integer  NOT NULL,
    day       date     NOT NULL,
    bucket    smallint NOT NULL CHECK (bucket BETWEEN 0 AND 9999),
    sent      bigint   NOT NULL DEFAULT 0,
    failed    bigint   NOT NULL DEFAULT 0,
    cancelled bigint   NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, day, bucket)
) WITH (fillfactor = 70);

-- Messages that failed: to be tried again when they are due, or given up.
CREATE TABLE heddle.message_retries (
    topic   integer     NOT NULL,
    day     date        NOT NULL,
    bucket  smallint    NOT NULL CHECK (bucket BETWEEN 0 AND 9999),
    id      uuid        NOT NULL,
    -- Attempts so far.
    attempt integer     NOT NULL,
    -- What the retry policy remembers.
    retry   jsonb       NOT NULL,
    -- Null: given up.
    due_at  timestamptz,
    error   text        NOT NULL,
    PRIMARY KEY (topic, day, bucket, id)
);
CREATE INDEX message_retries_due ON heddle.message_retries (topic, due_at) WHERE due_at IS NOT NULL;

-- Batches in hand: claimed, not checkpointed. The row is the fence: whoever deletes it owns the outcomes.
CREATE TABLE heddle.message_batches (
    id         uuid        PRIMARY KEY,
    topic      integer     NOT NULL,
    day        date        NOT NULL,
    -- The node's; 0: a run of a queue has it.
    lease      bigint      NOT NULL,
    run        uuid,
    -- How many nodes were lost over it.
    losses     integer     NOT NULL DEFAULT 0,
    ids        uuid[]      NOT NULL,
    -- Of a batch of retries, for each message: {attempt, retry}.
    retries    jsonb,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- Ids do not compress.
ALTER TABLE heddle.message_batches ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE INDEX message_batches_topic ON heddle.message_batches (topic);
CREATE INDEX message_batches_lease ON heddle.message_batches (lease);

-- Makes the partitions of a day, if they are not there; true if it made them. By attaching, which waits for nobody who
-- reads or writes other days.
CREATE FUNCTION heddle.make_message_day(due date) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    base text;
    name text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('heddle.make_message_day'));
    IF EXISTS (SELECT FROM heddle.message_partitions p WHERE p.day = due) THEN
        RETURN false;
    END IF;
    FOREACH base IN ARRAY ARRAY['messages', 'message_keys'] LOOP
        name := base || '_' || to_char(due, 'YYYYMMDD');
        EXECUTE format('CREATE TABLE heddle.%I (LIKE heddle.%I INCLUDING ALL, CHECK (day = %L))', name, base, due);
        EXECUTE format('ALTER TABLE heddle.%I ATTACH PARTITION heddle.%I FOR VALUES IN (%L)', base, name, due);
    END LOOP;
    INSERT INTO heddle.message_partitions (day) VALUES (due);
    RETURN true;
END
$$;

-- Drops the partitions of a day. Short of waiting for those who read or write messages just now it gives up
-- (lock_not_available), and is called again.
CREATE FUNCTION heddle.drop_message_day(due date) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    base text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('heddle.make_message_day'));
    DELETE FROM heddle.message_partitions p WHERE p.day = due;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    FOREACH base IN ARRAY ARRAY['messages', 'message_keys'] LOOP
        EXECUTE format('DROP TABLE heddle.%I', base || '_' || to_char(due, 'YYYYMMDD'));
    END LOOP;
    RETURN true;
END
$$;

-- The bucket that a message's id tells (heddle_domain::message::message_id).
CREATE FUNCTION heddle.message_bucket(id uuid) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((get_byte(uuid_send(id), 8) & 63) * 256 + get_byte(uuid_send(id), 9))::smallint;

-- Submits a run that a consumer enqueued, within the transaction that records its batch. Returns what is wrong with it,
-- or null; a key that is there already makes no second run.
CREATE FUNCTION heddle.enqueue_of_batch("group" text, params jsonb, key text) RETURNS text
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM heddle.submit(enqueue_of_batch."group", enqueue_of_batch.params, enqueue_of_batch.key);
    RETURN NULL;
EXCEPTION
    WHEN unique_violation THEN
        RETURN NULL;
    WHEN no_data_found OR object_not_in_prerequisite_state OR invalid_parameter_value THEN
        RETURN SQLERRM;
END
$$;
