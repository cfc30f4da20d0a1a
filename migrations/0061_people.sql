-- Sessions of people whom an OpenID Connect provider vouches for. The story: docs/security.md.

-- A session is a token's, or a person's: then it says itself who that is and what they may do.
ALTER TABLE heddle.sessions
    ALTER COLUMN token_id DROP NOT NULL,
    -- The provider, and the person's id there.
    ADD COLUMN issuer  text,
    ADD COLUMN subject text,
    -- As the audit names them.
    ADD COLUMN actor   text,
    ADD COLUMN role    text CHECK (role IN ('viewer', 'operator', 'author', 'admin')),
    ADD CONSTRAINT sessions_of_one CHECK (
        CASE WHEN token_id IS NULL THEN num_nulls(issuer, subject, actor, role) = 0
             ELSE num_nonnulls(issuer, subject, actor, role) = 0 END);
CREATE INDEX sessions_person ON heddle.sessions (issuer, subject, created_at) WHERE issuer IS NOT NULL;
