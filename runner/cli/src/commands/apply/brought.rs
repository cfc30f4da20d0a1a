//! The check of a dry run. The server checks each group by itself, so it misses what the other documents would bring: this
//! decides which of its errors they settle.

use heddle_domain::{Faults, Name};
use heddle_store::secret::Grant;
use serde_json::Value;

use super::existing;
use crate::document::{Document, Kind};
use crate::session::Session;

/// When another document settles an error about the object that it describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Whatever the server has.
    Always,
    /// If the server does not have the object. Otherwise something else is wrong at that place, for example a cycle.
    New,
    /// If the server has the object: the document lacks what a new one needs.
    Known,
}

/// The server's check of a group by itself. What is missing there is no error if the same files bring it.
pub(super) async fn check(
    session: &Session,
    document: &Document,
    documents: &[Document],
) -> heddle_client::Result<&'static str> {
    if document.kind != Kind::Group {
        return Ok("not checked (dry run)");
    }
    let refused = match session.client.validate_group(&document.name, &document.spec).await {
        Ok(_) => return Ok("valid (dry run)"),
        Err(error) => error,
    };
    let faults = refused
        .problem()
        .map(|problem| problem.errors.as_slice())
        .unwrap_or_default();
    // Of more errors than that, the server does not list all.
    let mut all_brought = !faults.is_empty() && faults.len() < Faults::MAX;
    for fault in faults {
        all_brought = all_brought
            && match brought(document, documents, &fault.pointer) {
                Some((_, When::Always)) => true,
                Some((other, when)) => match existing(session, other).await {
                    Ok(found) => found.is_some() == (when == When::Known),
                    // Who may not see the object gets the errors of the group, which say more.
                    Err(error) if error.status() == Some(403) => false,
                    Err(error) => return Err(error),
                },
                None => false,
            };
    }
    match all_brought {
        true => Ok("valid together with the other documents (dry run)"),
        false => Err(refused),
    }
}

/// The other document whose object a spec names at this pointer, and when it settles an error there. `None` also if the
/// place is at fault for another reason: an upstream group that is named for the second time, a secret that the other
/// document does not grant to this group, a pool that has too few slots in it.
pub(super) fn brought<'d>(
    document: &Document,
    documents: &'d [Document],
    pointer: &str,
) -> Option<(&'d Document, When)> {
    let spec = &document.spec;
    let written = || spec.pointer(pointer).and_then(name);
    let steps: Vec<&str> = pointer.split('/').collect();
    let (kind, named) = match steps.as_slice() {
        ["", "depends_on", index] => (Kind::Group, first_upstream(spec, index)?),
        ["", "tasks", _, "group"] => (Kind::Group, written()?),
        ["", "template"] | ["", "tasks", _, "audience", "template"] => (Kind::Template, written()?),
        ["", "notify", "channels", _] | ["", "tasks", _, "notify", "channels", _] => (Kind::Channel, written()?),
        ["", "tasks", _, "secrets", _] => (Kind::Secret, written()?),
        ["", "tasks", _, "sql", _] | ["", "tasks", _, "query", "connection"] => (Kind::Connection, written()?),
        // The key is a name, which no pointer has to escape.
        ["", "tasks", _, "pools", pool] => (Kind::Pool, pool.parse().ok()?),
        _ => return None,
    };
    let mut others = documents
        .iter()
        .filter(|other| other.kind == kind && (kind != Kind::Group || other.name != document.name));
    let other = others.find(|other| other.name.parse::<Name>().is_ok_and(|other| other == named))?;
    let when = match kind {
        Kind::Pool => {
            let (taken, slots) = (spec.pointer(pointer)?.as_u64()?, other.spec["slots"].as_u64()?);
            (1..=slots).contains(&taken).then_some(When::Always)
        }
        Kind::Secret | Kind::Connection if !grants(other, document) => None,
        Kind::Secret => other.spec["value"].is_string().then_some(When::Always),
        Kind::Connection if other.spec["url"].is_string() => Some(When::Always),
        Kind::Connection => Some(When::Known),
        _ => Some(When::New),
    };
    Some((other, when?))
}

/// The upstream group at this index of `depends_on`, if no earlier one is the same.
fn first_upstream(spec: &Value, index: &str) -> Option<Name> {
    let index: usize = index.parse().ok()?;
    let upstreams = spec["depends_on"].as_array()?;
    let named = upstream(upstreams.get(index)?)?;
    let mut earlier = upstreams[..index].iter();
    match earlier.any(|one| upstream(one).as_ref() == Some(&named)) {
        true => None,
        false => Some(named),
    }
}

/// Whether a secret or a connection, as its document describes it, may be used by a group.
fn grants(document: &Document, group: &Document) -> bool {
    let names = |list: &Value| -> Vec<String> {
        let written = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        written.map(composed).collect()
    };
    let grant = Grant {
        groups: names(&document.spec["groups"]),
        categories: names(&document.spec["categories"]),
    };
    let category = group.spec["category"].as_str().map(composed);
    grant.allows(&composed(&group.name), category.as_deref())
}

/// A name as the server stores it. `*`, which means all, is no name.
fn composed(text: &str) -> String {
    text.parse::<Name>()
        .map_or_else(|_| text.to_owned(), |name| name.to_string())
}

/// The name of an upstream group, in either of its forms: `name`, or `{group: name}`.
fn upstream(written: &Value) -> Option<Name> {
    name(written).or_else(|| name(&written["group"]))
}

fn name(written: &Value) -> Option<Name> {
    written.as_str()?.parse().ok()
}
