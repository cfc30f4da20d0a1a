//! Categories: what groups are sorted by, and what secrets and connections are granted to.

use heddle_domain::Time;
use serde_json::json;

use crate::change::{self, By, Noun, Page, Put};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CategoryRow {
    pub name: String,
    pub description: String,
    pub created_at: Time,
    pub updated_at: Time,
}

/// What came of deleting a category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CategoryDelete {
    Missing,
    /// These groups (the first few) are in it.
    UsedBy(Vec<String>),
    Deleted,
}

/// How many users of a thing are named when it may not be deleted.
const USERS_NAMED_MAX: i64 = 20;

impl Store {
    /// Creates or changes a category.
    pub async fn put_category(
        &self,
        by: By<'_>,
        name: &str,
        description: &str,
    ) -> Result<Put<CategoryRow>, StoreError> {
        transaction!(self, control, "put_category", |tx| {
            let added = sqlx::query_as!(
                CategoryRow,
                "INSERT INTO heddle.categories (name, description, created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (name) DO NOTHING RETURNING name, description, created_at, updated_at",
                name,
                description,
                by.at,
            )
            .fetch_optional(&mut *tx)
            .await?;
            if let Some(row) = added {
                let after = json!({"description": description});
                change::record(&mut tx, by, "create", Noun::Category, name, None, Some(&after)).await?;
                tx.commit().await?;
                return Ok(Put {
                    row,
                    created: true,
                    changed: true,
                });
            }
            let before = sqlx::query_as!(
                CategoryRow,
                "SELECT name, description, created_at, updated_at FROM heddle.categories WHERE name = $1 FOR UPDATE",
                name,
            )
            .fetch_optional(&mut *tx)
            .await?
            .ok_or_else(StoreError::contended)?;
            if before.description == description {
                return Ok(Put {
                    row: before,
                    created: false,
                    changed: false,
                });
            }
            sqlx::query!(
                "UPDATE heddle.categories SET description = $2, updated_at = $3 WHERE name = $1",
                name,
                description,
                by.at,
            )
            .execute(&mut *tx)
            .await?;
            let (was, is) = (
                json!({"description": before.description}),
                json!({"description": description}),
            );
            change::record(&mut tx, by, "update", Noun::Category, name, Some(&was), Some(&is)).await?;
            tx.commit().await?;
            let row = CategoryRow {
                description: description.into(),
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

    /// A category.
    pub async fn category(&self, name: &str) -> Result<Option<CategoryRow>, StoreError> {
        Ok(sqlx::query_as!(
            CategoryRow,
            "SELECT name, description, created_at, updated_at FROM heddle.categories WHERE name = $1",
            name,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Categories by name, behind `cursor`.
    pub async fn categories(&self, cursor: Option<&str>, limit: i64) -> Result<Page<CategoryRow>, StoreError> {
        let rows = sqlx::query_as!(
            CategoryRow,
            "SELECT name, description, created_at, updated_at FROM heddle.categories
             WHERE ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2",
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Deletes a category that no group is in.
    pub async fn delete_category(&self, by: By<'_>, name: &str) -> Result<CategoryDelete, StoreError> {
        transaction!(self, control, "delete_category", |tx| {
            // Against groups that are put meanwhile: their foreign key waits for this lock.
            let found = sqlx::query_scalar!(
                "SELECT description FROM heddle.categories WHERE name = $1 FOR UPDATE",
                name
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(description) = found else {
                return Ok(CategoryDelete::Missing);
            };
            let users = sqlx::query_scalar!(
                "SELECT name FROM heddle.groups WHERE category = $1 AND deleted_at IS NULL ORDER BY name LIMIT $2",
                name,
                USERS_NAMED_MAX,
            )
            .fetch_all(&mut *tx)
            .await?;
            if !users.is_empty() {
                return Ok(CategoryDelete::UsedBy(users));
            }
            sqlx::query!("UPDATE heddle.groups SET category = NULL WHERE category = $1", name)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.categories WHERE name = $1", name)
                .execute(&mut *tx)
                .await?;
            let before = json!({"description": description});
            change::record(&mut tx, by, "delete", Noun::Category, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(CategoryDelete::Deleted)
        })
    }
}
