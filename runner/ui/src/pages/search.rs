//! Finds groups, scripts, runs by id or key, and pages by name.

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
        let (groups, scripts) = ctx.store().page_find(text, SHOWN).await?;
        for name in groups {
            let address = format!("/groups/{}", segment(&name));
            found.push(Found {
                glyph: "groups",
                kind: t!(ctx, "group"),
                address,
                name,
            });
        }
        for name in scripts {
            let address = format!("/scripts/{}", segment(&name));
            found.push(Found {
                glyph: "scripts",
                kind: t!(ctx, "script"),
                address,
                name,
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
