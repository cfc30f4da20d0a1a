-- Notifications: where people are told, what is to be told, and what has been. `docs/notifications.md` explains.
--
-- A notice is written by the transaction of what happened, and names it; whoever turns notices into notifications deletes
-- it. A notification is history, with one row in `outgoing` for as long as it has to be sent. Both hot tables are passed
-- through by INSERT and DELETE.

-- `options` is what may be shown; what is secret (a robot's URL, a signing secret, a password) is sealed as secrets are.
CREATE TABLE heddle.channels (
    name       text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    kind       text NOT NULL CHECK (kind IN ('email', 'webhook', 'slack', 'feishu', 'dingtalk', 'wecom')),
    options    jsonb NOT NULL CHECK (jsonb_typeof(options) = 'object'),
    ciphertext bytea NOT NULL CHECK (octet_length(ciphertext) <= 131072),
    nonce      bytea NOT NULL CHECK (octet_length(nonce) = 24),
    key_id     text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

-- Until now notices were what scripts asked for; such a row has a channel, a subject and a body. All others name a
-- revision whose rules say who is told.
ALTER TABLE heddle.notices
    ALTER COLUMN run DROP NOT NULL,
    ALTER COLUMN task DROP NOT NULL,
    ALTER COLUMN channel DROP NOT NULL,
    ALTER COLUMN subject DROP NOT NULL,
    ALTER COLUMN body DROP NOT NULL,
    ADD COLUMN event       text        NOT NULL DEFAULT 'script',
    ADD COLUMN group_id    bigint,
    ADD COLUMN revision_id bigint,
    ADD COLUMN item        integer,
    ADD COLUMN attempt     integer,
    -- When a retry begins.
    ADD COLUMN due_at      timestamptz,
    -- The schedule, or the queue, that it is about.
    ADD COLUMN about       text,
    -- See heddle_domain::notify::rules::Notice.
    ADD COLUMN with_run    boolean     NOT NULL DEFAULT false,
    ADD COLUMN covers      smallint[]  NOT NULL DEFAULT '{}',
    ADD CHECK (event <> 'script' OR channel IS NOT NULL),
    ADD CHECK (event = 'script' OR revision_id IS NOT NULL);

-- What has failed and not succeeded since, where a rule names `recovered`. task '' is the run.
CREATE TABLE heddle.troubles (
    group_id bigint NOT NULL,
    task     text COLLATE "C" NOT NULL,
    first_at timestamptz NOT NULL,
    last_at  timestamptz NOT NULL,
    PRIMARY KEY (group_id, task)
);

-- Queued tasks that nobody has claimed for a while and that somebody has been told of.
CREATE TABLE heddle.stalls (
    group_id bigint NOT NULL,
    task     text COLLATE "C" NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    since    timestamptz NOT NULL,
    PRIMARY KEY (group_id, task, queue)
);

-- The few groups that want to hear of such tasks: nobody looks through the queues of others.
CREATE INDEX revisions_stalls ON heddle.revisions (id)
    WHERE jsonb_path_exists(spec, '$.**.notify.on[*] ? (@ == "queue_stalled")');

CREATE TABLE heddle.notifications (
    id         uuid PRIMARY KEY,
    -- The channel's name, or the URL that a run's submitter gave.
    channel    text COLLATE "C" NOT NULL,
    event      text NOT NULL,
    group_name text COLLATE "C",
    run        uuid,
    task       text COLLATE "C",
    subject    text NOT NULL,
    -- heddle_domain::notify::message::Facts
    facts      jsonb NOT NULL,
    -- The run as it ended, of a callback: JSON text.
    payload    text,
    -- Addresses of mails, and those of them that have theirs.
    recipients text[] NOT NULL DEFAULT '{}',
    delivered  text[] NOT NULL DEFAULT '{}',
    -- 0 pending, 1 sent, 2 failed
    state      smallint NOT NULL CHECK (state IN (0, 1, 2)),
    attempts   integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    last_error text,
    created_at timestamptz NOT NULL,
    sent_at    timestamptz,
    CHECK ((state = 1) = (sent_at IS NOT NULL))
) WITH (fillfactor = 80);
CREATE INDEX notifications_channel ON heddle.notifications (channel, id);
CREATE INDEX notifications_group ON heddle.notifications (group_name, id) WHERE group_name IS NOT NULL;
CREATE INDEX notifications_run ON heddle.notifications (run) WHERE run IS NOT NULL;
CREATE INDEX notifications_created ON heddle.notifications (created_at);

CREATE TABLE heddle.outgoing (
    notification uuid PRIMARY KEY REFERENCES heddle.notifications ON DELETE CASCADE,
    -- What may be slow without slowing others: a channel, or a host that is called back.
    lane         text COLLATE "C" NOT NULL,
    due_at       timestamptz NOT NULL,
    -- The node that sends it, by its lease as in heddle.running; 0: nobody.
    lease        bigint NOT NULL DEFAULT 0,
    -- A digest that may still grow.
    digest       boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX outgoing_lane ON heddle.outgoing (lane, due_at);
CREATE INDEX outgoing_due ON heddle.outgoing (due_at);

-- How many events of a kind a channel has been told lately; see heddle_domain::notify::storm.
CREATE TABLE heddle.storms (
    group_id   bigint NOT NULL,
    event      text NOT NULL,
    channel    text COLLATE "C" NOT NULL,
    -- MD5 of the addresses that mails go to.
    recipients text COLLATE "C" NOT NULL,
    opened_at  timestamptz NOT NULL,
    told       integer NOT NULL CHECK (told >= 0),
    digest     uuid,
    PRIMARY KEY (group_id, event, channel, recipients)
);
CREATE INDEX storms_opened ON heddle.storms (opened_at);
