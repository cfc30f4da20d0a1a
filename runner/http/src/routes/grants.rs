//! Who may use secrets and connections, as bodies say it; and sentences that name users of a thing.

use heddle_domain::{Faults, Name};
use heddle_store::secret::Grant;
use heddle_store::usage::Removal;
use serde_json::Value;

use crate::app::App;
use crate::problem::Problem;
use crate::request::{Outcome, no_content};

/// How many groups or categories a grant may name.
const GRANTEES_MAX: usize = 1_000;

/// Refuses to encrypt with a key that does not decrypt what is already there. Otherwise each of two nodes with different
/// keys would store what the other cannot read, and neither would start again.
pub(crate) async fn require_common_key(app: &App) -> Result<(), Problem> {
    let foreign = app.store.foreign_seals(&app.secret_keys).await?;
    match foreign.first() {
        None => Ok(()),
        Some(seal) => Err(Problem::conflict(format!(
            "{} `{}` is encrypted with another key (fingerprint {}) than the key of this node (fingerprint {}); start \
            all nodes with the same HEDDLE_SECRETS_KEY",
            seal.kind,
            seal.name,
            seal.key_id,
            app.secret_keys.current_id(),
        ))),
    }
}

/// Checks the names of a grant; `*` means all.
pub(crate) fn grant(groups: Vec<String>, categories: Vec<String>) -> Result<Grant, Problem> {
    let mut faults = Faults::default();
    let mut clean = |field: &str, names: Vec<String>| {
        if names.len() > GRANTEES_MAX {
            faults.add(format!("/{field}"), format!("must have at most {GRANTEES_MAX} entries"));
            return Vec::new();
        }
        let mut known = Vec::with_capacity(names.len());
        for (index, name) in names.into_iter().enumerate() {
            match Name::new(&name) {
                _ if name == "*" => known.push(name),
                Ok(name) => known.push(name.to_string()),
                Err(error) => faults.add(format!("/{field}/{index}"), error.to_string()),
            }
        }
        known.sort();
        known.dedup();
        known
    };
    let grant = Grant {
        groups: clean("groups", groups),
        categories: clean("categories", categories),
    };
    faults.or(grant).map_err(Problem::invalid)
}

/// A `name` in a body has to be the one in the path.
pub(crate) fn same_name(name: &Name, given: Option<&str>) -> Result<(), Problem> {
    same_name_at("/name", name, given)
}

/// The same of what calls its name something else.
pub(crate) fn same_name_at(pointer: &str, name: &Name, given: Option<&str>) -> Result<(), Problem> {
    match given {
        Some(given) if Name::new(given).ok().as_ref() != Some(name) => Err(Problem::invalid_at(
            pointer,
            format!("the name must be the one in the path, `{name}`"),
        )),
        _ => Ok(()),
    }
}

/// What was read may be put again: without what only answers have. A name has to be the one in the path.
pub(crate) fn as_put(mut value: Value, name: &Name) -> Result<Value, Problem> {
    let Value::Object(fields) = &mut value else {
        return Ok(value);
    };
    for field in ["created_at", "updated_at"] {
        fields.remove(field);
    }
    match fields.remove("name") {
        None | Some(Value::Null) => {}
        Some(Value::String(given)) => same_name(name, Some(&given))?,
        Some(_) => return Err(Problem::invalid_at("/name", "a name must be a string")),
    }
    Ok(value)
}

/// 204 when a thing is gone; 409 naming those who name it, 404 when there was none.
pub(crate) fn removed(removal: Removal, what: &str, name: &Name) -> Outcome {
    match removal {
        Removal::Done => no_content(),
        Removal::Missing => Err(Problem::not_found(what, name)),
        Removal::UsedBy(users) => {
            let users = [
                ("group", &users.groups),
                ("offer", &users.offers),
                ("topic", &users.topics),
            ];
            let named: Vec<String> = users
                .into_iter()
                .filter(|(_, names)| !names.is_empty())
                .map(|(noun, names)| quoted(noun, names))
                .collect();
            Err(Problem::conflict(format!(
                "the {what} `{name}` is used by {}",
                named.join(" and ")
            )))
        }
    }
}

/// `group `a``, or `groups `a`, `b``.
pub(crate) fn quoted(noun: &str, names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "{noun}{} {}",
        if names.len() == 1 { "" } else { "s" },
        quoted.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_name_what_can_exist() {
        let granted = grant(vec!["b".into(), "a".into(), "a".into()], vec!["*".into()]).unwrap();
        assert_eq!(
            (granted.groups, granted.categories),
            (vec!["a".into(), "b".into()], vec!["*".to_owned()])
        );
        let problem = grant(vec!["a".into(), "no/name".into()], vec![]).unwrap_err();
        assert_eq!(problem.errors[0].pointer, "/groups/1");
    }
}
