//! Files that become versions of scripts: the form, and what is sent with it.

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{Method, header};
use bytes::Bytes;
use heddle_api::{Problem, ScriptVersion};
use heddle_domain::Name;
use maud::{Markup, html};

use crate::ctx::{UPLOAD, segment};
use crate::elements::{fault, fault_id, millis};
use crate::pages::answer::Answer;
use crate::trouble::fault as fault_at;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble, frame};

/// How many files one upload may have.
const FILES_MAX: usize = 20;

/// The form for files; with a `name`, for versions of this script. After a refusal it has what was typed, but no file: no page
/// can put one into a form. Its address says of which script the page is, so that a refusal, which is shown under that address,
/// leads back to it.
pub(super) fn upload_form(ctx: &Ctx, name: &str) -> Markup {
    let typed = ctx.typed("name").filter(|_| name.is_empty());
    let invalid = |name: &str| ctx.fault(name).map(|_| "true");
    let action = match name {
        "" => UPLOAD.to_owned(),
        name => format!("{UPLOAD}?of={}", segment(name)),
    };
    html! {
        section.panel {
            h2 { (t!(ctx, "upload")) }
            form.filters method="post" action=(action) enctype="multipart/form-data" data-drop {
                label.hidden for="files" { (t!(ctx, "files")) }
                input #files type="file" name="file" required multiple[name.is_empty()] accept=".wasm,.js,.ts,.py" aria-invalid=[invalid("file")] aria-describedby=[fault_id(ctx, "file")];
                (fault(ctx, "file"))
                label.hidden for="name" { (t!(ctx, "name")) }
                input #name type="text" name="name" value=(typed.unwrap_or(name)) placeholder=(t!(ctx, "upload-name")) maxlength="63" size="26" readonly[!name.is_empty()] aria-invalid=[invalid("name")] aria-describedby=[fault_id(ctx, "name")];
                (fault(ctx, "name"))
                label { input type="checkbox" name="keep" value="true" checked[ctx.typed("keep").is_some()]; (t!(ctx, "upload-keep")) }
                button.primary type="submit" { (t!(ctx, "upload")) }
            }
            @if ctx.shows_typed() { p { (t!(ctx, "upload-again")) } }
            p.muted { (t!(ctx, "upload-hint")) span data-hint hidden { " " (t!(ctx, "upload-drop")) } }
        }
    }
}

/// The language of a file, by its extension.
fn media(file: &str) -> &'static str {
    match file.rsplit('.').next() {
        Some("js" | "mjs") => "text/javascript",
        Some("ts") => "text/typescript",
        Some("py") => "text/x-python",
        _ => "application/wasm",
    }
}

/// A name for a script, made from the name of its file.
fn stem(file: &str) -> String {
    let bare = file.rsplit(['/', '\\']).next().unwrap_or(file);
    let stem = bare.rsplit_once('.').map_or(bare, |(stem, _)| stem);
    stem.chars()
        .map(|c| {
            if c.is_alphanumeric() || matches!(c, '_' | '-' | '.') {
                c
            } else {
                '-'
            }
        })
        .collect()
}

/// What a form with files has sent.
#[derive(Default)]
struct Sent {
    /// The files that have content, up to the maximum.
    files: Vec<(String, Bytes)>,
    /// The names of files without content, up to the maximum.
    empty: Vec<String>,
    /// How many files there are, with those that are not kept here.
    count: usize,
    name: String,
    keep: bool,
}

impl Sent {
    async fn read(ctx: &Ctx) -> Result<Self, Trouble> {
        let mut request = Request::new(Body::from(ctx.body.clone()));
        if let Some(value) = ctx.head().headers.get(header::CONTENT_TYPE) {
            request.headers_mut().insert(header::CONTENT_TYPE, value.clone());
        }
        // The body has been read, up to the bound of an upload. axum's own bound is 2 MiB.
        DefaultBodyLimit::disable().apply(&mut request);
        let unreadable = |error: String| Trouble::new(400, error);
        let mut parts = Multipart::from_request(request, &())
            .await
            .map_err(|error| unreadable(error.body_text()))?;
        let mut sent = Self::default();
        while let Some(part) = parts
            .next_field()
            .await
            .map_err(|error| unreadable(error.body_text()))?
        {
            let key = part.name().unwrap_or_default().to_owned();
            let file = part.file_name().map(str::to_owned);
            let bytes = part.bytes().await.map_err(|error| unreadable(error.body_text()))?;
            match (key.as_str(), file) {
                ("file", Some(file)) => sent.take(file, bytes),
                ("name", _) => sent.name = String::from_utf8_lossy(&bytes).trim().to_owned(),
                ("keep", _) => sent.keep = true,
                _ => {}
            }
        }
        Ok(sent)
    }

    /// A field in which no file is chosen is sent as one without a name and without content.
    fn take(&mut self, file: String, bytes: Bytes) {
        if file.is_empty() && bytes.is_empty() {
            return;
        }
        self.count += 1;
        if self.count > FILES_MAX {
            return;
        }
        if bytes.is_empty() {
            self.empty.push(file);
        } else {
            self.files.push((file, bytes));
        }
    }

    /// Why none of the files is uploaded, if that is so.
    fn refusal(&self, lang: Lang) -> Option<String> {
        if self.count == 0 {
            return Some(lang.t("upload-none", &[]));
        }
        if self.count > FILES_MAX {
            return Some(lang.t("upload-many", &[("n", FILES_MAX.into())]));
        }
        let names = || self.empty.join(lang.comma());
        (!self.empty.is_empty()).then(|| lang.t("upload-empty", &[("names", names().into())]))
    }

    /// The fields that are no files, as a form of texts would have them.
    fn texts(&self) -> Vec<(String, String)> {
        let name = ("name".to_owned(), self.name.clone());
        let keep = self.keep.then(|| ("keep".to_owned(), "true".to_owned()));
        [name].into_iter().chain(keep).collect()
    }
}

/// Uploads the files. If one is refused, those before it have been uploaded, and the error says so.
pub(in crate::pages) async fn upload(ctx: &Ctx) -> Result<Answer, Trouble> {
    let sent = Sent::read(ctx).await?;
    ctx.keeps_texts(sent.texts());
    if let Some(why) = sent.refusal(ctx.lang) {
        return Err(Trouble::at("/file", why));
    }
    let single = sent.files.len() == 1;
    let mut said: Vec<String> = Vec::new();
    let mut last = String::new();
    for (file, bytes) in sent.files {
        let script = if single && !sent.name.is_empty() {
            sent.name.clone()
        } else {
            stem(&file)
        };
        if let Err(error) = Name::new(&script).map_err(|error| error.to_string())
            && single
        {
            return Err(Trouble::at("/name", error));
        }
        match put(ctx, &script, &file, bytes, sent.keep).await {
            Ok(line) => said.push(line),
            Err(trouble) => {
                let why = match trouble.said(ctx.lang) {
                    nothing if nothing.is_empty() => frame::means(ctx, trouble.status).1,
                    why => why,
                };
                return Err(of_file(&file, trouble, &why, &said));
            }
        }
        last = script;
    }
    let to = if single {
        format!("/scripts/{}", segment(&last))
    } else {
        "/scripts".to_owned()
    };
    Ok(Answer::Go {
        to,
        said: Some(said.join("\n")),
    })
}

/// The error of a file, at the field for files, and what was uploaded before it. If the file is not the reason, and nothing was
/// uploaded before it, the error is told as it is.
fn of_file(file: &str, trouble: Trouble, why: &str, before: &[String]) -> Trouble {
    if before.is_empty() && (trouble.status == 403 || trouble.status >= 500) {
        return trouble;
    }
    let mut lines = vec![format!("{file}: {why}")];
    lines.extend(before.iter().cloned());
    let problem = Problem {
        errors: vec![fault_at("/file", lines.join("\n"))],
        ..Problem::default()
    };
    Trouble::of_problem(trouble.status, problem)
}

/// Uploads a file as a version of a script, and says what it is.
async fn put(ctx: &Ctx, script: &str, file: &str, bytes: Bytes, keep: bool) -> Result<String, Trouble> {
    let target = format!(
        "/v1/scripts/{}{}",
        segment(script),
        if keep { "?activate=false" } else { "" }
    );
    let made: ScriptVersion = ctx.ask_as(Method::PUT, &target, media(file), bytes).await?;
    let mut line = t!(
        ctx,
        "said-uploaded",
        name = format!("{script}@{}", made.version),
        world = made.world
    );
    if let Some(took) = made.compile_ms {
        line.push(' ');
        line.push_str(&t!(ctx, "said-compiled", span = millis(ctx, took)));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_called_like_its_file() {
        for (file, name) in [
            ("a.js", "a"),
            ("dir/b c.tar.wasm", "b-c.tar"),
            ("x", "x"),
            ("C:\\x\\my job.v2.wasm", "my-job.v2"),
            ("a/b/report.py", "report"),
        ] {
            assert_eq!(stem(file), name);
        }
    }

    #[test]
    fn a_file_is_in_the_language_of_its_extension() {
        assert_eq!(media("report.py"), "text/x-python");
        assert_eq!(media("report.wasm"), "application/wasm");
    }

    #[test]
    fn files_that_cannot_all_be_uploaded_are_refused_before_the_first() {
        let sent = |files: &[(String, &'static str)]| {
            let mut sent = Sent::default();
            for (file, content) in files {
                sent.take(file.clone(), Bytes::from_static(content.as_bytes()));
            }
            sent
        };
        let many = |n: usize| -> Vec<(String, &'static str)> { (0..n).map(|i| (format!("{i}.js"), "1")).collect() };
        assert_eq!(sent(&many(FILES_MAX)).refusal(Lang::En), None);
        let over = sent(&many(FILES_MAX + 1));
        assert_eq!(over.files.len(), FILES_MAX);
        assert_eq!(
            over.refusal(Lang::En).as_deref(),
            Some("Choose at most 20 files. Nothing was uploaded.")
        );
        let file = |name: &str, content: &'static str| (name.to_owned(), content);
        let empty = sent(&[file("a.js", ""), file("b.js", "1"), file("c.js", "")]);
        assert_eq!(
            empty.refusal(Lang::En).as_deref(),
            Some("Nothing was uploaded. Empty: a.js, c.js")
        );
        assert_eq!(
            empty.refusal(Lang::Zh).as_deref(),
            Some("未上传任何文件。空文件：a.js、c.js")
        );
        // What a browser sends for a field in which no file is chosen.
        let none = sent(&[file("", "")]);
        assert_eq!(none.refusal(Lang::En).as_deref(), Some("Choose a file first."));
    }

    #[test]
    fn the_error_of_a_file_is_at_its_field() {
        let before = ["one@1 uploaded.".to_owned()];
        let trouble = of_file("two.js", Trouble::new(413, ""), "too large", &before);
        assert_eq!(trouble.status, 413);
        let said = "two.js: too large\none@1 uploaded.";
        assert_eq!(trouble.of_field("/file").as_deref(), Some(said));
        assert_eq!(trouble.said(Lang::En), format!("Files: {said}"));
    }

    #[test]
    fn what_was_uploaded_is_said_whatever_stops_the_rest() {
        let before = ["one@1 uploaded.".to_owned()];
        for status in [403, 500, 503] {
            let trouble = of_file("two.js", Trouble::new(status, "away"), "away", &before);
            assert_eq!(trouble.status, status);
            assert_eq!(
                trouble.of_field("/file").as_deref(),
                Some("two.js: away\none@1 uploaded.")
            );
            let trouble = of_file("one.js", Trouble::new(status, "away"), "away", &[]);
            assert_eq!((trouble.status, trouble.errors.len()), (status, 0));
            assert_eq!(trouble.said(Lang::En), "away");
        }
    }

    #[test]
    fn what_is_typed_beside_files_is_kept() {
        let sent = Sent {
            name: "greet".into(),
            keep: true,
            ..Sent::default()
        };
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(sent.texts(), [text("name", "greet"), text("keep", "true")]);
        assert_eq!(Sent::default().texts(), [text("name", "")]);
    }
}
