-- Whose a lease was. A node that comes back has another one, while attempts of its former self are still to be told as
-- lost, with the node that they were lost with. Filled by a trigger: nodes of the release before register without it.
CREATE TABLE heddle.leases (
    lease bigint PRIMARY KEY,
    node  uuid   NOT NULL
);

CREATE FUNCTION heddle.keep_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO heddle.leases (lease, node) VALUES (NEW.lease, NEW.id) ON CONFLICT (lease) DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER keep_lease AFTER INSERT OR UPDATE OF lease ON heddle.nodes
    FOR EACH ROW EXECUTE FUNCTION heddle.keep_lease();

INSERT INTO heddle.leases (lease, node) SELECT lease, id FROM heddle.nodes ON CONFLICT (lease) DO NOTHING;

-- A run that is reopened may wait for its turn once more, and has begun long ago.
ALTER TABLE heddle.runs_live
    DROP CONSTRAINT runs_live_check,
    ADD CONSTRAINT runs_live_started CHECK (state = 0 OR started_at IS NOT NULL);

-- From group to group of those whose runs wait for their turn.
CREATE INDEX waits_turn ON heddle.waits (group_id) WHERE NOT upstreams;
