-- An instant before 1970 has the first of all ids. As a negative number it had sixteen digits, of which the first twelve
-- made an id that is greater than those of all runs.
CREATE OR REPLACE FUNCTION heddle.uuid_floor(at timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (lpad(to_hex(greatest(floor(extract(epoch FROM at) * 1000)::bigint, 0)), 12, '0') || repeat('0', 20))::uuid;
