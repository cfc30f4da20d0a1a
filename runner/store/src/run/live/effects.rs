//! Effects of scripts, which are committed with their outcomes.
//!
//! The outcomes of many attempts share a transaction, and others wait for its end. So the effects of an attempt are written
//! with a few statements, however many they are: one for each kind, in the order of the keys, with the last write of each
//! key. If there are several kinds, all keys are locked before, in their order: two attempts that write the same keys wait for
//! each other in no circle. What a script can see of the order of its effects stays:
//!
//! * A compare-and-set comes before all other writes of its key, so all of them are done first.
//! * A version rises by the number of the writes of its key, unless it would get ahead of the clock.
//! * A key that is deleted and then set is a new one. Only what comes after its last delete is written.
//! * Notifications keep their order.

use std::collections::{BTreeMap, BTreeSet};

use heddle_domain::id::RunId;
use serde_json::{Map, Value};

use super::Completion;
use crate::StoreError;
use crate::database::column;

/// An effect of a script, which is committed with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Sets a key, whatever its value was.
    Set {
        key: String,
        /// The value as JSON text.
        value: String,
    },
    /// Sets a key if it still has a version; `None`: if it does not exist. No effect before it writes its key.
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

/// What the writes and deletes of a key come to.
#[derive(Debug, PartialEq)]
struct Written<'e> {
    /// Whether one of them deletes the key.
    deleted: bool,
    /// The last value as JSON text; `None`: a delete is the last of them.
    value: Option<&'e str>,
    /// How many writes come after the last delete.
    writes: i64,
}

/// The effects of an attempt, as they are written.
#[derive(Debug, Default, PartialEq)]
struct Sorted<'e> {
    /// The keys that must not exist, with their values.
    absent: BTreeMap<&'e str, &'e str>,
    /// The keys that must have a version, with that and their values.
    versioned: BTreeMap<&'e str, (i64, &'e str)>,
    written: BTreeMap<&'e str, Written<'e>>,
    /// Channel, subject and body of each notification.
    notices: Vec<(&'e str, &'e str, &'e str)>,
}

impl<'e> Sorted<'e> {
    fn of(effects: &'e [Effect]) -> Self {
        let mut sorted = Self::default();
        for effect in effects {
            match effect {
                Effect::Set { key, value } => sorted.set(key, value),
                Effect::CompareAndSet { key, expected, value } => match expected {
                    Some(expected) => drop(sorted.versioned.insert(key, (*expected as i64, value.as_str()))),
                    None => drop(sorted.absent.insert(key, value)),
                },
                Effect::Delete { key } => {
                    let deleted = Written {
                        deleted: true,
                        value: None,
                        writes: 0,
                    };
                    sorted.written.insert(key, deleted);
                }
                Effect::Notify { channel, subject, body } => {
                    sorted.notices.push((channel.as_str(), subject.as_str(), body.as_str()));
                }
            }
        }
        sorted
    }

    fn set(&mut self, key: &'e str, value: &'e str) {
        let written = self.written.entry(key).or_insert(Written {
            deleted: false,
            value: None,
            writes: 0,
        });
        written.value = Some(value);
        written.writes += 1;
    }

    /// The keys that are set, with their values.
    fn set_keys(&self) -> Vec<(&'e str, &'e str)> {
        let set = self.written.iter();
        set.filter_map(|(key, written)| Some((*key, written.value?))).collect()
    }

    /// How often each key is written, as an object; without those that are written once, as most are.
    fn repeated(&self) -> Value {
        let repeated = self.written.iter().filter(|(_, written)| written.writes > 1);
        let counts: Map<String, Value> = repeated
            .map(|(key, written)| ((*key).to_owned(), written.writes.into()))
            .collect();
        Value::Object(counts)
    }

    /// The keys that must be locked before anything is written, in their order; none if one statement writes all: that locks
    /// them in their order itself.
    fn to_lock(&self) -> Vec<&'e str> {
        let compared = || self.absent.keys().chain(self.versioned.keys());
        if compared().next().is_none() && !self.written.values().any(|written| written.deleted) {
            return Vec::new();
        }
        let keys: BTreeSet<&str> = compared().chain(self.written.keys()).copied().collect();
        if keys.len() > 1 {
            keys.into_iter().collect()
        } else {
            Vec::new()
        }
    }
}

impl Completion {
    /// Applies the effects of a script. `false`: the value of a compare-and-set has changed, and none of the effects is
    /// applied.
    ///
    /// Locking: the rows of *script_state*, under the lock of the run: of an attempt, all that exist in the order of their keys,
    /// before any of them is written. New keys are inserted in that order too, by each statement.
    pub async fn apply_effects(
        &mut self,
        run: RunId,
        task: u16,
        group_id: i64,
        effects: &[Effect],
    ) -> Result<bool, StoreError> {
        let sorted = Sorted::of(effects);
        if !self.compare_and_set(group_id, &sorted).await? {
            return Ok(false);
        }
        self.write_state(group_id, &sorted).await?;
        self.insert_script_notices(run, task, group_id, &sorted.notices).await?;
        Ok(true)
    }

    /// Locks the keys of an attempt that exist. Without this, its statements would lock them in the order of their kinds, and
    /// two attempts could each wait for a key of the other.
    ///
    /// Locking: rows of *script_state*, in the order of their keys.
    async fn lock_state(&mut self, group: i64, sorted: &Sorted<'_>) -> Result<(), StoreError> {
        let keys = sorted.to_lock();
        if keys.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "SELECT FROM heddle.script_state WHERE group_id = $1 AND key = ANY ($2) ORDER BY key FOR UPDATE",
            group,
            &keys as &[&str]
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    /// All comparisons of an attempt. `false`: one is lost, and nothing is written.
    async fn compare_and_set(&mut self, group: i64, sorted: &Sorted<'_>) -> Result<bool, StoreError> {
        let (absent, versioned) = (&sorted.absent, &sorted.versioned);
        if absent.is_empty() && versioned.is_empty() {
            self.lock_state(group, sorted).await?;
            return Ok(true);
        }
        sqlx::query!("SAVEPOINT effects").execute(&mut *self.tx).await?;
        // Who loses a comparison gives these locks back.
        self.lock_state(group, sorted).await?;
        let mut done = 0;
        if !absent.is_empty() {
            let (keys, values): (Vec<&str>, Vec<&str>) = absent.iter().map(|(key, value)| (*key, *value)).unzip();
            let inserted = sqlx::query!(
                "INSERT INTO heddle.script_state (group_id, key, value)
                 SELECT $1, e.key, e.value FROM UNNEST($2::text[], $3::text[]) AS e (key, value) ORDER BY e.key
                 ON CONFLICT (group_id, key) DO NOTHING",
                group,
                &keys as &[&str],
                &values as &[&str]
            )
            .execute(&mut *self.tx)
            .await?;
            done += inserted.rows_affected();
        }
        if !versioned.is_empty() {
            let rows: Vec<(&str, i64, &str)> = versioned
                .iter()
                .map(|(key, (expected, value))| (*key, *expected, *value))
                .collect();
            let updated = sqlx::query!(
                "UPDATE heddle.script_state s SET value = e.value, version = s.version + 1, updated_at = now()
                   FROM UNNEST($2::text[], $3::bigint[], $4::text[]) AS e (key, expected, value)
                  WHERE s.group_id = $1 AND s.key = ANY (ARRAY[e.key]) AND s.version = e.expected",
                group,
                &column(&rows, |row| row.0) as &[&str],
                &column(&rows, |row| row.1),
                &column(&rows, |row| row.2) as &[&str]
            )
            .execute(&mut *self.tx)
            .await?;
            done += updated.rows_affected();
        }
        let won = done == (absent.len() + versioned.len()) as u64;
        if won {
            sqlx::query!("RELEASE SAVEPOINT effects").execute(&mut *self.tx).await?;
        } else {
            sqlx::query!("ROLLBACK TO SAVEPOINT effects")
                .execute(&mut *self.tx)
                .await?;
        }
        Ok(won)
    }

    /// All other writes and deletes of an attempt.
    async fn write_state(&mut self, group: i64, sorted: &Sorted<'_>) -> Result<(), StoreError> {
        let deleted: Vec<&str> = (sorted.written.iter())
            .filter(|(_, written)| written.deleted)
            .map(|(key, _)| *key)
            .collect();
        if !deleted.is_empty() {
            sqlx::query!(
                "DELETE FROM heddle.script_state WHERE group_id = $1 AND key = ANY ($2)",
                group,
                &deleted as &[&str]
            )
            .execute(&mut *self.tx)
            .await?;
        }
        let set = sorted.set_keys();
        if !set.is_empty() {
            // The versions between are seen by nobody. So a new key has the version of its last write, and none gets ahead of
            // the clock: versions stay below those of a key that is deleted and made again (migration 0123).
            sqlx::query!(
                "INSERT INTO heddle.script_state AS s (group_id, key, value)
                 SELECT $1, e.key, e.value FROM UNNEST($2::text[], $3::text[]) AS e (key, value) ORDER BY e.key
                 ON CONFLICT (group_id, key) DO UPDATE
                    SET value = excluded.value, updated_at = now(),
                        version = least(s.version + coalesce(($4::jsonb ->> excluded.key)::bigint, 1),
                                        greatest(s.version + 1, excluded.version))",
                group,
                &column(&set, |row| row.0) as &[&str],
                &column(&set, |row| row.1) as &[&str],
                sorted.repeated()
            )
            .execute(&mut *self.tx)
            .await?;
        }
        Ok(())
    }

    /// The notifications of an attempt, in their order.
    async fn insert_script_notices(
        &mut self,
        run: RunId,
        task: u16,
        group: i64,
        notices: &[(&str, &str, &str)],
    ) -> Result<(), StoreError> {
        if notices.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "INSERT INTO heddle.notices (run, task, channel, subject, body, group_id)
             SELECT $1, $2, e.channel, e.subject, e.body, $3
               FROM UNNEST($4::text[], $5::text[], $6::text[]) WITH ORDINALITY AS e (channel, subject, body, at)
              ORDER BY e.at",
            run.0,
            task as i16,
            group,
            &column(notices, |notice| notice.0) as &[&str],
            &column(notices, |notice| notice.1) as &[&str],
            &column(notices, |notice| notice.2) as &[&str]
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(key: &str, value: &str) -> Effect {
        let (key, value) = (key.to_owned(), value.to_owned());
        Effect::Set { key, value }
    }

    fn delete(key: &str) -> Effect {
        Effect::Delete { key: key.to_owned() }
    }

    #[test]
    fn the_last_write_of_a_key_counts_for_all_since_its_last_delete() {
        let compared = |key: &str, expected| Effect::CompareAndSet {
            key: key.to_owned(),
            expected,
            value: "0".to_owned(),
        };
        let effects = [
            compared("b", Some(7)),
            set("b", "1"),
            set("a", "1"),
            set("a", "2"),
            delete("a"),
            set("b", "2"),
            set("a", "3"),
            compared("c", None),
            set("d", "1"),
            delete("d"),
        ];
        let sorted = Sorted::of(&effects);
        assert_eq!(sorted.absent, BTreeMap::from([("c", "0")]));
        assert_eq!(sorted.versioned, BTreeMap::from([("b", (7, "0"))]));
        let written = |deleted, value, writes| Written { deleted, value, writes };
        let expect = [
            ("a", written(true, Some("3"), 1)),
            ("b", written(false, Some("2"), 2)),
            ("d", written(true, None, 0)),
        ];
        assert_eq!(sorted.written, BTreeMap::from(expect));
        assert_eq!(sorted.set_keys(), [("a", "3"), ("b", "2")]);
        assert_eq!(sorted.repeated(), json!({"b": 2}));
        assert_eq!(sorted.to_lock(), ["a", "b", "c", "d"]);
    }

    /// However often each is written; they are locked before only if another statement writes some of them.
    #[test]
    fn a_thousand_keys_are_one_statement() {
        let effects: Vec<Effect> = (0..1_000).map(|key| set(&format!("k{key:04}"), "1")).collect();
        let sorted = Sorted::of(&effects);
        assert_eq!((sorted.set_keys().len(), sorted.repeated()), (1_000, json!({})));
        assert_eq!(sorted.to_lock(), [""; 0]);
        let effects = [set("b", "1"), set("a", "1"), set("b", "2")];
        let sorted = Sorted::of(&effects);
        assert_eq!(sorted.set_keys(), [("a", "1"), ("b", "2")]);
        assert_eq!((sorted.repeated(), sorted.to_lock()), (json!({"b": 2}), Vec::new()));
        let effects = [set("b", "1"), delete("a")];
        assert_eq!(Sorted::of(&effects).to_lock(), ["a", "b"]);
        assert_eq!(Sorted::of(&effects[1..]).to_lock(), [""; 0], "one key has one order");
    }
}
