//! Cluster-wide settings that people change at run time.

use heddle_domain::Time;
use heddle_domain::retention::Retention;
use serde_json::Value;

use crate::change::{By, Noun, Put};
use crate::config::named::{Named, PutAudit, Stop};
use crate::database::PgSession;
use crate::{Store, StoreError, audit};

/// The name of the setting with the times for which things are kept.
pub const RETENTION: &str = "retention";

/// A setting to be put.
struct SettingWrite<'a> {
    name: &'a str,
    value: &'a Value,
    /// The value in force while nobody has changed it.
    default: &'a Value,
}

impl Named for SettingWrite<'_> {
    const PUT: &'static str = "put_setting";
    const NOUN: Noun = Noun::Setting;
    type Kept = Value;
    type Row = Value;
    type Answer = Put<Value>;

    fn name(&self) -> &str {
        self.name
    }

    /// Locking: the same lock as [`Named::locked`] describes.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<Value>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT value FROM heddle.settings WHERE name = $1 FOR UPDATE",
            self.name
        )
        .fetch_optional(tx)
        .await?)
    }

    fn is_same(&self, kept: &Value) -> bool {
        kept == self.value
    }

    async fn write(&self, tx: &mut PgSession, at: Time, _kept: Option<&Value>) -> Result<Value, Stop<Self::Answer>> {
        sqlx::query!(
            "INSERT INTO heddle.settings (name, value, updated_at) VALUES ($1, $2, $3)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
            self.name,
            self.value,
            at,
        )
        .execute(tx)
        .await?;
        Ok(self.value.clone())
    }

    fn shown(row: &Value) -> Result<Value, StoreError> {
        Ok(row.clone())
    }

    /// A setting that nobody has changed has its default, so it is always updated and never created.
    async fn record(&self, tx: &mut PgSession, by: By<'_>, entry: PutAudit<'_>) -> Result<(), StoreError> {
        let PutAudit { before, after, .. } = entry;
        let before = Some(before.unwrap_or(self.default));
        audit::record(tx, by, "update", Noun::Setting, self.name, before, Some(after)).await
    }
}

impl Store {
    /// A setting; `None` while nobody has changed it.
    pub async fn setting(&self, name: &str) -> Result<Option<Value>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT value FROM heddle.settings WHERE name = $1", name)
                .fetch_optional(&self.control)
                .await?,
        )
    }

    /// Changes a setting; `false` if it has this value already. `default`: its value while nobody has changed it.
    async fn put_setting(&self, by: By<'_>, name: &str, value: &Value, default: &Value) -> Result<bool, StoreError> {
        let put = self.put(by, &SettingWrite { name, value, default }).await?;
        Ok(put.changed)
    }
}

/// The retention as it is stored, and as the audit shows it.
pub(crate) fn retention_value(retention: &Retention) -> Result<Value, StoreError> {
    StoreError::json_of(retention, ("settings", "value"))
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

    /// Changes how long things are kept; `false` if this is in force already because somebody has set it.
    pub async fn put_retention(&self, by: By<'_>, retention: &Retention) -> Result<bool, StoreError> {
        let (value, default) = (retention_value(retention)?, retention_value(&Retention::default())?);
        self.put_setting(by, RETENTION, &value, &default).await
    }

    /// Records that somebody has removed what is due; before the removal, so that nothing is removed without a record.
    /// The entry has the retention that is in force, which does not change.
    pub async fn audit_prune(&self, by: By<'_>) -> Result<(), StoreError> {
        let retention = retention_value(&self.retention().await?)?;
        let mut connection = self.control.acquire().await?;
        let (about, in_force) = (Noun::Setting.quiet(), Some(&retention));
        audit::record(&mut connection, by, "prune", about, RETENTION, in_force, in_force).await
    }
}
