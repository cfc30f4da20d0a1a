-- How many task runs wait in a queue, as the planner reckons from statistics: for queues that are too deep to be
-- counted whenever somebody looks.
CREATE FUNCTION heddle.reckoned_queue_depth(wanted text) RETURNS bigint
    LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM heddle.queue_ready WHERE queue = %L', wanted) INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric::bigint;
END
$$;
