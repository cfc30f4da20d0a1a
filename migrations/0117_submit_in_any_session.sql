-- A caller's session with `standard_conforming_strings = off` reads a backslash in a plain literal as an escape: `heddle.submit`
-- failed there. Otherwise the function is as it was.
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
                                  interval_end, params, key, created_at, progress)
    VALUES (run, target.id, target.revision_id, 0, 0, target.priority, at, at, at, submit.params::text, submit.key, at,
            decode('0000000000', 'hex'));
    INSERT INTO heddle.starts (run) VALUES (run);
    RETURN run;
END
$$;
