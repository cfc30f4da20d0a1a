//! `apply --prune`: deletes what is on the server but not in the files.

use anyhow::{Context, Result};
use heddle_domain::topic::GROUP_PREFIX;
use serde_json::{Value, json};
use std::collections::BTreeSet;

use crate::document::{Document, Kind, name_of};
use crate::exit::usage;
use crate::output::plain;
use crate::session::Session;
use crate::terminal::{self, tell};

/// How often refused deletions are repeated: some groups can only be deleted after others.
const ROUNDS_MAX: usize = 20;

/// What would be deleted: for each kind in the files, all objects that they do not name, in an order in which they can
/// be deleted.
pub(super) async fn surplus(session: &Session, documents: &[Document]) -> Result<Vec<(Kind, String)>> {
    let kinds: BTreeSet<Kind> = documents.iter().map(|document| document.kind).collect();
    let mut surplus = Vec::new();
    // Objects that refer to others are deleted first.
    for kind in kinds.into_iter().rev() {
        let request = session.client.get(&["v1", kind.path()]);
        let items: Vec<Value> = session
            .all(request)
            .await
            .with_context(|| format!("listing {}", kind.path()))?;
        for item in items {
            // Offers of task runs are left out: they are deleted with their runs. So are groups that Heddle creates for
            // topics: they are deleted with these.
            let own = kind == Kind::Offer && !item["run"].is_null();
            let Some(name) = name_of(&item).filter(|name| !own && !name.starts_with(GROUP_PREFIX)) else {
                continue;
            };
            let kept = documents
                .iter()
                .any(|document| document.kind == kind && document.name == name);
            if !kept {
                surplus.push((kind, name));
            }
        }
    }
    Ok(surplus)
}

/// Shows the deletions and asks. Without a terminal, `--yes` is required.
pub(super) fn agreed(surplus: &[(Kind, String)], yes: bool) -> Result<bool> {
    for (kind, name) in surplus {
        tell!("- {} {name}", kind.as_str());
    }
    if yes {
        return Ok(true);
    }
    let several = if surplus.len() == 1 { "object is" } else { "objects are" };
    let what = format!("{} {several} not in the files", surplus.len());
    if !terminal::can_ask() {
        return Err(usage(format!("{what}; use --yes to delete, or --dry-run to only show")));
    }
    terminal::asks(&format!("{what}. Delete?"))
}

/// Deletes; returns the result for each, and whether anything was refused.
pub(super) async fn delete(session: &Session, surplus: Vec<(Kind, String)>) -> Result<(Vec<Value>, bool)> {
    let mut results = Vec::new();
    let mut left = surplus;
    let mut refused = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let before = left.len();
        refused.clear();
        for (kind, name) in std::mem::take(&mut left) {
            let request = session.client.delete(&["v1", kind.path(), &name]);
            match request.send_for_option::<Value>().await {
                Ok(_) => results.push(json!({"kind": kind.as_str(), "name": name, "result": "deleted"})),
                Err(error) if error.status() == Some(404) => {
                    results.push(json!({"kind": kind.as_str(), "name": name, "result": "gone"}));
                }
                Err(error) if error.status() == Some(409) => {
                    refused.push(error);
                    left.push((kind, name));
                }
                Err(error) => return Err(error).with_context(|| format!("deleting {} {name}", kind.as_str())),
            }
        }
        if left.is_empty() || left.len() == before {
            break;
        }
    }
    for ((kind, name), error) in left.iter().zip(&refused) {
        tell!("error: {} {name}: {error}", kind.as_str());
        let problem = error.problem().map(|problem| json!(problem)).unwrap_or_default();
        results
            .push(json!({"kind": kind.as_str(), "name": plain(&json!(name)), "result": "refused", "problem": problem}));
    }
    Ok((results, !left.is_empty()))
}
