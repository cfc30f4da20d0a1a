-- The times in which a schedule of a group was disabled: what it names then gets no run, and holds up no dependant. A group
-- has only rows of schedules that its current revision has.
CREATE TABLE heddle.schedule_disabled (
    group_id bigint      NOT NULL REFERENCES heddle.groups,
    name     text        COLLATE "C" NOT NULL,
    since    timestamptz NOT NULL,
    until    timestamptz CHECK (until >= since)
);
CREATE INDEX schedule_disabled_group ON heddle.schedule_disabled (group_id, since);
CREATE UNIQUE INDEX schedule_disabled_open ON heddle.schedule_disabled (group_id, name) WHERE until IS NULL;

CREATE FUNCTION heddle.note_disabled_schedules() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM heddle.schedule_disabled d
     WHERE d.group_id = NEW.group_id AND (NEW.spec -> 'schedules' -> d.name) IS NULL;
    UPDATE heddle.schedule_disabled d SET until = greatest(d.since, NEW.created_at)
     WHERE d.group_id = NEW.group_id AND d.until IS NULL
       AND (NEW.spec -> 'schedules' -> d.name -> 'enabled') IS DISTINCT FROM 'false'::jsonb;
    INSERT INTO heddle.schedule_disabled (group_id, name, since)
    SELECT NEW.group_id, s.key, NEW.created_at
      FROM jsonb_each(CASE jsonb_typeof(NEW.spec -> 'schedules') WHEN 'object' THEN NEW.spec -> 'schedules' END) AS s
     WHERE s.value -> 'enabled' = 'false'::jsonb
    ON CONFLICT (group_id, name) WHERE until IS NULL DO NOTHING;
    RETURN NULL;
END
$$;
-- A schedule is enabled and disabled only by a revision, which becomes its group's current one in the transaction that
-- writes it, under the lock of all groups. A trigger, because nodes of the release before write revisions too: what they
-- enabled would stay disabled here.
CREATE TRIGGER note_disabled_schedules AFTER INSERT ON heddle.revisions
    FOR EACH ROW EXECUTE FUNCTION heddle.note_disabled_schedules();

-- What earlier revisions say of the schedules that there are: successive ones that disable a schedule are one row.
INSERT INTO heddle.schedule_disabled (group_id, name, since, until)
SELECT o.group_id, o.name, o.since, CASE WHEN n.id IS NOT NULL THEN greatest(o.since, n.created_at) END
  FROM (SELECT d.group_id, d.name, min(d.created_at) AS since, max(d.revision) AS last
          FROM (SELECT r.group_id, s.key AS name, r.created_at, r.revision,
                       r.revision - row_number() OVER (PARTITION BY r.group_id, s.key ORDER BY r.revision) AS island
                  FROM heddle.revisions r
                 CROSS JOIN LATERAL jsonb_each(CASE jsonb_typeof(r.spec -> 'schedules') WHEN 'object'
                                                    THEN r.spec -> 'schedules' END) AS s
                 WHERE s.value -> 'enabled' = 'false'::jsonb
                   AND EXISTS (SELECT FROM heddle.schedules h WHERE h.group_id = r.group_id AND h.name = s.key)) AS d
         GROUP BY d.group_id, d.name, d.island) AS o
  LEFT JOIN heddle.revisions n ON n.group_id = o.group_id AND n.revision = o.last + 1;
