//! Which objects name another one, which therefore may not be deleted.
//!
//! A deletion locks the object's row and then searches for its users; a PUT of a spec holds the rows of the objects
//! that it names (`hold`, `hold_of_topic`) until its commit. So one of the two waits for the other, and sees its result.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::change::{By, Noun};
use crate::database::{PgSession, Transaction};
use crate::{StoreError, audit};

/// The result of deleting an object that specs may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    Missing,
    /// These (the first few) name it.
    UsedBy(Users),
    Done,
}

/// The users of an object, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    pub groups: Vec<String>,
    pub offers: Vec<String>,
    pub topics: Vec<String>,
}

impl Users {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.offers.is_empty() && self.topics.is_empty()
    }
}

/// How many users of an object are named when it may not be deleted.
pub(crate) const USERS_NAMED_MAX: i64 = 20;

/// Objects of a kind, and where specs name them: JSON paths with the variable `$name`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    noun: Noun,
    in_groups: &'static str,
    /// `None`: topics name none of them.
    in_topics: Option<&'static str>,
}

impl Kind {
    /// What its objects are called in the audit and in the log of changes.
    pub(crate) fn noun(self) -> Noun {
        self.noun
    }
}

pub(crate) const SECRETS: Kind = Kind {
    noun: Noun::Secret,
    in_groups: "$.tasks.*.secrets[*] ? (@ == $name)",
    in_topics: Some("$.secrets[*] ? (@ == $name)"),
};
pub(crate) const CONNECTIONS: Kind = Kind {
    noun: Noun::Connection,
    in_groups: "$.tasks.* ? (@.sql[*] == $name || @.query.connection == $name)",
    in_topics: Some("$.sql[*] ? (@ == $name)"),
};
pub(crate) const CHANNELS: Kind = Kind {
    noun: Noun::Channel,
    in_groups: "$ ? (@.notify.channels[*] == $name || @.tasks.*.notify.channels[*] == $name)",
    in_topics: None,
};
pub(crate) const POOLS: Kind = Kind {
    noun: Noun::Pool,
    in_groups: "$.tasks.*.pools.keyvalue().key ? (@ == $name)",
    in_topics: None,
};
pub(crate) const TEMPLATES: Kind = Kind {
    noun: Noun::Template,
    in_groups: "$ ? (@.template == $name || @.tasks.*.audience.template == $name)",
    in_topics: None,
};

/// Ends the deletion of an object: commits it if nobody uses the object. `gone`: the deleted row, for the audit.
pub(crate) async fn removed(
    mut tx: Transaction,
    by: By<'_>,
    kind: Kind,
    name: &str,
    gone: Option<Value>,
) -> Result<Removal, StoreError> {
    let Some(before) = gone else {
        return Ok(Removal::Missing);
    };
    let users = users(&mut tx, kind, name).await?;
    if !users.is_empty() {
        return Ok(Removal::UsedBy(users));
    }
    audit::record(&mut tx, by, "delete", kind.noun, name, Some(&before), None).await?;
    tx.commit().await?;
    Ok(Removal::Done)
}

/// The objects whose current specs name one of this kind, the first few of each.
pub(crate) async fn users(connection: &mut PgSession, kind: Kind, name: &str) -> Result<Users, StoreError> {
    Ok(Users {
        groups: groups(connection, kind.in_groups, name).await?,
        offers: match kind.noun {
            Noun::Template => offers(connection, name).await?,
            _ => Vec::new(),
        },
        topics: match kind.in_topics {
            Some(path) => topics(connection, path, name).await?,
            None => Vec::new(),
        },
    })
}

/// The groups whose current specs name an object.
async fn groups(connection: &mut PgSession, path: &str, name: &str) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT g.name FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
          WHERE g.deleted_at IS NULL
            AND jsonb_path_exists(r.spec, $1::text::jsonpath, jsonb_build_object('name', $2::text))
          ORDER BY g.name LIMIT $3",
        path,
        name,
        USERS_NAMED_MAX,
    )
    .fetch_all(connection)
    .await?)
}

/// The topics whose specs name an object.
async fn topics(connection: &mut PgSession, path: &str, name: &str) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT name FROM heddle.topics
          WHERE jsonb_path_exists(spec, $1::text::jsonpath, jsonb_build_object('name', $2::text))
          ORDER BY name LIMIT $3",
        path,
        name,
        USERS_NAMED_MAX,
    )
    .fetch_all(connection)
    .await?)
}

/// The offers that name a template.
async fn offers(connection: &mut PgSession, template: &str) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT name FROM heddle.offers WHERE template = $1 AND deleted_at IS NULL AND run IS NULL
          ORDER BY name LIMIT $2",
        template,
        USERS_NAMED_MAX,
    )
    .fetch_all(connection)
    .await?)
}

/// The objects of one kind that the tasks of a group's spec name, in a list or as keys.
fn named_by_tasks<'a>(spec: &'a Value, field: &str) -> BTreeSet<&'a str> {
    let tasks = spec["tasks"].as_object().into_iter().flat_map(|tasks| tasks.values());
    tasks
        .flat_map(|task| match &task[field] {
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            Value::Object(names) => names.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        })
        .collect()
}

/// The objects of one kind that a topic's spec names.
fn named_by_topic<'a>(spec: &'a Value, field: &str) -> BTreeSet<&'a str> {
    let names = spec[field].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).collect()
}

/// The templates that a group's spec names: its own, and those of its tasks' offers.
fn templates(spec: &Value) -> BTreeSet<&str> {
    let tasks = spec["tasks"].as_object().into_iter().flat_map(|tasks| tasks.values());
    let of_tasks = tasks.map(|task| &task["audience"]["template"]);
    of_tasks.chain([&spec["template"]]).filter_map(Value::as_str).collect()
}

/// The SQL connections that a group's spec names: for scripts, and for `query` tasks.
fn connections(spec: &Value) -> BTreeSet<&str> {
    let tasks = spec["tasks"].as_object().into_iter().flat_map(|tasks| tasks.values());
    let mut named = named_by_tasks(spec, "sql");
    named.extend(tasks.filter_map(|task| task["query"]["connection"].as_str()));
    named
}

/// The channels that the rules of a group's spec and of its tasks name.
fn channels(spec: &Value) -> BTreeSet<&str> {
    let tasks = spec["tasks"].as_object().into_iter().flat_map(|tasks| tasks.values());
    let rules = tasks.chain([spec]).map(|ruled| &ruled["notify"]["channels"]);
    rules
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Locks the rows of one table that have these names, and says whether all of them exist. A macro, because sqlx checks
/// the text of each statement.
///
/// Locking: KEY SHARE, in the order of names. A PUT or a deletion of such an object waits; what else changes its row does
/// not.
macro_rules! hold {
    ($connection:ident, $table:literal, $names:expr) => {{
        let names: Vec<String> = $names.into_iter().map(str::to_owned).collect();
        names.is_empty() || {
            let locked = sqlx::query_scalar!(
                "SELECT name FROM heddle." + $table + " WHERE name = ANY ($1) ORDER BY name FOR KEY SHARE",
                &names
            );
            locked.fetch_all(&mut *$connection).await?.len() == names.len()
        }
    }};
}

/// Protects the channels, pools, templates, secrets and connections that a group's spec names from deletion, until the
/// caller's transaction ends. `false`: not all of them exist any more.
///
/// Locking: the rows of one table after another, in this order.
pub(crate) async fn hold(connection: &mut PgSession, spec: &Value) -> Result<bool, StoreError> {
    Ok(hold!(connection, "channels", channels(spec))
        && hold!(connection, "pools", named_by_tasks(spec, "pools"))
        && hold!(connection, "templates", templates(spec))
        && hold!(connection, "secrets", named_by_tasks(spec, "secrets"))
        && hold!(connection, "connections", connections(spec)))
}

/// The same for the secrets and connections that a topic's spec names; the first of its fields that names what does not
/// exist any more.
pub(crate) async fn hold_of_topic(
    connection: &mut PgSession,
    spec: &Value,
) -> Result<Option<&'static str>, StoreError> {
    if !hold!(connection, "secrets", named_by_topic(spec, "secrets")) {
        return Ok(Some("secrets"));
    }
    if !hold!(connection, "connections", named_by_topic(spec, "sql")) {
        return Ok(Some("sql"));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_spec_names() {
        let spec = json!({"template": "t1", "notify": {"channels": ["h", "g"]}, "tasks": {
            "a": {"notify": {"channels": ["h", "i"]}, "pools": {"p2": 1, "p1": 2}, "secrets": ["s"], "audience": {"audience": "gid_x", "template": "t2"}},
            "b": {"pools": {"p1": 1}, "sql": ["c", "c"]},
            "d": {"query": {"connection": "e", "sql": "select 1"}},
        }});
        assert_eq!(named_by_tasks(&spec, "pools"), BTreeSet::from(["p1", "p2"]));
        assert_eq!(named_by_tasks(&spec, "secrets"), BTreeSet::from(["s"]));
        assert_eq!(connections(&spec), BTreeSet::from(["c", "e"]));
        assert_eq!(templates(&spec), BTreeSet::from(["t1", "t2"]));
        assert_eq!(channels(&spec), BTreeSet::from(["g", "h", "i"]));
        assert!(templates(&json!({})).is_empty() && channels(&json!({})).is_empty());
        assert!(named_by_tasks(&json!({}), "pools").is_empty());
    }
}
