//! Cluster-wide settings that people change at run time.

use heddle_domain::retention::Retention;
use serde_json::Value;

use crate::change::{self, By, Noun};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// The name of the setting that says how long things are kept.
pub const RETENTION: &str = "retention";

impl Store {
    /// A setting; `None` while nobody has changed it.
    pub async fn setting(&self, name: &str) -> Result<Option<Value>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT value FROM heddle.settings WHERE name = $1", name)
                .fetch_optional(&self.control)
                .await?,
        )
    }

    /// Changes a setting; `false` if it stood so already.
    pub async fn put_setting(&self, by: By<'_>, name: &str, value: &Value) -> Result<bool, StoreError> {
        transaction!(self, control, "put_setting", |tx| {
            let before = sqlx::query_scalar!("SELECT value FROM heddle.settings WHERE name = $1 FOR UPDATE", name)
                .fetch_optional(&mut *tx)
                .await?;
            if before.as_ref() == Some(value) {
                return Ok(false);
            }
            sqlx::query!(
                "INSERT INTO heddle.settings (name, value, updated_at) VALUES ($1, $2, $3)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
                name,
                value,
                by.at,
            )
            .execute(&mut *tx)
            .await?;
            change::record(&mut tx, by, "update", Noun::Setting, name, before.as_ref(), Some(value)).await?;
            tx.commit().await?;
            Ok(true)
        })
    }
}

impl Store {
    /// How long things are kept.
    pub async fn retention(&self) -> Result<Retention, StoreError> {
        match self.setting(RETENTION).await? {
            None => Ok(Retention::default()),
            Some(value) => serde_json::from_value(value)
                .map_err(|error| StoreError::unreadable("settings", "value", RETENTION, error)),
        }
    }
}
