//! Params templates: named JSON Schemas.

use heddle_domain::Time;
use serde_json::Value;

use crate::change::{self, By, Noun, Page, Put};
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

impl Store {
    /// Creates or changes a template. The schema has been checked.
    pub async fn put_template(&self, by: By<'_>, name: &str, schema: &Value) -> Result<Put<TemplateRow>, StoreError> {
        transaction!(self, control, "put_template", |tx| {
            let added = sqlx::query_as!(
                TemplateRow,
                "INSERT INTO heddle.templates (name, schema, created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (name) DO NOTHING RETURNING name, schema, created_at, updated_at",
                name,
                schema,
                by.at,
            )
            .fetch_optional(&mut *tx)
            .await?;
            if let Some(row) = added {
                change::record(&mut tx, by, "create", Noun::Template, name, None, Some(schema)).await?;
                tx.commit().await?;
                return Ok(Put {
                    row,
                    created: true,
                    changed: true,
                });
            }
            let before = sqlx::query_as!(
                TemplateRow,
                "SELECT name, schema, created_at, updated_at FROM heddle.templates WHERE name = $1 FOR UPDATE",
                name,
            )
            .fetch_optional(&mut *tx)
            .await?
            .ok_or_else(StoreError::contended)?;
            if before.schema == *schema {
                return Ok(Put {
                    row: before,
                    created: false,
                    changed: false,
                });
            }
            sqlx::query!(
                "UPDATE heddle.templates SET schema = $2, updated_at = $3 WHERE name = $1",
                name,
                schema,
                by.at,
            )
            .execute(&mut *tx)
            .await?;
            change::record(
                &mut tx,
                by,
                "update",
                Noun::Template,
                name,
                Some(&before.schema),
                Some(schema),
            )
            .await?;
            tx.commit().await?;
            let row = TemplateRow {
                schema: schema.clone(),
                updated_at: by.at,
                ..before
            };
            Ok(Put {
                row,
                created: false,
                changed: true,
            })
        })
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
