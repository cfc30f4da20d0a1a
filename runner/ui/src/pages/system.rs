//! The parts of Heddle itself: nodes, connections, secrets, tokens, retention, the audit.

use axum::http::Method;
use chrono::SecondsFormat;
use heddle_api::{AuditEntry, Connection, List, MadeToken, NewToken, Node, Role, Secret, SignedIn, Token};
use heddle_store::change::Noun;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::answer::Answer;
use super::{notifications, pools, retention};
use crate::ctx::{Beat, segment};
use crate::elements::{
    self, Button, ago, button, empty, fault, fault_id, first_only, number, prose, state, tabs, time_exact,
};
use crate::form::{field, with_typed};
use crate::frame::{Page, means};
use crate::words::t;
use crate::{Ctx, Trouble, span, yaml};

/// The audit does not show longer changes: a page has fifty entries, and a spec may have thousands of lines. The page
/// of the object shows them.
const CHANGED_BYTES_MAX: usize = 16_000;

pub(super) async fn page(ctx: &Ctx, tab: &str) -> Result<Answer, Trouble> {
    let admin = ctx.viewer.administers();
    match tab {
        // New entries come above the others. A later page does not change, so that nothing moves while somebody reads it.
        "audit" if ctx.q("cursor").is_some() => {}
        // The rules are changed by people; see `retention` for what would be removed.
        "audit" | "retention" => ctx.beats_with(Beat::Audited),
        _ => ctx.beats_with(Beat::Cluster),
    }
    let inside = match tab {
        "" => nodes(ctx).await?,
        "pools" => pools::shown(ctx).await?,
        "audit" => audit(ctx).await?,
        "connections" => connections(ctx).await?,
        "secrets" => secrets(ctx).await?,
        "channels" => notifications::channels(ctx).await?,
        "retention" => retention::shown(ctx).await?,
        "tokens" => tokens(ctx).await?,
        _ => return Err(Trouble::not_found()),
    };
    Answer::page(framed(ctx, tab, inside, admin))
}

/// The tabs, and whether each is only for administrators: what somebody may not see is not offered.
const TABS: [(&str, &str, bool); 8] = [
    ("", "nodes", false),
    ("pools", "pools", false),
    ("connections", "connections", true),
    ("secrets", "secrets", true),
    ("tokens", "tokens", true),
    ("channels", "channels", false),
    ("retention", "retention", false),
    ("audit", "audit", false),
];

/// The tabs that the viewer may see: name, address, word.
pub(super) fn tab_list(ctx: &Ctx, admin: bool) -> Vec<(String, String, String)> {
    let may = TABS.into_iter().filter(|(.., only)| admin || !only);
    may.map(|(name, word, _)| {
        let address = format!("/system{}{name}", if name.is_empty() { "" } else { "/" });
        (name.to_owned(), address, t!(ctx, word))
    })
    .collect()
}

fn framed(ctx: &Ctx, tab: &str, inside: Markup, admin: bool) -> Page {
    let all = tab_list(ctx, admin);
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
    Page::new("system", format!("{word} · {title}"), body).crumbs(vec![(title, Some("/system".into())), (word, None)])
}

async fn nodes(ctx: &Ctx) -> Result<Markup, Trouble> {
    let found: List<Node> = ctx.get("/v1/nodes?limit=500").await?;
    let shown = html! {
        section.panel {
            table.cards {
                thead { tr { th { (t!(ctx, "node")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "in-hand")) } th { (t!(ctx, "address")) } th { (t!(ctx, "version")) } th { (t!(ctx, "started")) } th.num { (t!(ctx, "behind")) } } }
                tbody { @for one in &found.items {
                    @let behind = one.position_newest - one.position;
                    tr {
                        td { strong { bdi { (one.name) } } }
                        td.tight.side { (state(ctx, one.state.as_str())) }
                        td.num.whole data-label=(t!(ctx, "in-hand")) { (t!(ctx, "of", n = number(one.running), all = number(one.slots))) }
                        td.whole { code { (one.address.as_deref().unwrap_or_default()) } }
                        td.tight data-label=(t!(ctx, "version")) { (one.version) }
                        td.tight.muted.side data-label=(t!(ctx, "started")) { (ago(ctx, one.started_at)) }
                        td.num data-label=(t!(ctx, "behind")) { @if one.state == "active" { (behind.max(0)) } }
                    }
                } }
            }
            (first_only(ctx, found.items.len(), found.next_cursor.as_deref()))
        }
    };
    Ok(ctx.live("nodes", shown))
}

/// Grants: to which groups and categories.
fn grants(ctx: &Ctx, groups: &[String], categories: &[String]) -> Markup {
    html! {
        @for group in groups { span.tag { @if group == "*" { (t!(ctx, "all-groups")) } @else { (group) } } " " }
        @for category in categories { span.tag { @if category == "*" { (t!(ctx, "all-categories")) } @else { (t!(ctx, "category-named", name = category)) } } " " }
    }
}

async fn connections(ctx: &Ctx) -> Result<Markup, Trouble> {
    let found: List<Connection> = ctx.get("/v1/connections?limit=500").await?;
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, "no-connections"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "name")) } th { (t!(ctx, "granted-to")) } th.num { (t!(ctx, "connections-max")) } th { (t!(ctx, "access")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for one in &found.items {
                        tr {
                            td { strong { bdi { (one.name) } } }
                            td { (grants(ctx, &one.groups, &one.categories)) }
                            td.num data-label=(t!(ctx, "connections-max")) { (number(one.max_connections)) }
                            td.tight { (if one.read_only { t!(ctx, "read-only") } else { t!(ctx, "read-write") }) }
                            td.tight.muted { (ago(ctx, one.updated_at)) }
                        }
                    } }
                }
            }
            (first_only(ctx, found.items.len(), found.next_cursor.as_deref()))
        }
    };
    Ok(ctx.live("connections", shown))
}

async fn secrets(ctx: &Ctx) -> Result<Markup, Trouble> {
    let found: List<Secret> = ctx.get("/v1/secrets?limit=500").await?;
    let shown = html! {
        section.panel {
            p.muted { (prose(&t!(ctx, "secrets-hint"))) }
            @if found.items.is_empty() { (empty(&t!(ctx, "no-secrets"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "name")) } th { (t!(ctx, "granted-to")) } th { (t!(ctx, "changed")) } } }
                    tbody { @for one in &found.items {
                        tr { td { strong { bdi { (one.name) } } } td { (grants(ctx, &one.groups, &one.categories)) } td.tight.muted { (ago(ctx, one.updated_at)) } }
                    } }
                }
            }
            (first_only(ctx, found.items.len(), found.next_cursor.as_deref()))
        }
    };
    Ok(ctx.live("secrets", shown))
}

/// The kinds of objects in the audit, in its words.
const ACTIONS: [&str; 25] = [
    "create",
    "update",
    "upload",
    "activate",
    "enable",
    "disable",
    "pause",
    "resume",
    "cancel",
    "restart",
    "override",
    "retry",
    "clear",
    "revoke",
    "resend",
    "delete",
    "prune",
    "keep",
    "retire",
    "detach",
    "reseal",
    "sign_in",
    "sign_out",
    "end_sessions",
    "refuse",
];
const AUDITED: [&str; 19] = [
    "assignment",
    "audience",
    "backfill",
    "category",
    "channel",
    "connection",
    "group",
    "notification",
    "offer",
    "pool",
    "queue",
    "run",
    "runtime",
    "script",
    "secret",
    "setting",
    "template",
    "token",
    "topic",
];

/// What is done only to objects of which only an admin sees entries.
const ACTIONS_OF_ADMINS: [&str; 4] = ["sign_in", "sign_out", "end_sessions", "refuse"];

/// Those words of the audit whose entries the viewer may get.
fn seen_by(ctx: &Ctx, words: &[&'static str], of_admins: &[&str]) -> Vec<&'static str> {
    let is_seen = |word: &&str| ctx.viewer.administers() || !of_admins.contains(word);
    words.iter().copied().filter(is_seen).collect()
}

/// A field of the filter of the audit. A value from the address stays chosen, even if it is not in the list.
fn audit_choice(ctx: &Ctx, name: &str, all: String, among: &[&str], word: fn(&Ctx, &str) -> String) -> Markup {
    let asked = ctx.q(name);
    let other = asked.filter(|asked| !among.contains(asked));
    html! {
        label.hidden for=(name) { (t!(ctx, name)) }
        select id=(name) name=(name) {
            option value="" { (all) }
            @for one in among.iter().copied().chain(other) { option value=(one) selected[asked == Some(one)] { (word(ctx, one)) } }
        }
    }
}

async fn audit(ctx: &Ctx) -> Result<Markup, Trouble> {
    let query = ctx.asks(50, &["kind", "name", "actor", "action", "cursor"]);
    let found: List<AuditEntry> = ctx.get(&format!("/v1/audit?{query}")).await?;
    let groups: Vec<&str> = found.items.iter().map(|one| one.name.as_str()).collect();
    ctx.know_topics(&groups).await?;
    let entries = entries(ctx, &found.items);
    let actions = seen_by(ctx, &ACTIONS, &ACTIONS_OF_ADMINS);
    let kinds = seen_by(ctx, &AUDITED, &Noun::WORDS_OF_ADMINS);
    Ok(html! {
        section.panel {
            form.filters method="get" role="search" aria-label=(t!(ctx, "filter")) {
                (audit_choice(ctx, "action", t!(ctx, "all-actions"), &actions, elements::audit_action))
                (audit_choice(ctx, "kind", t!(ctx, "all-kinds"), &kinds, elements::audit_kind))
                @for name in ["name", "actor"] {
                    label.hidden for=(name) { (t!(ctx, name)) }
                    input id=(name) type="search" name=(name) value=[ctx.q(name)] placeholder=(t!(ctx, name));
                }
                button type="submit" { (t!(ctx, "filter")) }
            }
        }
        (elements::listed(ctx, "audit", entries, found.next_cursor.as_deref()))
    })
}

/// The entries of the audit. Rows and differences have ids, so that a new entry leaves the others as they are.
fn entries(ctx: &Ctx, found: &[AuditEntry]) -> Markup {
    html! {
        section.panel {
            @if found.is_empty() { (empty(&t!(ctx, "none"))) }
            @else {
                table.cards.audit {
                    thead { tr { th { (t!(ctx, "when")) } th { (t!(ctx, "actor")) } th { (t!(ctx, "action")) } th { (t!(ctx, "thing")) } th { (t!(ctx, "difference")) } } }
                    tbody { @for one in found {
                        tr #{ "entry-" (one.id) } {
                            td.tight.muted { (time_exact(ctx, one.at)) }
                            td.tight.side { bdi { (one.actor) } }
                            td.tight title=(one.action) { (elements::audit_action(ctx, &one.action)) }
                            td.wide { span.tag title=(one.kind) { (elements::audit_kind(ctx, &one.kind)) } " " (thing(ctx, one)) }
                            td.wide { @if one.before.is_some() || one.after.is_some() { details #{ "difference-" (one.id) } { summary { (t!(ctx, "difference")) } (changed(ctx, one)) } } }
                        }
                    } }
                }
            }
        }
    }
}

/// What an entry is about: a link, if it has a page. One that was deleted has a page that says so.
fn thing(ctx: &Ctx, one: &AuditEntry) -> Markup {
    let name = &one.name;
    if one.kind == "group" && !name.is_empty() {
        return elements::group_or_topic(ctx, name);
    }
    let page = match one.kind.as_str() {
        "run" => Some("/runs/"),
        "script" => Some("/scripts/"),
        "queue" => Some("/queues/"),
        "topic" => Some("/topics/"),
        "backfill" => Some("/backfills/"),
        "audience" => Some("/dispatch/audiences/"),
        _ => None,
    };
    html! {
        @match page {
            Some(page) if !name.is_empty() => a href={ (page) (segment(name)) } { bdi { (name) } },
            _ => bdi { (name) },
        }
    }
}

/// What an entry changed.
fn changed(ctx: &Ctx, one: &AuditEntry) -> Markup {
    let text = |value: &Option<Value>| value.as_ref().map(yaml::text).unwrap_or_default();
    let (before, after) = (text(&one.before), text(&one.after));
    if before.len().max(after.len()) > CHANGED_BYTES_MAX {
        return html! { p.muted { (t!(ctx, "compare-long")) } };
    }
    yaml::difference(&before, &after)
}

/// Tokens, and the form for one.
async fn tokens(ctx: &Ctx) -> Result<Markup, Trouble> {
    if !ctx.viewer.administers() {
        return Err(Trouble::new(403, ""));
    }
    let found: List<Token> = ctx.get("/v1/tokens?limit=500").await?;
    let signed_in: List<SignedIn> = ctx.get("/v1/sessions?limit=500").await?;
    let typed = |name| ctx.typed(name).unwrap_or_default();
    Ok(html! {
        form.panel.filters method="post" action="/system/tokens" {
            label.hidden for="name" { (t!(ctx, "name")) } input #name type="text" name="name" required maxlength="63" placeholder=(t!(ctx, "name")) value=(typed("name"));
            label.hidden for="role" { (t!(ctx, "role")) } select #role name="role" { @for role in Role::ALL { option value=(role.as_str()) selected[role.as_str() == typed("role")] { (role.as_str()) } } }
            label.hidden for="queues" { (t!(ctx, "token-queues")) } input #queues.broad type="text" name="queues" title=(t!(ctx, "token-queues")) placeholder=(t!(ctx, "token-queues-short")) value=(typed("queues")) autocomplete="off" spellcheck="false";
            label.hidden for="uids" { (t!(ctx, "token-users")) } input #uids.broad type="text" name="uids" title=(t!(ctx, "token-users")) placeholder=(t!(ctx, "token-users-short")) value=(typed("uids")) autocomplete="off" spellcheck="false";
            label.when title=(ctx.zone.name()) { span { (t!(ctx, "expires")) } input type="datetime-local" name="expires_at" value=(typed("expires_at")) aria-invalid=[ctx.fault("expires_at").map(|_| "true")] aria-describedby=[fault_id(ctx, "expires_at")]; }
            (fault(ctx, "expires_at"))
            button.primary type="submit" { (t!(ctx, "token-make")) }
        }
        (ctx.live("tokens", made(ctx, &found)))
        (ctx.live("people", people(ctx, &signed_in)))
    })
}

/// The tokens that were made.
fn made(ctx: &Ctx, found: &List<Token>) -> Markup {
    let tokens = &found.items;
    html! {
        section.panel {
            @if tokens.is_empty() { (empty(&t!(ctx, "no-tokens"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "name")) } th { (t!(ctx, "role")) } th { (t!(ctx, "bound-to")) } th { (t!(ctx, "created")) } th { (t!(ctx, "last-used")) } th { (t!(ctx, "expires")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in tokens {
                        @let name = &one.name;
                        tr {
                            td { strong { bdi { (name) } } }
                            td.tight.side { span.tag { (one.role) } }
                            td.whole {
                                @for queue in &one.queues { span.tag { (t!(ctx, "queue-named", name = queue)) } " " }
                                @for user in &one.uids { span.tag { (t!(ctx, "user-named", name = user)) } " " }
                            }
                            td.tight.muted data-label=(t!(ctx, "created")) { (ago(ctx, one.created_at)) }
                            td.tight.muted.side data-label=(t!(ctx, "last-used")) { @if let Some(at) = one.last_used_at { (ago(ctx, at)) } @else { (t!(ctx, "never")) } }
                            td.tight.muted data-label=(t!(ctx, "expires")) { @if let Some(at) = one.expires_at { (ago(ctx, at)) } @else { (t!(ctx, "never")) } }
                            td.tight.side { (button(Button { kind: "small danger", confirm: Some(t!(ctx, "token-revoke-sure")), ..Button::new(format!("/system/tokens/{}/revoke", segment(name)), t!(ctx, "revoke"), t!(ctx, "token-revoke-will")) })) }
                        }
                    } }
                }
            }
            (first_only(ctx, tokens.len(), found.next_cursor.as_deref()))
        }
    }
}

/// Who is signed in, with tokens and with accounts at a provider.
fn people(ctx: &Ctx, found: &List<SignedIn>) -> Markup {
    let signed_in = &found.items;
    html! {
        section.panel {
            h2 { (t!(ctx, "signed-in")) }
            @if signed_in.is_empty() { (empty(&t!(ctx, "signed-in-none"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "actor")) } th { (t!(ctx, "role")) } th.num { (t!(ctx, "sessions")) } th { (t!(ctx, "signed-in-at")) } th { (t!(ctx, "sessions-until")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in signed_in {
                        @let actor = one.actor.as_str();
                        @let by_token = one.issuer.is_none();
                        @let several = signed_in.iter().filter(|other| other.actor == one.actor).count() > 1;
                        @let whose = [("issuer", &one.issuer), ("subject", &one.subject)];
                        @let fields = whose.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
                        tr {
                            td { strong { bdi { (actor.strip_prefix("person:").unwrap_or(actor)) } } @if several { @if let Some(subject) = &one.subject { " " bdi.muted { (subject) } } } " " span.tag title=[one.issuer.as_deref()] { @if by_token { (t!(ctx, "token")) } @else { (t!(ctx, "person")) } } }
                            td.tight.side { span.tag { (one.role) } }
                            td.num data-label=(t!(ctx, "sessions")) { (number(one.sessions)) }
                            td.tight.muted.side data-label=(t!(ctx, "signed-in-at")) { (ago(ctx, one.signed_in_at)) }
                            td.tight.muted data-label=(t!(ctx, "sessions-until")) { (ago(ctx, one.expires_at)) }
                            td.tight.side { (button(Button { kind: "small danger", fields, confirm: Some(t!(ctx, "sessions-end-sure")), ..Button::new(format!("/system/sessions/{}/end", segment(actor)), t!(ctx, "sessions-end"), t!(ctx, "sessions-end-will")) })) }
                        }
                    } }
                }
            }
            (first_only(ctx, signed_in.len(), found.next_cursor.as_deref()))
        }
    }
}

/// Signs somebody out everywhere. If several people have the name, the form says whom.
pub(super) async fn end_sessions(ctx: &Ctx, actor: &str) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let mut target = format!("/v1/sessions/{}", segment(actor));
    let mut joined = '?';
    for name in ["issuer", "subject"] {
        if let Some(value) = field(&form, name) {
            target.push_str(&format!("{joined}{name}={}", segment(value)));
            joined = '&';
        }
    }
    ctx.send(Method::DELETE, &target, &json!({})).await?;
    Answer::back(ctx, Some(t!(ctx, "said-sessions-ended")))
}

/// What the API is asked for by the form for a token: what is left empty bounds nothing. A list with nothing but commas is
/// an empty list, which the API refuses: it may be a mistake.
fn token_body(zone: chrono_tz::Tz, form: &[(String, String)]) -> Result<Value, Trouble> {
    let listed = |name: &str| -> Option<Vec<String>> {
        let words = field(form, name)?.split([',', '，', '、']).map(str::trim);
        Some(words.filter(|word| !word.is_empty()).map(str::to_owned).collect())
    };
    let expires_at = field(form, "expires_at").map(|text| {
        let at = span::in_zone(zone, text).map(|at| at.to_rfc3339_opts(SecondsFormat::Secs, true));
        at.unwrap_or_else(|| text.to_owned())
    });
    let token = NewToken {
        name: field(form, "name").unwrap_or_default().trim().to_owned(),
        role: Role::default(),
        queues: listed("queues"),
        uids: listed("uids"),
        expires_at,
    };
    with_typed(&token, form, &["role"])
}

/// A token that was made just now.
fn new_token(ctx: &Ctx, new: &MadeToken) -> Markup {
    html! {
        section.panel role="status" {
            h2 { (t!(ctx, "token-new")) }
            p { (t!(ctx, "token-once")) }
            p.row { code { (new.token) } button type="button" data-copy=(new.token) { (t!(ctx, "copy")) } }
        }
    }
}

/// Makes a token, and shows it: once, so on the answer to the form itself, also if what is below it cannot be read.
pub(super) async fn make_token(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let body = token_body(ctx.zone, &form)?;
    let made: MadeToken = ctx.ask(Method::POST, "/v1/tokens", &body).await?;
    let below = tokens(ctx).await.unwrap_or_else(|trouble| {
        let (title, text) = means(ctx, trouble.status);
        html! { section.panel { p.error role="alert" { (title) (ctx.lang.colon()) (text) } } }
    });
    let inside = html! { (new_token(ctx, &made)) (below) };
    let page = framed(ctx, "tokens", inside, true);
    Answer::page(Page { once: true, ..page })
}

pub(super) async fn revoke_token(ctx: &Ctx, name: &str) -> Result<Answer, Trouble> {
    ctx.send(Method::DELETE, &format!("/v1/tokens/{}", segment(name)), &json!({}))
        .await?;
    Answer::back(ctx, Some(t!(ctx, "said-revoked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_bound_as_the_form_says() {
        let form = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let owned = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            owned.collect()
        };
        let berlin = chrono_tz::Europe::Berlin;
        let bare = form(&[
            ("name", " ci "),
            ("role", "viewer"),
            ("queues", ""),
            ("uids", " "),
            ("expires_at", ""),
        ]);
        let body = |form: &[(String, String)]| token_body(berlin, form).expect("a body");
        assert_eq!(body(&bare), json!({"name": "ci", "role": "viewer"}));
        let bound = form(&[
            ("name", "w"),
            ("role", "worker"),
            ("queues", "a, b，c"),
            ("uids", "ann smith,"),
            ("expires_at", "2027-01-01T00:00"),
        ]);
        serde_json::from_value::<NewToken>(body(&bound)).expect("as the API reads it");
        assert_eq!(
            body(&bound),
            json!({"name": "w", "role": "worker", "queues": ["a", "b", "c"], "uids": ["ann smith"],
                "expires_at": "2026-12-31T23:00:00Z"})
        );
        let nothing = form(&[("name", "w"), ("role", "worker"), ("queues", " , ")]);
        assert_eq!(body(&nothing)["queues"], json!([]), "refused, and not unbounded");
    }
}
