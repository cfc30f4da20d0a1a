-- The control plane: what people write (scripts, groups, secrets, ...), who may, and the log that nodes follow.
-- Low-rate: every change is one transaction with its audit row and its row in the change log.
--
-- Names are compared bytewise (COLLATE "C") whatever the cluster's collation is, so that cursors and indexes agree.

CREATE SCHEMA IF NOT EXISTS heddle;

CREATE TABLE heddle.categories (
    name        text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    description text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- JSON Schemas that offers and groups name to have their params checked.
CREATE TABLE heddle.templates (
    name       text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    schema     jsonb NOT NULL CHECK (jsonb_typeof(schema) IN ('object', 'boolean')),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

-- Uploaded wasm by its SHA-256 in lower-case hex. Wasm hardly compresses with pglz, so TOAST keeps it as it is and
-- reads slices without inflating.
CREATE TABLE heddle.blobs (
    digest     text COLLATE "C" PRIMARY KEY CHECK (digest ~ '^[0-9a-f]{64}$'),
    bytes      bytea NOT NULL CHECK (octet_length(bytes) <= 67108864),
    created_at timestamptz NOT NULL
);
ALTER TABLE heddle.blobs ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- A deleted script keeps its row, so that `name@3` never comes to mean other code: numbering goes on behind
-- `first_version`, what lies before it is known to kept runs only.
CREATE TABLE heddle.scripts (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text COLLATE "C" NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 63),
    active_version int,
    last_version   int NOT NULL DEFAULT 0 CHECK (last_version >= 0),
    first_version  int NOT NULL DEFAULT 1 CHECK (first_version >= 1),
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    deleted_at     timestamptz,
    CHECK (active_version BETWEEN first_version AND last_version),
    CHECK (deleted_at IS NULL OR active_version IS NULL)
);

-- Immutable.
CREATE TABLE heddle.script_versions (
    script_id     bigint NOT NULL REFERENCES heddle.scripts,
    version       int NOT NULL CHECK (version >= 1),
    digest        text COLLATE "C" NOT NULL REFERENCES heddle.blobs,
    world         text NOT NULL,
    params_schema jsonb,
    defaults      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(defaults) = 'object'),
    description   text NOT NULL DEFAULT '',
    size          bigint NOT NULL CHECK (size >= 0),
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (script_id, version)
);
CREATE INDEX script_versions_digest ON heddle.script_versions (digest);

ALTER TABLE heddle.scripts ADD FOREIGN KEY (id, active_version) REFERENCES heddle.script_versions (script_id, version);

-- Deleted groups keep their rows for the runs that are kept; a new group of the same name is another row.
CREATE TABLE heddle.groups (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 63),
    revision    int NOT NULL CHECK (revision >= 1),
    revision_id bigint NOT NULL,
    enabled     boolean NOT NULL DEFAULT true,
    category    text COLLATE "C" REFERENCES heddle.categories,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    deleted_at  timestamptz
);
CREATE UNIQUE INDEX groups_name ON heddle.groups (name) WHERE deleted_at IS NULL;
CREATE INDEX groups_category ON heddle.groups (category, name) WHERE deleted_at IS NULL;

-- Immutable. `schedule_anchors` says since when each schedule stands as it is written ({name: time}): a schedule that
-- a new revision leaves alone keeps its anchor.
CREATE TABLE heddle.revisions (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id         bigint NOT NULL REFERENCES heddle.groups,
    revision         int NOT NULL CHECK (revision >= 1),
    spec             jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    schedule_anchors jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(schedule_anchors) = 'object'),
    created_at       timestamptz NOT NULL,
    created_by       text NOT NULL,
    UNIQUE (group_id, revision)
);

-- The current revision's edges to other groups: `depends_on`, and tasks that start sub-runs.
CREATE TABLE heddle.group_links (
    group_id    bigint NOT NULL REFERENCES heddle.groups,
    upstream_id bigint NOT NULL REFERENCES heddle.groups,
    kind        text NOT NULL CHECK (kind IN ('depends_on', 'sub_run')),
    need        text NOT NULL DEFAULT 'latest' CHECK (need IN ('latest', 'interval')),
    PRIMARY KEY (group_id, upstream_id, kind)
);
CREATE INDEX group_links_upstream ON heddle.group_links (upstream_id, kind);

-- The times in which a group was disabled: what was due then is never made up, and holds up no dependant.
CREATE TABLE heddle.group_disabled (
    group_id bigint NOT NULL REFERENCES heddle.groups,
    since    timestamptz NOT NULL,
    until    timestamptz CHECK (until >= since)
);
CREATE INDEX group_disabled_group ON heddle.group_disabled (group_id, since);
CREATE UNIQUE INDEX group_disabled_open ON heddle.group_disabled (group_id) WHERE until IS NULL;

-- The scripts that groups' current revisions name; version 0 stands for the active one.
CREATE TABLE heddle.script_uses (
    group_id  bigint NOT NULL REFERENCES heddle.groups,
    script_id bigint NOT NULL REFERENCES heddle.scripts,
    version   int NOT NULL CHECK (version >= 0),
    PRIMARY KEY (group_id, script_id, version)
);
CREATE INDEX script_uses_script ON heddle.script_uses (script_id);

-- XChaCha20-Poly1305; the associated data binds a ciphertext to its kind and name. `key_id` tells which key to open
-- it with, so that keys can be rotated.
CREATE TABLE heddle.secrets (
    name       text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    ciphertext bytea NOT NULL CHECK (octet_length(ciphertext) <= 131072),
    nonce      bytea NOT NULL CHECK (octet_length(nonce) = 24),
    key_id     text NOT NULL,
    groups     text[] NOT NULL DEFAULT '{}',
    categories text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE heddle.connections (
    name            text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    ciphertext      bytea NOT NULL CHECK (octet_length(ciphertext) <= 131072),
    nonce           bytea NOT NULL CHECK (octet_length(nonce) = 24),
    key_id          text NOT NULL,
    groups          text[] NOT NULL DEFAULT '{}',
    categories      text[] NOT NULL DEFAULT '{}',
    max_connections int NOT NULL DEFAULT 4 CHECK (max_connections BETWEEN 1 AND 100),
    read_only       boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL
);

-- Only the SHA-256 of a token is kept. A revoked token's name may be given again.
CREATE TABLE heddle.tokens (
    id           uuid PRIMARY KEY,
    name         text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 63),
    hash         bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    role         text NOT NULL CHECK (role IN ('viewer', 'operator', 'author', 'worker', 'admin')),
    queues       text[] NOT NULL DEFAULT '{}',
    uids         text[] NOT NULL DEFAULT '{}',
    expires_at   timestamptz,
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
CREATE UNIQUE INDEX tokens_name ON heddle.tokens (name) WHERE revoked_at IS NULL;

CREATE TABLE heddle.pools (
    name       text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    slots      int NOT NULL CHECK (slots BETWEEN 0 AND 1000000),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

-- Cluster-wide settings that people change at run time, such as `retention`.
CREATE TABLE heddle.settings (
    name       text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 63),
    value      jsonb NOT NULL,
    updated_at timestamptz NOT NULL
);

-- What people changed. Insert-only; never holds a secret.
CREATE TABLE heddle.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL,
    actor  text NOT NULL,
    action text NOT NULL,
    kind   text NOT NULL,
    name   text COLLATE "C" NOT NULL,
    before jsonb,
    after  jsonb
);
CREATE INDEX audit_thing ON heddle.audit (kind, name, id);
CREATE INDEX audit_at ON heddle.audit (at);

-- The log that nodes follow. Writers hold an advisory lock from the insert to their commit, so ids become visible in
-- order and a reader that has seen n has seen all up to n.
CREATE TABLE heddle.changes (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    name text COLLATE "C" NOT NULL,
    at   timestamptz NOT NULL
);
CREATE INDEX changes_at ON heddle.changes (at);
