//! The revisions of a group, and the graph of the current one.

use heddle_api::{Graph, GraphEdge, GraphLink, GraphNode, List, Revision};
use heddle_domain::executor::Executor;
use heddle_domain::link::LinkKind;
use heddle_domain::spec::Need;
use heddle_store::group::RevisionRow;

use super::find;
use crate::adapter;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};

fn revision_of(group: &str, row: RevisionRow) -> Revision {
    Revision {
        group: group.into(),
        revision: row.revision,
        spec: row.spec,
        created_at: row.created_at.into(),
        created_by: row.created_by,
    }
}

pub(super) async fn revisions(request: Request) -> Outcome {
    let row = find(&request).await?;
    let page = request
        .app
        .store
        .revisions(row.id, request.cursor_as()?, request.limit()?)
        .await?;
    let items = page
        .items
        .into_iter()
        .map(|revision| revision_of(&row.name, revision))
        .collect::<Vec<_>>();
    ok(&List {
        items,
        next_cursor: page.next,
    })
}

pub(super) async fn revision(request: Request) -> Outcome {
    let row = find(&request).await?;
    let number: i32 = request.id("revision", "revision")?;
    let found = match number.checked_add(1) {
        Some(above) => request
            .app
            .store
            .revisions(row.id, Some(above), 1)
            .await?
            .items
            .into_iter()
            .next(),
        None => None,
    };
    let found = found
        .filter(|found| found.revision == number)
        .ok_or_else(|| Problem::not_found("revision", &format!("{}/{number}", row.name)))?;
    ok(&revision_of(&row.name, found))
}

pub(super) async fn graph(request: Request) -> Outcome {
    let name = request.name("name", "group")?;
    let store = &request.app.store;
    let Some((group_id, revision_id)) = store.group_revision(&name).await? else {
        return Err(Problem::not_found("group", &name));
    };
    // A revision is for ever the same, and has been read before.
    let revision = request.app.engine.catalog().revision(revision_id).await;
    let revision = revision.map_err(adapter::Refusal::from)?;
    let spec = &revision.plan.spec;
    let mut nodes = Vec::with_capacity(spec.tasks.len());
    let mut edges = Vec::new();
    for (task, written) in &spec.tasks {
        let executor = Executor::of(written).ok().map(|executor| executor.as_str().to_owned());
        nodes.push(GraphNode {
            task: task.to_string(),
            executor,
            trigger_rule: written.trigger_rule,
            mapped: written.for_each.is_some() || written.shards.is_some(),
        });
        edges.extend(written.depends_on.iter().map(|needed| GraphEdge {
            from: needed.to_string(),
            to: task.to_string(),
        }));
    }
    let links = store.links_of(group_id).await?;
    let (up, down): (Vec<_>, Vec<_>) = links.into_iter().partition(|link| link.group == name.as_str());
    let link = |group: String, kind: LinkKind, need: Need| GraphLink {
        group,
        kind: kind.as_str().to_owned(),
        need: need.as_str().to_owned(),
    };
    ok(&Graph {
        group: name.to_string(),
        revision: revision.number,
        nodes,
        edges,
        upstream: up.into_iter().map(|l| link(l.upstream, l.kind, l.need)).collect(),
        downstream: down.into_iter().map(|l| link(l.group, l.kind, l.need)).collect(),
    })
}
