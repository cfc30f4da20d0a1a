//! A script as text: written, pasted or changed on a page, and uploaded as a new version.

use axum::http::Method;
use bytes::Bytes;
use heddle_api::{Script, ScriptVersion};
use maud::{Markup, html};

use super::answer::Answer;
use crate::ctx::{Beat, segment};
use crate::form::field;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, yaml};

/// The largest text that a page shows: what the API takes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The languages of scripts that are text.
struct Language {
    /// The last part of its world, and of addresses.
    name: &'static str,
    shown: &'static str,
    media: &'static str,
    /// The text with which a new script begins.
    beginning: &'static str,
}

const LANGUAGES: [Language; 3] = [
    Language {
        name: "typescript",
        shown: "TypeScript",
        media: "text/typescript",
        beginning: "export default async function run(params: { name?: string }, ctx: any) {\n  const name = params.name ?? \"world\";\n  console.info(\"greeting\", name);\n  return { greeting: `Hello, ${name}` };\n}\n",
    },
    Language {
        name: "javascript",
        shown: "JavaScript",
        media: "text/javascript",
        beginning: "export default async function run(params, ctx) {\n  const name = params.name ?? \"world\";\n  console.info(\"greeting\", name);\n  return { greeting: `Hello, ${name}` };\n}\n",
    },
    Language {
        name: "python",
        shown: "Python",
        media: "text/x-python",
        beginning: "def run(params, ctx):\n    name = params.get(\"name\", \"world\")\n    print(\"greeting\", name)\n    return {\"greeting\": f\"Hello, {name}\"}\n",
    },
];

fn language(name: &str) -> Option<&'static Language> {
    LANGUAGES.iter().find(|language| language.name == name)
}

/// The language of a world, if its scripts are text.
fn of_world(world: &str) -> Option<&'static Language> {
    language(world.strip_prefix("source/")?)
}

/// Whether scripts of a world are text.
pub(super) fn is_text(world: &str) -> bool {
    of_world(world).is_some()
}

/// The text of the form, with `\n` as line ends: browsers send `\r\n`.
fn written(form: &[(String, String)]) -> Option<String> {
    Some(field(form, "text")?.replace("\r\n", "\n"))
}

/// Uploads a text, and returns the answer of the API.
async fn put(ctx: &Ctx, name: &str, language: &Language, text: &str, keeps: bool) -> Result<ScriptVersion, Trouble> {
    let keep = if keeps { "?activate=false" } else { "" };
    let target = format!("/v1/scripts/{}{keep}", segment(name));
    let text = Bytes::from(text.to_owned());
    ctx.ask_as(Method::PUT, &target, language.media, text).await
}

/// The next page after an upload: the text again, or the console to try it.
fn done(ctx: &Ctx, name: &str, made: &ScriptVersion, form: &[(String, String)]) -> Answer {
    let number = made.version;
    let tab = match field(form, "do") {
        Some("try") if ctx.viewer.tries() => "console".to_owned(),
        _ => format!("source?version={number}"),
    };
    let version = format!("{name}@{number}");
    Answer::Go {
        to: format!("/scripts/{}/{tab}", segment(name)),
        said: Some(t!(ctx, "said-uploaded", name = version, world = &made.world)),
    }
}

fn buttons(ctx: &Ctx) -> Markup {
    html! {
        div.row {
            @if ctx.viewer.tries() { button.primary type="submit" name="do" value="try" { (t!(ctx, "save-and-try")) } }
            button type="submit" name="do" value="save" { (t!(ctx, "save")) }
            label { input type="checkbox" name="keep" value="true"; (t!(ctx, "upload-keep")) }
        }
    }
}

fn text_field(ctx: &Ctx, text: &str) -> Markup {
    let rows = text.lines().count().clamp(14, 40) + 2;
    html! {
        div.field {
            label for="text" { (t!(ctx, "script-source")) }
            // HTML drops a line end right after the tag. So one is written there, and a line end that the text begins
            // with is kept.
            textarea #text name="text" rows=(rows) spellcheck="false" autocomplete="off" autocapitalize="off" required { "\n" (text) }
        }
    }
}

fn wrong_shown(ctx: &Ctx, wrong: Option<&Trouble>) -> Markup {
    html! { @if let Some(trouble) = wrong { div.said.wrong role="alert" { p { (trouble.said(ctx.lang)) } } } }
}

/// Whether a new script may have this name. If that cannot be said, none is uploaded: it could be a version of another one.
async fn is_free(ctx: &Ctx, name: &str) -> Result<(), Trouble> {
    // The API says what is wrong with it.
    if name.is_empty() {
        return Ok(());
    }
    match ctx.get::<Script>(&format!("/v1/scripts/{}", segment(name))).await {
        Ok(_) => Err(Trouble::new(409, t!(ctx, "script-there", name = name))),
        Err(trouble) if trouble.status == 404 => Ok(()),
        Err(trouble) => Err(trouble),
    }
}

/// The page for a new script.
pub(super) async fn write(ctx: &Ctx) -> Result<Answer, Trouble> {
    if !ctx.viewer.authors() {
        return Err(Trouble::new(403, ""));
    }
    ctx.beats_with(Beat::Still);
    let form = ctx.form();
    let chosen = field(&form, "lang").or(ctx.q("write")).unwrap_or_default();
    let language = language(chosen).unwrap_or(&LANGUAGES[0]);
    let name = field(&form, "name").unwrap_or_default().trim().to_owned();
    let mut wrong = None;
    if ctx.posts() {
        let text = written(&form).unwrap_or_default();
        let answered = match is_free(ctx, &name).await {
            Ok(()) => put(ctx, &name, language, &text, field(&form, "keep").is_some()).await,
            Err(trouble) => Err(trouble),
        };
        match answered {
            Ok(made) => return Ok(done(ctx, &name, &made, &form)),
            Err(trouble) => wrong = Some(trouble),
        }
    }
    let title = t!(ctx, "write-script");
    let body = html! {
        div.heading { h1 { (title) } }
        (wrong_shown(ctx, wrong.as_ref()))
        nav.tabs aria-label=(t!(ctx, "language")) {
            @for one in &LANGUAGES { a href={ "/scripts?write=" (one.name) } aria-current=[(one.name == language.name).then_some("page")] { (one.shown) } }
        }
        form.panel.stack method="post" action="/scripts/write" {
            input type="hidden" name="lang" value=(language.name);
            label.field { span { (t!(ctx, "name")) } input type="text" name="name" required maxlength="63" value=(name) autocomplete="off"; }
            (text_field(ctx, &written(&form).unwrap_or_else(|| language.beginning.to_owned())))
            (buttons(ctx))
        }
    };
    let page = Page::new("scripts", title.clone(), body);
    Answer::page(
        Page {
            status: wrong.map_or(page.status, |trouble| trouble.status),
            ..page
        }
        .crumbs(vec![(t!(ctx, "nav-scripts"), Some("/scripts".into())), (title, None)]),
    )
}

/// The result of the tab with a script's text.
pub(super) enum Tab {
    /// A new version was created.
    Gone(Answer),
    /// The tab, and the status of its page.
    Shown(Markup, u16),
}

/// The version onto which a form saves: the one that was active when its page was opened. A form without it saves onto the
/// version of its page.
fn based_on(form: &[(String, String)], shown: i32) -> i32 {
    let written = field(form, "opened").and_then(|n| n.parse().ok());
    written.unwrap_or(shown)
}

/// The text of a version. Authors can change it.
///
/// A save replaces only the version that its author has seen. The API has no condition for uploads, so the page compares the
/// active version before it uploads: of two saves within the time that one upload takes, the later one is active, and the
/// other one is a version before it.
pub(super) async fn tab(ctx: &Ctx, name: &str, script: &Script, api: &str) -> Result<Tab, Trouble> {
    ctx.beats_with(Beat::Still);
    let current = script.version.version;
    let asked = ctx.q("version").and_then(|n| n.parse::<i32>().ok());
    let number = asked.unwrap_or(current);
    let version: ScriptVersion = ctx.get(&format!("{api}/versions/{number}")).await?;
    let language = of_world(&version.world).ok_or_else(Trouble::not_found)?;
    let form = ctx.form();
    let based = based_on(&form, number);
    let changed = ctx.posts() && based != current;
    let mut wrong = None;
    if ctx.posts() && !changed {
        let text = written(&form).unwrap_or_default();
        match put(ctx, name, language, &text, field(&form, "keep").is_some()).await {
            Ok(made) => return Ok(Tab::Gone(done(ctx, name, &made, &form))),
            Err(trouble) => wrong = Some(trouble),
        }
    }
    let text = match written(&form) {
        Some(text) => text,
        None => kept(ctx, &format!("{api}/versions/{number}/source")).await?,
    };
    let status = match changed {
        true => 412,
        false => wrong.as_ref().map_or(200, |trouble| trouble.status),
    };
    let shown = html! {
        @if changed { (meanwhile(ctx, script, api, based).await) }
        (wrong_shown(ctx, wrong.as_ref()))
        section.panel {
            h2 { (language.shown) " · @" (number) }
            @if ctx.viewer.authors() {
                form.stack method="post" action={ "/scripts/" (segment(name)) "/source?version=" (number) } {
                    // What is saved next replaces what the page has shown.
                    input type="hidden" name="opened" value=(current);
                    (text_field(ctx, &text))
                    (buttons(ctx))
                }
            } @else { pre.code { (text) } }
        }
    };
    Ok(Tab::Shown(shown, status))
}

/// Another version is active than the one from which somebody began to write: which, since when, and what it changed, if both
/// are texts.
async fn meanwhile(ctx: &Ctx, script: &Script, api: &str, based: i32) -> Markup {
    let current = script.version.version;
    let before = kept(ctx, &format!("{api}/versions/{based}/source")).await.ok();
    let after = kept(ctx, &format!("{api}/versions/{current}/source")).await.ok();
    let texts = before.zip(after);
    html! {
        div.said.wrong role="alert" { p { (t!(ctx, "script-meanwhile", before = i64::from(based), n = i64::from(current))) } }
        @if let Some((before, after)) = texts.filter(|(before, after)| before != after) {
            section.panel {
                h2 { "@" (based) " → @" (current) }
                (yaml::difference(&before, &after))
            }
        }
    }
}

/// The text of a version, as it was uploaded.
async fn kept(ctx: &Ctx, target: &str) -> Result<String, Trouble> {
    let answer = ctx.call(Method::GET, target, "text/plain", Bytes::new()).await?;
    if !answer.status().is_success() {
        return Err(Trouble::new(answer.status().as_u16(), ""));
    }
    let bytes = axum::body::to_bytes(answer.into_body(), TEXT_BYTES_MAX).await;
    let bytes = bytes.map_err(|error| Trouble::new(500, error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_of_text_have_a_language() {
        assert_eq!(of_world("source/python").map(|one| one.media), Some("text/x-python"));
        assert!(is_text("source/typescript") && !is_text("heddle:task/task"));
    }

    #[test]
    fn a_form_s_line_ends_are_a_file_s() {
        let form = [("text".to_owned(), "a\r\nb\r\n".to_owned())];
        assert_eq!(written(&form).as_deref(), Some("a\nb\n"));
        assert_eq!(written(&[]), None);
    }

    #[test]
    fn a_form_says_onto_which_version_it_saves() {
        let form = [("opened".to_owned(), "3".to_owned())];
        assert_eq!(based_on(&form, 1), 3);
        assert_eq!(based_on(&[], 1), 1);
    }
}
