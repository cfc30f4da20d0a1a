//! Params templates: named JSON Schemas.

use serde_json::Value;

use crate::change::{self, By, Noun};
use crate::config::one_value::one_value;
use crate::transaction::transaction;
use crate::usage::{self, Removal, Users};
use crate::{Store, StoreError};

one_value! {
    lifetime: 'a, table: "templates", noun: Template, transaction: "put_template",
    #[derive(Clone, Debug, PartialEq)]
    row: TemplateRow, write: TemplateWrite,
    value: schema("schema"): Value, given: &'a Value,
    same: |kept, given| kept == *given,
    shown: |row| row.schema.clone(),
    /// Creates or changes a template. The schema has been checked.
    put: put_template,
    get: template,
    /// Templates by name, after `cursor`.
    list: templates,
}

impl Store {
    /// Deletes a template that no group's current spec and no offer names.
    ///
    /// Locking: the template's row, and no other. Groups and offers that name it are searched for under this lock: their
    /// PUTs hold the row until they commit.
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
