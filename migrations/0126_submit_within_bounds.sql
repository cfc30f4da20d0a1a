-- What is wrong with the params of a run: NULL if they are within the bounds that the API has. `written`: their text. Most
-- texts are neither large nor full of brackets or digits, and are not looked into any further.
--
-- The size is that of the text without the spaces that jsonb writes after `:` and `,`. They are less than a third of it,
-- so more than 384 KiB of text are too much whatever is in it. The API reads bodies that are nested 127 levels deep, and
-- params are one level down. From 2^1024 - 2^970 on, a number of 309 digits, the nearest double is infinite. (No backslash
-- in a plain literal: see 0117_submit_in_any_session.sql.)
CREATE FUNCTION heddle.fault_of_params(params jsonb, written text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    bytes integer := octet_length(written);
    outside text;
BEGIN
    IF bytes > 262144 AND bytes <= 393216 THEN
        outside := regexp_replace(written, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g');
        bytes := bytes - (length(outside) - length(replace(outside, ' ', '')));
    END IF;
    IF bytes > 262144 THEN
        RETURN 'params must have at most 262144 bytes as JSON';
    END IF;
    IF octet_length(written) - octet_length(replace(replace(written, '[', ''), '{', '')) > 126
       AND jsonb_path_exists(params, 'strict $.**{126} ? (@.type() == "array" || @.type() == "object")') THEN
        RETURN 'params must be nested at most 126 levels deep';
    END IF;
    IF written ~ '[0-9]{255}'
       AND jsonb_path_exists(params, 'strict $.** ? (@.type() == "number" &&
               (@ >= 1.797693134862315807937289e308 || @ <= -1.797693134862315807937289e308))') THEN
        RETURN 'params must have no number that is too large for a double';
    END IF;
    RETURN NULL;
END
$$;

-- Params are refused that the API would refuse: those with a number that no double can hold, or that are nested too deeply,
-- could not be read again. Params of less than 254 bytes are within all bounds: 127 levels have 127 brackets on each side.
-- Otherwise the function is as it was.
CREATE OR REPLACE FUNCTION heddle.submit("group" text, params jsonb DEFAULT '{}', key text DEFAULT NULL) RETURNS uuid
    LANGUAGE plpgsql AS $$
DECLARE
    target record;
    run uuid := heddle.uuid_v7(clock_timestamp());
    at timestamptz := clock_timestamp();
    written text := submit.params::text;
    fault text;
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
    IF octet_length(written) >= 254 THEN
        fault := heddle.fault_of_params(submit.params, written);
        IF fault IS NOT NULL THEN
            RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF submit.key IS NOT NULL AND (submit.key = '' OR octet_length(submit.key) > 512) THEN
        RAISE EXCEPTION 'key must have 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF submit.key IS NOT NULL THEN
        INSERT INTO heddle.run_keys (group_id, key, run) VALUES (target.id, submit.key, run);
    END IF;
    INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                  interval_end, params, key, created_at, created_by, progress)
    VALUES (run, target.id, target.revision_id, 0, 0, target.priority, at, at, at, written, submit.key, at,
            'database:' || session_user, decode('0000000000', 'hex'));
    INSERT INTO heddle.starts (run) VALUES (run);
    RETURN run;
END
$$;
