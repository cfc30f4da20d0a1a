//! Finds groups, scripts, queues and topics, runs by id or key, pages, and what one may do.

use heddle_api::{List, Queue};
use maud::{Markup, html};
use uuid::Uuid;

use super::Answer;
use crate::ctx::segment;
use crate::elements::glyph;
use crate::frame::{Page, RAIL};
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many of each kind are shown.
const SHOWN: i64 = 8;

/// Of each kind of thing: what it is called, and where its pages are.
const KINDS: [(&str, &str, &str); 4] = [
    ("group", "groups", "g"),
    ("script", "scripts", "s"),
    ("queue", "queues", "q"),
    ("topic", "topics", "t"),
];
/// What may be done with a group by its name: `run weather`.
const VERBS: [(&str, &str); 2] = [("run", "run-now"), ("backfill", "backfill")];
/// Behind so many things nothing to do is offered beside a group, unless it was asked for.
const ACTIONS_MAX: usize = 4;

struct Found {
    glyph: &'static str,
    name: String,
    kind: String,
    address: String,
}

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    let text: String = ctx.q("q").unwrap_or_default().trim().chars().take(200).collect();
    let found = find(ctx, &text).await?;
    if ctx.is_piece() {
        return Ok(Answer::Piece(list(ctx, &text, &found)));
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
        form.row action="/search" method="get" role="search" {
            label.hidden for="q" { (t!(ctx, "search")) }
            input #q.grow type="search" name="q" value=(text) placeholder=(t!(ctx, "search-hint")) maxlength="200";
            button.primary type="submit" { (t!(ctx, "search")) }
        }
        section.panel #found { (list(ctx, &text, &found)) }
    };
    Answer::page(Page::new("", title, body))
}

/// What may be done without a name, and whether this viewer may.
fn actions(ctx: &Ctx) -> [(&'static str, &'static str, bool); 4] {
    [
        ("new-group", "/groups/new", ctx.viewer.operates()),
        ("upload-script", "/scripts", ctx.viewer.authors()),
        ("token-make", "/system/tokens", ctx.viewer.administers()),
        ("nav-preferences", "/preferences", true),
    ]
}

/// `run weather`: what is to be done, by the word for it here or in English, and with what.
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

/// Queues that hold something: only what was set of a queue has a row that a search by name finds.
async fn queues(ctx: &Ctx, lower: &str, found: &mut Vec<Found>) -> Result<(), Trouble> {
    if lower.is_empty() {
        return Ok(());
    }
    let listed: List<Queue> = ctx.get("/v1/queues?limit=500").await?;
    let names = listed.items.into_iter().map(|queue| queue.name);
    let mut shown = 0;
    for name in names.filter(|name| name.to_lowercase().contains(lower)) {
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
    Ok(())
}

async fn find(ctx: &Ctx, text: &str) -> Result<Vec<Found>, Trouble> {
    let mut found = Vec::new();
    let lower = text.to_lowercase();
    if !text.is_empty() {
        if let Ok(id) = text.parse::<Uuid>() {
            if ctx.store().run(heddle_domain::id::RunId(id)).await?.is_some() {
                found.push(run(ctx, id, id.to_string()));
            }
        } else {
            for id in ctx.store().page_run_of_key(text).await? {
                found.push(run(ctx, id, format!("{text} · {id}")));
            }
        }
        let (verb, name) = verb(ctx, text);
        for one in ctx.store().page_find(name, SHOWN).await? {
            let (kind, section, _) = KINDS
                .iter()
                .find(|kind| kind.0 == one.kind)
                .copied()
                .unwrap_or(KINDS[0]);
            let address = format!("/{section}/{}", segment(&one.name));
            found.push(Found {
                glyph: section,
                kind: t!(ctx, kind),
                address: address.clone(),
                name: one.name.clone(),
            });
            if kind == "group" && ctx.viewer.operates() && (verb.is_some() || found.len() < ACTIONS_MAX) {
                let asked = verb.is_some();
                let verb = verb.unwrap_or("run");
                let action = Found {
                    glyph: "running",
                    name: format!(
                        "{} · {}",
                        t!(
                            ctx,
                            VERBS.iter().find(|one| one.0 == verb).map_or("run-now", |one| one.1)
                        ),
                        one.name
                    ),
                    kind: t!(ctx, "action"),
                    address: format!("{address}/{verb}"),
                };
                // Who names an action wants it first, who names a thing the thing.
                let index = found.len() - usize::from(asked);
                found.insert(index, action);
            }
        }
    }
    queues(ctx, &lower, &mut found).await?;
    for (key, address, may) in actions(ctx) {
        let word = t!(ctx, key);
        if may && !lower.is_empty() && word.to_lowercase().contains(&lower) {
            found.push(Found {
                glyph: "running",
                kind: t!(ctx, "action"),
                address: address.to_owned(),
                name: word,
            });
        }
    }
    for (name, address, _) in RAIL {
        let word = t!(ctx, &format!("nav-{name}"));
        if lower.is_empty() || word.to_lowercase().contains(&lower) {
            found.push(Found {
                glyph: name,
                kind: t!(ctx, "page"),
                address: address.to_owned(),
                name: word,
            });
        }
    }
    Ok(found)
}

fn run(ctx: &Ctx, id: Uuid, name: String) -> Found {
    Found {
        glyph: "runs",
        name,
        kind: t!(ctx, "run"),
        address: format!("/runs/{id}"),
    }
}

fn list(ctx: &Ctx, text: &str, found: &[Found]) -> Markup {
    html! {
        @if found.is_empty() { p.empty { (t!(ctx, "nothing-found", text = text)) } }
        @for one in found {
            a href=(one.address) { (glyph(one.glyph)) bdi { (one.name) } small { (one.kind) } }
        }
    }
}
