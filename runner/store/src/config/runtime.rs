//! Runtimes: with which text scripts are checked, and on which they run until it is retired.
//!
//! A version names its runtime by a foreign key: the runtime's row is written before the first script that is checked
//! with it, and no row is deleted that a version names. *Retiring* a runtime moves all its versions to another one, in
//! one transaction. A concurrent upload with this runtime is committed before, and then is moved too; or after, and
//! then the runtime is kept again for that one version.
//!
//! Before a runtime is retired, its versions in use are checked. So everything that puts a version into use (an upload,
//! an activation, a spec that names the version) locks its runtime. It is committed either before a retirement, which
//! then finds that the version is in use, or after it.
//!
//! Order of locks: scripts, then runtimes (shared); retiring locks the runtime, then versions.

use heddle_domain::Time;
use serde_json::{Value, json};

use crate::change::{By, Noun, Page};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// A runtime without its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeRow {
    /// The digest of its bytes.
    pub tag: String,
    /// `javascript`, which is TypeScript's as well, or `python`.
    pub language: String,
    pub interpreter: String,
    /// The version of the host interface that it needs.
    pub interface: i32,
    /// The number of bytes that are stored, packed.
    pub size: i64,
    pub created_at: Time,
    pub retired_at: Option<Time>,
    /// How many versions name it, and of how many scripts, including deleted scripts that kept runs still use.
    pub versions: i64,
    pub scripts: i64,
}

/// A runtime to be stored.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeWrite<'a> {
    pub tag: &'a str,
    pub language: &'a str,
    pub interpreter: &'a str,
    pub interface: i32,
    /// The bundle's bytes, packed.
    pub bytes: &'a [u8],
}

/// A version that may run again on the runtime that it names.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionInUse {
    pub script_id: i64,
    pub name: String,
    pub version: i32,
    pub digest: String,
    pub world: String,
    pub params_schema: Option<Value>,
    pub defaults: Value,
    pub description: String,
    /// The functions that it has and Heddle calls; `None`: not known yet.
    pub exports: Option<Vec<String>>,
}

/// The result of retiring a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    Missing,
    /// There are versions in use that were not checked: uploaded or activated since.
    Others,
    Done {
        /// How many versions were moved.
        versions: u64,
    },
}

/// Keeps a runtime, in the transaction that writes a version that names it.
///
/// Locking: the runtime, shared, after the script. It is not retired before this commits.
pub(super) async fn hold(tx: &mut PgSession, by: By<'_>, tag: &str) -> Result<(), StoreError> {
    let kept = sqlx::query_scalar!(
        "SELECT tag FROM heddle.runtimes WHERE tag = $1 AND retired_at IS NULL FOR SHARE",
        tag
    )
    .fetch_optional(&mut *tx)
    .await?;
    if kept.is_some() {
        return Ok(());
    }
    let again = sqlx::query!("UPDATE heddle.runtimes SET retired_at = NULL WHERE tag = $1", tag)
        .execute(&mut *tx)
        .await?
        .rows_affected();
    if again == 0 {
        return Err(StoreError::unreadable(
            "runtimes",
            "tag",
            tag,
            "gone, though it was just written",
        ));
    }
    let (before, after) = (json!({"state": "retired"}), json!({"state": "kept"}));
    let about = Noun::Runtime.quiet();
    audit::record(tx, by, "keep", about, tag, Some(&before), Some(&after)).await
}

/// Keeps the runtimes of versions unchanged until the caller's transaction ends, which puts these versions into use.
///
/// Locking: the runtimes, shared, in the order of tags, after the scripts.
pub(crate) async fn stay(tx: &mut PgSession, versions: &[(i64, i32)]) -> Result<(), StoreError> {
    let (scripts, numbers): (Vec<i64>, Vec<i32>) = versions.iter().copied().unzip();
    sqlx::query!(
        "SELECT r.tag FROM heddle.runtimes r
          WHERE r.tag IN (SELECT v.runtime_tag FROM heddle.script_versions v
                            JOIN unnest($1::bigint[], $2::int[]) AS wanted (script, version)
                              ON v.script_id = wanted.script AND v.version = wanted.version)
          ORDER BY r.tag FOR SHARE",
        &scripts,
        &numbers,
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

impl Store {
    /// Whether a runtime is kept, and not retired.
    pub async fn keeps_runtime(&self, tag: &str) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM heddle.runtimes WHERE tag = $1 AND retired_at IS NULL) AS "kept!""#,
            tag
        )
        .fetch_one(&self.control)
        .await?)
    }

    /// Stores a runtime. If several callers do so at once, one writes it. A retired one is kept again.
    pub async fn put_runtime(&self, at: Time, write: RuntimeWrite<'_>) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO heddle.runtimes (tag, language, interpreter, interface, bytes, created_at)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (tag) DO UPDATE SET retired_at = NULL, bytes = EXCLUDED.bytes
                                   WHERE runtimes.retired_at IS NOT NULL",
            write.tag,
            write.language,
            write.interpreter,
            write.interface,
            write.bytes,
            at,
        )
        .execute(&self.control)
        .await?;
        Ok(())
    }

    /// Writes a runtime's bytes again, because the stored ones were damaged. A retired one stays retired.
    pub async fn mend_runtime(&self, write: RuntimeWrite<'_>) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.runtimes SET language = $2, interpreter = $3, interface = $4, bytes = $5 WHERE tag = $1",
            write.tag,
            write.language,
            write.interpreter,
            write.interface,
            write.bytes,
        )
        .execute(&self.control)
        .await?;
        Ok(())
    }

    /// The stored bytes of a runtime.
    pub async fn runtime_bytes(&self, tag: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT bytes FROM heddle.runtimes WHERE tag = $1", tag)
                .fetch_optional(&self.control)
                .await?,
        )
    }

    /// Runtimes by tag, after `cursor`.
    pub async fn runtimes(&self, cursor: Option<&str>, limit: i64) -> Result<Page<RuntimeRow>, StoreError> {
        let rows = sqlx::query_as!(
            RuntimeRow,
            r#"SELECT r.tag, r.language, r.interpreter, r.interface, octet_length(r.bytes)::bigint AS "size!",
                      r.created_at, r.retired_at, used.versions AS "versions!", used.scripts AS "scripts!"
                 FROM heddle.runtimes r
                CROSS JOIN LATERAL (SELECT count(*) AS versions, count(DISTINCT v.script_id) AS scripts
                                      FROM heddle.script_versions v WHERE v.runtime_tag = r.tag) used
                WHERE $1::text IS NULL OR r.tag > $1
                ORDER BY r.tag LIMIT $2"#,
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.tag.clone()))
    }

    pub async fn runtime(&self, tag: &str) -> Result<Option<RuntimeRow>, StoreError> {
        Ok(sqlx::query_as!(
            RuntimeRow,
            r#"SELECT r.tag, r.language, r.interpreter, r.interface, octet_length(r.bytes)::bigint AS "size!",
                      r.created_at, r.retired_at, used.versions AS "versions!", used.scripts AS "scripts!"
                 FROM heddle.runtimes r
                CROSS JOIN LATERAL (SELECT count(*) AS versions, count(DISTINCT v.script_id) AS scripts
                                      FROM heddle.script_versions v WHERE v.runtime_tag = r.tag) used
                WHERE r.tag = $1"#,
            tag,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Versions after a given one that name a runtime and may run again: the active ones, those that groups and topics
    /// name, and those of live runs.
    pub async fn versions_in_use(
        &self,
        tag: &str,
        behind: (i64, i32),
        limit: i64,
    ) -> Result<Vec<VersionInUse>, StoreError> {
        let mut connection = self.control.acquire().await?;
        in_use(&mut connection, tag, behind, limit).await
    }

    /// Moves all versions that name a runtime to another one, if those of them that are in use have been checked:
    /// script and version, in any order.
    ///
    /// Locking: the runtime, then its versions; no script. This waits for transactions that put a version into use:
    /// they hold the runtime.
    pub async fn retire_runtime(
        &self,
        by: By<'_>,
        tag: &str,
        onto: (&str, &str),
        checked: &[(i64, i32)],
    ) -> Result<Retired, StoreError> {
        transaction!(self, control, "retire_runtime", |tx| {
            let row = sqlx::query!("SELECT retired_at FROM heddle.runtimes WHERE tag = $1 FOR UPDATE", tag)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(row) = row else {
                return Ok(Retired::Missing);
            };
            let others = in_use(&mut tx, tag, (0, 0), i64::MAX).await?;
            let is_other = |found: &VersionInUse| !checked.contains(&(found.script_id, found.version));
            if others.iter().any(is_other) {
                return Ok(Retired::Others);
            }
            let (onto, text) = onto;
            let versions = sqlx::query!(
                "UPDATE heddle.script_versions SET runtime_tag = $2, runtime = $3 WHERE runtime_tag = $1",
                tag,
                onto,
                text,
            )
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if row.retired_at.is_none() || versions > 0 {
                sqlx::query!("UPDATE heddle.runtimes SET retired_at = $2 WHERE tag = $1", tag, by.at)
                    .execute(&mut *tx)
                    .await?;
                let state = if row.retired_at.is_none() { "kept" } else { "retired" };
                let before = json!({"state": state, "versions": versions});
                let after = json!({"state": "retired", "moved_to": onto});
                audit::record(&mut tx, by, "retire", Noun::Runtime, tag, Some(&before), Some(&after)).await?;
            }
            tx.commit().await?;
            Ok(Retired::Done { versions })
        })
    }

    /// Deletes up to `limit` runtimes that were retired before an instant and that no version names.
    pub async fn prune_runtimes(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.runtimes WHERE tag IN (
                 SELECT r.tag FROM heddle.runtimes r
                  WHERE r.retired_at < $1
                    AND NOT EXISTS (SELECT FROM heddle.script_versions v WHERE v.runtime_tag = r.tag)
                  ORDER BY r.retired_at LIMIT $2)
               AND retired_at < $1",
            before,
            limit,
        )
        .execute(&self.control)
        .await?
        .rows_affected())
    }
}

async fn in_use(
    connection: &mut PgSession,
    tag: &str,
    (script_id, version): (i64, i32),
    limit: i64,
) -> Result<Vec<VersionInUse>, StoreError> {
    Ok(sqlx::query_as!(
        VersionInUse,
        "WITH under_way AS MATERIALIZED (
             SELECT DISTINCT task.value ->> 'script' AS name, (task.value ->> 'version')::int AS version
               FROM (SELECT DISTINCT resolution_id FROM heddle.runs_live WHERE resolution_id IS NOT NULL) live
               JOIN heddle.resolutions r ON r.id = live.resolution_id
              CROSS JOIN LATERAL jsonb_each(r.scripts) task)
         SELECT v.script_id, s.name, v.version, v.digest, v.world, v.params_schema, v.defaults, v.description, v.exports
           FROM heddle.script_versions v JOIN heddle.scripts s ON s.id = v.script_id
          WHERE v.runtime_tag = $1 AND (v.script_id, v.version) > ($2, $3)
            AND (s.active_version = v.version
                 OR EXISTS (SELECT FROM heddle.script_uses u JOIN heddle.groups g ON g.id = u.group_id
                             WHERE u.script_id = v.script_id AND u.version = v.version AND g.deleted_at IS NULL)
                 OR EXISTS (SELECT FROM heddle.topics t
                             WHERE t.script = s.name AND t.spec ->> 'script' = s.name || '@' || v.version)
                 OR EXISTS (SELECT FROM under_way u WHERE u.name = s.name AND u.version = v.version))
          ORDER BY v.script_id, v.version LIMIT $4",
        tag,
        script_id,
        version,
        limit,
    )
    .fetch_all(connection)
    .await?)
}
