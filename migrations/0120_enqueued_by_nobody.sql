-- A run that a consumer enqueues is one by a task, and names nobody: heddle.submit notes the role of the database that
-- calls it, which here is the node's own.
CREATE OR REPLACE FUNCTION heddle.enqueue_of_batch("group" text, params jsonb, key text) RETURNS text
    LANGUAGE plpgsql AS $$
DECLARE
    made uuid;
BEGIN
    made := heddle.submit(enqueue_of_batch."group", enqueue_of_batch.params, enqueue_of_batch.key);
    UPDATE heddle.runs_live SET trigger = 4, created_by = NULL WHERE id = made;
    RETURN NULL;
EXCEPTION
    WHEN unique_violation THEN
        RETURN NULL;
    WHEN no_data_found OR object_not_in_prerequisite_state OR invalid_parameter_value THEN
        RETURN SQLERRM;
END
$$;

-- Schedules that wait for the end of a run: a node looks once a minute whether that run has ended without them.
CREATE INDEX schedules_awaits ON heddle.schedules (awaits) WHERE awaits IS NOT NULL;
