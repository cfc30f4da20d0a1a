//! Recorded answers of a test case: each is given again, once, to exactly the request or statement that it was recorded
//! for.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use heddle_domain::state::tells_of_no_grant;
use heddle_sandbox::outbound::ALLOW_PRIVATE;
use heddle_sandbox::{Exchanges, SqlAnswer, SqlStatement, WebAnswer, WebRequest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use url::Url;

/// How much of a body or a statement an error shows.
const SHOWN_CHARS: usize = 200;
/// Headers of a response about its transport or time, not about its content. They are not recorded.
const NOT_KEPT: [&str; 5] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "transfer-encoding",
];

/// A request and its answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpExchange {
    #[serde(default = "get")]
    method: String,
    url: String,
    /// The body as text or JSON. Without it, a request with any body matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<HttpAnswer>,
    /// There was no answer, for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct HttpAnswer {
    #[serde(default = "ok")]
    status: u16,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, Values>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// The values of a header, usually one.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Many(Vec<String>),
}

/// A statement and its result.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlExchange {
    connection: String,
    statement: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    params: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<Box<RawValue>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn get() -> String {
    "GET".into()
}

fn ok() -> u16 {
    200
}

/// The bytes of a body: a JSON string means its text, any other JSON means itself.
fn bytes_of(body: Option<&RawValue>, base64: Option<&str>) -> Result<Option<Bytes>, String> {
    match (body.map(RawValue::get), base64) {
        (Some(_), Some(_)) => Err("has both `body` and `body_base64`".into()),
        (Some(text), None) if text.starts_with('"') => {
            let text: String = serde_json::from_str(text).map_err(|error| error.to_string())?;
            Ok(Some(text.into()))
        }
        (Some(json), None) => Ok(Some(json.to_owned().into())),
        (None, Some(text)) => {
            let bytes = STANDARD
                .decode(text)
                .map_err(|error| format!("`body_base64`: {error}"))?;
            Ok(Some(bytes.into()))
        }
        (None, None) => Ok(None),
    }
}

/// A body as it is recorded: JSON as it came without white space around it, other text in quotes, anything else as
/// base64.
fn kept_body(body: &[u8]) -> (Option<Box<RawValue>>, Option<String>) {
    if body.is_empty() {
        return (None, None);
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return (None, Some(STANDARD.encode(body)));
    };
    let json = text.trim();
    let raw = match json.starts_with(['{', '[']) {
        true => RawValue::from_string(json.to_owned()),
        false => serde_json::value::to_raw_value(text),
    };
    match raw.or_else(|_| serde_json::value::to_raw_value(text)) {
        Ok(raw) => (Some(raw), None),
        Err(_) => (None, Some(STANDARD.encode(body))),
    }
}

/// An address without the parts that are never sent: user, password and fragment.
fn address(url: &str) -> String {
    match Url::parse(url) {
        Ok(mut url) => {
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.set_fragment(None);
            url.into()
        }
        Err(_) => url.to_owned(),
    }
}

/// A statement with normalised white space, for comparison.
fn words(statement: &str) -> String {
    statement.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shown(text: &str) -> String {
    heddle_domain::shortened(text, SHOWN_CHARS)
}

impl HttpExchange {
    fn checked(self) -> Result<Request, String> {
        Url::parse(&self.url).map_err(|error| format!("`url` {}: {error}", self.url))?;
        let body = bytes_of(self.body.as_deref(), self.body_base64.as_deref())?;
        let answer = match (self.answer, self.error) {
            (Some(answer), None) => {
                let mut headers = Vec::new();
                for (name, values) in answer.headers {
                    match values {
                        Values::One(value) => headers.push((name, value)),
                        Values::Many(values) => headers.extend(values.into_iter().map(|value| (name.clone(), value))),
                    }
                }
                let body = bytes_of(answer.body.as_deref(), answer.body_base64.as_deref())?;
                if !(100..=599).contains(&answer.status) {
                    return Err(format!("`answer.status` {} is not a valid status", answer.status));
                }
                Ok(WebAnswer {
                    status: answer.status,
                    headers,
                    body: body.unwrap_or_default(),
                })
            }
            (None, Some(error)) => Err(error),
            _ => return Err("needs either `answer` or `error`".into()),
        };
        Ok(Request {
            method: self.method.to_ascii_uppercase(),
            url: address(&self.url),
            body,
            answer,
        })
    }

    /// The recorded part of a request. Headers are not recorded: they contain credentials, and nobody compares them.
    pub fn kept(request: &WebRequest, answer: &Result<WebAnswer, String>) -> Self {
        let (body, body_base64) = kept_body(&request.body);
        let (answer, error) = match answer {
            Ok(answer) => {
                let mut headers: BTreeMap<String, Values> = BTreeMap::new();
                for (name, value) in &answer.headers {
                    let name = name.to_ascii_lowercase();
                    if NOT_KEPT.contains(&name.as_str()) {
                        continue;
                    }
                    let value = match name.as_str() {
                        "set-cookie" => without_value(value),
                        _ => value.clone(),
                    };
                    let next = match headers.remove(&name) {
                        None => Values::One(value),
                        Some(Values::One(first)) => Values::Many(vec![first, value]),
                        Some(Values::Many(mut all)) => {
                            all.push(value);
                            Values::Many(all)
                        }
                    };
                    headers.insert(name, next);
                }
                let (body, body_base64) = kept_body(&answer.body);
                let answer = HttpAnswer {
                    status: answer.status,
                    headers,
                    body,
                    body_base64,
                };
                (Some(answer), None)
            }
            Err(error) => (None, Some(error.clone())),
        };
        Self {
            method: request.method.clone(),
            url: address(&request.url),
            body,
            body_base64,
            answer,
            error,
        }
    }
}

/// A cookie without its value, which would be a session's.
fn without_value(cookie: &str) -> String {
    let (pair, attributes) = cookie.split_once(';').unwrap_or((cookie, ""));
    let name = pair.split_once('=').map_or("cookie", |(name, _)| name);
    match attributes {
        "" => format!("{name}=not-recorded"),
        attributes => format!("{name}=not-recorded;{attributes}"),
    }
}

impl SqlExchange {
    fn checked(self) -> Result<Statement, String> {
        let answer = match (self.rows, self.count, self.error) {
            (Some(rows), None, None) => {
                let rows: Vec<&str> = rows.iter().map(|row| row.get()).collect();
                Ok(SqlAnswer::Rows(format!("[{}]", rows.join(","))))
            }
            (None, Some(count), None) => Ok(SqlAnswer::Count(count)),
            (None, None, Some(error)) => Err(error),
            _ => return Err("needs one of `rows`, `count` and `error`".into()),
        };
        Ok(Statement {
            connection: self.connection,
            statement: words(&self.statement),
            params: self.params,
            answer,
        })
    }

    pub fn kept(statement: &SqlStatement, answer: &Result<SqlAnswer, String>) -> serde_json::Result<Self> {
        let (rows, count, error) = match answer {
            Ok(SqlAnswer::Rows(rows)) => (Some(serde_json::from_str(rows)?), None, None),
            Ok(SqlAnswer::Count(count)) => (None, Some(*count), None),
            Err(error) => (None, None, Some(error.clone())),
        };
        Ok(Self {
            connection: statement.connection.clone(),
            statement: statement.statement.clone(),
            params: serde_json::from_str(&statement.params)?,
            rows,
            count,
            error,
        })
    }
}

/// An [`HttpExchange`] to compare with.
struct Request {
    method: String,
    url: String,
    body: Option<Bytes>,
    answer: Result<WebAnswer, String>,
}

impl Request {
    fn is(&self, asked: &WebRequest) -> bool {
        self.method == asked.method
            && self.url == address(&asked.url)
            && self.body.as_ref().is_none_or(|body| is_same(body, &asked.body))
    }
}

/// Whether two bodies are the same, or the same as JSON.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let parsed = |bytes| serde_json::from_slice::<Value>(bytes).ok();
    one == other || parsed(one).is_some_and(|value| Some(value) == parsed(other))
}

/// A [`SqlExchange`] to compare with.
struct Statement {
    connection: String,
    statement: String,
    params: Vec<Value>,
    answer: Result<SqlAnswer, String>,
}

impl Statement {
    fn is(&self, asked: &SqlStatement) -> bool {
        let wanted = match self.answer {
            Ok(SqlAnswer::Rows(_)) => asked.rows,
            Ok(SqlAnswer::Count(_)) => !asked.rows,
            Err(_) => true,
        };
        wanted
            && self.connection == asked.connection
            && self.statement == words(&asked.statement)
            && serde_json::from_str::<Vec<Value>>(&asked.params).is_ok_and(|params| params == self.params)
    }
}

/// The recorded exchanges, to be replayed: each once, equal ones in their order.
pub(super) struct Replay {
    requests: Vec<Request>,
    statements: Vec<Statement>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    requests: Vec<bool>,
    statements: Vec<bool>,
    missing: Vec<String>,
}

impl Replay {
    pub fn new(http: Vec<HttpExchange>, sql: Vec<SqlExchange>) -> Result<Self, String> {
        let numbered = |list: &str, index: usize, error: String| format!("{list}[{index}] {error}");
        let http = http.into_iter().enumerate();
        let requests = http.map(|(index, one)| one.checked().map_err(|error| numbered("http", index, error)));
        let requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
        let sql = sql.into_iter().enumerate();
        let statements = sql.map(|(index, one)| one.checked().map_err(|error| numbered("sql", index, error)));
        let statements: Vec<Statement> = statements.collect::<Result<_, _>>()?;
        let asked = Asked {
            requests: vec![false; requests.len()],
            statements: vec![false; statements.len()],
            missing: Vec::new(),
        };
        Ok(Self {
            requests,
            statements,
            asked: Mutex::new(asked),
        })
    }

    /// Requests that were not recorded; and, unless that is allowed, recorded ones that were not used.
    pub fn faults(&self, may_be_unasked: bool) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut faults = asked.missing.clone();
        if may_be_unasked {
            return faults;
        }
        let unasked = |what: String| format!("recorded but not used: {what}");
        for (request, _) in self.requests.iter().zip(&asked.requests).filter(|(_, asked)| !**asked) {
            faults.push(unasked(format!("{} {}", request.method, request.url)));
        }
        for (one, _) in self
            .statements
            .iter()
            .zip(&asked.statements)
            .filter(|(_, asked)| !**asked)
        {
            faults.push(unasked(format!("{}: {}", one.connection, shown(&one.statement))));
        }
        faults
    }
}

/// The first matching exchange that is not used yet, and how many match.
fn find<T>(all: &[T], asked: &mut [bool], is: impl Fn(&T) -> bool) -> Result<usize, usize> {
    let meant: Vec<usize> = (0..all.len()).filter(|index| is(&all[*index])).collect();
    let next = meant.iter().copied().find(|index| !asked[*index]);
    let next = next.ok_or(meant.len())?;
    asked[next] = true;
    Ok(next)
}

fn not_recorded(what: String, times: usize) -> String {
    match times {
        0 => format!("not recorded: {what}"),
        1 => format!("not recorded: {what}, a second time"),
        times => format!("not recorded: {what}, more than {times} times"),
    }
}

impl Exchanges for Replay {
    fn request(&self, request: &WebRequest) -> Option<Result<WebAnswer, String>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match find(&self.requests, &mut asked.requests, |one| one.is(request)) {
            Ok(index) => self.requests[index].answer.clone(),
            Err(times) => {
                let mut what = format!("{} {}", request.method, address(&request.url));
                if !request.body.is_empty() {
                    what.push_str(&format!(
                        " with the body {}",
                        shown(&String::from_utf8_lossy(&request.body))
                    ));
                }
                let why = not_recorded(what, times);
                asked.missing.push(why.clone());
                Err(why)
            }
        })
    }

    fn requested(&self, _: WebRequest, _: &Result<WebAnswer, String>) {}

    fn statement(&self, statement: &SqlStatement) -> Option<Result<SqlAnswer, String>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        Some(
            match find(&self.statements, &mut asked.statements, |one| one.is(statement)) {
                Ok(index) => self.statements[index].answer.clone(),
                Err(times) => {
                    let wanted = if statement.rows { "query" } else { "execute" };
                    let what = format!(
                        "{wanted} on {}: {} with {}",
                        statement.connection,
                        shown(&words(&statement.statement)),
                        shown(&statement.params)
                    );
                    let why = not_recorded(what, times);
                    asked.missing.push(why.clone());
                    Err(why)
                }
            },
        )
    }

    fn stated(&self, _: SqlStatement, _: &Result<SqlAnswer, String>) {}
}

/// Sends all granted requests, and records the answers.
#[derive(Default)]
pub(super) struct Recorder {
    kept: Mutex<Kept>,
}

/// The exchanges that a recorder has seen.
#[derive(Default)]
pub(super) struct Kept {
    pub http: Vec<HttpExchange>,
    pub sql: Vec<SqlExchange>,
    /// Requests that were not sent, with the reasons.
    pub refused: Vec<String>,
}

impl Recorder {
    pub fn take(&self) -> Kept {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether this command refused it. A recording contains requests and answers as the script sees them, so only the text of
/// the refusal is known here.
fn is_refused(error: &str) -> bool {
    tells_of_no_grant(error) || error.contains(ALLOW_PRIVATE)
}

impl Exchanges for Recorder {
    fn request(&self, _: &WebRequest) -> Option<Result<WebAnswer, String>> {
        None
    }

    fn requested(&self, request: WebRequest, answer: &Result<WebAnswer, String>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Err(error) if is_refused(error) => kept.refused.push(error.clone()),
            answer => kept.http.push(HttpExchange::kept(&request, answer)),
        }
    }

    fn statement(&self, _: &SqlStatement) -> Option<Result<SqlAnswer, String>> {
        None
    }

    fn stated(&self, statement: SqlStatement, answer: &Result<SqlAnswer, String>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match (answer, SqlExchange::kept(&statement, answer)) {
            (Err(error), _) if is_refused(error) => kept.refused.push(error.clone()),
            (_, Ok(exchange)) => kept.sql.push(exchange),
            // Params that are no JSON array are an error of the call, which nobody answered.
            (_, Err(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests;
