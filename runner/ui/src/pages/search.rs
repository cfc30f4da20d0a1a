//! Finds things by their names, runs by id, the beginning of an id, or key, pages, and what one may do.

use heddle_api::{ID_CHARS_MIN, List, Queue, Run};
use heddle_domain::name::composed;
use maud::{Markup, html};
use uuid::Uuid;

use super::answer::Answer;
use super::system::tab_list;
use crate::ctx::segment;
use crate::elements::glyph;
use crate::frame::{Page, RAIL};
use crate::words::{Lang, t};
use crate::{Ctx, Trouble, Viewer};

/// How many of each kind are shown.
const SHOWN: i64 = 8;
/// How many queues are looked at for a part of their name.
const QUEUES_MAX: i64 = 500;

/// The kinds of things: word, glyph, and the path of their pages.
const KINDS: [(&str, &str, &str); 9] = [
    ("group", "groups", "/groups/"),
    ("script", "scripts", "/scripts/"),
    ("queue", "queues", "/queues/"),
    ("topic", "topics", "/topics/"),
    ("pool", "system", "/system/pools#pool-"),
    ("channel", "notifications", "/notifications?channel="),
    ("offer", "dispatch", "/dispatch?offer="),
    ("audience", "dispatch", "/dispatch/audiences/"),
    ("user", "dispatch", "/dispatch/as?uid="),
];
/// Actions on a group by its name, such as `run weather`. The page of the action asks before it does something.
const VERBS: [(&str, &str); 8] = [
    ("run", "run-now"),
    ("backfill", "backfill"),
    ("enable", "enable"),
    ("disable", "disable"),
    ("pause", "pause"),
    ("resume", "resume"),
    ("cancel", "cancel"),
    ("restart", "restart"),
];
/// If at least so many things are found, no actions are offered for a group, unless the viewer named one.
const ACTIONS_MAX: usize = 4;

/// The page of an action on a group; `None`: it is not possible in the group's state.
fn page_of(verb: &str, name: &str, group: &heddle_engine::Group) -> Option<String> {
    let name = segment(name);
    let runs = |state: &str| Some(format!("/runs?group={name}&state={state}"));
    match verb {
        "run" => Some(format!("/groups/{name}/run")),
        "backfill" => group
            .revision
            .plan
            .spec
            .history
            .then(|| format!("/groups/{name}/backfill")),
        "enable" => (!group.enabled).then(|| format!("/groups/{name}")),
        "disable" => group.enabled.then(|| format!("/groups/{name}")),
        "pause" | "cancel" => runs("running"),
        "resume" => runs("paused"),
        "restart" => runs("failed"),
        _ => None,
    }
}

struct Found {
    glyph: &'static str,
    name: String,
    kind: String,
    address: String,
}

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    let text: String = ctx.q("q").unwrap_or_default().trim().chars().take(200).collect();
    let (found, more) = find(ctx, &text).await?;
    if ctx.is_piece() {
        return Ok(Answer::Piece(list(ctx, &text, &found, more)));
    }
    if found.len() == 1 && found[0].glyph == "runs" {
        return Ok(Answer::Go {
            to: found[0].address.clone(),
            said: None,
        });
    }
    let title = t!(ctx, "search");
    let body = html! {
        div.heading { h1 { (title) } }
        form.row action="/search" method="get" {
            label.hidden for="q" { (t!(ctx, "search")) }
            input #q.grow type="search" name="q" value=(text) placeholder=(t!(ctx, "search-hint")) maxlength="200";
            button.primary type="submit" { (t!(ctx, "search")) }
        }
        section.panel #found { (list(ctx, &text, &found, more)) }
    };
    Answer::page(Page::new("", title, body))
}

/// Actions without a name: the word, the page, and who may do it.
type Deed = (&'static str, &'static str, fn(&Viewer) -> bool);

const DEEDS: [Deed; 12] = [
    ("new-group", "/groups/new", Viewer::operates),
    ("upload-script", "/scripts", Viewer::authors),
    ("write-script", "/scripts?write=typescript", Viewer::authors),
    ("find-restart", "/runs?state=failed", Viewer::operates),
    ("find-pause", "/runs?state=running", Viewer::operates),
    ("find-resume", "/runs?state=paused", Viewer::operates),
    ("find-enable", "/groups", Viewer::operates),
    ("find-pause-queue", "/queues", Viewer::operates),
    ("poll-as", "/dispatch", |_| true),
    ("test-channel", "/notifications#channels", Viewer::operates),
    ("token-make", "/system/tokens", Viewer::administers),
    ("find-theme", "/preferences", |_| true),
];

/// Whether a word, here or in English, contains a text in small letters.
fn says(ctx: &Ctx, key: &str, lower: &str) -> bool {
    let says = |lang: Lang| lang.t(key, &[]).to_lowercase().contains(lower);
    says(ctx.lang) || says(Lang::En)
}

/// Reads a search such as `run weather`: the action, by its word in the viewer's language or in English, and its
/// object.
fn verb<'a>(ctx: &Ctx, text: &'a str) -> (Option<&'static str>, &'a str) {
    let Some((first, name)) = text.split_once(' ') else {
        return (None, text);
    };
    let first = first.to_lowercase();
    let named = |one: &&(&'static str, &'static str)| {
        let word = t!(ctx, one.1).to_lowercase();
        one.0 == first || word.trim_end_matches('…') == first
    };
    match VERBS.iter().find(named) {
        Some((verb, _)) if !name.trim().is_empty() => (Some(verb), name.trim()),
        _ => (None, text),
    }
}

/// Queues with task runs. (The search by name only finds queues with settings, because only these have a row.) Answers whether
/// there are more queues than were looked at.
async fn queues(ctx: &Ctx, lower: &str, found: &mut Vec<Found>) -> Result<bool, Trouble> {
    if lower.is_empty() {
        return Ok(false);
    }
    let lower = composed(lower);
    let listed: List<Queue> = ctx.get(&format!("/v1/queues?limit={QUEUES_MAX}")).await?;
    let more = listed.next_cursor.is_some();
    let names = listed.items.into_iter().map(|queue| queue.name);
    let mut shown = 0;
    for name in names.filter(|name| name.to_lowercase().contains(&lower)) {
        let address = format!("/queues/{}", segment(&name));
        if shown < SHOWN && found.iter().all(|one| one.address != address) {
            shown += 1;
            found.push(Found {
                glyph: "queues",
                kind: t!(ctx, "queue"),
                address,
                name,
            });
        }
    }
    Ok(more)
}

/// What was found, and whether there are more queues than were looked at.
async fn find(ctx: &Ctx, text: &str) -> Result<(Vec<Found>, bool), Trouble> {
    let mut found = Vec::new();
    let lower = text.to_lowercase();
    if !text.is_empty() {
        runs(ctx, text, &mut found).await?;
        things(ctx, text, &mut found).await?;
    }
    let more = queues(ctx, &lower, &mut found).await?;
    deeds(ctx, &lower, &mut found);
    pages(ctx, &lower, &mut found);
    Ok((found, more))
}

/// Whether a text can be the beginning of an id, as narrow tables of the command line show it: `01a21a1f-7944`.
fn begins_id(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-').count();
    (ID_CHARS_MIN..32).contains(&digits) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The run of an id, or those of a key and of the beginning of an id.
async fn runs(ctx: &Ctx, text: &str, found: &mut Vec<Found>) -> Result<(), Trouble> {
    if let Ok(id) = text.parse::<Uuid>() {
        if ctx.store().run(heddle_domain::id::RunId(id)).await?.is_some() {
            found.push(run(ctx, id, id.to_string()));
        }
        return Ok(());
    }
    for id in ctx.store().page_run_of_key(text).await? {
        found.push(run(ctx, id, format!("{text} · {id}")));
    }
    if begins_id(text) {
        let listed: List<Run> = ctx
            .get(&format!("/v1/runs?id={text}&history=true&limit={SHOWN}"))
            .await?;
        for one in listed.items {
            let named = run(ctx, one.id, format!("{} · {}", one.id, one.group));
            if found.iter().all(|other| other.address != named.address) {
                found.push(named);
            }
        }
    }
    Ok(())
}

/// Things by their names, and what may be done with groups among them.
async fn things(ctx: &Ctx, text: &str, found: &mut Vec<Found>) -> Result<(), Trouble> {
    let (verb, name) = verb(ctx, text);
    let mut listed = ctx.store().page_find(name, SHOWN).await?;
    // Names are kept composed, ids of users and audiences as they were written.
    let as_name = composed(name);
    if as_name != name {
        listed.extend(ctx.store().page_find(&as_name, SHOWN).await?);
    }
    for one in listed {
        let (kind, glyph, pages) = KINDS
            .iter()
            .find(|kind| kind.0 == one.kind)
            .copied()
            .unwrap_or(KINDS[0]);
        found.push(Found {
            glyph,
            kind: t!(ctx, kind),
            address: format!("{pages}{}", segment(&one.name)),
            name: one.name.clone(),
        });
        if kind == "group" && ctx.viewer.operates() && (verb.is_some() || found.len() < ACTIONS_MAX) {
            // Who names an action wants it first, who names a thing the thing.
            let index = found.len() - usize::from(verb.is_some());
            if let Some(action) = action(ctx, verb.unwrap_or("run"), &one.name).await? {
                found.insert(index, action);
            }
        }
    }
    Ok(())
}

/// Something that may be done with a group; `None`: it does not go with how the group stands.
async fn action(ctx: &Ctx, verb: &str, name: &str) -> Result<Option<Found>, Trouble> {
    let Some(group) = ctx.ui.engine.catalog().group(name).await? else {
        return Ok(None);
    };
    let word = VERBS.iter().find(|one| one.0 == verb).map_or("run-now", |one| one.1);
    Ok(page_of(verb, name, &group).map(|address| Found {
        glyph: "running",
        name: format!("{} · {name}", t!(ctx, word)),
        kind: t!(ctx, "action"),
        address,
    }))
}

/// What may be done without a name.
fn deeds(ctx: &Ctx, lower: &str, found: &mut Vec<Found>) {
    for (key, address, may) in DEEDS {
        if may(&ctx.viewer) && !lower.is_empty() && says(ctx, key, lower) {
            found.push(Found {
                glyph: "running",
                kind: t!(ctx, "action"),
                address: address.to_owned(),
                name: t!(ctx, key),
            });
        }
    }
}

fn pages(ctx: &Ctx, lower: &str, found: &mut Vec<Found>) {
    let mut page = |glyph, address, name| {
        found.push(Found {
            glyph,
            kind: t!(ctx, "page"),
            address,
            name,
        });
    };
    for (name, address, word) in tab_list(ctx, ctx.viewer.administers()) {
        let key = if name.is_empty() { "nodes" } else { &name };
        if !lower.is_empty() && says(ctx, key, lower) {
            page("system", address, format!("{} · {word}", t!(ctx, "nav-system")));
        }
    }
    for (name, address, _) in RAIL {
        let key = format!("nav-{name}");
        if lower.is_empty() || says(ctx, &key, lower) {
            page(name, address.to_owned(), t!(ctx, &key));
        }
    }
}

fn run(ctx: &Ctx, id: Uuid, name: String) -> Found {
    Found {
        glyph: "runs",
        name,
        kind: t!(ctx, "run"),
        address: format!("/runs/{id}"),
    }
}

fn list(ctx: &Ctx, text: &str, found: &[Found], more_queues: bool) -> Markup {
    html! {
        @if found.is_empty() { p.empty { (t!(ctx, "nothing-found", text = text)) } }
        @for one in found {
            a href=(one.address) { (glyph(one.glyph)) bdi { (one.name) } small { (one.kind) } }
        }
        @if more_queues { p.muted { (t!(ctx, "find-queues-max", n = QUEUES_MAX)) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_of_an_id_is_known() {
        for text in [
            "01a21a1f",
            "01A21A1F",
            "01a21a1f-7944",
            "01a21a1f-",
            "01a21a1f79447000",
            "20261124",
        ] {
            assert!(begins_id(text), "{text}");
        }
        let whole = "01a21a1f-7944-7000-8001-fd57145f59bd";
        for text in [
            "",
            "weather",
            "01a21a1",
            "01a21a1-",
            "01a21a1f%",
            "01a21a1f 7944",
            "é1a21a1f",
            whole,
        ] {
            assert!(!begins_id(text), "{text}");
        }
    }
}
