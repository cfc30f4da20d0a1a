//! What a group's scripts have kept: keys, values, versions.

use maud::{Markup, html};

use super::here::{Here, framed};
use crate::elements::{ago, empty, listed};
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// How many keys a page shows.
const KEYS: i64 = 100;
/// How many characters of a value are shown.
const SHOWN_CHARS: i32 = 4_000;
/// Longer values are folded.
const FOLDED_CHARS: usize = 160;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let after = ctx.q("cursor").unwrap_or_default();
    let mut lines = ctx
        .store()
        .page_state(here.group.id, after, SHOWN_CHARS, KEYS + 1)
        .await?;
    let next = (lines.len() as i64 > KEYS).then(|| lines[KEYS as usize - 1].key.clone());
    lines.truncate(KEYS as usize);
    let shown = html! {
        section.panel {
            p.muted { (t!(ctx, "state-hint")) }
            @if lines.is_empty() { (empty(&t!(ctx, "no-state"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "key")) } th { (t!(ctx, "value")) } th.num { (t!(ctx, "version")) } th.num { (t!(ctx, "size")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for line in &lines {
                        tr {
                            td { code { bdi { (line.key) } } }
                            td.wide { (value(ctx, &line.value, line.bytes)) }
                            td.num.side data-label=(t!(ctx, "version")) { (line.version) }
                            td.num data-label=(t!(ctx, "size")) { (span::bytes(line.bytes.into())) }
                            td.tight.muted.side { (ago(ctx, line.updated_at)) }
                        }
                    } }
                }
            }
        }
    };
    let inside = listed(ctx, "state", shown, next.as_deref());
    Answer::page(framed(ctx, here, "state", inside))
}

fn value(ctx: &Ctx, text: &str, bytes: i32) -> Markup {
    let whole = text.len() as i64 == i64::from(bytes);
    if whole && text.chars().count() <= FOLDED_CHARS {
        return html! { code { (text) } };
    }
    let begin: String = text.chars().take(FOLDED_CHARS).collect();
    html! {
        details {
            summary { code { (begin) "…" } }
            pre.code { (text) }
            @if !whole { p.muted { (t!(ctx, "cut-of", bytes = span::bytes(bytes.into()))) } }
        }
    }
}
