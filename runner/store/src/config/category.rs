//! Categories: they sort groups, and secrets and connections are granted to them.

use serde_json::json;

use crate::change::{self, By, Noun};
use crate::config::one_value::one_value;
use crate::transaction::transaction;
use crate::usage::{Removal, USERS_NAMED_MAX, Users};
use crate::{Store, StoreError, audit};

one_value! {
    lifetime: 'a, table: "categories", noun: Category, transaction: "put_category",
    #[derive(Clone, Debug, PartialEq, Eq)]
    row: CategoryRow, write: CategoryWrite,
    value: description("description"): String, given: &'a str,
    same: |kept, given| kept == given,
    shown: |row| json!({"description": row.description}),
    /// Creates or changes a category.
    put: put_category,
    get: category,
    /// Categories by name, after `cursor`.
    list: categories,
}

impl Store {
    /// Deletes a category that no group is in.
    ///
    /// Locking: the name, the category, then deleted groups that were in it. A concurrent PUT of a group that names the category
    /// waits.
    pub async fn delete_category(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        transaction!(self, control, "delete_category", |tx| {
            change::lock_name(&mut tx, Noun::Category, name).await?;
            let found = sqlx::query_scalar!(
                "SELECT description FROM heddle.categories WHERE name = $1 FOR UPDATE",
                name
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(description) = found else {
                return Ok(Removal::Missing);
            };
            let groups = sqlx::query_scalar!(
                "SELECT name FROM heddle.groups WHERE category = $1 AND deleted_at IS NULL ORDER BY name LIMIT $2",
                name,
                USERS_NAMED_MAX,
            )
            .fetch_all(&mut *tx)
            .await?;
            if !groups.is_empty() {
                return Ok(Removal::UsedBy(Users {
                    groups,
                    ..Users::default()
                }));
            }
            sqlx::query!("UPDATE heddle.groups SET category = NULL WHERE category = $1", name)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.categories WHERE name = $1", name)
                .execute(&mut *tx)
                .await?;
            let before = json!({"description": description});
            audit::record(&mut tx, by, "delete", Noun::Category, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(Removal::Done)
        })
    }
}
