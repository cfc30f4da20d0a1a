//! Who deleted a missing object: the audit's entry, on the page that says that it is missing. Of a run that nobody has
//! deleted, the page says that the retention removes runs.

use heddle_api::{AuditEntry, List};
use maud::{Markup, html};
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::ctx::segment;
use crate::elements::time_exact;
use crate::words::t;
use crate::{Ctx, Trouble};

/// The audit's name for the kind of object at an address, and its name.
fn thing(path: &str) -> Option<(&'static str, String)> {
    let mut parts = path.trim_matches('/').split('/');
    let kind = match parts.next()? {
        "groups" => "group",
        "scripts" => "script",
        "topics" => "topic",
        "runs" => "run",
        _ => return None,
    };
    let name = percent_encoding::percent_decode_str(parts.next()?).decode_utf8().ok()?;
    Some((kind, name.into_owned()))
}

/// The deletion of an object that does not exist. If the audit contains none, or cannot be read: nothing, or for a run, that it may be too
/// old.
pub(crate) async fn shown(ctx: &Ctx) -> Markup {
    let Some((kind, name)) = thing(&ctx.path) else {
        return html! {};
    };
    // Something else may be missing below an object that exists.
    let object = format!("/v1/{kind}s/{}", segment(&name));
    let looked: Result<IgnoredAny, Trouble> = ctx.get(&object).await;
    if looked.err().is_none_or(|trouble| trouble.status != 404) {
        return html! {};
    }
    let target = format!("/v1/audit?kind={kind}&action=delete&limit=1&name={}", segment(&name));
    let found: Option<List<AuditEntry>> = ctx.get(&target).await.ok();
    let Some(entry) = found.and_then(|found| found.items.into_iter().next()) else {
        return match kind == "run" && name.parse::<Uuid>().is_ok() {
            true => {
                html! { section.panel { p { (t!(ctx, "gone-old")) } p { a href="/system/retention" { (t!(ctx, "retention")) } } } }
            }
            false => html! {},
        };
    };
    html! {
        section.panel {
            p { bdi { (name) } " " (t!(ctx, "gone-by")) " " bdi { (entry.actor) } " · " (time_exact(ctx, entry.at)) }
            p { a href={ "/system/audit?kind=" (kind) "&name=" (segment(&name)) } { (t!(ctx, "gone-audit")) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_thing() {
        assert_eq!(thing("/groups/a%20b/runs"), Some(("group", "a b".into())));
        assert_eq!(thing("/scripts/x"), Some(("script", "x".into())));
        assert_eq!(thing("/groups"), None);
        assert_eq!(thing("/runs/1"), Some(("run", "1".into())));
        assert_eq!(thing("/queues/a"), None);
    }
}
