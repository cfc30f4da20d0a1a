//! Pools, as a page of the system: their slots, who holds some, and who waits for some.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use axum::http::Method;
use heddle_api::{List, Pool};
use heddle_store::pages::pool::PoolLine;
use maud::{Markup, html};
use serde_json::json;

use super::answer::Answer;
use crate::ctx::segment;
use crate::elements::{ago, empty, fault, fault_id, first_only, number};
use crate::form::{field, whole_given};
use crate::words::t;
use crate::{Ctx, Trouble};

/// Who holds slots of a pool, and who waits for some.
#[derive(Default)]
struct Around {
    holds: Vec<PoolLine>,
    waits: Vec<PoolLine>,
}

/// How many holders are read, of all pools together, and how many waiting task runs of each pool.
pub(in crate::pages) const HOLDS_MAX: i64 = 500;
const WAITS_MAX: i64 = 20;

/// How many slots of a pool are held, as far as that is known: holders are read in the order of their pools, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Slots(i64),
    /// The last pool of which a holder was read may have more of them.
    AtLeast(i64),
    /// No holder was read, because those of other pools come before.
    Unknown,
}

impl Held {
    /// Of a pool with a `name`, whose holders have these `slots`; `cut` is the last pool that was read, if there may be more
    /// holders.
    fn of(name: &str, slots: i64, cut: Option<&str>) -> Self {
        // The database compares names bytewise, too.
        match cut.map(|last| name.cmp(last)) {
            None | Some(Ordering::Less) => Self::Slots(slots),
            Some(Ordering::Equal) => Self::AtLeast(slots),
            Some(Ordering::Greater) => Self::Unknown,
        }
    }

    fn in_words(self, ctx: &Ctx, all: i64) -> String {
        let held = match self {
            Self::Slots(slots) => number(slots),
            Self::AtLeast(slots) => format!("≥ {}", number(slots)),
            Self::Unknown => "?".to_owned(),
        };
        t!(ctx, "of", n = held, all = number(all))
    }
}

/// The last pool of which holders were read, if there may be more holders.
pub(in crate::pages) fn cut(holds: &[PoolLine]) -> Option<&str> {
    let is_cut = holds.len() as i64 >= HOLDS_MAX;
    holds.last().filter(|_| is_cut).map(|hold| hold.pool.as_str())
}

/// Who is around each pool, by its name; and the last pool of which holders were read, if there may be more holders.
async fn around(ctx: &Ctx, pools: &[Pool]) -> Result<(BTreeMap<String, Around>, Option<String>), Trouble> {
    let names: Vec<String> = pools.iter().map(|pool| pool.name.clone()).collect();
    let mut found: BTreeMap<String, Around> = BTreeMap::new();
    let holds = ctx.store().page_pool_holds(HOLDS_MAX).await?;
    let cut = cut(&holds).map(str::to_owned);
    for hold in holds {
        found.entry(hold.pool.clone()).or_default().holds.push(hold);
    }
    for wait in ctx.store().page_pool_waits(&names, WAITS_MAX + 1).await? {
        found.entry(wait.pool.clone()).or_default().waits.push(wait);
    }
    Ok((found, cut))
}

/// A task run of a pool: group, task, slots.
async fn pool_line(ctx: &Ctx, one: &PoolLine) -> Result<Markup, Trouble> {
    let revision = ctx.ui.engine.catalog().revision(one.revision_id).await?;
    let task = revision.plan.tasks.get(one.task as usize);
    let name = task.map(|task| task.name.to_string()).unwrap_or_default();
    Ok(html! {
        a href={ "/runs/" (one.run) } { bdi { (one.group_name) } " · " bdi { (name) } @if one.item >= 0 { "[" (one.item) "]" } }
        @if one.slots != 1 { " " span.muted { (t!(ctx, "slots-count", n = one.slots)) } }
    })
}

async fn pool_lines(ctx: &Ctx, lines: &[PoolLine], most: usize) -> Result<Markup, Trouble> {
    let mut shown = Vec::new();
    for one in lines.iter().take(most) {
        shown.push(pool_line(ctx, one).await?);
    }
    Ok(html! {
        ul { @for one in &shown { li { (one) } } @if lines.len() > most { li.muted { "…" } } }
    })
}

async fn row(ctx: &Ctx, one: &Pool, around: Around, cut: Option<&str>) -> Result<Markup, Trouble> {
    let Around { holds, waits } = around;
    let slots = i64::from(one.slots);
    let sum: i64 = holds.iter().map(|hold| hold.slots).sum();
    let held = Held::of(&one.name, sum, cut);
    let words = held.in_words(ctx, slots);
    let share = (sum as f64 / slots.max(1) as f64).min(1.0) * 400.0;
    Ok(html! {
        tr id={ "pool-" (one.name) } {
            td { strong { bdi { (one.name) } } }
            td.num data-label=(t!(ctx, "held")) { (words) }
            td.wide {
                @if held != Held::Unknown {
                    svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(words) {
                        rect.f-ready x="0" y="0" width="400" height="8" {}
                        rect.bar-held x="0" y="0" width=(format!("{share:.1}")) height="8" {}
                    }
                }
                span.card-label { (t!(ctx, "holders")) }
                @if held == Held::Unknown { span.muted { (t!(ctx, "held-unknown", n = HOLDS_MAX)) } }
                @else if holds.is_empty() { span.muted { (t!(ctx, "nobody-waits")) } }
                @else { (pool_lines(ctx, &holds, WAITS_MAX as usize).await?) }
            }
            td.wide data-label=(t!(ctx, "waiters")) { @if waits.is_empty() { span.muted { (t!(ctx, "nobody-waits")) } } @else { (pool_lines(ctx, &waits, WAITS_MAX as usize).await?) } }
            td.tight.muted data-label=(t!(ctx, "changed")) { (ago(ctx, one.updated_at)) }
        }
    })
}

/// The pools, as a page of the system.
pub(super) async fn shown(ctx: &Ctx) -> Result<Markup, Trouble> {
    let found: List<Pool> = ctx.get("/v1/pools?limit=500").await?;
    let (mut around, cut) = around(ctx, &found.items).await?;
    let mut rows = Vec::new();
    for one in &found.items {
        rows.push(row(ctx, one, around.remove(&one.name).unwrap_or_default(), cut.as_deref()).await?);
    }
    let shown = html! {
        section.panel {
            p.muted { (t!(ctx, "pools-hint")) }
            @if rows.is_empty() { (empty(&t!(ctx, "no-pools"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "pool")) } th.num { (t!(ctx, "held")) } th { (t!(ctx, "holders")) } th { (t!(ctx, "waiters")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for row in &rows { (row) } }
                }
            }
            (first_only(ctx, found.items.len(), found.next_cursor.as_deref()))
        }
    };
    Ok(html! {
        (ctx.live("pools", shown))
        @if ctx.viewer.administers() {
            form.panel.filters method="post" action="/system/pools" {
                label.hidden for="name" { (t!(ctx, "name")) }
                input #name type="text" name="name" required placeholder=(t!(ctx, "pool")) value=[ctx.typed("name")];
                label.hidden for="slots" { (t!(ctx, "slots")) }
                input #slots type="number" name="slots" min="0" required placeholder=(t!(ctx, "slots")) value=[ctx.typed("slots")] aria-invalid=[ctx.fault("slots").map(|_| "true")] aria-describedby=[fault_id(ctx, "slots")];
                (fault(ctx, "slots"))
                button type="submit" { (t!(ctx, "save")) }
            }
        }
    })
}

pub(super) async fn put(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let slots = whole_given(ctx.lang, &form, "slots")?;
    let name = field(&form, "name").unwrap_or_default().trim().to_owned();
    ctx.send(
        Method::PUT,
        &format!("/v1/pools/{}", segment(&name)),
        &json!({ "slots": slots }),
    )
    .await?;
    Answer::back(ctx, Some(t!(ctx, "said-saved")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_whose_holders_were_not_read_is_not_empty() {
        for name in ["a", "b", "c"] {
            assert_eq!(Held::of(name, 3, None), Held::Slots(3), "all were read");
        }
        assert_eq!(Held::of("a", 0, Some("b")), Held::Slots(0));
        assert_eq!(Held::of("b", 7, Some("b")), Held::AtLeast(7));
        assert_eq!(Held::of("c", 0, Some("b")), Held::Unknown);
    }
}
