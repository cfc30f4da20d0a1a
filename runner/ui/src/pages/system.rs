//! What Heddle itself is made of: nodes, pools, connections, secrets, tokens, retention, the audit.

use axum::http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::Answer;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, more, number, parse, state, tabs, time_exact};
use crate::form::field;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, yaml};

const ROLES: [&str; 5] = ["viewer", "operator", "author", "worker", "admin"];

fn items(found: &Value) -> &[Value] {
    found["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn at(value: &Value) -> Option<heddle_domain::Time> {
    value.as_str().and_then(parse)
}

pub(super) async fn page(ctx: &Ctx, tab: &str) -> Result<Answer, Trouble> {
    let admin = ctx.viewer.administers();
    let inside = match tab {
        "" => nodes(ctx).await?,
        "pools" => pools(ctx).await?,
        "audit" => audit(ctx).await?,
        "connections" => connections(ctx).await?,
        "secrets" => secrets(ctx).await?,
        "retention" => retention(ctx).await?,
        "tokens" => tokens(ctx, None).await?,
        _ => return Err(Trouble::not_found()),
    };
    framed(ctx, tab, inside, admin)
}

fn framed(ctx: &Ctx, tab: &str, inside: Markup, admin: bool) -> Result<Answer, Trouble> {
    let mut all = vec![
        ("", "nodes"),
        ("pools", "pools"),
        ("connections", "connections"),
        ("secrets", "secrets"),
        ("retention", "retention"),
        ("audit", "audit"),
    ];
    if admin {
        all.insert(4, ("tokens", "tokens"));
    }
    let all: Vec<(String, String, String)> = all
        .into_iter()
        .map(|(name, word)| {
            (
                name.to_owned(),
                format!("/system{}{name}", if name.is_empty() { "" } else { "/" }),
                t!(ctx, word),
            )
        })
        .collect();
    let title = t!(ctx, "nav-system");
    let body = html! {
        div.heading { div.grow { h1 { (title) } p { "Heddle " (ctx.ui.version) } } }
        (tabs(&title, tab, &all))
        (inside)
    };
    let word = all
        .iter()
        .find(|(name, ..)| name == tab)
        .map(|(.., word)| word.clone())
        .unwrap_or_default();
    Answer::page(
        Page::new("system", format!("{word} · {title}"), body)
            .crumbs(vec![(title, Some("/system".into())), (word, None)]),
    )
}

async fn nodes(ctx: &Ctx) -> Result<Markup, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let found = ctx.get("/v1/nodes?limit=500").await?;
    let shown = html! {
        section.panel {
            table.cards {
                thead { tr { th { (t!(ctx, "node")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "in-hand")) } th { (t!(ctx, "address")) } th { (t!(ctx, "version")) } th { (t!(ctx, "started")) } th.num { (t!(ctx, "behind")) } } }
                tbody { @for one in items(&found) {
                    @let behind = one["position_newest"].as_i64().unwrap_or_default() - one["position"].as_i64().unwrap_or_default();
                    tr {
                        td { strong { bdi { (one["name"].as_str().unwrap_or_default()) } } }
                        td.tight.side { (state(ctx, one["state"].as_str().unwrap_or_default())) }
                        td.num data-label=(t!(ctx, "in-hand")) { (t!(ctx, "of", n = number(&one["running"]), all = number(&one["slots"]))) }
                        td { code { (one["address"].as_str().unwrap_or_default()) } }
                        td.tight { (one["version"].as_str().unwrap_or_default()) }
                        td.tight.muted { @if let Some(at) = at(&one["started_at"]) { (ago(ctx, at)) } }
                        td.num data-label=(t!(ctx, "behind")) { @if one["state"] == "active" { (behind.max(0)) } }
                    }
                } }
            }
        }
    };
    Ok(ctx.live("nodes", shown))
}

async fn pools(ctx: &Ctx) -> Result<Markup, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let found = ctx.get("/v1/pools?limit=500").await?;
    let shown = html! {
        section.panel {
            @if items(&found).is_empty() { (empty(&t!(ctx, "no-pools"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "pool")) } th.num { (t!(ctx, "slots")) } th.num { (t!(ctx, "held")) } th.num { (t!(ctx, "waiting")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for one in items(&found) {
                        tr {
                            td { strong { bdi { (one["name"].as_str().unwrap_or_default()) } } }
                            td.num data-label=(t!(ctx, "slots")) { (number(&one["slots"])) }
                            td.num data-label=(t!(ctx, "held")) { (shown_count(one, &["held", "used"])) }
                            td.num data-label=(t!(ctx, "waiting")) { (shown_count(one, &["waiting"])) }
                            td.tight.muted { @if let Some(at) = at(&one["updated_at"]) { (ago(ctx, at)) } }
                        }
                    } }
                }
            }
        }
    };
    Ok(html! {
        (ctx.live("pools", shown))
        @if ctx.viewer.administers() {
            form.panel.filters method="post" action="/system/pools" {
                label.hidden for="name" { (t!(ctx, "name")) } input #name type="text" name="name" required placeholder=(t!(ctx, "pool"));
                label.hidden for="slots" { (t!(ctx, "slots")) } input #slots type="number" name="slots" min="0" required placeholder=(t!(ctx, "slots"));
                button type="submit" { (t!(ctx, "save")) }
            }
        }
    })
}

fn shown_count(one: &Value, names: &[&str]) -> String {
    names
        .iter()
        .find_map(|name| one[*name].as_i64())
        .map_or_else(|| "–".to_owned(), crate::span::number)
}

pub(super) async fn put_pool(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let slots: i64 = field(&form, "slots")
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_default();
    let name = field(&form, "name").unwrap_or_default().trim().to_owned();
    ctx.send(
        Method::PUT,
        &format!("/v1/pools/{}", segment(&name)),
        &json!({ "slots": slots }),
    )
    .await?;
    Answer::back(ctx, Some(t!(ctx, "said-saved")))
}

/// Grants: to which groups and categories.
fn grants(one: &Value) -> Markup {
    html! {
        @for name in ["groups", "categories"] {
            @for grant in one[name].as_array().into_iter().flatten() { span.tag { @if name == "categories" { "/" } (grant.as_str().unwrap_or_default()) } " " }
        }
    }
}

async fn connections(ctx: &Ctx) -> Result<Markup, Trouble> {
    let found = ctx.get("/v1/connections?limit=500").await?;
    Ok(html! {
        section.panel {
            @if items(&found).is_empty() { (empty(&t!(ctx, "no-connections"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "name")) } th { (t!(ctx, "granted-to")) } th.num { (t!(ctx, "connections-max")) } th { (t!(ctx, "access")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for one in items(&found) {
                        tr {
                            td { strong { bdi { (one["name"].as_str().unwrap_or_default()) } } }
                            td { (grants(one)) }
                            td.num data-label=(t!(ctx, "connections-max")) { (number(&one["max_connections"])) }
                            td.tight { (if one["read_only"].as_bool().unwrap_or_default() { t!(ctx, "read-only") } else { t!(ctx, "read-write") }) }
                            td.tight.muted { @if let Some(at) = at(&one["updated_at"]) { (ago(ctx, at)) } }
                        }
                    } }
                }
            }
        }
    })
}

async fn secrets(ctx: &Ctx) -> Result<Markup, Trouble> {
    let found = ctx.get("/v1/secrets?limit=500").await?;
    Ok(html! {
        section.panel {
            p.muted { (t!(ctx, "secrets-hint")) }
            @if items(&found).is_empty() { (empty(&t!(ctx, "no-secrets"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "name")) } th { (t!(ctx, "granted-to")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for one in items(&found) {
                        tr { td { strong { bdi { (one["name"].as_str().unwrap_or_default()) } } } td { (grants(one)) } td.tight.muted { @if let Some(at) = at(&one["updated_at"]) { (ago(ctx, at)) } } }
                    } }
                }
            }
        }
    })
}

async fn retention(ctx: &Ctx) -> Result<Markup, Trouble> {
    let now = ctx.get("/v1/retention").await?;
    let would = if ctx.viewer.administers() {
        ctx.send(Method::POST, "/v1/retention/prune", &json!({ "dry_run": true }))
            .await
            .ok()
    } else {
        None
    };
    Ok(html! {
        div.two {
            section.panel { h2 { (t!(ctx, "retention-kept")) } (yaml::highlighted(&yaml::text(&now))) }
            @if let Some(would) = &would {
                section.panel {
                    h2 { (t!(ctx, "retention-would")) }
                    dl.stats { @for (name, count) in would.as_object().into_iter().flatten().filter(|(_, value)| value.is_i64()) { div { dd { b { (number(count)) } } dt { span { (name) } } } } }
                }
            }
        }
    })
}

async fn audit(ctx: &Ctx) -> Result<Markup, Trouble> {
    let query = ctx.asks(50, &["kind", "name", "actor", "action", "cursor"]);
    let found = ctx.get(&format!("/v1/audit?{}", query)).await?;
    Ok(html! {
        section.panel {
            form.filters method="get" role="search" {
                @for name in ["actor", "action", "kind", "name"] {
                    label.hidden for=(name) { (t!(ctx, name)) }
                    input id=(name) type="search" name=(name) value=[ctx.q(name)] placeholder=(t!(ctx, name));
                }
                button type="submit" { (t!(ctx, "filter")) }
            }
        }
        section.panel {
            @if items(&found).is_empty() { (empty(&t!(ctx, "none"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "when")) } th { (t!(ctx, "actor")) } th { (t!(ctx, "action")) } th { (t!(ctx, "thing")) } th { (t!(ctx, "difference")) } } }
                    tbody { @for one in items(&found) {
                        tr {
                            td.tight.muted { @if let Some(at) = at(&one["at"]) { (time_exact(ctx, at)) } }
                            td.tight.side { bdi { (one["actor"].as_str().unwrap_or_default()) } }
                            td.tight { (one["action"].as_str().unwrap_or_default()) }
                            td { span.tag { (one["kind"].as_str().unwrap_or_default()) } " " bdi { (one["name"].as_str().unwrap_or_default()) } }
                            td.wide { @if !one["before"].is_null() || !one["after"].is_null() { details { summary { (t!(ctx, "difference")) } (yaml::difference(&text_of(&one["before"]), &text_of(&one["after"]))) } } }
                        }
                    } }
                }
            }
        }
        (more(ctx, found["next_cursor"].as_str()))
    })
}

fn text_of(value: &Value) -> String {
    if value.is_null() {
        String::new()
    } else {
        yaml::text(value)
    }
}

async fn tokens(ctx: &Ctx, new: Option<&Value>) -> Result<Markup, Trouble> {
    if !ctx.viewer.administers() {
        return Err(Trouble::new(403, ""));
    }
    let found = ctx.get("/v1/tokens?limit=500").await?;
    Ok(html! {
        @if let Some(new) = new {
            section.panel role="status" {
                h2 { (t!(ctx, "token-new")) }
                p { (t!(ctx, "token-once")) }
                p.row { code { (new["token"].as_str().unwrap_or_default()) } button type="button" data-copy=(new["token"].as_str().unwrap_or_default()) { (t!(ctx, "copy")) } }
            }
        }
        form.panel.filters method="post" action="/system/tokens" {
            label.hidden for="name" { (t!(ctx, "name")) } input #name type="text" name="name" required maxlength="63" placeholder=(t!(ctx, "name"));
            label.hidden for="role" { (t!(ctx, "role")) } select #role name="role" { @for role in ROLES { option value=(role) { (role) } } }
            button.primary type="submit" { (t!(ctx, "token-make")) }
        }
        section.panel {
            @if items(&found).is_empty() { (empty(&t!(ctx, "none"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "name")) } th { (t!(ctx, "role")) } th { (t!(ctx, "bound-to")) } th { (t!(ctx, "created")) } th { (t!(ctx, "last-used")) } th { (t!(ctx, "expires")) } th {} } }
                    tbody { @for one in items(&found) {
                        @let name = one["name"].as_str().unwrap_or_default();
                        tr {
                            td { strong { bdi { (name) } } }
                            td.tight.side { span.tag { (one["role"].as_str().unwrap_or_default()) } }
                            td { @for list in ["queues", "uids"] { @for bound in one[list].as_array().into_iter().flatten() { span.tag { (bound.as_str().unwrap_or_default()) } " " } } }
                            td.tight.muted { @if let Some(at) = at(&one["created_at"]) { (ago(ctx, at)) } }
                            td.tight.muted { @if let Some(at) = at(&one["last_used_at"]) { (ago(ctx, at)) } @else { (t!(ctx, "never")) } }
                            td.tight.muted { @if let Some(at) = at(&one["expires_at"]) { (ago(ctx, at)) } @else { (t!(ctx, "never")) } }
                            td.tight.side { (button(Button { kind: "small danger", confirm: Some(t!(ctx, "token-revoke-sure")), ..Button::new(format!("/system/tokens/{}/revoke", segment(name)), t!(ctx, "revoke"), t!(ctx, "token-revoke-will")) })) }
                        }
                    } }
                }
            }
        }
    })
}

/// Makes a token, and shows it: once, so on the answer to the form itself.
pub(super) async fn make_token(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let body = json!({ "name": field(&form, "name").unwrap_or_default().trim(), "role": field(&form, "role").unwrap_or("viewer") });
    let made = ctx.send(Method::POST, "/v1/tokens", &body).await?;
    let inside = tokens(ctx, Some(&made)).await?;
    framed(ctx, "tokens", inside, true)
}

pub(super) async fn revoke_token(ctx: &Ctx, name: &str) -> Result<Answer, Trouble> {
    ctx.send(Method::DELETE, &format!("/v1/tokens/{}", segment(name)), &json!({}))
        .await?;
    Answer::back(ctx, Some(t!(ctx, "said-revoked")))
}
