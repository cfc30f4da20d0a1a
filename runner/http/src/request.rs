//! A request as handlers see it: everything that can be wrong with one is a [`Problem`], never plain text.

mod answers;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::RawPathParams;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use heddle_api::accepts;
use heddle_api::moment::parse_moment;
use heddle_domain::chance::fraction;
use heddle_domain::spec::EntriesMax;
use heddle_domain::{Faults, Name, Span, Time};
use heddle_engine::FairSlot;
use heddle_store::change::By;
use heddle_store::group::IfMatch;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::access::{Caller, Peer, TokenWatch, refused};
use crate::app::App;
use crate::body::{self, BodyMemory};
use crate::fair_bytes::HeldBytes;
use crate::json;
use crate::problem::Problem;
use crate::sent::{self, Reserved};

pub use answers::{answer, answer_bytes, found, list_of, no_content, ok, put};

/// The number of items on a page of a list, by default.
pub const LIMIT_DEFAULT: i64 = 50;

/// How many things a page of a list may have.
pub const LIMIT_MAX: i64 = 500;

/// How often a change is made anew because others were faster. Who loses a round has lost it to a change that was made, so
/// this many callers at the same time all succeed.
const ROUNDS_MAX: u32 = 50;

/// The longest pause before the next round.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(20);

/// How many parameters a query may have.
const QUERY_PARAMS_MAX: usize = 100;

/// What a handler returns.
pub type Outcome = Result<Response, Problem>;

/// A request, its caller known and allowed.
pub struct Request {
    /// What all routes share.
    pub app: App,
    pub caller: Arc<Caller>,
    /// Waits for the end of the caller's token or session; `None`: it has no end.
    pub(crate) token_watch: Option<TokenWatch>,
    /// Where the connection comes from.
    pub(crate) peer: Peer,
    /// The present instant: one for the whole request.
    pub now: Time,
    /// When it arrived, for what it may wait.
    pub(crate) since: Instant,
    pub headers: HeaderMap,
    /// The values of the path's `{parts}`, decoded.
    pub(crate) path: Option<Arc<RawPathParams>>,
    pub(crate) query: Vec<(String, String)>,
    /// Whether an empty body means `{}`.
    pub(crate) body_optional: bool,
    /// Behind a mutex only because a body must not be used from two threads, which nobody does.
    pub(crate) body: Mutex<Body>,
    /// What a large body takes of the memory for bodies, while it is handled.
    pub(crate) body_memory: Option<BodyMemory>,
    /// Whether thousands of such requests may be under way at the same time.
    pub(crate) is_of_many: bool,
    /// The slot of an upload, which it gives back while it only waits for an interpreter.
    pub(crate) upload_slot: Option<FairSlot>,
}

impl Request {
    /// Who makes a change, and when: for the audit.
    pub fn by(&self) -> By<'_> {
        By {
            actor: &self.caller.actor,
            at: self.now,
        }
    }

    /// A part of the path, decoded.
    pub fn part(&self, key: &str) -> &str {
        let parts = self.path.iter().flat_map(|parts| parts.iter());
        parts
            .into_iter()
            .find(|(name, _)| *name == key)
            .map_or("", |(_, value)| value)
    }

    /// A name in the path of an existing object. A text that cannot be a name is 404.
    pub fn name(&self, key: &str, what: &str) -> Result<Name, Problem> {
        let text = self.part(key);
        Name::new(text).map_err(|_| Problem::not_found(what, text))
    }

    /// A name in the path of an object that may be created. A text that cannot be a name is 422.
    pub fn new_name(&self, key: &str) -> Result<Name, Problem> {
        Name::new(self.part(key)).map_err(|error| Problem::invalid_at("", error.to_string()))
    }

    /// A number or an id in the path of an existing object.
    pub fn id<T: FromStr>(&self, key: &str, what: &str) -> Result<T, Problem> {
        let text = self.part(key);
        text.parse().map_err(|_| Problem::not_found(what, text))
    }

    /// The first value of a query parameter; an empty one counts as missing.
    pub fn query(&self, key: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(name, value)| name == key && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// The first value of a query parameter that is a name, in its stored form.
    pub fn query_name(&self, key: &str) -> Option<String> {
        self.query(key).map(Name::sought)
    }

    /// All values of a query parameter, given several times or with commas.
    pub fn query_all(&self, key: &str) -> Vec<&str> {
        self.query
            .iter()
            .filter(|(name, _)| name == key)
            .flat_map(|(_, value)| value.split(','))
            .map(str::trim)
            .filter(|value| !value.is_empty())
            .collect()
    }

    /// The same, read as values such as states. Another word is 422, with the pointer of the parameter.
    pub fn words<T: FromStr<Err = String>>(&self, key: &str) -> Result<Vec<T>, Problem> {
        let words = self.query_all(key).into_iter();
        words
            .map(|word| {
                word.parse()
                    .map_err(|error| Problem::invalid_at(format!("/{key}"), error))
            })
            .collect()
    }

    /// A flag: `?key`, `?key=true`, `?key=1`, or their opposites.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, Problem> {
        match self
            .query
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
        {
            None => Ok(default),
            Some("" | "true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(other) => Err(Problem::malformed(format!(
                "`{key}` must be `true` or `false`, not `{other}`"
            ))),
        }
    }

    /// A query parameter that can be read as something: 400 if it cannot.
    pub fn query_as<T: FromStr>(&self, key: &str, expected: &str) -> Result<Option<T>, Problem> {
        self.query(key)
            .map(|text| {
                text.parse()
                    .map_err(|_| Problem::malformed(format!("`{key}` must be {expected}, not `{text}`")))
            })
            .transpose()
    }

    /// A query parameter that is a whole number within bounds: 400 for what is no number, 422 for what is out of bounds,
    /// however far.
    pub fn query_number<T>(&self, key: &str, bounds: RangeInclusive<T>) -> Result<Option<T>, Problem>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.query(key) else {
            return Ok(None);
        };
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Problem::malformed(format!("`{key}` must be a number, not `{text}`")));
        }
        match text.parse() {
            Ok(number) if bounds.contains(&number) => Ok(Some(number)),
            _ => {
                let (from, to) = bounds.into_inner();
                Err(Problem::invalid_at(
                    format!("/{key}"),
                    format!("`{key}` must be from {from} to {to}, not {text}"),
                ))
            }
        }
    }

    /// A query parameter that is an instant.
    pub fn query_time(&self, key: &str) -> Result<Option<Time>, Problem> {
        self.query(key).map(|text| moment_in(key, text)).transpose()
    }

    /// How many things are wanted.
    pub fn limit(&self) -> Result<i64, Problem> {
        Ok(self.query_number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT_DEFAULT))
    }

    /// Where a page begins, for lists by name.
    pub fn cursor(&self) -> Option<&str> {
        self.query("cursor")
    }

    /// Where a page begins, for lists by number.
    pub fn cursor_as<T: FromStr>(&self) -> Result<Option<T>, Problem> {
        self.query_as("cursor", "the `next_cursor` of an earlier answer")
    }

    /// What is left of `?wait=`, within what is configured; zero when it is not asked for.
    pub fn wait(&self) -> Result<Duration, Problem> {
        let wait = self.bounded_wait(self.query_as::<Span>("wait", "a duration such as `20s`")?)?;
        Ok(wait.saturating_sub(self.since.elapsed()))
    }

    /// A wait that a caller asks for: 422 where it is longer than the server waits.
    pub fn bounded_wait(&self, asked: Option<Span>) -> Result<Duration, Problem> {
        let wait = asked.map_or(Duration::ZERO, Span::std);
        let bound = self.app.config.wait_max;
        if wait > bound {
            let bound = Span::from_std(bound);
            return Err(Problem::invalid_at("/wait", format!("`wait` must be at most {bound}")));
        }
        Ok(wait)
    }

    /// The texts of a header, which may stand several times.
    fn texts(&self, name: HeaderName) -> Vec<&str> {
        let values = self.headers.get_all(name).iter();
        values.map(|value| value.to_str().unwrap_or("").trim()).collect()
    }

    /// The condition of a PUT: `If-Match`, or `If-None-Match: *`, which only creates.
    pub fn put_condition(&self) -> Result<Option<IfMatch>, Problem> {
        let if_match = self.if_match()?;
        match (self.texts(header::IF_NONE_MATCH).as_slice(), if_match) {
            ([], if_match) => Ok(if_match),
            (["*"], None) => Ok(Some(IfMatch::Absent)),
            (_, Some(_)) => Err(Problem::malformed("`If-Match` and `If-None-Match` cannot be combined")),
            (_, None) => Err(Problem::malformed("`If-None-Match` must be * for a PUT")),
        }
    }

    /// Whether the caller has what carries this `ETag` (`If-None-Match`).
    pub fn has_already(&self, etag: &str) -> bool {
        let texts = self.texts(header::IF_NONE_MATCH);
        let mut tags = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
    }

    /// `If-Match`: `*`, or a list of revisions with or without quotes (RFC 9110), in one header or in several.
    pub fn if_match(&self) -> Result<Option<IfMatch>, Problem> {
        let texts = self.texts(header::IF_MATCH);
        match texts.as_slice() {
            [] => return Ok(None),
            ["*"] => return Ok(Some(IfMatch::Exists)),
            _ => {}
        }
        // A list may have empty elements.
        let tags = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
        let mut tags = tags.filter(|tag| !tag.is_empty()).peekable();
        if tags.peek().is_none() {
            return Err(Problem::malformed("`If-Match` is empty"));
        }
        let mut revisions = Vec::new();
        for tag in tags {
            let (revision, is_weak) = revision_of(tag).ok_or_else(|| {
                Problem::malformed(format!(
                    "`If-Match` must be a revision such as \"3\", a list of them, or *, not {tag}"
                ))
            })?;
            // Weak tags match nothing here (RFC 9110, 13.1.1).
            if !is_weak {
                revisions.push(revision);
            }
        }
        Ok(Some(IfMatch::Revisions(revisions)))
    }

    /// Pauses before a change of what was read is made anew, because somebody else changed that in between; after too
    /// many lost rounds, 503. The pauses differ, so that not all who lost meet again.
    pub(crate) async fn once_more(&self, lost: &mut u32) -> Result<(), Problem> {
        *lost += 1;
        if *lost >= ROUNDS_MAX {
            let detail = "others are changing this at the same time; try again";
            return Err(Problem::unavailable(detail, 1));
        }
        tokio::time::sleep(ROUND_PAUSE_MAX.mul_f64(fraction(self.app.chance.bits()))).await;
        Ok(())
    }

    /// Whether the caller would rather have server-sent events.
    pub fn wants_events(&self) -> Result<bool, Problem> {
        Ok(accepts(self.texts(header::ACCEPT), "text/event-stream") || self.flag("follow", false)?)
    }

    /// Refuses a body that is compressed.
    pub fn is_plain(&self) -> Result<(), Problem> {
        body::check_head(&self.headers, usize::MAX)
    }

    /// The body, at most `bytes_max` of it, in bounded time.
    pub async fn bytes(&mut self, bytes_max: usize) -> Result<Bytes, Problem> {
        body::check_head(&self.headers, bytes_max)?;
        let config = &self.app.config;
        let (idle, whole) = (config.body_idle_timeout, config.body_timeout);
        let body = std::mem::replace(self.body.get_mut(), Body::empty());
        // Uploads have few slots, which bound what they take.
        let counted = self.upload_slot.is_none();
        let mut memory = counted.then(|| BodyMemory::of(&self.app, &self.caller.actor, self.is_of_many));
        let read = tokio::select! {
            biased;
            read = body::read(body, bytes_max, idle, whole, memory.as_mut()) => read,
            () = self.token_ended() => Err(refused()),
        };
        self.body_memory = memory;
        read
    }

    /// Counts the values that will be read from a body of JSON, which have this weight.
    pub(crate) async fn count_values(&mut self, bytes: &[u8], weight: fn(&[u8]) -> usize) -> Result<(), Problem> {
        match &mut self.body_memory {
            Some(memory) => memory.take_values(bytes, weight).await,
            None => Ok(()),
        }
    }

    /// The body is in memory no more: for a handler that waits, and has taken little out of it.
    pub(crate) fn forget_body(&mut self) {
        self.body_memory = None;
    }

    /// Takes the memory for an answer of so many bytes, before it is made.
    pub(crate) async fn reserve_answer(&self, bytes: usize) -> Result<Option<Reserved>, Problem> {
        sent::reserve(&self.app, &self.caller.actor, bytes).await
    }

    /// What a stream to the caller has in memory: nothing yet.
    pub(crate) fn stream_memory(&self) -> HeldBytes {
        self.app.answers.of(&self.caller.actor)
    }

    /// Waits until the caller's token or session is not valid any more.
    pub(crate) async fn token_ended(&self) {
        match &self.token_watch {
            Some(token_watch) => token_watch.ended(&self.app).await,
            None => std::future::pending().await,
        }
    }

    fn media_type(&self) -> Result<MediaType, Problem> {
        let Some(value) = self.headers.get(header::CONTENT_TYPE) else {
            return Ok(MediaType::Json);
        };
        let text = value.to_str().unwrap_or("");
        let essence = text.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/yaml" | "text/yaml" | "application/x-yaml" | "text/x-yaml" => Ok(MediaType::Yaml),
            // What curl sends by default, and what a browser's form or fetch sends for a string.
            ""
            | "application/json"
            | "text/json"
            | "text/plain"
            | "application/x-www-form-urlencoded"
            | "application/octet-stream" => Ok(MediaType::Json),
            other if other.ends_with("+json") => Ok(MediaType::Json),
            other if other.ends_with("+yaml") => Ok(MediaType::Yaml),
            other => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("the body must be application/json (or application/yaml for a spec), not {other}"),
            )),
        }
    }

    /// The body as JSON.
    pub async fn json(&mut self) -> Result<Value, Problem> {
        let bytes_max = self.app.config.body_bytes_max;
        self.json_up_to(bytes_max, &[]).await
    }

    /// Refuses a body that says of itself that it is no JSON.
    pub fn is_json(&self) -> Result<(), Problem> {
        match self.media_type()? {
            MediaType::Json => Ok(()),
            MediaType::Yaml => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must be application/json",
            )),
        }
    }

    /// The body as JSON of up to so many bytes, whose arrays in these fields have at most so many entries.
    pub async fn json_up_to(&mut self, bytes_max: usize, entries_max: EntriesMax) -> Result<Value, Problem> {
        self.is_json()?;
        let bytes = self.bytes(bytes_max).await?;
        if let Some(value) = self.left_out(&bytes) {
            return Ok(value);
        }
        self.count_values(&bytes, json::weight).await?;
        json::parse(&bytes, entries_max)
    }

    /// What an empty body means, if it may be left out.
    fn left_out(&self, bytes: &[u8]) -> Option<Value> {
        (self.body_optional && bytes.trim_ascii().is_empty()).then(|| Value::Object(Map::new()))
    }

    /// The body as a spec, in JSON or YAML.
    pub async fn spec(&mut self) -> Result<Value, Problem> {
        let bytes_max = self.app.config.body_bytes_max;
        self.spec_up_to(bytes_max, &[]).await
    }

    /// The body as a spec, in JSON of up to so many bytes, or in YAML, which costs more to read, of up to the usual ones.
    /// In JSON, the arrays in these fields have at most so many entries.
    pub async fn spec_up_to(&mut self, bytes_max: usize, entries_max: EntriesMax) -> Result<Value, Problem> {
        let media_type = self.media_type()?;
        let bytes_max = match media_type {
            MediaType::Json => bytes_max,
            MediaType::Yaml => bytes_max.min(self.app.config.body_bytes_max),
        };
        let bytes = self.bytes(bytes_max).await?;
        if let Some(value) = self.left_out(&bytes) {
            return Ok(value);
        }
        self.count_values(&bytes, json::weight).await?;
        match media_type {
            MediaType::Json => json::parse(&bytes, entries_max),
            MediaType::Yaml => {
                let text = std::str::from_utf8(&bytes).map_err(|_| Problem::malformed("the body is not UTF-8"))?;
                json::parse_yaml(text)
            }
        }
    }

    /// The body of a call that takes nothing: none, or an empty object. Anything else would have no effect, so it is
    /// refused.
    pub(crate) async fn nothing(&mut self) -> Result<(), Problem> {
        self.body::<Nothing>().await.map(drop)
    }

    /// The body, which is JSON, as something typed.
    pub async fn body<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        typed(self.json().await?, "")
    }
}

/// The revision of a tag in `If-Match`, which may have no quotes, and whether the tag is weak (`W/"3"`).
fn revision_of(tag: &str) -> Option<(i32, bool)> {
    let weak = tag.strip_prefix("W/");
    let number = match (weak.unwrap_or(tag).strip_prefix('"'), weak) {
        (Some(rest), _) => rest.strip_suffix('"')?,
        (None, None) => tag,
        (None, Some(_)) => return None,
    };
    Some((number.parse().ok()?, weak.is_some()))
}

/// The body of a call that takes none.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MediaType {
    Json,
    Yaml,
}

/// Reads the value of a query parameter that is an instant: 400 if it is none.
pub(crate) fn moment_in(key: &str, text: &str) -> Result<Time, Problem> {
    parse_moment(text).map_err(|error| Problem::malformed(format!("`{key}`: {error}")))
}

/// Reads a value as a type: 422 with the position of the error.
pub fn typed<T: DeserializeOwned>(value: Value, below: &str) -> Result<T, Problem> {
    if !value.is_object() {
        return Err(Problem::invalid_at(below, "an object was expected"));
    }
    heddle_domain::spec::read(&value)
        .map_err(|faults| Problem::invalid(Faults(faults.0.into_iter().map(|fault| fault.below(below)).collect())))
}

/// Splits a query string into decoded pairs.
pub(crate) fn parse_query(query: Option<&str>) -> Result<Vec<(String, String)>, Problem> {
    let mut pairs = Vec::new();
    for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        if pairs.len() == QUERY_PARAMS_MAX {
            return Err(Problem::malformed(format!(
                "a query must have at most {QUERY_PARAMS_MAX} parameters"
            )));
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        pairs.push((decode(key)?, decode(value)?));
    }
    Ok(pairs)
}

fn decode(text: &str) -> Result<String, Problem> {
    // In a query `+` has long stood for a space, but an offset such as +08:00 is written with it far more often here;
    // a `+` before two digits and a colon, or four digits, at the end is one.
    let text = if is_offset_time(text) {
        text.replace('+', "%2B")
    } else {
        text.replace('+', " ")
    };
    let decoded = percent_encoding::percent_decode_str(&text)
        .decode_utf8()
        .map_err(|_| Problem::malformed("the query is not UTF-8"))?;
    if decoded.contains('\0') {
        return Err(Problem::malformed("the query must not contain the character U+0000"));
    }
    Ok(decoded.into_owned())
}

fn is_offset_time(text: &str) -> bool {
    let Some((time, offset)) = text.rsplit_once('+') else {
        return false;
    };
    let digits = offset.replace(':', "").replace("%3A", "").replace("%3a", "");
    time.contains('T') && digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let pairs = parse_query(Some("a=1&b=x%20y+z&c&from=2026-01-01T00:00:00+08:00&d=%E6%97%A5")).unwrap();
        let expect = [
            ("a", "1"),
            ("b", "x y z"),
            ("c", ""),
            ("from", "2026-01-01T00:00:00+08:00"),
            ("d", "日"),
        ];
        assert_eq!(
            pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(),
            expect
        );
        assert_eq!(parse_query(Some("a=%ff")).unwrap_err().status.as_u16(), 400);
        assert_eq!(parse_query(Some(&"a&".repeat(101))).unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn tags_are_read_as_rfc_9110_says() {
        assert_eq!(revision_of("\"3\""), Some((3, false)));
        assert_eq!(revision_of("3"), Some((3, false)));
        assert_eq!(revision_of("W/\"3\""), Some((3, true)));
        for wrong in ["\"3", "3\"", "W/3", "\"\"3\"\"", "\"x\"", "\""] {
            assert_eq!(revision_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_has_the_wrong_type_is_named_by_its_place() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Outer {
            #[allow(dead_code)]
            list: Vec<Inner>,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Inner {
            #[allow(dead_code)]
            n: u8,
        }
        let check = |value: Value, pointer: &str| {
            let problem = typed::<Outer>(value, "").unwrap_err();
            assert_eq!(
                (problem.status.as_u16(), problem.errors[0].pointer.as_str()),
                (422, pointer)
            );
        };
        check(serde_json::json!({"list": [{"n": 1}, {"n": "x"}]}), "/list/1/n");
        check(serde_json::json!({"list": [], "more": 1}), "/more");
        check(serde_json::json!([]), "");
    }
}
