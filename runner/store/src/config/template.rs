//! Params templates: named JSON Schemas.

use serde_json::Value;

use crate::change::By;
use crate::config::named::Deleted;
use crate::config::one_value::one_value;
use crate::database::PgSession;
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

impl Deleted for TemplateWrite<'_> {
    const DELETE: &'static str = "delete_template";
    const KIND: usage::Kind = usage::TEMPLATES;

    async fn delete_row(tx: &mut PgSession, name: &str) -> Result<Option<Value>, StoreError> {
        Ok(
            sqlx::query_scalar!("DELETE FROM heddle.templates WHERE name = $1 RETURNING schema", name)
                .fetch_optional(tx)
                .await?,
        )
    }
}

impl Store {
    /// Deletes a template that no group's current spec and no offer names.
    ///
    /// Locking: the template's name, then its row, and no other. Under this lock, groups and offers that name it are searched for: a
    /// PUT of one of these locks the row until its commit.
    pub async fn delete_template(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        self.delete::<TemplateWrite<'static>>(by, name).await
    }
}
