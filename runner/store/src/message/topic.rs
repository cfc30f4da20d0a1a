//! Topics: the targets of scheduled messages.

use heddle_domain::Time;
use heddle_domain::topic::{group_name, topic_of};
use serde_json::Value;

use crate::change::{self, By, Noun, Page, Put};
use crate::config::named::{Named, Stop, put_in};
use crate::database::{PgSession, Pool};
use crate::group::{self, GroupDelete, GroupPut, GroupRow, GroupWrite, IfMatch};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit, runtime, usage};

#[derive(Clone, Debug, PartialEq)]
pub struct TopicRow {
    pub id: i32,
    pub name: String,
    /// With all defaults written out.
    pub spec: Value,
    pub created_at: Time,
    pub updated_at: Time,
    /// Why nothing is sent, if there is a problem.
    pub problem: Option<String>,
}

/// A topic to be put.
#[derive(Clone, Copy, Debug)]
pub struct TopicWrite<'a> {
    pub name: &'a str,
    /// The script's name, without a version.
    pub script: Option<&'a str>,
    pub queue: Option<&'a str>,
    /// In canonical form: an equal spec changes nothing.
    pub spec: &'a Value,
}

/// The result of putting a topic.
#[derive(Clone, Debug, PartialEq)]
pub enum TopicPut {
    Done(Put<TopicRow>),
    /// It has messages already, and this field determines the meaning of their days.
    Fixed(&'static str),
    /// What this field of the spec names was deleted meanwhile.
    Gone(&'static str),
    /// The topic needs a group of this name, but a user's group already has this name.
    Taken(String),
}

/// How many numbers are tried for a new topic, if users' groups have the names that they lead to. They had to be made before
/// these names were reserved.
const NUMBERS_MAX: u32 = 1_000;

/// The result of deleting a topic.
#[derive(Clone, Debug, PartialEq)]
pub enum TopicDelete {
    Missing,
    /// It is deleted, and its group with it, which has this id: the caller then cancels the group's runs.
    Deleted {
        group: Option<i64>,
    },
    /// Its group of this name cannot be deleted, for this reason: so the topic stays too.
    GroupKept(String, GroupDelete),
}

impl From<Put<TopicRow>> for TopicPut {
    fn from(put: Put<TopicRow>) -> Self {
        Self::Done(put)
    }
}

/// Whether a group that has the name of a topic's group is that group. Before such names were reserved, users could give
/// them to other groups; these have no `batch` task for a queue.
fn is_own(group: &GroupRow, topic: &Value) -> bool {
    topic["queue"].is_string() || group.spec["tasks"]["batch"]["queue"].is_string()
}

/// The name of a topic's group, if a user's group has it. `spec` is the stored spec of the topic.
async fn taken_by_user(tx: &mut PgSession, topic: i32, spec: &Value) -> Result<Option<String>, StoreError> {
    let found = group::current(tx, &group_name(topic)).await?;
    Ok(found.filter(|group| !is_own(group, spec)).map(|group| group.name))
}

/// A topic to be put, and the fields of its spec that must not change while it has stored messages.
struct FixedTopic<'a> {
    write: TopicWrite<'a>,
    fixed: &'a [&'static str],
}

impl Named for FixedTopic<'_> {
    const PUT: &'static str = "put_topic";
    const NOUN: Noun = Noun::Topic;
    type Kept = TopicRow;
    type Row = TopicRow;
    type Answer = TopicPut;

    fn pool(store: &Store) -> &Pool {
        &store.pool
    }

    fn name(&self) -> &str {
        self.write.name
    }

    /// Locking: as [`Named::locked`]. Ingest that is about to commit has locked the row too, and this waits for it.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<TopicRow>, StoreError> {
        Ok(sqlx::query_as!(
            TopicRow,
            "SELECT id, name, spec, created_at, updated_at, NULL::text AS problem FROM heddle.topics
              WHERE name = $1 FOR UPDATE",
            self.write.name
        )
        .fetch_optional(tx)
        .await?)
    }

    /// Locking: after the topic: its script, shared, then the runtime of the version that it names, then its secrets
    /// and connections. No object in use is deleted: a deletion locks only the object itself. It waits for this
    /// transaction, or was committed before it.
    async fn check(&self, tx: &mut PgSession, _kept: Option<&TopicRow>) -> Result<(), Stop<TopicPut>> {
        let Some(script) = self.write.script else {
            return Ok(());
        };
        let there = sqlx::query_scalar!(
            "SELECT id FROM heddle.scripts WHERE name = $1 AND deleted_at IS NULL FOR SHARE",
            script
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(id) = there else {
            return Err(Stop::Refused(TopicPut::Gone("script")));
        };
        let text = self.write.spec["script"].as_str().unwrap_or_default();
        if let Some(Ok(version)) = text.rsplit_once('@').map(|(_, version)| version.parse()) {
            runtime::stay(tx, &[(id, version)]).await?;
        }
        // Only a script can read them.
        match usage::hold_of_topic(tx, self.write.spec).await? {
            Some(field) => Err(Stop::Refused(TopicPut::Gone(field))),
            None => Ok(()),
        }
    }

    fn is_same(&self, kept: &TopicRow) -> bool {
        kept.spec == *self.write.spec
    }

    async fn write(&self, tx: &mut PgSession, at: Time, kept: Option<&TopicRow>) -> Result<TopicRow, Stop<TopicPut>> {
        let write = self.write;
        let Some(kept) = kept else {
            let row = sqlx::query_as!(
                TopicRow,
                "INSERT INTO heddle.topics (name, script, queue, spec, created_at, updated_at)
                     VALUES ($1, $2, $3, $4, $5, $5)
                     RETURNING id, name, spec, created_at, updated_at, NULL::text AS problem",
                write.name,
                write.script,
                write.queue,
                write.spec,
                at
            )
            .fetch_one(&mut *tx)
            .await?;
            sqlx::query!("INSERT INTO heddle.topic_drains (topic) VALUES ($1)", row.id)
                .execute(tx)
                .await?;
            return Ok(row);
        };
        let is_changed = |field: &&&str| kept.spec.get(**field) != write.spec.get(**field);
        if let Some(field) = self.fixed.iter().find(is_changed) {
            let used = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM heddle.message_days WHERE topic = $1 AND dropped_at IS NULL) AS "used!""#,
                kept.id
            )
            .fetch_one(&mut *tx)
            .await?;
            if used {
                return Err(Stop::Refused(TopicPut::Fixed(field)));
            }
        }
        if write.queue.is_some()
            && let Some(group) = taken_by_user(tx, kept.id, &kept.spec).await?
        {
            return Err(Stop::Refused(TopicPut::Taken(group)));
        }
        Ok(sqlx::query_as!(
            TopicRow,
            "UPDATE heddle.topics SET script = $2, queue = $3, spec = $4, updated_at = $5 WHERE id = $1
                     RETURNING id, name, spec, created_at, updated_at, NULL::text AS problem",
            kept.id,
            write.script,
            write.queue,
            write.spec,
            at
        )
        .fetch_one(tx)
        .await?)
    }

    fn shown(row: &TopicRow) -> Result<Value, StoreError> {
        Ok(row.spec.clone())
    }
}

impl Store {
    /// Creates or changes a topic. `fixed` are fields of the spec that must not change while it has stored messages. A
    /// topic that sends to a queue has a `group`, which the same transaction puts. The name of the group is made of the
    /// topic's number; the name in `group` is not used. It is never put over a user's group: a new topic gets a number whose
    /// name is free.
    pub async fn put_topic(
        &self,
        by: By<'_>,
        write: TopicWrite<'_>,
        fixed: &[&'static str],
        group: Option<GroupWrite<'_>>,
    ) -> Result<TopicPut, StoreError> {
        let topic = FixedTopic { write, fixed };
        for _ in 0..NUMBERS_MAX {
            if let Some(answer) = self.put_numbered(by, &topic, group.as_ref()).await? {
                return Ok(answer);
            }
        }
        Err(StoreError::contended())
    }

    /// `None`: a user's group has the name that the new topic's group would get from the topic's number. Another try has the
    /// next number.
    async fn put_numbered(
        &self,
        by: By<'_>,
        topic: &FixedTopic<'_>,
        group: Option<&GroupWrite<'_>>,
    ) -> Result<Option<TopicPut>, StoreError> {
        transaction!(self, pool, "put_topic", |tx| {
            let put = match put_in(&mut tx, by, topic).await {
                Ok(put) => put,
                Err(Stop::Refused(answer)) => return Ok(Some(answer)),
                Err(Stop::Failed(error)) => return Err(error),
            };
            let mut changed = put.changed;
            if let Some(group) = group {
                let group = GroupWrite {
                    name: &group_name(put.row.id),
                    // Before its name was reserved, a user could disable it.
                    enabled: Some(true),
                    if_match: put.created.then_some(IfMatch::Absent),
                    ..group.clone()
                };
                match group::put_in(&mut tx, by, &group).await? {
                    GroupPut::Done(group) => changed |= group.changed,
                    GroupPut::Stale(_) => return Ok(None),
                    // It names nothing that could have changed meanwhile.
                    _ => return Err(StoreError::contended()),
                }
            }
            if changed {
                tx.commit().await?;
            }
            Ok(Some(put.into()))
        })
    }

    pub async fn topic(&self, name: &str) -> Result<Option<TopicRow>, StoreError> {
        Ok(sqlx::query_as!(
            TopicRow,
            r#"SELECT t.id, t.name, t.spec, t.created_at, t.updated_at, d.problem AS "problem?"
                 FROM heddle.topics t LEFT JOIN heddle.topic_drains d ON d.topic = t.id WHERE t.name = $1"#,
            name
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// A topic by its number.
    pub async fn topic_by_id(&self, id: i32) -> Result<Option<TopicRow>, StoreError> {
        Ok(sqlx::query_as!(
            TopicRow,
            "SELECT id, name, spec, created_at, updated_at, NULL::text AS problem FROM heddle.topics WHERE id = $1",
            id
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// The name of the topic whose own group this is, if it is one.
    pub async fn topic_of_group(&self, name: &str) -> Result<Option<String>, StoreError> {
        let Some(id) = topic_of(name) else { return Ok(None) };
        let Some(topic) = self.topic_by_id(id).await? else {
            return Ok(None);
        };
        let group = self.group_by_name(name).await?;
        Ok(group.filter(|group| is_own(group, &topic.spec)).map(|_| topic.name))
    }

    /// Topics by name, after `cursor`.
    pub async fn topics(&self, cursor: Option<&str>, limit: i64) -> Result<Page<TopicRow>, StoreError> {
        let rows = sqlx::query_as!(
            TopicRow,
            r#"SELECT t.id, t.name, t.spec, t.created_at, t.updated_at, d.problem AS "problem?"
                 FROM heddle.topics t LEFT JOIN heddle.topic_drains d ON d.topic = t.id
                WHERE ($1::text IS NULL OR t.name > $1) ORDER BY t.name LIMIT $2"#,
            cursor,
            limit + 1
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Deletes a topic with all its messages, and with its group if it has one, whose runs the caller then cancels. A
    /// batch that a script is handling is sent, but not recorded. Stored messages are deleted later, in small steps.
    ///
    /// Locking: the name, then the topic's rows in the order of [`crate::message`]: that of *topic_drains*, for which
    /// claims and cancels wait, before that of *topics*, for which ingest waits. Its group comes last.
    pub async fn delete_topic(&self, by: By<'_>, name: &str) -> Result<TopicDelete, StoreError> {
        transaction!(self, pool, "delete_topic", |tx| {
            change::lock_name(&mut tx, Noun::Topic, name).await?;
            let row = sqlx::query!("SELECT id, spec FROM heddle.topics WHERE name = $1", name)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(row) = row else {
                return Ok(TopicDelete::Missing);
            };
            sqlx::query!("DELETE FROM heddle.topic_drains WHERE topic = $1", row.id)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.message_batches WHERE topic = $1", row.id)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.topics WHERE id = $1", row.id)
                .execute(&mut *tx)
                .await?;
            audit::record(&mut tx, by, "delete", Noun::Topic, name, Some(&row.spec), None).await?;
            // Workers may still report the ends of their claims; nobody needs these any more.
            let name = group_name(row.id);
            let group = match taken_by_user(&mut tx, row.id, &row.spec).await? {
                Some(_) => None,
                None => match group::delete_in(&mut tx, by, &name, true, None).await? {
                    GroupDelete::Missing => None,
                    GroupDelete::Deleted { id, .. } => Some(id),
                    kept => return Ok(TopicDelete::GroupKept(name, kept)),
                },
            };
            tx.commit().await?;
            Ok(TopicDelete::Deleted { group })
        })
    }
}
