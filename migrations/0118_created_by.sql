-- Who submitted or repeated a run: what the audit would call the actor. NULL: no person did (a schedule, a backfill, another
-- run), or the run is older than this column, or a node older than it ended the run.
ALTER TABLE heddle.runs_live ADD COLUMN created_by text;
ALTER TABLE heddle.runs_done ADD COLUMN created_by text;

-- Runs of `heddle.submit` name the role of the session. Otherwise the function is as it was.
CREATE OR REPLACE FUNCTION heddle.submit("group" text, params jsonb DEFAULT '{}', key text DEFAULT NULL) RETURNS uuid
    LANGUAGE plpgsql AS $$
DECLARE
    target record;
    run uuid := heddle.uuid_v7(clock_timestamp());
    at timestamptz := clock_timestamp();
BEGIN
    SELECT g.id, g.enabled, g.revision_id, coalesce((r.spec ->> 'priority')::smallint, 0::smallint) AS priority
      INTO target
      FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
     WHERE g.name = normalize(submit."group", NFC) AND g.deleted_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', submit."group" USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT target.enabled THEN
        RAISE EXCEPTION 'group "%" is disabled', submit."group" USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF jsonb_typeof(submit.params) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF submit.key IS NOT NULL AND (submit.key = '' OR octet_length(submit.key) > 512) THEN
        RAISE EXCEPTION 'key must have 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF submit.key IS NOT NULL THEN
        INSERT INTO heddle.run_keys (group_id, key, run) VALUES (target.id, submit.key, run);
    END IF;
    INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                  interval_end, params, key, created_at, created_by, progress)
    VALUES (run, target.id, target.revision_id, 0, 0, target.priority, at, at, at, submit.params::text, submit.key, at,
            'database:' || session_user, decode('0000000000', 'hex'));
    INSERT INTO heddle.starts (run) VALUES (run);
    RETURN run;
END
$$;
