//! Effects of scripts, which are committed with their outcomes.

use heddle_domain::id::RunId;

use super::Completion;
use crate::StoreError;

/// An effect of a script, which is committed with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Sets a key, whatever its value was.
    Set {
        key: String,
        /// The value as JSON text.
        value: String,
    },
    /// Sets a key if it still has a version; `None`: if it does not exist.
    CompareAndSet {
        key: String,
        /// The version that the script has read; `None`: no value.
        expected: Option<u64>,
        /// The value as JSON text.
        value: String,
    },
    Delete {
        key: String,
    },
    Notify {
        channel: String,
        /// The subject, one line.
        subject: String,
        body: String,
    },
}

impl Completion {
    /// Applies the effects of a script. `false`: the value of a compare-and-set has changed, and none of the effects is
    /// applied.
    pub async fn apply_effects(
        &mut self,
        run: RunId,
        task: u16,
        group_id: i64,
        effects: &[Effect],
    ) -> Result<bool, StoreError> {
        sqlx::query!("SAVEPOINT effects").execute(&mut *self.tx).await?;
        for effect in effects {
            if !self.apply_effect(run, task, group_id, effect).await? {
                sqlx::query!("ROLLBACK TO SAVEPOINT effects")
                    .execute(&mut *self.tx)
                    .await?;
                return Ok(false);
            }
        }
        sqlx::query!("RELEASE SAVEPOINT effects").execute(&mut *self.tx).await?;
        Ok(true)
    }

    async fn apply_effect(&mut self, run: RunId, task: u16, group: i64, effect: &Effect) -> Result<bool, StoreError> {
        let done = match effect {
            Effect::Set { key, value } => {
                sqlx::query!(
                    "INSERT INTO heddle.script_state (group_id, key, value) VALUES ($1, $2, $3)
                     ON CONFLICT (group_id, key) DO UPDATE
                        SET value = excluded.value, version = script_state.version + 1, updated_at = now()",
                    group,
                    key,
                    value
                )
                .execute(&mut *self.tx)
                .await?
            }
            Effect::CompareAndSet {
                key,
                expected: None,
                value,
            } => {
                sqlx::query!(
                    "INSERT INTO heddle.script_state (group_id, key, value) VALUES ($1, $2, $3)
                     ON CONFLICT (group_id, key) DO NOTHING",
                    group,
                    key,
                    value
                )
                .execute(&mut *self.tx)
                .await?
            }
            Effect::CompareAndSet {
                key,
                expected: Some(expected),
                value,
            } => {
                sqlx::query!(
                    "UPDATE heddle.script_state SET value = $4, version = version + 1, updated_at = now()
                      WHERE group_id = $1 AND key = $2 AND version = $3",
                    group,
                    key,
                    *expected as i64,
                    value
                )
                .execute(&mut *self.tx)
                .await?
            }
            Effect::Delete { key } => {
                sqlx::query!(
                    "DELETE FROM heddle.script_state WHERE group_id = $1 AND key = $2",
                    group,
                    key
                )
                .execute(&mut *self.tx)
                .await?;
                return Ok(true);
            }
            Effect::Notify { channel, subject, body } => {
                sqlx::query!(
                    "INSERT INTO heddle.notices (run, task, channel, subject, body, group_id) VALUES ($1, $2, $3, $4, $5, $6)",
                    run.0,
                    task as i16,
                    channel,
                    subject,
                    body,
                    group
                )
                .execute(&mut *self.tx)
                .await?
            }
        };
        Ok(done.rows_affected() == 1)
    }
}
