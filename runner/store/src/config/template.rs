//! Params templates: named JSON Schemas.

use serde_json::Value;

use crate::change::By;
use crate::config::one_value::one_value;
use crate::transaction::transaction;
use crate::usage::{self, Removal};
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
    /// Locking: the template's row, and no other. Under this lock, groups and offers that name it are searched for: a
    /// PUT of one of these locks the row until its commit.
    pub async fn delete_template(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        transaction!(self, control, "delete_template", |tx| {
            let gone = sqlx::query_scalar!("DELETE FROM heddle.templates WHERE name = $1 RETURNING schema", name)
                .fetch_optional(&mut *tx)
                .await?;
            usage::removed(tx, by, usage::TEMPLATES, name, gone).await
        })
    }
}
