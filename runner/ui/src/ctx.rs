//! What a page's function needs: the viewer, language and zone, the request, and the API.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use bytes::Bytes;
use chrono_tz::Tz;
use heddle_domain::{Clock, Time, framed, topic};
use maud::{Markup, html};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::trouble::at_label;
use crate::words::Lang;
use crate::{Trouble, Ui, Viewer, span};

/// The maximum bytes of an answer of the API. One about a run has at most 32 MiB of outputs, as many of joined outputs, which
/// repeat them, 16 MiB of errors, and the states of up to 10,000 items.
const ANSWER_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Names of topics that are kept.
pub(crate) const TOPICS_KEPT: usize = 10_000;

/// The path of the form that uploads files.
pub(crate) const UPLOAD: &str = "/scripts/upload";

/// Lists whose filters have times, `from` and `to`.
const LISTS_BY_TIME: [&str; 2] = ["/runs", "/dispatch"];

/// What has to be escaped in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'@');

/// Light, dark, or as the system has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Theme {
    System,
    Light,
    Dark,
}

impl Theme {
    pub(crate) const ALL: [Self; 3] = [Self::System, Self::Light, Self::Dark];

    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A part of a page that is kept up to date.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) html: String,
}

/// When the parts of a page are made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Beat {
    /// Never: the page does not change.
    #[default]
    Still,
    /// Any change in the cluster.
    Cluster,
    /// An entry of the audit: what people change, and no run that goes on.
    Audited,
    /// A change of one run.
    Run(uuid::Uuid),
}

pub(crate) struct Ctx {
    pub(crate) ui: Ui,
    pub(crate) viewer: Viewer,
    pub(crate) lang: Lang,
    pub(crate) zone: Tz,
    pub(crate) theme: Theme,
    pub(crate) now: Time,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) body: Bytes,
    /// The message of the last action, shown once.
    pub(crate) said: Option<String>,
    /// Whether the page is open already, and is made again to be kept up to date: nobody has asked for it now.
    pub(crate) is_open: bool,
    /// The form of this page that was refused.
    refused: Option<Refused>,
    /// The texts of a form with files, once it has been read.
    texts: Mutex<Vec<(String, String)>>,
    head: Parts,
    parts: Mutex<Vec<Part>>,
    beat: Mutex<Beat>,
    /// How often the parts are made again although nothing has changed.
    pace: Mutex<Option<Duration>>,
    group_zone: Mutex<Option<Tz>>,
    /// What the page shows, for when it is made again.
    shows: Mutex<Option<(&'static str, String)>>,
}

/// A form that was refused: what was typed, and why.
struct Refused {
    form: Vec<(String, String)>,
    trouble: Trouble,
}

/// The value of a cookie.
pub(crate) fn cookie<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    head.headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// The pairs of a query or of a form.
pub(crate) fn pairs(text: &[u8]) -> Vec<(String, String)> {
    url::form_urlencoded::parse(text).into_owned().collect()
}

/// A time without a zone in a field of a filter, as an instant. `None`: it is none, or has its zone.
fn instant_of(zone: Tz, name: &str, value: &str) -> Option<String> {
    let at = matches!(name, "from" | "to").then(|| span::in_zone(zone, value.trim()));
    Some(at.flatten()?.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
}

/// A query with its times as instants, and without empty fields. `None`: all its times are instants already.
fn with_instants(zone: Tz, query: &[(String, String)]) -> Option<String> {
    let mut changed = false;
    let mut written = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        let instant = instant_of(zone, name, value);
        changed |= instant.is_some();
        written.append_pair(name, instant.as_deref().unwrap_or(value));
    }
    changed.then(|| written.finish())
}

/// A segment of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The text that a browser may get: control characters are replaced, whoever wrote them.
pub(crate) fn printable(text: String) -> String {
    let controls = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t');
    if text.contains(controls) {
        text.replace(controls, "\u{fffd}")
    } else {
        text
    }
}

impl Ctx {
    pub(crate) fn new(ui: Ui, viewer: Viewer, head: Parts, body: Bytes) -> Self {
        let text = |name: header::HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
        let lang = cookie(&head, "heddle_lang")
            .and_then(Lang::parse)
            .unwrap_or_else(|| Lang::accepted(text(header::ACCEPT_LANGUAGE).unwrap_or_default()));
        let zone = cookie(&head, "heddle_zone")
            .and_then(|value| percent_encoding::percent_decode_str(value).decode_utf8().ok())
            .and_then(|name| name.parse().ok())
            .unwrap_or(Tz::UTC);
        let theme = cookie(&head, "heddle_theme")
            .and_then(|code| Theme::ALL.into_iter().find(|theme| theme.code() == code))
            .unwrap_or(Theme::System);
        let said = cookie(&head, "heddle_said")
            .and_then(|value| percent_encoding::percent_decode_str(value).decode_utf8().ok())
            .map(|text| text.into_owned())
            .filter(|text| !text.is_empty());
        Self {
            lang,
            zone,
            theme,
            said,
            now: ui.clock.now(),
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: pairs(head.uri.query().unwrap_or_default().as_bytes()),
            body,
            ui,
            viewer,
            is_open: false,
            refused: None,
            texts: Mutex::default(),
            head,
            parts: Mutex::default(),
            beat: Mutex::default(),
            pace: Mutex::default(),
            group_zone: Mutex::default(),
            shows: Mutex::default(),
        }
    }

    /// The same viewer at this address without a form, which shows the form that was just refused again.
    pub(crate) fn again(&self, to: &str, trouble: &Trouble, said: String) -> Option<Self> {
        let mut head = self.head.clone();
        head.uri = to.parse().ok()?;
        head.method = Method::GET;
        let mut again = Self::new(self.ui.clone(), self.viewer.clone(), head, Bytes::new());
        again.said = Some(said);
        again.refused = Some(Refused {
            form: self.form(),
            trouble: trouble.clone(),
        });
        Some(again)
    }

    /// What was typed into a field of the form that was refused.
    pub(crate) fn typed(&self, name: &str) -> Option<&str> {
        let form = &self.refused.as_ref()?.form;
        form.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the page may show what was typed into a form and not saved.
    pub(crate) fn shows_typed(&self) -> bool {
        self.posts() || self.refused.is_some()
    }

    /// Whether the request comes from one of our own pages, as far as the browser says. This decides only what is shown: a
    /// request that changes something is checked by the API.
    pub(crate) fn is_from_our_page(&self) -> bool {
        let origin = || self.header("origin")?.split_once("://").map(|(_, host)| host);
        match self.header("sec-fetch-site") {
            Some(site) => site == "same-origin",
            None => origin().is_some_and(|origin| self.header("host") == Some(origin)),
        }
    }

    /// Whether a form was sent that consists of texts, and no files. (What is no form has been refused.)
    pub(crate) fn posts_texts(&self) -> bool {
        self.posts() && self.path != UPLOAD
    }

    /// Why this field of the form was refused.
    pub(crate) fn fault(&self, name: &str) -> Option<&str> {
        let faults = &self.refused.as_ref()?.trouble.errors;
        let fault = faults
            .iter()
            .find(|fault| fault.pointer.split('/').nth(1) == Some(name))?;
        Some(at_label(fault))
    }

    pub(crate) fn store(&self) -> &heddle_store::Store {
        self.ui.engine.store()
    }

    /// Looks up the names of the topics to which some groups belong, so that pages can say them. A topic keeps its name, and
    /// one that is gone does not come back: each is looked up once.
    pub(crate) async fn know_topics(&self, groups: &[&str]) -> Result<(), Trouble> {
        for topic in groups.iter().copied().filter_map(topic::topic_of) {
            if !self.ui.topics.contains_key(&topic) {
                let found = self.store().topic_by_id(topic).await?;
                self.ui.topics.insert(topic, found.map(|row| row.name));
            }
        }
        Ok(())
    }

    /// The topic for which Heddle keeps a group, if it is one of those and its name is known.
    pub(crate) fn topic_of(&self, group: &str) -> Option<String> {
        self.ui.topics.get(&topic::topic_of(group)?).flatten()
    }

    /// A parameter of the query that is not empty.
    pub(crate) fn q(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// Whether there is a filter: an empty list is distinguished from a list without matches.
    pub(crate) fn filters(&self) -> bool {
        self.query
            .iter()
            .any(|(name, value)| name != "view" && !value.is_empty())
    }

    /// A query for the API: `limit`, and those of these parameters that this page has.
    pub(crate) fn asks(&self, limit: u32, names: &[&str]) -> String {
        let mut query = url::form_urlencoded::Serializer::new(format!("limit={limit}"));
        for name in names {
            if let Some(value) = self.q(name) {
                query.append_pair(name, &self.said_for_api(name, value));
            }
        }
        query.finish()
    }

    /// A parameter of the query in the format of the API. Times in a form have no zone; they are read in the zone of
    /// the viewer.
    pub(crate) fn said_for_api(&self, name: &str, value: &str) -> String {
        instant_of(self.zone, name, value).unwrap_or_else(|| value.trim().to_owned())
    }

    /// The address of this list with its times as instants, if the form of its filter has sent times without a zone. An
    /// address that is passed on means the same times for somebody in another zone.
    pub(crate) fn with_instants(&self) -> Option<String> {
        let path = self.path.trim_end_matches('/');
        if self.posts() || !LISTS_BY_TIME.contains(&path) {
            return None;
        }
        Some(format!("{path}?{}", with_instants(self.zone, &self.query)?))
    }

    /// Whether the browser sent a form.
    pub(crate) fn posts(&self) -> bool {
        self.method == Method::POST
    }

    /// The fields of a form. Those of a form with files are known once it has been read.
    pub(crate) fn form(&self) -> Vec<(String, String)> {
        if self.path == UPLOAD {
            return self.texts.lock().clone();
        }
        pairs(&self.body)
    }

    /// Remembers the texts of a form with files.
    pub(crate) fn keeps_texts(&self, texts: Vec<(String, String)>) {
        *self.texts.lock() = texts;
    }

    /// Whether the address or a form has a character that no text in Postgres can have. (Files that are uploaded are no
    /// text, and what is sent in them is another matter.)
    pub(crate) fn has_nul(&self) -> bool {
        let has_nul = |(name, value): &(String, String)| name.contains('\0') || value.contains('\0');
        self.path.contains("%00")
            || self.query.iter().any(has_nul)
            || (self.posts_texts() && self.form().iter().any(has_nul))
    }

    /// Whether one of our scripts asks for only a piece of a page.
    pub(crate) fn is_piece(&self) -> bool {
        self.head.headers.contains_key("hx-request")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn head(&self) -> &Parts {
        &self.head
    }

    /// A part of the page that is kept up to date: its content may change, its position may not.
    pub(crate) fn live(&self, name: &'static str, inside: Markup) -> Markup {
        let text = printable(inside.into_string());
        let shown = html! {
            div id=(name) sse-swap=(name) hx-swap="morph:innerHTML" { (maud::PreEscaped(&text)) }
        };
        self.parts.lock().push(Part { name, html: text });
        shown
    }

    /// Whether the browser has said in which zone it is.
    pub(crate) fn knows_zone(&self) -> bool {
        cookie(&self.head, "heddle_zone").is_some()
    }

    /// The page is about a group with this zone. Times are shown in this zone too.
    pub(crate) fn in_zone_of(&self, zone: Tz) {
        *self.group_zone.lock() = Some(zone);
    }

    /// The zone of the group that the page is about.
    pub(crate) fn group_zone(&self) -> Option<Tz> {
        *self.group_zone.lock()
    }

    /// Says when the parts of the page have to be made again.
    pub(crate) fn beats_with(&self, beat: Beat) {
        *self.beat.lock() = beat;
    }

    pub(crate) fn beat(&self) -> Beat {
        *self.beat.lock()
    }

    /// Says that the parts of the page change with time alone, and how often they are made again because of that.
    pub(crate) fn goes_on_each(&self, pace: Duration) {
        *self.pace.lock() = Some(pace);
    }

    pub(crate) fn pace(&self) -> Option<Duration> {
        *self.pace.lock()
    }

    /// Remembers what the page shows: its address has this parameter when the page is open and made again, and cannot know
    /// otherwise what a reader sees.
    pub(crate) fn shows(&self, name: &'static str, value: String) {
        *self.shows.lock() = Some((name, value));
    }

    /// The query of the address at which the page is kept up to date.
    pub(crate) fn live_query(&self) -> Vec<(String, String)> {
        let mut query = self.query.clone();
        if let Some((name, value)) = self.shows.lock().clone() {
            query.retain(|(key, _)| key != name);
            query.push((name.to_owned(), value));
        }
        query
    }

    pub(crate) fn take_parts(&self) -> Vec<Part> {
        std::mem::take(&mut *self.parts.lock())
    }

    /// Asks the API, as this caller.
    pub(crate) async fn call(
        &self,
        method: Method,
        target: &str,
        media: &str,
        body: Bytes,
    ) -> Result<Response, Trouble> {
        Ok(self.ui.host.call(self.request(method, target, media, body)?).await)
    }

    /// A request to the API, as this caller.
    pub(crate) fn request(&self, method: Method, target: &str, media: &str, body: Bytes) -> Result<Request, Trouble> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = target
            .parse()
            .map_err(|_| Trouble::new(400, format!("{target} is not a valid address")))?;
        // The caller and the page: the API checks both again.
        for name in [
            "host",
            "origin",
            "sec-fetch-site",
            "cookie",
            "authorization",
            "x-forwarded-proto",
        ] {
            if let Some(value) = self.head.headers.get(name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        if let Ok(value) = HeaderValue::from_str(media) {
            request.headers_mut().insert(header::CONTENT_TYPE, value);
        }
        *request.extensions_mut() = self.head.extensions.clone();
        Ok(request)
    }

    /// The answer of the API to a `GET` of this path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Trouble> {
        self.ask_as(Method::GET, target, "application/json", Bytes::new()).await
    }

    /// Calls the API to change something. The answer is only its status.
    pub(crate) async fn send(&self, method: Method, target: &str, body: &Value) -> Result<(), Trouble> {
        self.ask::<IgnoredAny>(method, target, body).await.map(drop)
    }

    /// Calls the API to change something, and reads its answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: &Value,
    ) -> Result<T, Trouble> {
        self.ask_as(method, target, "application/json", body.to_string().into())
            .await
    }

    /// The same with a body of another kind.
    pub(crate) async fn ask_as<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        media: &str,
        body: Bytes,
    ) -> Result<T, Trouble> {
        self.read(target, self.call(method, target, media, body).await?).await
    }

    /// What an answer of the API says.
    pub(crate) async fn read<T: DeserializeOwned>(&self, target: &str, answer: Response) -> Result<T, Trouble> {
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), ANSWER_BYTES_MAX)
            .await
            .map_err(|error| Trouble::new(500, error.to_string()))?;
        if !status.is_success() {
            let problem = framed::read(&bytes).unwrap_or_default();
            return Err(Trouble::of_problem(status.as_u16(), problem));
        }
        // An answer without a body is read as null.
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        framed::read(text).map_err(|error| {
            tracing::error!(%error, path = target, "cannot read an answer of the API");
            Trouble::new(500, "")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_instants() {
        let berlin = chrono_tz::Europe::Berlin;
        let query = |text: &str| with_instants(berlin, &pairs(text.as_bytes()));
        assert_eq!(
            query("group=a+b&state=&from=2026-11-27T12%3A40&to=2026-11-28").as_deref(),
            Some("group=a+b&from=2026-11-27T11%3A40%3A00Z&to=2026-11-27T23%3A00%3A00Z")
        );
        for same in [
            "",
            "group=x&from=&to=",
            "from=2026-11-27T11:40:00Z",
            "from=yesterday",
            "logical_from=2026-11-27",
        ] {
            assert_eq!(query(same), None, "{same}");
        }
    }
}
