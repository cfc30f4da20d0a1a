//! Nodes, counts, the audit, retention.

use axum::http::StatusCode;
use heddle_store::audit::{AuditFilter, AuditRow};
use heddle_store::setting::{RETENTION, Retention};
use serde::Serialize;
use serde_json::{Value, json};

use crate::access::Access;
use crate::moment::Moment;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, ok, typed};
use crate::shapes::List;
use crate::table::{Method, Route};

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/nodes",
            Access::View,
            "The nodes of the cluster",
            nodes,
        )
        .detail("`position` is how far a node has followed the log of changes, `position_newest` how long it is.")
        .answers(200, "NodeList"),
        Route::new(Method::Get, "/v1/stats", Access::View, "Counts", stats).answers(200, "Stats"),
        Route::new(
            Method::Get,
            "/v1/audit",
            Access::View,
            "What people changed, newest first",
            audit,
        )
        .list()
        .query("kind", "`group`, `script`, `secret`, ...")
        .query("name", "The name of the thing.")
        .query("actor", "Who.")
        .query("action", "`create`, `update`, `delete`, ...")
        .query("from", "At or after this time.")
        .query("to", "At or before this time.")
        .answers(200, "AuditList"),
        Route::new(
            Method::Get,
            "/v1/retention",
            Access::View,
            "How long what is kept",
            retention,
        )
        .answers(200, "Retention"),
        Route::new(
            Method::Put,
            "/v1/retention",
            Access::Admin,
            "Change how long what is kept",
            set_retention,
        )
        .detail("What is left out takes its default.")
        .takes_spec("Retention")
        .answers(200, "Retention"),
    ]
}

async fn nodes(request: Request) -> Outcome {
    ok(&List {
        items: request.app.engine.nodes().await?,
        next_cursor: None,
    })
}

async fn stats(request: Request) -> Outcome {
    let mut stats = request.app.engine.stats().await?;
    let config = &request.app.config;
    // This very request neither waits nor follows.
    stats["node"]["waiting"] = json!(config.waits_max - request.app.waits.available_permits());
    ok(&stats)
}

#[derive(Serialize)]
struct AuditView {
    id: i64,
    at: Moment,
    actor: String,
    action: String,
    kind: String,
    name: String,
    before: Option<Value>,
    after: Option<Value>,
}

impl From<AuditRow> for AuditView {
    fn from(row: AuditRow) -> Self {
        Self {
            id: row.id,
            at: row.at.into(),
            actor: row.actor,
            action: row.action,
            kind: row.kind,
            name: row.name,
            before: row.before,
            after: row.after,
        }
    }
}

async fn audit(request: Request) -> Outcome {
    let text = |key: &str| request.query(key).map(str::to_owned);
    let filter = AuditFilter {
        kind: text("kind"),
        name: text("name"),
        actor: text("actor"),
        action: text("action"),
        from: request.query_time("from")?,
        to: request.query_time("to")?,
    };
    let page = request
        .app
        .store
        .audit_list(&filter, request.cursor_as()?, request.limit()?)
        .await?;
    ok(&List::<AuditView> {
        items: page.items.into_iter().map(Into::into).collect(),
        next_cursor: page.next,
    })
}

async fn retention(request: Request) -> Outcome {
    ok(&request.app.store.retention().await?)
}

async fn set_retention(mut request: Request) -> Outcome {
    let wanted: Retention = typed(request.spec().await?, "")?;
    for (name, span) in wanted.each() {
        if span < Retention::MIN {
            return Err(Problem::invalid_at(
                format!("/{name}"),
                format!("at least {}", Retention::MIN),
            ));
        }
    }
    let value = serde_json::to_value(wanted).map_err(|error| Problem::internal(&error))?;
    request.app.store.put_setting(request.by(), RETENTION, &value).await?;
    answer(StatusCode::OK, &wanted)
}
