//! A group's spec: as YAML, to be changed; its revisions, and what differs between two.

use axum::http::{HeaderValue, Method, header};
use heddle_api::{List, Revision};
use maud::{Markup, html};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::here::{Here, SHOWN, framed_with};
use crate::ctx::{Beat, segment};
use crate::elements::{glyph, time};
use crate::form::field;
use crate::frame::Page;
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble, assets, yaml};

const NEW: &str = "description: \ntasks:\n  first:\n    script: hello\n";

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let form = ctx.form();
    if ctx.posts() && ctx.is_piece() {
        return as_one_types(ctx, &here.api("/validate"), &form).await;
    }
    // Only the head is kept up to date, and says that the group is gone: a spec may be long, and reading its revisions for
    // each change would cost too much. If there is a newer revision than what is shown, the head says so.
    if ctx.is_open {
        return Answer::page(framed_with(ctx, here, "spec", Beat::Audited, html! {}));
    }
    let mut sent = Ok(());
    if ctx.posts() {
        let checks = field(&form, "do") == Some("check");
        sent = send(ctx, here, &form, checks).await;
        if sent.is_ok() && !checks {
            return Ok(Answer::Go {
                to: here.address("spec"),
                said: Some(t!(ctx, "said-saved")),
            });
        }
    }
    let revisions: List<Revision> = ctx.get(&here.api("/revisions?limit=50")).await?;
    let (revisions, more) = (revisions.items, revisions.next_cursor.is_some());
    let number = |name: &str| ctx.q(name).and_then(|n| n.parse::<i32>().ok());
    let current = here.group.revision.number;
    let shown = number("revision").unwrap_or(current);
    let now = spec_of(ctx, here, &revisions, shown).await?;
    let before = match number("against") {
        Some(n) => Some((n, spec_of(ctx, here, &revisions, n).await?)),
        None => None,
    };
    let typed = field(&form, "spec").or(ctx.typed("spec"));
    let asked = ctx.q("edit").is_some() || typed.is_some();
    let edits = ctx.viewer.operates() && shown == current && before.is_none() && asked;
    let opened = opened(&form).unwrap_or(shown);
    let changed = sent.as_ref().is_err_and(|trouble| trouble.status == 412);
    // What is saved next replaces what the page shows to have changed.
    let newest = revisions.first().filter(|_| changed);
    let based = newest.map_or(opened, |one| one.revision);
    let body = html! {
        @if changed { (meanwhile(ctx, here, &revisions, opened).await?) }
        @else if let Err(trouble) = &sent { div.said.wrong role="alert" { p { (trouble.said_of(ctx.lang, typed.unwrap_or_default())) } } }
        @if ctx.posts() && sent.is_ok() { div.said role="status" { p { (t!(ctx, "spec-valid")) } } }
        div.two {
            section.panel {
                div.row {
                    h2.grow { (t!(ctx, "revision-n", n = i64::from(shown))) @if let Some((n, _)) = &before { " " (t!(ctx, "against-n", n = i64::from(*n))) } }
                    @if !edits && ctx.viewer.operates() && shown == current { a.button href={ (here.address("spec")) "?edit=1" } { (t!(ctx, "edit")) } }
                }
                @if edits {
                    (editor(ctx, &here.address("spec"), typed.unwrap_or(&yaml::text(&now)), based, changed))
                } @else if let Some((_, before)) = &before {
                    (yaml::difference(&yaml::text(before), &yaml::text(&now)))
                } @else {
                    (yaml::highlighted(&yaml::text(&now)))
                }
            }
            (list(ctx, here, &revisions, more, shown))
        }
    };
    let beat = if edits { Beat::Still } else { Beat::Audited };
    ctx.shows(SHOWN, shown.to_string());
    let mut page = framed_with(ctx, here, "spec", beat, body);
    if let Err(trouble) = sent {
        page.status = trouble.status;
    }
    Answer::page(page)
}

/// The revision from which somebody began to write.
fn opened(form: &[(String, String)]) -> Option<i32> {
    field(form, "opened")?.parse().ok()
}

/// Checks what was written, or saves it: only onto the revision from which it was written, so that nobody replaces what
/// they have not seen.
async fn send(ctx: &Ctx, here: &Here, form: &[(String, String)], checks: bool) -> Result<(), Trouble> {
    let text = field(form, "spec").unwrap_or_default().to_owned();
    let (method, target) = match checks {
        true => (Method::POST, here.api("/validate")),
        false => (Method::PUT, here.api("")),
    };
    let mut request = ctx.request(method, &target, "application/yaml", text.into())?;
    if let Some(revision) = opened(form).filter(|_| !checks) {
        let headers = request.headers_mut();
        headers.insert(header::IF_MATCH, HeaderValue::from(revision));
    }
    let answer = ctx.ui.host.call(request).await;
    ctx.read::<IgnoredAny>(&target, answer).await.map(drop)
}

/// Somebody else has saved revisions since the spec was opened: who, when, and what they changed.
async fn meanwhile(ctx: &Ctx, here: &Here, revisions: &[Revision], opened: i32) -> Result<Markup, Trouble> {
    // A revision of a group that was deleted since is not one of this group, which somebody has created anew.
    let before = match spec_of(ctx, here, revisions, opened).await {
        Err(trouble) if trouble.status == 404 => None,
        found => Some(found?),
    };
    let newest = revisions.first().map(|one| &one.spec);
    Ok(html! {
        div.said.wrong role="alert" { p { (t!(ctx, "spec-meanwhile")) } }
        section.panel {
            @for one in revisions.iter().take_while(|one| one.revision > opened) {
                p { (t!(ctx, "revision-n", n = i64::from(one.revision))) " · " bdi { (one.created_by) } " · " (time(ctx, one.created_at)) }
            }
            @if let (Some(before), Some(newest)) = (&before, newest) { (yaml::difference(&yaml::text(before), &yaml::text(newest))) }
        }
    })
}

async fn spec_of(ctx: &Ctx, here: &Here, revisions: &[Revision], number: i32) -> Result<Value, Trouble> {
    if let Some(found) = revisions.iter().find(|one| one.revision == number) {
        return Ok(found.spec.clone());
    }
    let one: Revision = ctx.get(&here.api(&format!("/revisions/{number}"))).await?;
    Ok(one.spec)
}

/// Only the errors of a spec that somebody is writing, for a script that asks for them while the person types.
async fn as_one_types(ctx: &Ctx, target: &str, form: &[(String, String)]) -> Result<Answer, Trouble> {
    let text = field(form, "spec").unwrap_or_default().to_owned();
    let answer = ctx
        .ask_as::<IgnoredAny>(Method::POST, target, "application/yaml", text.clone().into())
        .await;
    Ok(Answer::Piece(match answer {
        Ok(_) => html! { p.state.s-succeeded { (glyph("succeeded")) span { (t!(ctx, "spec-valid")) } } },
        Err(trouble) if trouble.status >= 500 => return Err(trouble),
        Err(trouble) => html! { p.error { (trouble.said_of(ctx.lang, &text)) } },
    }))
}

/// The scripts that colour the words of a spec while somebody writes it. Only these pages load them.
const COLOURS: [&str; 3] = [
    "vendor/prism-core-1.30.0.min.js",
    "vendor/prism-yaml-1.30.0.min.js",
    "vendor/prism-json-1.30.0.min.js",
];

/// The field of a spec. With a script, its words are coloured, and its errors are shown above while the person types.
fn text_field(ctx: &Ctx, action: &str, rows: usize, text: &str) -> Markup {
    html! {
        div.verdict-line #verdict role="status" { span.muted data-hint hidden { (t!(ctx, "spec-as-typed")) } }
        div.code-field {
            textarea #spec name="spec" rows=(rows) spellcheck="false" autocomplete="off"
                hx-post=(action) hx-trigger="input changed delay:400ms" hx-include="closest form" hx-target="#verdict" hx-sync="this:replace" { (text) }
        }
        @for script in COLOURS { script src=(assets::address(script)) defer data-manual {} }
        script type="module" src=(assets::address("editor.js")) {}
    }
}

/// The spec to be changed; `opened` is the revision that a save replaces. If somebody `changed` it meanwhile, the button says
/// so.
fn editor(ctx: &Ctx, action: &str, text: &str, opened: i32, changed: bool) -> Markup {
    let save = match changed {
        true => t!(ctx, "save-onto", n = i64::from(opened)),
        false => t!(ctx, "save"),
    };
    html! {
        form.stack method="post" action=(action) {
            input type="hidden" name="opened" value=(opened);
            label.hidden for="spec" { (t!(ctx, "tab-spec")) }
            (text_field(ctx, action, text.lines().count().clamp(12, 40) + 2, text))
            div.row {
                button.primary type="submit" name="do" value="save" { (save) }
                button type="submit" name="do" value="check" { (t!(ctx, "check")) }
            }
        }
    }
}

/// The revisions, the newest first; `more`: there are earlier ones than these.
fn list(ctx: &Ctx, here: &Here, revisions: &[Revision], more: bool, shown: i32) -> Markup {
    // The first revision of a group is 1, or the next one of a deleted group of that name.
    let before = |index: usize, number: i32| {
        let listed = revisions.get(index + 1).map(|one| one.revision);
        listed.or(more.then_some(number - 1))
    };
    html! {
        section.panel {
            h2 { (t!(ctx, "revisions")) }
            table { tbody {
                @for (index, one) in revisions.iter().enumerate() {
                    @let n = one.revision;
                    tr aria-current=[(n == shown).then_some("true")] {
                        td.tight { a href={ (here.address("spec")) "?revision=" (n) } { (t!(ctx, "revision-n", n = i64::from(n))) } }
                        td { bdi { (one.created_by) } br; span.muted { (time(ctx, one.created_at)) } }
                        td.tight { @if let Some(before) = before(index, n) { a href={ (here.address("spec")) "?revision=" (n) "&against=" (before) } { (t!(ctx, "difference")) } } }
                    }
                }
            } }
            @if revisions.len() > 1 { (any_two(ctx, here, revisions, shown)) }
        }
    }
}

/// Which two revisions are to be compared.
fn any_two(ctx: &Ctx, here: &Here, revisions: &[Revision], shown: i32) -> Markup {
    let numbers: Vec<i32> = revisions.iter().map(|one| one.revision).collect();
    let against = ctx.q("against").and_then(|n| n.parse().ok()).unwrap_or(shown - 1);
    let select = |name: &str, label: String, chosen: i32| -> Markup {
        html! {
            label.field { span { (label) }
                select name=(name) { @for n in &numbers { option value=(n) selected[*n == chosen] { (n) } } }
            }
        }
    };
    html! {
        form.field-row.under method="get" action=(here.address("spec")) {
            (select("against", t!(ctx, "compare-before"), against))
            (select("revision", t!(ctx, "compare-after"), shown))
            button type="submit" { (t!(ctx, "compare")) }
        }
    }
}

/// Creates a group, and never replaces one: not even one that somebody creates at this moment.
async fn create(ctx: &Ctx, name: &str, target: &str, text: String) -> Result<IgnoredAny, Trouble> {
    let mut request = ctx.request(Method::PUT, target, "application/yaml", text.into())?;
    let headers = request.headers_mut();
    headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
    let answer = ctx.ui.host.call(request).await;
    let created = ctx.read(target, answer).await;
    created.map_err(|trouble| match trouble.status {
        412 => Trouble::new(409, t!(ctx, "group-there", name = name)),
        _ => trouble,
    })
}

/// The page for a new group.
pub(super) async fn new(ctx: &Ctx) -> Result<Answer, Trouble> {
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    let form = ctx.form();
    let mut wrong = None;
    let mut valid = false;
    let name = field(&form, "name")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default();
    if ctx.posts() && ctx.is_piece() {
        let name = if name.is_empty() { "unnamed" } else { &name };
        return as_one_types(ctx, &format!("/v1/groups/{}/validate", segment(name)), &form).await;
    }
    if ctx.posts() {
        let text = field(&form, "spec").unwrap_or_default().to_owned();
        let check = field(&form, "do") == Some("check");
        let target = format!(
            "/v1/groups/{}",
            segment(if name.is_empty() { "unnamed" } else { &name })
        );
        let answered = if check {
            ctx.ask_as::<IgnoredAny>(
                Method::POST,
                &format!("{target}/validate"),
                "application/yaml",
                text.into(),
            )
            .await
        } else {
            create(ctx, &name, &target, text).await
        };
        match answered {
            Ok(_) if check => valid = true,
            Ok(_) => {
                return Ok(Answer::Go {
                    to: format!("/groups/{}", segment(&name)),
                    said: Some(t!(ctx, "said-saved")),
                });
            }
            Err(trouble) => wrong = Some(trouble),
        }
    }
    let title = t!(ctx, "new-group");
    let body = html! {
        div.heading { h1 { (title) } }
        @if let Some(trouble) = &wrong { div.said.wrong role="alert" { p { (trouble.said_of(ctx.lang, field(&form, "spec").unwrap_or_default())) } } }
        @if valid { div.said role="status" { p { (t!(ctx, "spec-valid")) } } }
        form.panel.stack method="post" action="/groups/new" {
            label.field { span { (t!(ctx, "name")) } input type="text" name="name" required maxlength="63" value=(name) autocomplete="off"; }
            div.field { label for="spec" { (t!(ctx, "tab-spec")) } (text_field(ctx, "/groups/new", 18, field(&form, "spec").unwrap_or(NEW))) }
            div.row {
                button.primary type="submit" name="do" value="save" { (t!(ctx, "save")) }
                button type="submit" name="do" value="check" { (t!(ctx, "check")) }
            }
        }
    };
    let status = wrong.map_or(200, |trouble| trouble.status);
    Answer::page(
        Page {
            status,
            ..Page::new("groups", title.clone(), body)
        }
        .crumbs(vec![(t!(ctx, "nav-groups"), Some("/groups".into())), (title, None)]),
    )
}
