-- How queues stood, minute by minute, for the picture on their pages. A node writes down once a minute how deep those are
-- in which something happens, and every node how many of their task runs workers have ended. Kept for some hours:
-- runner/store/src/queue/minutes.rs.
CREATE TABLE heddle.queue_minutes (
    queue text        NOT NULL,
    -- When the minute began.
    at    timestamptz NOT NULL,
    -- Null: nobody has looked in this minute.
    depth bigint,
    ended bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, at)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX queue_minutes_at ON heddle.queue_minutes (at);

INSERT INTO heddle.upkeep (name, due_at) VALUES ('queue_minutes', now()) ON CONFLICT DO NOTHING;
