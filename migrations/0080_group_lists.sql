-- What lists filter groups by stands in the groups' own rows: who looks for a text among ten thousand groups reads these
-- rows, and not each one's whole spec. Written with each revision, by whatever build puts a group.
ALTER TABLE heddle.groups
    -- The name and the description, in small letters.
    ADD COLUMN sought text  NOT NULL DEFAULT '',
    ADD COLUMN labels jsonb NOT NULL DEFAULT '{}';

CREATE FUNCTION heddle.list_group() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE heddle.groups g
       SET sought = lower((g.name || E'\x01' || coalesce(NEW.spec ->> 'description', '')) COLLATE "default"),
           labels = coalesce(NEW.spec -> 'labels', '{}')
     WHERE g.id = NEW.group_id AND g.revision <= NEW.revision;
    RETURN NULL;
END
$$;
-- A revision becomes its group's current one in the transaction that writes it.
CREATE TRIGGER list_group AFTER INSERT OR UPDATE OF spec ON heddle.revisions
    FOR EACH ROW EXECUTE FUNCTION heddle.list_group();

UPDATE heddle.groups g
   SET sought = lower((g.name || E'\x01' || coalesce(r.spec ->> 'description', '')) COLLATE "default"),
       labels = coalesce(r.spec -> 'labels', '{}')
  FROM heddle.revisions r WHERE r.id = g.revision_id;
