//! Who names a thing: what may not be deleted while somebody does.

use sqlx::PgConnection;

use crate::StoreError;

/// What came of deleting a thing that specs may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// There was none.
    Missing,
    /// These (the first few) name it.
    UsedBy(Users),
    /// It is gone.
    Done,
}

/// Who names a thing, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    pub groups: Vec<String>,
    pub offers: Vec<String>,
}

impl Users {
    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.offers.is_empty()
    }
}

/// How many users of a thing are named when it may not be deleted.
const USERS_NAMED_MAX: i64 = 20;

/// Where a group's spec names a thing of a kind: JSON paths with the variable `$name`.
pub(crate) const SECRETS: &str = "$.tasks.*.secrets[*] ? (@ == $name)";
pub(crate) const CONNECTIONS: &str = "$.tasks.*.sql[*] ? (@ == $name)";
pub(crate) const POOLS: &str = "$.tasks.*.pools.keyvalue().key ? (@ == $name)";

/// The groups whose current specs name a thing.
pub(crate) async fn groups(connection: &mut PgConnection, path: &str, name: &str) -> Result<Vec<String>, StoreError> {
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

/// The offers that name a template.
pub(crate) async fn offers(connection: &mut PgConnection, template: &str) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT name FROM heddle.offers WHERE template = $1 AND deleted_at IS NULL AND run IS NULL
          ORDER BY name LIMIT $2",
        template,
        USERS_NAMED_MAX,
    )
    .fetch_all(connection)
    .await?)
}
