//! How long what is kept, a sentence a rule: what would go now, and how old the oldest of it is.

use axum::http::Method;
use heddle_api::{EndState, Pruned, Retention};
use heddle_domain::{Span, Time};
use heddle_store::retention::others::OTHERS_COUNT_MAX;
use heddle_store::retention::{COUNT_MAX, OldestDue};
use maud::{Markup, html};
use serde_json::json;

use crate::elements::prose;
use crate::words::t;
use crate::{Ctx, Trouble, span, yaml};

/// A rule, and what it would remove: nothing known of that for those who may not ask.
struct Line {
    rule: String,
    due: Option<i64>,
    /// No more are counted.
    most: i64,
    oldest: Option<Time>,
}

/// The rules in the order in which people look for them. `would`: what a dry run answered.
fn lines(ctx: &Ctx, kept: &Retention, would: Option<&Pruned>, oldest: &OldestDue) -> Vec<Line> {
    let said = |span: Span| span::span(ctx.lang, span.chrono().num_milliseconds());
    let mut lines: Vec<Line> = EndState::ALL
        .into_iter()
        .map(|state| Line {
            rule: t!(
                ctx,
                &format!("retention-{}", state.as_str()),
                span = said(kept.kept(None, state).runs)
            ),
            due: would.and_then(|would| Some(*would.by_state.get(&state)? as i64)),
            most: COUNT_MAX,
            oldest: oldest
                .runs
                .iter()
                .find(|(number, _)| *number == state.state().number())
                .map(|(_, at)| *at),
        })
        .collect();
    if let Some(logs) = kept.logs {
        let days = would.map(|would| would.log_days.len() as i64);
        lines.push(Line {
            rule: t!(ctx, "retention-logs", span = said(logs)),
            due: days,
            most: COUNT_MAX,
            oldest: None,
        });
    }
    let others = [
        (
            "notifications",
            kept.notifications,
            would.map(|would| would.notifications),
            oldest.notifications,
        ),
        (
            "assignments",
            kept.assignments,
            would.map(|would| would.assignments),
            oldest.assignments,
        ),
        ("events", kept.events, would.map(|would| would.events), oldest.events),
        ("audit", kept.audit, would.map(|would| would.audit), oldest.audit),
    ];
    lines.extend(others.into_iter().map(|(name, kept, due, oldest)| Line {
        rule: t!(ctx, &format!("retention-{name}"), span = said(kept)),
        due: due.map(|due| due as i64),
        most: COUNT_MAX,
        oldest,
    }));
    // What follows from these rules, shown where there is some.
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
            rule: t!(ctx, &format!("retention-{name}")),
            due: Some(due as i64),
            most,
            oldest: None,
        }));
    }
    lines
}

fn sentence(ctx: &Ctx, line: &Line) -> String {
    let Some(due) = line.due else {
        return t!(ctx, "retention-rule", rule = &line.rule);
    };
    let n = format!("{}{}", span::number(due), if due >= line.most { "+" } else { "" });
    match (due, line.oldest) {
        (0, _) => t!(ctx, "retention-none", rule = &line.rule),
        (_, Some(at)) => {
            let at = at.with_timezone(&ctx.zone).format("%Y-%m-%d").to_string();
            t!(ctx, "retention-oldest", rule = &line.rule, n = n, at = at)
        }
        (_, None) => t!(ctx, "retention-some", rule = &line.rule, n = n),
    }
}

pub(super) async fn shown(ctx: &Ctx) -> Result<Markup, Trouble> {
    let kept: Retention = ctx.get("/v1/retention").await?;
    let (mut would, mut oldest) = (None::<Pruned>, OldestDue::default());
    if ctx.viewer.administers() {
        let body = json!({ "dry_run": true });
        would = Some(ctx.ask(Method::POST, "/v1/retention/prune", &body).await?);
        oldest = ctx.store().oldest_due(&kept, ctx.now).await?;
    }
    let lines = lines(ctx, &kept, would.as_ref(), &oldest);
    let days = would.as_ref().map_or(0, |would| would.days.len());
    let written = serde_json::to_value(&kept).unwrap_or_default();
    Ok(html! {
        div.two {
            section.panel {
                h2 { (if would.is_some() { t!(ctx, "retention-would") } else { t!(ctx, "retention-rules") }) }
                ul.sentences { @for line in &lines { li.muted[line.due == Some(0)] { (sentence(ctx, line)) } } }
                @if days > 0 { p { (t!(ctx, "retention-days", n = days)) } }
                p.muted { (prose(&t!(ctx, "retention-hint"))) }
            }
            section.panel { h2 { (t!(ctx, "retention-kept")) } (yaml::highlighted(&yaml::text(&written))) }
        }
    })
}
