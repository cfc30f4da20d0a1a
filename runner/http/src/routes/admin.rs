//! Nodes, counts, the audit, retention.

use axum::http::StatusCode;
use heddle_api::{AuditEntry, List, Node, Prune, Pruned, RetentionOrPruned, Stats};
use heddle_domain::id::uuid_v7;
use heddle_domain::retention::Retention;
use heddle_store::audit::{AuditFilter, AuditRow};
use heddle_store::change::Noun;

use crate::access::{Access, Role};
use crate::adapter;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, list_of, ok, typed};
use crate::table::{Method, Route};

/// What each route is called, takes and answers.
#[expect(clippy::too_many_lines, reason = "a list: an entry for each route")]
pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/nodes",
            Access::View,
            "List the nodes of the cluster",
            nodes,
        )
        .detail(
            "`position` is the last change that the node has applied, `position_newest` the last change of the \
            cluster. Both count the entries of the log of changes.",
        )
        .list()
        .answers(200, of::<List<Node>>()),
        Route::new(
            Method::Get,
            "/v1/stats",
            Access::View,
            "Get counts for the whole cluster",
            stats,
        )
        .answers(200, of::<Stats>()),
        Route::new(
            Method::Get,
            "/v1/audit",
            Access::View,
            "List what people changed, newest first",
            audit,
        )
        .detail(
            "Only an admin gets entries about tokens, sessions, secrets and connections. For all other roles, the list is \
            without them, and the `kind` of one of them is 403. A page ends with the entry with which it has more than \
            4 MiB of `before` and `after`. Then it has fewer entries than `limit`, and a `next_cursor`.",
        )
        .list()
        .query(
            "kind",
            "Only entries about this kind of object: `group`, `script`, `secret`, ...",
        )
        .query(
            "name",
            "Only entries about the object with this name. `thing` is another name of this parameter.",
        )
        .query("thing", "Only entries about the object with this name.")
        .query("actor", "Only entries about changes by this person or token.")
        .query(
            "action",
            "Only entries about this action: `create`, `update`, `delete`, ...",
        )
        .time("from", "Only entries at or after this time.")
        .time("to", "Only entries at or before this time.")
        .answers(200, of::<List<AuditEntry>>()),
        Route::new(
            Method::Get,
            "/v1/retention",
            Access::View,
            "Get how long data is kept",
            retention,
        )
        .answers(200, of::<Retention>()),
        Route::new(
            Method::Put,
            "/v1/retention",
            Access::Admin,
            "Change how long data is kept",
            set_retention,
        )
        .detail(
            "A field that is omitted gets its default. With `dry_run`, nothing changes, and the answer says what \
            would be removed now.",
        )
        .flag(
            "dry_run",
            "`true`: change nothing, and answer what would be removed (`Pruned`). Default: `false`.",
        )
        .takes_spec(of::<Retention>())
        .answers(200, of::<RetentionOrPruned>()),
        Route::new(
            Method::Post,
            "/v1/retention/prune",
            Access::Admin,
            "Remove expired data now",
            prune,
        )
        .detail(
            "Nodes do this automatically; this call does it immediately. One call removes a limited amount: if \
            `more` is true, call it again.",
        )
        .takes(of::<Prune>())
        .optional()
        .answers(200, of::<Pruned>()),
    ]
}

async fn nodes(request: Request) -> Outcome {
    let limit = request.limit()?;
    let after = request.cursor();
    let mut items = adapter::node::list(&request.app.engine).await?;
    // In the order of their ids only where there is more than a page of them: people read them by age.
    let mut next_cursor = None;
    if after.is_some() || items.len() > limit as usize {
        items.sort_by(|one, other| one.id.cmp(&other.id));
        items.retain(|node| after.is_none_or(|after| node.id.as_str() > after));
        if items.len() > limit as usize {
            items.truncate(limit as usize);
            next_cursor = items.last().map(|node| node.id.clone());
        }
    }
    ok(&List { items, next_cursor })
}

async fn stats(request: Request) -> Outcome {
    let mut stats = adapter::node::stats(&request.app.engine).await?;
    let config = &request.app.config;
    // This very request neither waits nor follows.
    stats.node.waiting = config.waits_max - request.app.waits.free();
    ok(&stats)
}

fn shown(row: AuditRow) -> AuditEntry {
    AuditEntry {
        // Ids of the API are UUIDv7; the row's own number makes this one unique.
        id: uuid_v7(row.at, (row.id as u128) << 48),
        at: row.at.into(),
        actor: row.actor,
        action: row.action,
        kind: row.kind,
        name: row.name,
        before: row.before,
        after: row.after,
    }
}

async fn audit(request: Request) -> Outcome {
    let text = |key: &str| request.query(key).map(str::to_owned);
    let is_for_admin = request.caller.role == Role::Admin;
    if let Some(kind) = request.query("kind")
        && !is_for_admin
        && Noun::WORDS_OF_ADMINS.contains(&kind)
    {
        return Err(Problem::forbidden(format!(
            "only an admin can list the objects of the kind `{kind}`, so only an admin gets their entries in the audit"
        )));
    }
    let filter = AuditFilter {
        kind: text("kind"),
        name: request.query_name("name").or_else(|| request.query_name("thing")),
        actor: text("actor"),
        action: text("action"),
        from: request.query_time("from")?,
        to: request.query_time("to")?,
        is_for_admin,
    };
    let page = request
        .app
        .store
        .audit_list(&filter, request.cursor_as()?, request.limit()?)
        .await?;
    list_of(page, shown)
}

async fn retention(request: Request) -> Outcome {
    ok(&request.app.store.retention().await?)
}

async fn set_retention(mut request: Request) -> Outcome {
    let dry_run = request.flag("dry_run", false)?;
    let wanted: Retention = typed(request.spec().await?, "")?;
    wanted.check().or(()).map_err(Problem::invalid)?;
    if dry_run {
        let pruned = request.app.engine.prune(Some(wanted), true).await?;
        return ok(&pruned);
    }
    request.app.store.put_retention(request.by(), &wanted).await?;
    answer(StatusCode::OK, &wanted)
}

async fn prune(mut request: Request) -> Outcome {
    let body: Prune = request.body().await?;
    if !body.dry_run {
        request.app.store.audit_prune(request.by()).await?;
    }
    let pruned = request.app.engine.prune(None, body.dry_run).await?;
    ok(&pruned)
}
