-- A run that a consumer enqueues is one by a task, as those that other scripts enqueue.
CREATE OR REPLACE FUNCTION heddle.enqueue_of_batch("group" text, params jsonb, key text) RETURNS text
    LANGUAGE plpgsql AS $$
DECLARE
    made uuid;
BEGIN
    made := heddle.submit(enqueue_of_batch."group", enqueue_of_batch.params, enqueue_of_batch.key);
    UPDATE heddle.runs_live SET trigger = 4 WHERE id = made;
    RETURN NULL;
EXCEPTION
    WHEN unique_violation THEN
        RETURN NULL;
    WHEN no_data_found OR object_not_in_prerequisite_state OR invalid_parameter_value THEN
        RETURN SQLERRM;
END
$$;
