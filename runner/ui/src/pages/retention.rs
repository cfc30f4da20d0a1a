//! The retention rules: how long each kind of data is kept, what would be removed now, and the age of the oldest.
//!
//! An open page is made again with each entry of the audit, and once a minute. Counting what would be removed takes long
//! if there is much: it reads up to a million rows of each kind. So one viewer at a time counts, and open pages share a
//! count for [`COUNTED_FOR`], as long as the rules are the same. Who asks for the page gets a new count.

use std::sync::Arc;

use axum::http::Method;
use chrono::TimeDelta;
use heddle_api::{EndState, Pruned, Retention};
use heddle_domain::{Span, Time};
use heddle_store::retention::others::OTHERS_COUNT_MAX;
use heddle_store::retention::{COUNT_MAX, OldestDue};
use maud::{Markup, html};
use serde_json::json;
use tokio::sync::Mutex;

use crate::elements::{prose, time};
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// How long open pages show what was counted.
const COUNTED_FOR: TimeDelta = TimeDelta::seconds(20);

/// What the rules would remove at some time.
struct Count {
    rules: Retention,
    at: Time,
    would: Pruned,
    oldest: OldestDue,
}

impl Count {
    /// Whether an open page may show it.
    fn serves(&self, rules: &Retention, now: Time) -> bool {
        self.rules == *rules && now.signed_duration_since(self.at) < COUNTED_FOR
    }
}

/// The last count of this node. Locked while somebody counts.
#[derive(Default)]
pub(crate) struct LastCount(Mutex<Option<Arc<Count>>>);

/// What these rules would remove.
async fn counted(ctx: &Ctx, rules: &Retention) -> Result<Arc<Count>, Trouble> {
    let mut last = ctx.ui.due.0.lock().await;
    if let Some(count) = last
        .as_ref()
        .filter(|count| ctx.is_open && count.serves(rules, ctx.now))
    {
        return Ok(count.clone());
    }
    let body = json!({ "dry_run": true });
    let count = Arc::new(Count {
        would: ctx.ask(Method::POST, "/v1/retention/prune", &body).await?,
        oldest: ctx.store().oldest_due(rules, ctx.now).await?,
        rules: rules.clone(),
        at: ctx.now,
    });
    *last = Some(count.clone());
    Ok(count)
}

/// A kind of data, how long it is kept, and what would be removed. The latter is unknown if the viewer may not ask for
/// it.
struct Line {
    what: String,
    kept: String,
    due: Option<i64>,
    /// Up to this number rows are counted.
    most: i64,
    oldest: Option<Time>,
}

/// The rules in the order in which people look for them.
fn lines(ctx: &Ctx, kept: &Retention, count: Option<&Count>) -> Vec<Line> {
    let (would, oldest) = (count.map(|count| &count.would), count.map(|count| &count.oldest));
    let said = |span: Span| span::span(ctx.lang, span.chrono().num_milliseconds());
    let mut lines: Vec<Line> = EndState::ALL
        .into_iter()
        .map(|state| Line {
            what: t!(ctx, &format!("retention-{}", state.as_str())),
            kept: said(kept.kept(None, state).runs),
            due: would.and_then(|would| Some(*would.by_state.get(&state)? as i64)),
            most: COUNT_MAX,
            oldest: oldest
                .and_then(|oldest| oldest.runs.iter().find(|(number, _)| *number == state.state().number()))
                .map(|(_, at)| *at),
        })
        .collect();
    lines.push(Line {
        what: t!(ctx, "retention-logs"),
        kept: kept.logs.map_or_else(|| t!(ctx, "retention-with-runs"), said),
        due: kept.logs.and(would).map(|would| would.log_days.len() as i64),
        most: COUNT_MAX,
        oldest: None,
    });
    let others = [
        (
            "notifications",
            kept.notifications,
            would.map(|would| would.notifications),
            oldest.and_then(|oldest| oldest.notifications),
        ),
        (
            "assignments",
            kept.assignments,
            would.map(|would| would.assignments),
            oldest.and_then(|oldest| oldest.assignments),
        ),
        (
            "events",
            kept.events,
            would.map(|would| would.events),
            oldest.and_then(|oldest| oldest.events),
        ),
        (
            "audit",
            kept.audit,
            would.map(|would| would.audit),
            oldest.and_then(|oldest| oldest.audit),
        ),
    ];
    lines.extend(others.into_iter().map(|(name, kept, due, oldest)| Line {
        what: t!(ctx, &format!("retention-{name}")),
        kept: said(kept),
        due: due.map(|due| due as i64),
        most: COUNT_MAX,
        oldest,
    }));
    // What is also removed because of these rules, shown if there is something.
    let following = would.map(|would| {
        [
            ("occurrences", would.occurrences, COUNT_MAX),
            ("offers", would.offers, OTHERS_COUNT_MAX),
            ("backfills", would.backfills, OTHERS_COUNT_MAX),
            ("tokens", would.tokens, COUNT_MAX),
        ]
    });
    for (name, due, most) in following.into_iter().flatten() {
        lines.extend((due > 0).then(|| Line {
            what: t!(ctx, &format!("retention-{name}")),
            kept: t!(ctx, "retention-while-needed"),
            due: Some(due as i64),
            most,
            oldest: None,
        }));
    }
    lines
}

fn row(ctx: &Ctx, line: &Line, asks: bool) -> Markup {
    html! {
        tr {
            td { (line.what) }
            td.tight.side data-label=(t!(ctx, "retention-for")) { (line.kept) }
            @if asks {
                td.num data-label=(t!(ctx, "retention-due")) {
                    @match line.due {
                        Some(0) => span.muted { "0" },
                        Some(due) => (span::capped(due, line.most)),
                        None => span.muted { "–" },
                    }
                }
                td.tight.side data-label=(t!(ctx, "retention-oldest")) {
                    @match line.oldest.filter(|_| line.due != Some(0)) { Some(at) => (time(ctx, at)), None => span.muted { "–" } }
                }
            }
        }
    }
}

pub(super) async fn shown(ctx: &Ctx) -> Result<Markup, Trouble> {
    let kept: Retention = ctx.get("/v1/retention").await?;
    let count = match ctx.viewer.administers() {
        true => Some(counted(ctx, &kept).await?),
        false => None,
    };
    let lines = lines(ctx, &kept, count.as_deref());
    let days = count.as_ref().map_or(0, |count| count.would.days.len());
    let asks = count.is_some();
    let hot = span::span(ctx.lang, kept.hot.chrono().num_milliseconds());
    let shown = html! {
        section.panel {
            h2 { (t!(ctx, "retention-kept")) }
            table.cards {
                thead { tr { th { (t!(ctx, "retention-what")) } th { (t!(ctx, "retention-for")) } @if asks { th.num { (t!(ctx, "retention-due")) } th { (t!(ctx, "retention-oldest")) } } } }
                tbody { @for line in &lines { (row(ctx, line, asks)) } }
            }
            @if days > 0 { p.under { (t!(ctx, "retention-days", n = days)) } }
            p.muted.under { (t!(ctx, "retention-hot", span = hot)) " " (prose(&t!(ctx, "retention-hint"))) }
        }
    };
    Ok(ctx.live("retention", shown))
}
