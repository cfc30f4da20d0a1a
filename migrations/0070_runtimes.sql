-- Runtimes: what text scripts are checked, evaluated and run with (interpreter, glue, first memory, our own modules), as
-- one bundle of bytes, packed by zstd. The tag is the digest of the unpacked bytes, cut to 16 digits.
CREATE TABLE heddle.runtimes (
    tag         text COLLATE "C" PRIMARY KEY CHECK (tag ~ '^[0-9a-f]{16}$'),
    language    text NOT NULL CHECK (language IN ('javascript', 'python')),
    interpreter text NOT NULL,
    -- Which version of the host's interface it asks for.
    interface   int NOT NULL CHECK (interface >= 1),
    bytes       bytea NOT NULL CHECK (octet_length(bytes) <= 67108864),
    created_at  timestamptz NOT NULL,
    -- No version names it any more. Whoever checks a script with it again takes this back.
    retired_at  timestamptz
);
ALTER TABLE heddle.runtimes ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- The runtime that a text was checked with, and runs on until it is retired. Null for wasm, and for texts that were uploaded
-- before there were runtimes: they run on that of the program.
ALTER TABLE heddle.script_versions ADD COLUMN runtime_tag text COLLATE "C" REFERENCES heddle.runtimes;
CREATE INDEX script_versions_runtime ON heddle.script_versions (runtime_tag, script_id, version) WHERE runtime_tag IS NOT NULL;
