//! Why messages of a topic failed.

use chrono::NaiveDate;
use heddle_api::Day;
use maud::{Markup, html};

use crate::elements::{line, number};
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many messages that failed are read, and how many of their errors are shown.
const READ_MAX: i64 = 1_000;
const SHOWN_MAX: i64 = 5;

/// The most frequent errors of messages of these days; nothing if none failed.
pub(super) async fn shown(ctx: &Ctx, topic: &str, days: &[Day]) -> Result<Markup, Trouble> {
    let failed = |day: &Day| day.failed + day.retrying;
    let with_errors: Vec<NaiveDate> = days.iter().filter(|day| failed(day) > 0).map(|day| day.day).collect();
    if with_errors.is_empty() {
        return Ok(html! {});
    }
    let store = ctx.store();
    let errors = store
        .page_message_errors(topic, &with_errors, READ_MAX, SHOWN_MAX)
        .await?;
    // Of messages that were dropped long ago, only counts are left.
    if errors.is_empty() {
        return Ok(html! {});
    }
    Ok(html! {
        section.panel {
            h2 { (t!(ctx, "message-errors")) }
            table.cards {
                thead { tr { th.num { (t!(ctx, "messages")) } th { (t!(ctx, "error")) } } }
                tbody { @for one in &errors {
                    tr {
                        td.num data-label=(t!(ctx, "messages")) { (number(one.count)) }
                        td.wide { span.error { (line(&one.error)) } }
                    }
                } }
            }
            @if days.iter().map(failed).sum::<i64>() > READ_MAX { p.muted { (t!(ctx, "message-errors-of", n = READ_MAX)) } }
        }
    })
}
