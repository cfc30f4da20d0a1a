//! Scripts and their immutable versions.

use heddle_domain::Time;
use serde_json::{Map, Value, json};

use crate::change::{By, Noun, Page, Put};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit, blob, runtime};

/// A script with the description of its active version.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptRow {
    pub id: i64,
    pub name: String,
    /// `None`: only inactive versions were uploaded so far.
    pub active_version: Option<i32>,
    pub last_version: i32,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A version. Immutable, so it may be cached for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptVersionRow {
    pub script_id: i64,
    pub name: String,
    pub version: i32,
    /// SHA-256 of the bytes as they were uploaded, lower-case hex.
    pub digest: String,
    /// The interface, such as `heddle:task/task` or `source/javascript`.
    pub world: String,
    /// The interpreter with which a text was checked.
    pub runtime: Option<String>,
    /// The runtime on which it runs, until that is retired; `None`: wasm, or a text from before there were runtimes.
    pub runtime_tag: Option<String>,
    /// The functions that it has and Heddle calls: `run`, `handle`. `None`: see [`Self::has`].
    pub exports: Option<Vec<String>>,
    pub params_schema: Option<Value>,
    pub defaults: Value,
    pub description: String,
    /// The size in bytes.
    pub size: i64,
    pub created_at: Time,
}

/// The world of components that take batches of messages.
pub const CONSUMER_WORLD: &str = "heddle:task/consumer";

impl ScriptVersionRow {
    /// Whether it has a function. `None`: unknown, because the build that uploaded this text did not store that.
    pub fn has(&self, function: &str) -> Option<bool> {
        match &self.exports {
            Some(exports) => Some(exports.iter().any(|name| name == function)),
            None if self.world.starts_with("source/") => None,
            None => Some((function == "handle") == (self.world == CONSUMER_WORLD)),
        }
    }

    /// The params that have a default.
    pub fn defaults(&self) -> Result<&Map<String, Value>, StoreError> {
        self.defaults.as_object().ok_or_else(|| {
            let row = format!("{}@{}", self.name, self.version);
            StoreError::unreadable("script_versions", "defaults", row, "no object")
        })
    }
}

/// A compiler's result for uploaded bytes.
#[derive(Clone, Copy, Debug)]
pub struct ScriptWrite<'a> {
    pub name: &'a str,
    pub digest: &'a str,
    pub bytes: &'a [u8],
    pub world: &'a str,
    pub runtime: Option<&'a str>,
    /// The tag of the stored runtime on which it runs; `None`: wasm.
    pub runtime_tag: Option<&'a str>,
    /// The functions that it has and Heddle calls.
    pub exports: &'a [&'static str],
    pub params_schema: Option<&'a Value>,
    /// The defaults of its params, a JSON object.
    pub defaults: &'a Value,
    pub description: &'a str,
    /// Whether `name` alone means the new version from now on.
    pub activate: bool,
}

/// The result of deleting a script.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptDelete {
    Missing,
    /// These groups and topics name it.
    UsedBy {
        groups: Vec<String>,
        topics: Vec<String>,
    },
    Deleted,
}

/// The result of activating a version.
#[derive(Clone, Debug, PartialEq)]
pub enum Activate {
    MissingScript,
    MissingVersion,
    Done(ScriptRow),
}

/// A script's row, deleted or not, locked until the transaction ends.
struct Locked {
    id: i64,
    active_version: Option<i32>,
    last_version: i32,
    first_version: i32,
    created_at: Time,
    deleted: bool,
}

/// Locking: the script's row first, then the runtimes of its versions (shared).
async fn lock(connection: &mut PgSession, name: &str) -> Result<Option<Locked>, StoreError> {
    Ok(sqlx::query_as!(
        Locked,
        r#"SELECT id, active_version, last_version, first_version, created_at, deleted_at IS NOT NULL AS "deleted!"
           FROM heddle.scripts WHERE name = $1 FOR UPDATE"#,
        name,
    )
    .fetch_optional(connection)
    .await?)
}

async fn version_of(
    connection: &mut PgSession,
    script_id: i64,
    version: i32,
) -> Result<Option<ScriptVersionRow>, StoreError> {
    Ok(sqlx::query_as!(
        ScriptVersionRow,
        "SELECT v.script_id, s.name, v.version, v.digest, v.world, v.runtime, v.runtime_tag, v.exports, v.params_schema, v.defaults, v.description, v.size,
                v.created_at
         FROM heddle.script_versions v JOIN heddle.scripts s ON s.id = v.script_id
         WHERE v.script_id = $1 AND v.version = $2",
        script_id,
        version,
    )
    .fetch_optional(connection)
    .await?)
}

/// Adds the next version of a script.
async fn add_version(
    tx: &mut PgSession,
    by: By<'_>,
    write: &ScriptWrite<'_>,
    script: &Locked,
) -> Result<ScriptVersionRow, StoreError> {
    blob::put(tx, write.digest, write.bytes, by.at).await?;
    if let Some(tag) = write.runtime_tag {
        runtime::hold(tx, by, tag).await?;
    }
    let version = ScriptVersionRow {
        script_id: script.id,
        name: write.name.into(),
        version: script.last_version + 1,
        digest: write.digest.into(),
        world: write.world.into(),
        runtime: write.runtime.map(str::to_owned),
        runtime_tag: write.runtime_tag.map(str::to_owned),
        exports: Some(write.exports.iter().map(|&name| name.to_owned()).collect()),
        params_schema: write.params_schema.cloned(),
        defaults: write.defaults.clone(),
        description: write.description.into(),
        size: i64::try_from(write.bytes.len()).unwrap_or(i64::MAX),
        created_at: by.at,
    };
    sqlx::query!(
        "INSERT INTO heddle.script_versions
                         (script_id, version, digest, world, runtime, runtime_tag, exports, params_schema, defaults,
                          description, size, created_at)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        version.script_id,
        version.version,
        version.digest,
        version.world,
        version.runtime,
        version.runtime_tag,
        version.exports.as_deref(),
        version.params_schema,
        version.defaults,
        version.description,
        version.size,
        version.created_at,
    )
    .execute(&mut *tx)
    .await?;
    Ok(version)
}

/// Writes a script's row, and records the action with this digest in the log of changes and the audit.
async fn write_script(
    tx: &mut PgSession,
    by: By<'_>,
    action: &str,
    before: &Locked,
    row: &ScriptRow,
    digest: &str,
) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE heddle.scripts
                 SET active_version = $2, last_version = $3, created_at = $4, updated_at = $5, deleted_at = NULL
                 WHERE id = $1",
        row.id,
        row.active_version,
        row.last_version,
        row.created_at,
        row.updated_at,
    )
    .execute(&mut *tx)
    .await?;
    let before = json!({"active_version": before.active_version});
    let after = json!({"version": row.last_version, "digest": digest, "active_version": row.active_version});
    audit::record(tx, by, action, Noun::Script, &row.name, Some(&before), Some(&after)).await
}

impl Store {
    /// Adds a version, unless the newest one has the same digest and world (a text may be valid in two languages), and
    /// was checked with the same runtime. In both cases it becomes active if that is requested.
    pub async fn put_script(
        &self,
        by: By<'_>,
        write: ScriptWrite<'_>,
    ) -> Result<Put<(ScriptRow, ScriptVersionRow)>, StoreError> {
        transaction!(self, control, "put_script", |tx| {
            // The row is written first, so that uploads of one name wait for each other's lock on it, even the very
            // first ones.
            sqlx::query!(
            "INSERT INTO heddle.scripts (name, created_at, updated_at) VALUES ($1, $2, $2) ON CONFLICT (name) DO NOTHING",
            write.name,
            by.at,
        )
        .execute(&mut *tx)
        .await?;
            let script = lock(&mut tx, write.name).await?.ok_or_else(|| {
                StoreError::unreadable("scripts", "name", write.name, "gone, though it was just written")
            })?;
            let newest = if script.deleted || script.last_version < script.first_version {
                None
            } else {
                runtime::stay(&mut tx, &[(script.id, script.last_version)]).await?;
                version_of(&mut tx, script.id, script.last_version).await?
            };
            let same = newest.filter(|newest| {
                let as_before = write.runtime_tag.is_none() || newest.runtime_tag.as_deref() == write.runtime_tag;
                newest.digest == write.digest && newest.world == write.world && as_before
            });
            let created = same.is_none();
            let version = match same {
                Some(version) => version,
                None => add_version(&mut tx, by, &write, &script).await?,
            };
            let active_version = if write.activate {
                Some(version.version)
            } else {
                script.active_version
            };
            let changed = created || active_version != script.active_version;
            let row = ScriptRow {
                id: script.id,
                name: write.name.into(),
                active_version,
                last_version: version.version,
                created_at: if script.deleted { by.at } else { script.created_at },
                updated_at: by.at,
            };
            if changed {
                let action = if created { "upload" } else { "activate" };
                write_script(&mut tx, by, action, &script, &row, &version.digest).await?;
            }
            tx.commit().await?;
            Ok(Put {
                row: (row, version),
                created,
                changed,
            })
        })
    }

    /// A script that is not deleted.
    pub async fn script(&self, name: &str) -> Result<Option<ScriptRow>, StoreError> {
        Ok(sqlx::query_as!(
            ScriptRow,
            "SELECT id, name, active_version, last_version, created_at, updated_at
             FROM heddle.scripts WHERE name = $1 AND deleted_at IS NULL",
            name,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Scripts by name, after `cursor`, each with its active version, or with its newest one if none is active.
    pub async fn scripts(
        &self,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<(ScriptRow, ScriptVersionRow)>, StoreError> {
        let rows = sqlx::query!(
            "SELECT s.id, s.name, s.active_version, s.last_version, s.created_at, s.updated_at,
                    v.version, v.digest, v.world, v.runtime, v.runtime_tag, v.exports, v.params_schema, v.defaults, v.description, v.size,
                    v.created_at AS version_created_at
             FROM heddle.scripts s
             JOIN heddle.script_versions v
               ON v.script_id = s.id AND v.version = COALESCE(s.active_version, s.last_version)
             WHERE s.deleted_at IS NULL AND ($1::text IS NULL OR s.name > $1)
             ORDER BY s.name LIMIT $2",
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?
        .into_iter()
        .map(|row| {
            let version = ScriptVersionRow {
                script_id: row.id,
                name: row.name.clone(),
                version: row.version,
                digest: row.digest,
                world: row.world,
                runtime: row.runtime,
                runtime_tag: row.runtime_tag,
                exports: row.exports,
                params_schema: row.params_schema,
                defaults: row.defaults,
                description: row.description,
                size: row.size,
                created_at: row.version_created_at,
            };
            let script = ScriptRow {
                id: row.id,
                name: row.name,
                active_version: row.active_version,
                last_version: row.last_version,
                created_at: row.created_at,
                updated_at: row.updated_at,
            };
            (script, version)
        })
        .collect();
        Ok(Page::of(rows, limit, |(script, _)| script.name.clone()))
    }

    /// A version by number, or the active one (the newest if none is active).
    pub async fn script_version(
        &self,
        name: &str,
        version: Option<i32>,
    ) -> Result<Option<ScriptVersionRow>, StoreError> {
        Ok(sqlx::query_as!(
            ScriptVersionRow,
            "SELECT v.script_id, s.name, v.version, v.digest, v.world, v.runtime, v.runtime_tag, v.exports, v.params_schema, v.defaults, v.description,
                    v.size, v.created_at
             FROM heddle.scripts s
             JOIN heddle.script_versions v
               ON v.script_id = s.id AND v.version = COALESCE($2::int, s.active_version, s.last_version)
             WHERE s.name = $1 AND s.deleted_at IS NULL AND v.version >= s.first_version",
            name,
            version,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// A version that a run has recorded, even if the script was deleted since.
    pub async fn recorded_script_version(
        &self,
        name: &str,
        version: i32,
    ) -> Result<Option<ScriptVersionRow>, StoreError> {
        Ok(sqlx::query_as!(
            ScriptVersionRow,
            "SELECT v.script_id, s.name, v.version, v.digest, v.world, v.runtime, v.runtime_tag, v.exports, v.params_schema, v.defaults, v.description,
                    v.size, v.created_at
             FROM heddle.scripts s JOIN heddle.script_versions v ON v.script_id = s.id
             WHERE s.name = $1 AND v.version = $2",
            name,
            version,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// A script's versions, newest first, below version `cursor`.
    pub async fn script_versions(
        &self,
        name: &str,
        cursor: Option<i32>,
        limit: i64,
    ) -> Result<Page<ScriptVersionRow>, StoreError> {
        let rows = sqlx::query_as!(
            ScriptVersionRow,
            "SELECT v.script_id, s.name, v.version, v.digest, v.world, v.runtime, v.runtime_tag, v.exports, v.params_schema, v.defaults, v.description,
                    v.size, v.created_at
             FROM heddle.scripts s JOIN heddle.script_versions v ON v.script_id = s.id
             WHERE s.name = $1 AND s.deleted_at IS NULL AND v.version >= s.first_version
               AND ($2::int IS NULL OR v.version < $2)
             ORDER BY v.version DESC LIMIT $3",
            name,
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.version.to_string()))
    }

    /// Makes `name` alone mean this version.
    pub async fn activate_script(&self, by: By<'_>, name: &str, version: i32) -> Result<Activate, StoreError> {
        transaction!(self, control, "activate_script", |tx| {
            let Some(script) = lock(&mut tx, name).await?.filter(|script| !script.deleted) else {
                return Ok(Activate::MissingScript);
            };
            if !(script.first_version..=script.last_version).contains(&version) {
                return Ok(Activate::MissingVersion);
            }
            let row = ScriptRow {
                id: script.id,
                name: name.into(),
                active_version: Some(version),
                last_version: script.last_version,
                created_at: script.created_at,
                updated_at: by.at,
            };
            if script.active_version != Some(version) {
                runtime::stay(&mut tx, &[(script.id, version)]).await?;
                sqlx::query!(
                    "UPDATE heddle.scripts SET active_version = $2, updated_at = $3 WHERE id = $1",
                    script.id,
                    version,
                    by.at,
                )
                .execute(&mut *tx)
                .await?;
                let before = json!({"active_version": script.active_version});
                let after = json!({"active_version": version});
                audit::record(&mut tx, by, "activate", Noun::Script, name, Some(&before), Some(&after)).await?;
            }
            tx.commit().await?;
            Ok(Activate::Done(row))
        })
    }

    /// Deletes a script that no group's current revision names. Kept runs still have its versions.
    pub async fn delete_script(&self, by: By<'_>, name: &str) -> Result<ScriptDelete, StoreError> {
        transaction!(self, control, "delete_script", |tx| {
            let Some(script) = lock(&mut tx, name).await?.filter(|script| !script.deleted) else {
                return Ok(ScriptDelete::Missing);
            };
            let users = sqlx::query_scalar!(
                "SELECT DISTINCT g.name FROM heddle.script_uses u JOIN heddle.groups g ON g.id = u.group_id
             WHERE u.script_id = $1 AND g.deleted_at IS NULL ORDER BY g.name",
                script.id,
            )
            .fetch_all(&mut *tx)
            .await?;
            let topics = sqlx::query_scalar!("SELECT name FROM heddle.topics WHERE script = $1 ORDER BY name", name)
                .fetch_all(&mut *tx)
                .await?;
            if !users.is_empty() || !topics.is_empty() {
                return Ok(ScriptDelete::UsedBy { groups: users, topics });
            }
            sqlx::query!(
                "UPDATE heddle.scripts
             SET active_version = NULL, first_version = last_version + 1, deleted_at = $2, updated_at = $2
             WHERE id = $1",
                script.id,
                by.at,
            )
            .execute(&mut *tx)
            .await?;
            let before = json!({"active_version": script.active_version, "last_version": script.last_version});
            audit::record(&mut tx, by, "delete", Noun::Script, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(ScriptDelete::Deleted)
        })
    }
}

impl Store {
    /// Names of scripts with an active version, those that groups use first, up to `limit`.
    pub async fn active_scripts(&self, limit: i64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT s.name FROM heddle.scripts s WHERE s.active_version IS NOT NULL
              ORDER BY EXISTS (SELECT FROM heddle.script_uses u WHERE u.script_id = s.id) DESC, s.updated_at DESC
              LIMIT $1",
            limit
        )
        .fetch_all(&self.control)
        .await?)
    }

    /// Texts whose exports are unknown, after a version.
    pub async fn versions_without_exports(
        &self,
        behind: (i64, i32),
        limit: i64,
    ) -> Result<Vec<ScriptVersionRow>, StoreError> {
        Ok(sqlx::query_as!(
            ScriptVersionRow,
            "SELECT v.script_id, s.name, v.version, v.digest, v.world, v.runtime, v.runtime_tag, v.exports, v.params_schema, v.defaults,
                    v.description, v.size, v.created_at
             FROM heddle.script_versions v JOIN heddle.scripts s ON s.id = v.script_id
             WHERE v.exports IS NULL AND v.world LIKE 'source/%' AND (v.script_id, v.version) > ($1, $2)
             ORDER BY v.script_id, v.version LIMIT $3",
            behind.0,
            behind.1,
            limit,
        )
        .fetch_all(&self.control)
        .await?)
    }

    /// Writes the exports of a version, which were unknown.
    pub async fn note_exports(&self, script_id: i64, version: i32, exports: &[&str]) -> Result<(), StoreError> {
        let exports: Vec<String> = exports.iter().map(|&name| name.to_owned()).collect();
        sqlx::query!(
            "UPDATE heddle.script_versions SET exports = $3 WHERE script_id = $1 AND version = $2 AND exports IS NULL",
            script_id,
            version,
            &exports,
        )
        .execute(&self.control)
        .await?;
        Ok(())
    }
}
