//! Categories: what groups are sorted by, and what secrets and connections are granted to.

use heddle_domain::Time;
use serde_json::{Value, json};

use crate::change::{self, By, Noun, Page, Put};
use crate::config::named::{Named, Stop};
use crate::database::PgSession;
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

/// A category to be put.
struct CategoryWrite<'a> {
    name: &'a str,
    description: &'a str,
}

impl Named for CategoryWrite<'_> {
    const PUT: &'static str = "put_category";
    const NOUN: Noun = Noun::Category;
    type Kept = CategoryRow;
    type Row = CategoryRow;
    type Answer = Put<CategoryRow>;

    fn name(&self) -> &str {
        self.name
    }

    async fn locked(&self, tx: &mut PgSession) -> Result<Option<CategoryRow>, StoreError> {
        Ok(sqlx::query_as!(
            CategoryRow,
            "SELECT name, description, created_at, updated_at FROM heddle.categories WHERE name = $1 FOR UPDATE",
            self.name,
        )
        .fetch_optional(tx)
        .await?)
    }

    fn is_same(&self, kept: &CategoryRow) -> bool {
        kept.description == self.description
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        _kept: Option<&CategoryRow>,
    ) -> Result<CategoryRow, Stop<Self::Answer>> {
        Ok(sqlx::query_as!(
            CategoryRow,
            "INSERT INTO heddle.categories (name, description, created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (name) DO UPDATE SET description = excluded.description, updated_at = excluded.updated_at
             RETURNING name, description, created_at, updated_at",
            self.name,
            self.description,
            at,
        )
        .fetch_one(tx)
        .await?)
    }

    fn shown(row: &CategoryRow) -> Value {
        json!({"description": row.description})
    }
}

impl Store {
    /// Creates or changes a category.
    pub async fn put_category(
        &self,
        by: By<'_>,
        name: &str,
        description: &str,
    ) -> Result<Put<CategoryRow>, StoreError> {
        self.put(by, &CategoryWrite { name, description }).await
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
