//! Requests: addresses, tokens, bodies, retries, and the reading of answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use heddle_domain::framed;
use reqwest::{Method, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::Problem;
use crate::address;
use crate::error::{Error, Result};

/// The server of `heddle dev`.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// A hint that errors about the address of a server add.
const URL_EXAMPLE: &str = "write for example http://127.0.0.1:8080";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For an answer, unless the call says how long it waits for one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for calls that do something with very many objects.
pub(crate) const LONG_TIMEOUT: Duration = Duration::from_secs(1_800);
/// The largest answer that is read into memory.
const MAX_BODY_BYTES: usize = 256 << 20;
/// How often a GET is made at most if no connection comes about.
const MAX_TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A server, and our credentials for it. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Arc<Url>,
    token: Option<Arc<str>>,
}

/// reqwest asks the process for its cryptography: rustls with ring, unless the program has chosen something else.
pub fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If two threads do this at once, one gets an error, which is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Whether a proxy may be used for http URLs: the way to that may be encrypted.
fn has_proxy() -> bool {
    ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("base", &self.shown_base().as_str())
            .field("token", &self.token.is_some())
            .finish()
    }
}

impl Client {
    /// A client of the server at `base`, such as `https://heddle.example.com` (a path in it is a prefix of all calls).
    pub fn new(base: &str, token: Option<&str>) -> Result<Self> {
        let shown = address::shown_text(base);
        let url = Url::parse(base).map_err(|_| Error::Invalid(format!("`{shown}` is not a URL; {URL_EXAMPLE}")))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(Error::Invalid(format!(
                "`{shown}` is not an http or https URL; {URL_EXAMPLE}"
            )));
        }
        if token.is_some_and(|token| header::HeaderValue::from_str(token).is_err()) {
            return Err(Error::Invalid(
                "the token contains characters that are not allowed in a header".into(),
            ));
        }
        choose_cryptography();
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("heddle-client/", env!("CARGO_PKG_VERSION")))
            // A token must not follow a redirect to another server.
            .redirect(reqwest::redirect::Policy::none());
        if url.scheme() == "http" && !has_proxy() {
            // Nothing is encrypted, and to read the certificates that the system trusts takes 8 ms.
            http = http.tls_certs_only([]);
        }
        let http = http
            .build()
            .map_err(|error| Error::Invalid(format!("cannot create the HTTP client: {error}")))?;
        Ok(Self {
            http,
            base: Arc::new(url),
            token: token.map(Arc::from),
        })
    }

    /// A client of the server that `HEDDLE_URL` and `HEDDLE_TOKEN` name; default `http://127.0.0.1:8080` without one.
    pub fn from_env() -> Result<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::new(
            set("HEDDLE_URL").as_deref().unwrap_or(DEFAULT_URL),
            set("HEDDLE_TOKEN").as_deref(),
        )
    }

    pub fn base(&self) -> &Url {
        &self.base
    }

    /// The address of the server as people may see it: without a user and a password.
    pub fn shown_base(&self) -> Url {
        address::shown(&self.base)
    }

    /// A request; each item of `path` is one segment, escaped as needed: `["v1", "groups", name]`. An item that cannot be
    /// a segment (it is empty, `.` or `..`, has control characters, or has more than 4,096 bytes) is an error
    /// ([`Error::Invalid`]) when the request is sent: nothing goes to the server.
    pub fn request(&self, method: Method, path: &[&str]) -> Request {
        let (url, fault) = match address::below(&self.base, path) {
            Ok(url) => (url, None),
            Err(fault) => ((*self.base).clone(), Some(fault)),
        };
        let mut headers = header::HeaderMap::new();
        if let Some(token) = &self.token
            && let Ok(mut value) = header::HeaderValue::from_str(&format!("Bearer {token}"))
        {
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Request {
            http: self.http.clone(),
            method,
            url,
            headers,
            body: None,
            fault,
            timeout: Some(DEFAULT_TIMEOUT),
        }
    }

    pub fn get(&self, path: &[&str]) -> Request {
        self.request(Method::GET, path)
    }

    pub fn post(&self, path: &[&str]) -> Request {
        self.request(Method::POST, path)
    }

    pub fn put(&self, path: &[&str]) -> Request {
        self.request(Method::PUT, path)
    }

    pub fn delete(&self, path: &[&str]) -> Request {
        self.request(Method::DELETE, path)
    }
}

/// A request that has not been sent.
#[derive(Debug)]
#[must_use = "it is not sent yet"]
pub struct Request {
    http: reqwest::Client,
    method: Method,
    url: Url,
    headers: header::HeaderMap,
    body: Option<Bytes>,
    /// Why it cannot be sent: the first thing that it was given and that no request can be made of.
    fault: Option<String>,
    pub(crate) timeout: Option<Duration>,
}

impl Request {
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Adds a query parameter.
    pub fn query(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    /// Adds a query parameter if there is a value.
    pub fn query_if(self, name: &str, value: Option<impl std::fmt::Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub fn json(mut self, body: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(body) {
            Ok(bytes) => self.body = Some(bytes.into()),
            Err(error) => self.refuse(format!("the request cannot be converted to JSON: {error}")),
        }
        self.header(header::CONTENT_TYPE, "application/json")
    }

    /// A body of any type.
    pub fn bytes(mut self, content_type: &str, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self.header(header::CONTENT_TYPE, content_type)
    }

    /// Only if the thing's revision is still this one.
    pub fn if_match(self, revision: impl std::fmt::Display) -> Self {
        self.header(header::IF_MATCH, &format!("\"{revision}\""))
    }

    pub fn header(mut self, name: header::HeaderName, value: &str) -> Self {
        match header::HeaderValue::from_str(value) {
            Ok(value) => {
                self.headers.insert(name, value);
            }
            Err(_) => self.refuse(format!("`{value}` cannot be sent in the header `{name}`")),
        }
        self
    }

    /// Makes it one that cannot be sent. The first reason counts.
    fn refuse(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    /// An error if it cannot be sent.
    fn check(&self) -> Result<()> {
        match &self.fault {
            Some(fault) => Err(Error::Invalid(fault.clone())),
            None => address::check_length(&self.url).map_err(Error::Invalid),
        }
    }

    /// How long to wait for the whole answer; a long poll adds its `wait` to it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets the server hold the call for `wait` (a long poll).
    pub fn wait(self, wait: Duration) -> Self {
        self.query("wait", format_args!("{}ms", wait.as_millis()))
            .timeout(DEFAULT_TIMEOUT + wait)
    }

    /// The same GET for another page.
    pub(crate) fn page(&self, client: &Client, cursor: Option<&str>) -> Self {
        self.with(client, "cursor", cursor)
    }

    /// The value of a query parameter.
    pub(crate) fn value_of(&self, name: &str) -> Option<String> {
        let found = self.url.query_pairs().find(|(given, _)| given == name);
        found.map(|(_, value)| value.into_owned())
    }

    /// The same GET with another value of a query parameter.
    pub(crate) fn with(&self, client: &Client, changed: &str, value: Option<&str>) -> Self {
        let mut url = self.url.clone();
        let others: Vec<(String, String)> = url
            .query_pairs()
            .filter(|(name, _)| name != changed)
            .map(|(n, v)| (n.into(), v.into()))
            .collect();
        url.set_query(None);
        for (name, value) in others
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .chain(value.map(|value| (changed, value)))
        {
            url.query_pairs_mut().append_pair(name, value);
        }
        Self {
            http: client.http.clone(),
            method: Method::GET,
            url,
            headers: self.headers.clone(),
            body: None,
            fault: self.fault.clone(),
            timeout: self.timeout,
        }
    }

    /// Sends it and reads a JSON answer.
    pub async fn send<T: DeserializeOwned>(self) -> Result<T> {
        let url = address::shown(&self.url).to_string();
        match self.send_for_option().await? {
            Some(answer) => Ok(answer),
            None => Err(Error::Unexpected {
                url,
                detail: "the answer is empty".into(),
            }),
        }
    }

    /// Sends it and reads the answer about one object: it has a name or an id.
    pub async fn send_for_object(self) -> Result<Value> {
        let is_one = |answer: &Value| ["name", "id"].iter().any(|field| answer[*field].is_string());
        self.send_for_shape(is_one, "the answer has neither a name nor an id")
            .await
    }

    /// Sends it and reads the answer about many objects, a page of a list.
    pub async fn send_for_list(self) -> Result<Value> {
        let is_list = |answer: &Value| answer["items"].is_array();
        self.send_for_shape(is_list, "the answer is not a list").await
    }

    async fn send_for_shape(self, fits: impl Fn(&Value) -> bool, detail: &str) -> Result<Value> {
        let url = address::shown(&self.url).to_string();
        let answer: Value = self.send().await?;
        match fits(&answer) {
            true => Ok(answer),
            false => Err(Error::Unexpected {
                url,
                detail: detail.into(),
            }),
        }
    }

    /// Sends it and reads a JSON answer; `None` if the server has nothing to say (204).
    pub async fn send_for_option<T: DeserializeOwned>(self) -> Result<Option<T>> {
        let url = address::shown(&self.url).to_string();
        let response = self.send_for_response().await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let body = read(response, &url).await?;
        framed::read(&body).map(Some).map_err(|error| Error::Unexpected {
            url,
            detail: format!("{error} in: {}", excerpt(&body)),
        })
    }

    /// Sends it once, with a body of any length that is made while it is sent, and reads a JSON answer.
    pub async fn send_streaming<T, S>(self, content_type: &str, body: S) -> Result<T>
    where
        T: DeserializeOwned,
        S: futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        let request = self.header(header::CONTENT_TYPE, content_type);
        request.check()?;
        let Self {
            http,
            method,
            url,
            headers,
            ..
        } = request;
        let request = http.request(method, url.clone()).headers(headers);
        let response = match request.body(reqwest::Body::wrap_stream(body)).send().await {
            Ok(response) if response.status().is_success() => response,
            Ok(response) => return Err(refusal(response, &url).await),
            Err(source) => return Err(unreachable(&url, source)),
        };
        let url = address::shown(&url).to_string();
        let body = read(response, &url).await?;
        framed::read(&body).map_err(|error| Error::Unexpected {
            url,
            detail: format!("{error} in: {}", excerpt(&body)),
        })
    }

    /// Sends it; of a successful answer, the body is not read.
    pub async fn send_for_nothing(self) -> Result<()> {
        self.send_for_response().await.map(drop)
    }

    /// Sends it and reads the whole body.
    pub async fn send_for_bytes(self) -> Result<Bytes> {
        let url = address::shown(&self.url).to_string();
        read(self.send_for_response().await?, &url).await
    }

    /// Sends it for an answer of endless length, which no timeout cuts, and which is of this media type.
    pub(crate) async fn send_for_stream(mut self, media_type: &str) -> Result<Response> {
        self.timeout = None;
        let response = self.send_for_response().await?;
        let given = response.headers().get(header::CONTENT_TYPE);
        let given = given.and_then(|value| value.to_str().ok()).unwrap_or_default();
        if given.split(';').next().map(str::trim) == Some(media_type) {
            return Ok(response);
        }
        Err(Error::Unexpected {
            url: response.url().to_string(),
            detail: format!("the answer is `{given}` instead of `{media_type}`"),
        })
    }

    /// Sends it; anything but success is an error.
    async fn send_for_response(self) -> Result<Response> {
        self.check()?;
        let Self {
            http,
            method,
            url,
            headers,
            body,
            fault: _,
            timeout,
        } = self;
        // Only what changes nothing may be repeated without knowing whether it has arrived.
        let tries = if method == Method::GET { MAX_TRIES } else { 1 };
        let mut pause = FIRST_PAUSE;
        for left in (0..tries).rev() {
            let mut request = http.request(method.clone(), url.clone()).headers(headers.clone());
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            if let Some(timeout) = timeout {
                request = request.timeout(timeout);
            }
            match request.send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => return Err(refusal(response, &url).await),
                Err(error) if left > 0 && error.is_connect() => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(source) => return Err(unreachable(&url, source)),
            }
        }
        Err(Error::Invalid("a request is tried at least once".into()))
    }
}

pub(crate) fn unreachable(url: &Url, source: reqwest::Error) -> Error {
    let mut origin = address::shown(url);
    origin.set_query(None);
    Error::Unreachable {
        url: origin.to_string(),
        source: source.without_url(),
    }
}

async fn read(mut response: Response, url: &str) -> Result<Bytes> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_BODY_BYTES => body.extend_from_slice(&chunk),
            Ok(Some(_)) => {
                let detail = format!("the answer is longer than {MAX_BODY_BYTES} bytes");
                return Err(Error::Unexpected {
                    url: url.into(),
                    detail,
                });
            }
            Ok(None) => return Ok(body.into()),
            Err(source) => {
                return Err(Error::Unreachable {
                    url: url.into(),
                    source: source.without_url(),
                });
            }
        }
    }
}

async fn refusal(response: Response, url: &Url) -> Error {
    let status = response.status();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let location = response
        .headers()
        .get(header::LOCATION)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = match read(response, address::shown(url).as_str()).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    let mut problem = framed::read::<Problem>(&body).unwrap_or_else(|_| Problem {
        detail: match location {
            Some(location) if status.is_redirection() => format!("the server redirects to {location}"),
            // What stands between here and a server may have answered.
            _ if is_page(&body) => format!("{status}: the answer is a page, and not one of a Heddle server's API"),
            _ => excerpt(&body),
        },
        ..Problem::default()
    });
    problem.status = status.as_u16();
    if problem.title.is_empty() {
        problem.title = status.canonical_reason().unwrap_or("refused").into();
    }
    Error::Refused {
        problem: Box::new(problem),
        retry_after,
    }
}

/// Whether a body is HTML or XML, which the API never answers with.
fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"<")
}

/// The beginning of a body, for an error message.
fn excerpt(body: &[u8]) -> String {
    if is_page(body) {
        return "a page for browsers".into();
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(400)]);
    text.trim().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_escaped() {
        let client = Client::new("https://example.com/heddle/", None).unwrap();
        let request = client
            .get(&["v1", "groups", "a/b \u{5668}"])
            .query("label", "a=b&c")
            .query_if("x", None::<u8>);
        assert_eq!(
            request.url.as_str(),
            "https://example.com/heddle/v1/groups/a%2Fb%20%E5%99%A8?label=a%3Db%26c"
        );
    }

    /// Nothing listens at this address: what is refused is refused before that shows.
    #[tokio::test]
    async fn names_that_no_request_can_be_made_of_are_refused_before_it_is_sent() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let name = "vic\ntim";
        let deleted = client.delete(&["v1", "groups", name]).send_for_nothing().await;
        // A body that comes later takes nothing back.
        let put = client.put(&["v1", "groups", name]).json(&1).send_for_nothing().await;
        let listed = client
            .get(&["v1", "groups", name])
            .send_for_all::<Value>(&client, 1)
            .await;
        let sent = client.post(&["v1", "topics", name]);
        let sent = sent
            .send_streaming::<Value, _>("text/plain", futures::stream::empty())
            .await;
        for refused in [deleted.err(), put.err(), listed.err(), sent.err()] {
            match refused {
                Some(Error::Invalid(detail)) => assert!(detail.contains(r#""vic\ntim""#), "{detail}"),
                other => panic!("{other:?}"),
            }
        }
        let long = client
            .get(&["v1", "runs"])
            .query("group", "x".repeat(100_000))
            .send_for_nothing()
            .await;
        assert!(matches!(long, Err(Error::Invalid(_))), "{long:?}");
    }

    #[test]
    fn addresses_that_no_request_can_go_to_are_refused() {
        for bad in ["", "localhost:8080", "ftp://x", "http://"] {
            assert!(matches!(Client::new(bad, None), Err(Error::Invalid(_))), "{bad}");
        }
        assert!(Client::new("http://x", Some("a\nb")).is_err());
    }

    #[tokio::test]
    async fn a_dead_server_is_distinguished_from_a_refusal() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let error = client
            .get(&["v1", "groups"])
            .send::<serde_json::Value>()
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }

    #[tokio::test]
    async fn no_error_shows_a_password() {
        let client = Client::new("http://me:hush@127.0.0.1:1/", None).unwrap();
        let error = client.get(&["v1", "groups"]).send::<Value>().await.unwrap_err();
        let posted = client.post(&["v1", "topics", "t"]);
        let posted = posted.send_streaming::<Value, _>("text/plain", futures::stream::empty());
        let invalid = ["me:hush@x", "ftp://me:hush@x"].map(|base| Client::new(base, None).unwrap_err());
        let errors = [error, posted.await.unwrap_err()].into_iter().chain(invalid);
        for shown in errors
            .map(|error| format!("{error} {error:?}"))
            .chain([format!("{client:?}")])
        {
            assert!(!shown.contains("hush"), "{shown}");
        }
    }
}
