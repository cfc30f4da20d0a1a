//! Params templates: named JSON Schemas.

use heddle_domain::Time;
use serde_json::Value;

use crate::change::{self, By, Noun, Page, Put};
use crate::config::named::{Named, Stop};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::usage::{self, Removal, Users};
use crate::{Store, StoreError};

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateRow {
    pub name: String,
    pub schema: Value,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A template to be put.
struct TemplateWrite<'a> {
    name: &'a str,
    schema: &'a Value,
}

impl Named for TemplateWrite<'_> {
    const PUT: &'static str = "put_template";
    const NOUN: Noun = Noun::Template;
    type Kept = TemplateRow;
    type Row = TemplateRow;
    type Answer = Put<TemplateRow>;

    fn name(&self) -> &str {
        self.name
    }

    async fn locked(&self, tx: &mut PgSession) -> Result<Option<TemplateRow>, StoreError> {
        Ok(sqlx::query_as!(
            TemplateRow,
            "SELECT name, schema, created_at, updated_at FROM heddle.templates WHERE name = $1 FOR UPDATE",
            self.name,
        )
        .fetch_optional(tx)
        .await?)
    }

    fn is_same(&self, kept: &TemplateRow) -> bool {
        kept.schema == *self.schema
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        _kept: Option<&TemplateRow>,
    ) -> Result<TemplateRow, Stop<Self::Answer>> {
        Ok(sqlx::query_as!(
            TemplateRow,
            "INSERT INTO heddle.templates (name, schema, created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (name) DO UPDATE SET schema = excluded.schema, updated_at = excluded.updated_at
             RETURNING name, schema, created_at, updated_at",
            self.name,
            self.schema,
            at,
        )
        .fetch_one(tx)
        .await?)
    }

    fn shown(row: &TemplateRow) -> Value {
        row.schema.clone()
    }
}

impl Store {
    /// Creates or changes a template. The schema has been checked.
    pub async fn put_template(&self, by: By<'_>, name: &str, schema: &Value) -> Result<Put<TemplateRow>, StoreError> {
        self.put(by, &TemplateWrite { name, schema }).await
    }

    /// A template.
    pub async fn template(&self, name: &str) -> Result<Option<TemplateRow>, StoreError> {
        Ok(sqlx::query_as!(
            TemplateRow,
            "SELECT name, schema, created_at, updated_at FROM heddle.templates WHERE name = $1",
            name,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Templates by name, behind `cursor`.
    pub async fn templates(&self, cursor: Option<&str>, limit: i64) -> Result<Page<TemplateRow>, StoreError> {
        let rows = sqlx::query_as!(
            TemplateRow,
            "SELECT name, schema, created_at, updated_at FROM heddle.templates
             WHERE ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2",
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Deletes a template that no group's current spec and no offer names.
    pub async fn delete_template(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        transaction!(self, control, "delete_template", |tx| {
            let found = sqlx::query_scalar!("SELECT schema FROM heddle.templates WHERE name = $1 FOR UPDATE", name)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(schema) = found else {
                return Ok(Removal::Missing);
            };
            let groups = sqlx::query_scalar!(
                "SELECT g.name FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
             WHERE g.deleted_at IS NULL
               AND (r.spec ->> 'template' = $1
                    OR jsonb_path_exists(r.spec, '$.tasks.*.audience.template ? (@ == $name)',
                                         jsonb_build_object('name', $1::text)))
             ORDER BY g.name LIMIT 20",
                name,
            )
            .fetch_all(&mut *tx)
            .await?;
            let offers = usage::offers(&mut tx, name).await?;
            let users = Users { groups, offers };
            if !users.is_empty() {
                return Ok(Removal::UsedBy(users));
            }
            sqlx::query!("DELETE FROM heddle.templates WHERE name = $1", name)
                .execute(&mut *tx)
                .await?;
            change::record(&mut tx, by, "delete", Noun::Template, name, Some(&schema), None).await?;
            tx.commit().await?;
            Ok(Removal::Done)
        })
    }
}
