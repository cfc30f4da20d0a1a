//! A token as it is asked for: by `POST /v1/tokens`, and by `heddle token create` against the database. Both read and
//! create it here, so that neither lets in what the other refuses, and both give the same answer.

use heddle_api::moment::parse_moment;
use heddle_api::{MadeToken, NewToken, Token};
use heddle_domain::dispatch::bare_uid;
use heddle_domain::{Chance, Faults, Name, Time, id, spec};
use heddle_store::change::By;
use heddle_store::token::{TokenRow, TokenWrite};
use heddle_store::{Store, StoreError};
use serde_json::Value;

use super::Role;
use super::tokens::{new_token, token_hash};

/// How many queues or users a token may be bound to.
const BOUND_TO_MAX: usize = 1_000;

/// A token that may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    /// What it is for.
    pub name: Name,
    /// What it may do.
    pub role: Role,
    /// A worker's queues; all when empty.
    pub queues: Vec<String>,
    /// A worker's users; all when empty.
    pub uids: Vec<String>,
    /// Until when it is in force; in the future.
    pub expires_at: Option<Time>,
}

impl TokenSpec {
    /// Reads `{name, role, queues?, uids?, expires_at?}`; the faults are as of `now`.
    pub fn read(value: &Value, now: Time) -> Result<Self, Faults> {
        let given: NewToken = spec::read(value)?;
        let mut faults = Faults::default();
        // An empty list means everything, so it must not be the result of a mistake.
        let lists = [("queues", &given.queues), ("uids", &given.uids)];
        let binds = lists
            .iter()
            .any(|(_, list)| list.as_ref().is_some_and(|list| !list.is_empty()));
        for (field, list) in lists {
            if given.role == Role::Worker && !binds && list.is_some() {
                faults.add(
                    format!("/{field}"),
                    "give at least one entry; for a worker token for all queues and users, omit both lists",
                );
            }
        }
        let (given_queues, uids) = (given.queues.unwrap_or_default(), given.uids.unwrap_or_default());
        let name = Name::new(&given.name);
        if let Err(error) = &name {
            faults.add("/name", error.to_string());
        }
        for (field, values) in [("queues", &given_queues), ("uids", &uids)] {
            if values.len() > BOUND_TO_MAX {
                faults.add(format!("/{field}"), format!("must have at most {BOUND_TO_MAX} entries"));
            }
            if !values.is_empty() && given.role != Role::Worker {
                faults.add(
                    format!("/{field}"),
                    "only a token with the role `worker` can have queues or uids",
                );
            }
        }
        let mut queues = Vec::with_capacity(given_queues.len().min(BOUND_TO_MAX));
        for (index, queue) in given_queues.iter().take(BOUND_TO_MAX).enumerate() {
            match Name::new(queue) {
                Ok(queue) => queues.push(queue.to_string()),
                Err(error) => faults.add(format!("/queues/{index}"), error.to_string()),
            }
        }
        for (index, uid) in uids.iter().take(BOUND_TO_MAX).enumerate() {
            if let Err(detail) = bare_uid(uid) {
                faults.add(format!("/uids/{index}"), detail);
            }
        }
        let expires_at = match given.expires_at.as_deref().map(parse_moment) {
            Some(Err(error)) => {
                faults.add("/expires_at", error);
                None
            }
            Some(Ok(at)) if at <= now => {
                faults.add("/expires_at", "`expires_at` must be in the future");
                None
            }
            Some(Ok(at)) => Some(at),
            None => None,
        };
        match name {
            Ok(name) if faults.is_empty() => Ok(Self {
                name,
                role: given.role,
                queues,
                uids,
                expires_at,
            }),
            _ => Err(faults),
        }
    }

    /// Creates the token; `None` if there is one of this name.
    pub async fn create(
        &self,
        store: &Store,
        by: By<'_>,
        chance: &dyn Chance,
    ) -> Result<Option<MadeToken>, StoreError> {
        let token = new_token(chance);
        let write = TokenWrite {
            id: id::uuid_v7(by.at, chance.bits()),
            name: &self.name,
            hash: token_hash(&token),
            role: self.role.as_str(),
            queues: &self.queues,
            uids: &self.uids,
            expires_at: self.expires_at,
        };
        let row = store.create_token(by, write).await?;
        Ok(row.map(|row| MadeToken {
            made: shown_token(row),
            token,
        }))
    }
}

/// A token of the table, as answers show it.
pub(crate) fn shown_token(row: TokenRow) -> Token {
    Token {
        id: row.id,
        name: row.name,
        role: row.role,
        queues: row.queues,
        uids: row.uids,
        expires_at: row.expires_at.map(Into::into),
        created_at: row.created_at.into(),
        last_used_at: row.last_used_at.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_checked() {
        let now = Time::from_timestamp(1_800_000_000, 0).unwrap();
        let check = |value: Value, pointers: &[&str]| {
            let found: Vec<String> = match TokenSpec::read(&value, now) {
                Ok(_) => Vec::new(),
                Err(faults) => faults.0.into_iter().map(|fault| fault.pointer).collect(),
            };
            assert_eq!(found, pointers, "{value}");
        };
        check(
            json!({"name": "a", "role": "worker", "queues": ["q"], "uids": ["u", "uid_v"]}),
            &[],
        );
        check(
            json!({"name": "a", "role": "admin", "queues": null, "expires_at": null}),
            &[],
        );
        check(json!({"name": "a", "role": "worker"}), &[]);
        check(
            json!({"name": "a", "role": "worker", "queues": null, "uids": null}),
            &[],
        );
        check(json!({"name": "a", "role": "worker", "queues": ["q"], "uids": []}), &[]);
        check(json!({"name": "a", "role": "worker", "queues": []}), &["/queues"]);
        check(
            json!({"name": "a", "role": "worker", "queues": [], "uids": []}),
            &["/queues", "/uids"],
        );
        check(json!({"name": "a", "role": "viewer", "queues": []}), &[]);
        check(json!({"role": "admin"}), &["/name"]);
        check(json!({"name": "a"}), &["/role"]);
        check(
            json!({"name": "", "role": "viewer", "uids": ["u"]}),
            &["/name", "/uids"],
        );
        check(
            json!({"name": "a", "role": "worker", "queues": ["q", "a b"], "uids": ["", "u\n", "x".repeat(251)]}),
            &["/queues/1", "/uids/0", "/uids/1", "/uids/2"],
        );
        check(
            json!({"name": "a", "role": "admin", "expires_at": "2020-01-01T00:00:00Z"}),
            &["/expires_at"],
        );
        check(
            json!({"name": "a", "role": "admin", "expires_at": "soon"}),
            &["/expires_at"],
        );
        check(json!({"name": "a", "role": "admin", "scope": 1}), &["/scope"]);
        check(json!([]), &[""]);
    }
}
