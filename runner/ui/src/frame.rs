//! The frame around every page: the rail, the current position, search, the viewer, and whether the page is live.

use heddle_domain::Time;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::ctx::{Beat, Theme};
use crate::elements::{glyph, time};
use crate::home::form_home;
use crate::live::part;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble, assets};

/// A page, without its frame.
pub(crate) struct Page {
    pub(crate) status: u16,
    /// The title in the tab of the browser.
    pub(crate) title: String,
    /// Which entry of the rail it belongs to.
    pub(crate) section: &'static str,
    /// The path to this page: words, each with an address except the last.
    pub(crate) crumbs: Vec<(String, Option<String>)>,
    /// The last crumb, if it is a time.
    pub(crate) of_time: Option<Time>,
    pub(crate) body: Markup,
    /// The seconds after which a browser reloads: without scripts in any case, with them when there is another answer.
    pub(crate) refresh: Option<u32>,
    /// Without the rail, because nobody has signed in.
    pub(crate) bare: bool,
    /// It shows what is shown once: nothing may keep it.
    pub(crate) once: bool,
}

impl Page {
    pub(crate) fn new(section: &'static str, title: impl Into<String>, body: Markup) -> Self {
        let title = title.into();
        Self {
            status: 200,
            crumbs: vec![(title.clone(), None)],
            of_time: None,
            title,
            section,
            body,
            refresh: None,
            bare: false,
            once: false,
        }
    }

    pub(crate) fn crumbs(mut self, crumbs: Vec<(String, Option<String>)>) -> Self {
        self.crumbs = crumbs;
        self
    }

    pub(crate) fn of_time(mut self, at: Time) -> Self {
        self.of_time = Some(at);
        self
    }
}

/// The rail's entries: name, address, key after `g`.
pub(crate) const RAIL: [(&str, &str, &str); 10] = [
    ("overview", "/", "o"),
    ("groups", "/groups", "g"),
    ("runs", "/runs", "r"),
    ("backfills", "/backfills", "b"),
    ("scripts", "/scripts", "s"),
    ("queues", "/queues", "q"),
    ("dispatch", "/dispatch", "d"),
    ("topics", "/topics", "t"),
    ("notifications", "/notifications", "n"),
    ("system", "/system", "y"),
];

const GLYPHS: &str = include_str!("../assets/glyphs.svg");

/// The settings of htmx: nothing inline, nothing evaluated, no request to other hosts.
const HTMX: &str = r#"{"allowEval":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyEnabled":false,"allowScriptTags":false,"globalViewTransitions":false}"#;

pub(crate) fn write(ctx: &Ctx, page: Page) -> Markup {
    let parts = ctx.take_parts();
    let connect = (!parts.is_empty() && ctx.beat() != Beat::Still).then(|| {
        let at = format!("{}{}", ctx.path, query(ctx));
        let pairs = [("at", at), ("has", part::has(&parts))];
        let query = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs)
            .finish();
        format!("/live?{query}")
    });
    // Where the end of the session is told to a page that is not kept up to date.
    let session = connect.is_none() && !page.bare && !ctx.viewer.dev && page.refresh.is_none();
    let theme = (ctx.theme != Theme::System).then(|| ctx.theme.code());
    html! {
        (DOCTYPE)
        html lang=(ctx.lang.tag()) data-theme=[theme] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=(HTMX);
                // Scripts look whether the page is back, and load it then (`data-again`).
                @if let Some(seconds) = page.refresh { noscript { meta http-equiv="refresh" content=(seconds); } }
                title { (page.title) " · Heddle" }
                link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M3 2v12M13 2v12M3 8h10' stroke='%233b7de0' stroke-width='2.4' fill='none' stroke-linecap='round'/%3E%3Ccircle cx='8' cy='8' r='2.6' fill='%233b7de0'/%3E%3C/svg%3E";
                link rel="stylesheet" href=(assets::address("tokens.css"));
                link rel="stylesheet" href=(assets::address("heddle.css"));
                script src=(assets::address("vendor/htmx-2.0.11.min.js")) defer {}
                script src=(assets::address("vendor/idiomorph-ext-0.7.4.min.js")) defer {}
                script src=(assets::address("vendor/htmx-ext-sse-2.2.4.min.js")) defer {}
                @for module in ["times.js", "heddle.js", "keys.js", "picture.js"] {
                    script type="module" src=(assets::address(module)) {}
                }
            }
            body data-zone=(ctx.zone.name()) data-lang=(ctx.lang.code()) data-session=[session.then_some("/live?session=1")] data-again=[page.refresh] {
                (PreEscaped(GLYPHS))
                a.skip href="#main" { (t!(ctx, "skip")) }
                @if page.bare {
                    div.bare { (page.body) }
                } @else {
                    div.frame {
                        (rail(ctx, page.section))
                        div.column hx-ext=[connect.as_ref().map(|_| "sse,morph")] sse-connect=[connect.as_deref()] {
                            (top(ctx, &page, connect.is_some()))
                            main #main tabindex="-1" {
                                (said(ctx))
                                @if !ctx.viewer.dev { (ended(ctx)) }
                                (page.body)
                            }
                        }
                    }
                    (palette(ctx))
                    (help(ctx))
                }
                div #words hidden
                    data-live=(t!(ctx, "live")) data-brief=(t!(ctx, "live-brief")) data-reconnecting=(t!(ctx, "reconnecting")) data-stale=(t!(ctx, "stale-since"))
                    data-over=(t!(ctx, "page-over")) data-ended=(t!(ctx, "session-over")) data-ago=(t!(ctx, "ago", span = "#"))
                    data-in=(t!(ctx, "in-span", span = "#")) data-now=(t!(ctx, "just-now")) data-copied=(t!(ctx, "copied")) {}
            }
        }
    }
}

/// The query of the address at which the page is kept up to date.
fn query(ctx: &Ctx) -> String {
    let pairs = ctx.live_query();
    if pairs.is_empty() {
        return String::new();
    }
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(&pairs)
        .finish();
    format!("?{query}")
}

fn rail(ctx: &Ctx, section: &str) -> Markup {
    html! {
        nav.rail #rail aria-label=(t!(ctx, "main-navigation")) {
            a.brand href="/" { (glyph("heddle")) "Heddle" }
            a.close href="#" aria-label=(t!(ctx, "close-menu")) { (glyph("close")) }
            @for (name, address, _) in RAIL {
                a href=(address) aria-current=[(name == section).then_some("page")] {
                    (glyph(name)) span { (t!(ctx, &format!("nav-{name}"))) }
                }
            }
            div.grow {}
            a href="/preferences" aria-current=[(section == "preferences").then_some("page")] { (glyph("preferences")) span { (t!(ctx, "nav-preferences")) } }
            a href="/docs" { (glyph("book")) span { (t!(ctx, "nav-api")) } }
        }
    }
}

/// Whether a word of the path is so short that a phone need not keep room for it: in that room, there would be a hole after
/// the word.
fn is_short(word: &str) -> bool {
    const COLUMNS: usize = 8;
    // The letters of Chinese are twice as wide.
    let columns: usize = word
        .chars()
        .map(|letter| if letter.is_ascii() { 1_usize } else { 2 })
        .sum();
    columns <= COLUMNS
}

fn top(ctx: &Ctx, page: &Page, live: bool) -> Markup {
    html! {
        header.top {
            a.menu href="#rail" aria-label=(t!(ctx, "open-menu")) { (glyph("menu")) }
            nav.crumbs aria-label=(t!(ctx, "breadcrumbs")) {
                ol {
                    @for (word, address) in &page.crumbs {
                        li.short[is_short(word)] {
                            @match address {
                                Some(address) => a href=(address) { bdi { (word) } },
                                None => span aria-current="page" { bdi { (word) } },
                            }
                        }
                    }
                    @if let Some(at) = page.of_time { li { span aria-current="page" { (time(ctx, at)) } } }
                }
            }
            div.grow {}
            form.search role="search" aria-label=(t!(ctx, "search")) action="/search" method="get" {
                label.hidden for="search" { (t!(ctx, "search")) }
                (glyph("search"))
                input #search type="search" name="q" placeholder=(t!(ctx, "search-hint")) autocomplete="off" maxlength="200";
                kbd { "/" }
            }
            @if live {
                span.live #live role="status" data-state="off" { i {} span { (t!(ctx, "live-off")) } }
            }
            @if !ctx.viewer.dev {
                form.who method="post" action="/sign-out" {
                    span title=(t!(ctx, "signed-in-as", name = &ctx.viewer.actor)) { bdi { (ctx.viewer.actor) } }
                    button.plain type="submit" { (t!(ctx, "sign-out")) }
                }
            }
        }
    }
}

/// The result of the last form.
fn said(ctx: &Ctx) -> Markup {
    match ctx.said.as_deref().map(|said| (said.strip_prefix('!'), said)) {
        None => html! {},
        Some((Some(wrong), _)) => html! { div.said.wrong role="alert" { (glyph("failed")) p { (wrong) } } },
        Some((None, well)) => html! { div.said role="status" { (glyph("succeeded")) p { (well) } } },
    }
}

/// Shown by a script when the session has ended while somebody was typing.
fn ended(ctx: &Ctx) -> Markup {
    html! {
        div #ended data-typed=[ctx.shows_typed().then_some("1")] hidden {
            (glyph("failed"))
            p { (t!(ctx, "session-typed")) " " a href="/sign-in" target="_blank" { (t!(ctx, "sign-in-tab")) } }
        }
    }
}

fn palette(ctx: &Ctx) -> Markup {
    html! {
        dialog #palette aria-label=(t!(ctx, "search")) {
            form action="/search" method="get" {
                (glyph("search"))
                input type="search" name="q" placeholder=(t!(ctx, "search-hint")) autocomplete="off" maxlength="200"
                    aria-label=(t!(ctx, "search")) aria-controls="found"
                    hx-get="/search" hx-trigger="input changed delay:120ms, shown" hx-target="#found" hx-swap="innerHTML";
            }
            div #found {}
        }
    }
}

fn help(ctx: &Ctx) -> Markup {
    let keys: [(&str, &str); 8] = [
        ("/", "keys-search"),
        ("Ctrl K", "keys-palette"),
        ("j k ↓ ↑", "keys-next"),
        ("Enter", "keys-open"),
        ("← ↑ → ↓", "keys-grid"),
        ("Esc", "keys-close"),
        ("t", "keys-theme"),
        ("?", "keys-help"),
    ];
    html! {
        dialog #keys aria-labelledby="keys-title" {
            h2 #keys-title { (t!(ctx, "keys-title")) }
            dl.keys {
                @for (key, word) in keys { dt { kbd { (key) } } dd { (t!(ctx, word)) } }
                @for (name, _, key) in RAIL {
                    dt { kbd { "g" } " " kbd { (key) } } dd { (t!(ctx, &format!("nav-{name}"))) }
                }
            }
            form method="dialog" { button { (t!(ctx, "close")) } }
        }
    }
}

/// What a status means: a title and a sentence.
pub(crate) fn means(ctx: &Ctx, status: u16) -> (String, String) {
    match status {
        404 => (t!(ctx, "not-found"), t!(ctx, "not-found-text")),
        403 => (t!(ctx, "forbidden"), t!(ctx, "forbidden-text")),
        415 => (t!(ctx, "refused"), t!(ctx, "not-a-form")),
        429 => (t!(ctx, "busy"), t!(ctx, busy_text(ctx.posts()))),
        503 => (t!(ctx, "away"), t!(ctx, away_text(ctx.posts()))),
        500.. => (t!(ctx, "broken"), t!(ctx, "broken-text")),
        _ => (t!(ctx, "refused"), t!(ctx, "refused-text")),
    }
}

/// The key of what to do if the node is busy. A page loads itself again; a form is never sent a second time by itself.
fn busy_text(posts: bool) -> &'static str {
    if posts { "busy-again" } else { "busy-text" }
}

/// The key of what to do if the database does not answer. A form may have had its effect although nobody says so.
fn away_text(posts: bool) -> &'static str {
    if posts { "away-again" } else { "away-text" }
}

/// A page that replaces one that cannot be shown.
pub(crate) fn trouble(ctx: &Ctx, trouble: &Trouble, known: bool) -> Page {
    let (title, text) = means(ctx, trouble.status);
    let again = matches!(trouble.status, 429 | 503);
    // The address that gets a form may have no page: whoever tries again does so where the form is.
    let from = match ctx.posts() {
        true => form_home(ctx),
        false => ctx.path.clone(),
    };
    // A replacement page is not kept up to date part by part.
    ctx.take_parts();
    let inside = html! {
        section.trouble {
            p.status { (trouble.status) }
            h1 { (title) }
            p { (text) }
            @if !trouble.said(ctx.lang).is_empty() { pre.error { (trouble.said(ctx.lang)) } }
            p { a.button href=(from) { (t!(ctx, "try-again")) } " " a.button href="/" { (t!(ctx, "nav-overview")) } }
        }
    };
    // The frame, which has this element, is only around pages for people who are known.
    let body = match known {
        true => inside,
        false => html! { main #main tabindex="-1" { (inside) } },
    };
    Page {
        status: trouble.status,
        refresh: (again && !ctx.posts()).then_some(5),
        bare: !known,
        ..Page::new("", title, body)
    }
}

/// Language and theme, for pages that have no rail.
pub(crate) fn languages(ctx: &Ctx) -> Markup {
    html! {
        form.languages method="post" action="/preferences" {
            @for lang in Lang::ALL {
                button.plain type="submit" name="lang" value=(lang.code()) lang=(lang.tag()) aria-pressed=(if lang == ctx.lang { "true" } else { "false" }) { (lang.own_name()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a page that is asked for again by itself says so.
    #[test]
    fn a_form_is_not_said_to_be_sent_again() {
        for (lang, again) in [(Lang::En, "retries automatically"), (Lang::Zh, "会自动重试")] {
            for key in [busy_text, away_text] {
                assert!(lang.t(key(false), &[]).contains(again), "{}", key(false));
                assert!(!lang.t(key(true), &[]).contains(again), "{}", key(true));
            }
        }
    }
}
