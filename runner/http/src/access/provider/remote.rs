//! The provider at the other end of the wire: what it says of itself, its keys, and codes that become tokens.
//!
//! Its description and its keys are kept for an hour. If a token names a key that we do not have, they are read again,
//! so that a provider may change its keys at any time. Every answer is bounded in time and bytes, redirects are not
//! followed, and a provider that is away is asked again only after a pause: people who sign in meanwhile are told at
//! once.
//!
//! If a provider hangs, some seconds pass before it counts as away. One request asks meanwhile; the others wait for it
//! and get the same result. A description of at most a day is used at once, while a new one is read in the background.
//! Keys are not used beyond their hour, because one of them may have been withdrawn: then requests wait.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use chrono::TimeDelta;
use heddle_domain::{Chain, Clock, Time};
use heddle_engine::outbound::{choose_cryptography, read_bounded};
use jsonwebtoken::Header;
use jsonwebtoken::jwk::Jwk;
use parking_lot::Mutex;
use reqwest::RequestBuilder;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use url::Url;

use super::{ProviderConfig, SignInFailed, Wrong, check_url, claims, error_code};

/// How long a provider may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum bytes of an answer.
const ANSWER_BYTES_MAX: usize = 512 * 1024;

/// How many keys of a provider are read.
const KEYS_MAX: usize = 100;

/// How long its description and its keys are used before they are read again.
const KEPT_FOR: TimeDelta = TimeDelta::hours(1);

/// How long its old description is used while a new one is read.
const SERVES_FOR: TimeDelta = TimeDelta::hours(24);

/// How long to wait before asking again a provider that did not answer, or whose keys did not contain the named one.
const AGAIN_AFTER: TimeDelta = TimeDelta::seconds(1);

/// How many codes are exchanged at the same time; others wait.
const EXCHANGES_MAX: usize = 16;

/// A provider's description of itself.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) authorization: Url,
    token: Url,
    keys: Url,
    /// The endpoint with further claims about a person.
    userinfo: Option<Url>,
    /// The provider accepts the secret only in the form, not in the header.
    secret_in_form: bool,
}

#[derive(Default)]
struct Known {
    described: Option<(Arc<Described>, Time)>,
    keys: Option<(Arc<Vec<Jwk>>, Time)>,
    /// When reading its description failed last, and when reading its keys did.
    away: Option<Time>,
    keys_away: Option<Time>,
}

/// Whether something failed so recently that the provider is not asked again.
fn just(at: Option<Time>, now: Time) -> bool {
    at.is_some_and(|at| now - at < AGAIN_AFTER)
}

impl Known {
    /// Its description, if it is not older than this.
    fn described_within(&self, age: TimeDelta, now: Time) -> Option<Arc<Described>> {
        let (described, at) = self.described.as_ref()?;
        (now - *at < age).then(|| described.clone())
    }

    /// The answer for the key of a token, if it is known without a request: the key, or that there is none; `None`: the
    /// provider must be asked.
    fn key_of(&self, header: &Header, now: Time) -> Option<Result<Jwk, SignInFailed>> {
        let (keys, at) = self.keys.as_ref()?;
        match claims::key_of(header, keys) {
            Some(key) if now - *at < KEPT_FOR => Some(Ok(key.clone())),
            None if just(Some(*at), now) => Some(Err(SignInFailed::Wrong(Wrong::Key))),
            _ => None,
        }
    }
}

pub(super) struct Remote {
    issuer: String,
    client_id: String,
    client_secret: Option<String>,
    http: reqwest::Client,
    known: Mutex<Known>,
    /// The lock of the caller that asks. Others wait for the answer, and do not ask as well.
    asking: Arc<tokio::sync::Mutex<()>>,
    asking_keys: tokio::sync::Mutex<()>,
    exchanges: Semaphore,
}

/// The result of exchanging a code.
pub(super) struct Tokens {
    pub(super) id: String,
    /// For requests of further claims about the person.
    access: Option<String>,
}

/// An answer in JSON.
struct Said {
    status: StatusCode,
    body: Value,
}

async fn ask(request: RequestBuilder) -> Result<Said, String> {
    let response = request.send().await.map_err(|error| Chain(&error).to_string())?;
    let status = StatusCode::from_u16(response.status().as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
    let bytes = read_bounded(response, ANSWER_BYTES_MAX).await;
    let bytes = bytes.map_err(|error| Chain(&error).to_string())?;
    let bytes = bytes.ok_or_else(|| format!("the answer has more than {ANSWER_BYTES_MAX} bytes"))?;
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Ok(Said { status, body })
}

impl Remote {
    pub(super) fn new(config: &ProviderConfig) -> Result<Self, String> {
        choose_cryptography();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .build()
            .map_err(|error| format!("cannot create the HTTP client: {}", Chain(&error)))?;
        Ok(Self {
            issuer: config.issuer.clone(),
            client_id: config.client_id.clone(),
            client_secret: config.client_secret.clone(),
            http,
            known: Mutex::default(),
            asking: Arc::default(),
            asking_keys: tokio::sync::Mutex::default(),
            exchanges: Semaphore::new(EXCHANGES_MAX),
        })
    }

    /// The provider is away; the reason is logged for the operator.
    fn away(&self, what: &str, why: &str) -> SignInFailed {
        tracing::warn!(issuer = self.issuer, why, "the sign-in provider {what}");
        SignInFailed::Away
    }

    /// The provider's description of itself.
    pub(super) async fn described(self: &Arc<Self>, clock: &Arc<dyn Clock>) -> Result<Arc<Described>, SignInFailed> {
        let serves = self.known.lock().described_within(SERVES_FOR, clock.now());
        let Some(serves) = serves else {
            let _asking = self.asking.lock().await;
            return self.described_alone(clock).await;
        };
        let fresh = self.known.lock().described_within(KEPT_FOR, clock.now());
        if fresh.is_none()
            && let Ok(asking) = self.asking.clone().try_lock_owned()
        {
            let (remote, clock) = (self.clone(), clock.clone());
            tokio::spawn(async move {
                let _asking = asking;
                // The error is in the log.
                let _ = remote.described_alone(&clock).await;
            });
        }
        Ok(serves)
    }

    /// The same for a caller that holds the lock. Another caller may have asked while this one waited for it.
    async fn described_alone(&self, clock: &Arc<dyn Clock>) -> Result<Arc<Described>, SignInFailed> {
        {
            let (known, now) = (self.known.lock(), clock.now());
            if let Some(fresh) = known.described_within(KEPT_FOR, now) {
                return Ok(fresh);
            }
            if just(known.away, now) {
                return known
                    .described
                    .as_ref()
                    .map(|(old, _)| old.clone())
                    .ok_or(SignInFailed::Away);
            }
        }
        let said = self.describe().await;
        let (mut known, now) = (self.known.lock(), clock.now());
        match said {
            Ok(described) => {
                let described = Arc::new(described);
                known.described = Some((described.clone(), now));
                known.away = None;
                Ok(described)
            }
            Err(why) => {
                known.away = Some(now);
                let failed = self.away("does not give its configuration", &why);
                // The old description is used as long as there is no new one.
                known.described.as_ref().map(|(old, _)| old.clone()).ok_or(failed)
            }
        }
    }

    async fn describe(&self) -> Result<Described, String> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let said = ask(self.http.get(&url)).await?;
        if said.status != StatusCode::OK {
            return Err(format!("{url} answered {}", said.status));
        }
        let issuer = said.body["issuer"].as_str().unwrap_or_default();
        if issuer != self.issuer {
            return Err(format!(
                "{url} gives the issuer `{issuer}`, not `{}`; both must be exactly the same",
                self.issuer
            ));
        }
        let endpoint = |name: &str| {
            let text = said.body[name]
                .as_str()
                .ok_or_else(|| format!("{url} has no `{name}`"))?;
            check_url(text).map_err(|error| format!("`{name}`: {error}"))
        };
        let methods = said.body["token_endpoint_auth_methods_supported"].as_array();
        let takes = |method: &str| methods.is_some_and(|all| all.iter().any(|one| one == method));
        Ok(Described {
            authorization: endpoint("authorization_endpoint")?,
            token: endpoint("token_endpoint")?,
            keys: endpoint("jwks_uri")?,
            userinfo: match said.body["userinfo_endpoint"] {
                Value::Null => None,
                _ => Some(endpoint("userinfo_endpoint")?),
            },
            secret_in_form: takes("client_secret_post") && !takes("client_secret_basic"),
        })
    }

    /// The tokens for a code.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        code: &str,
        verifier: &str,
        redirect: &str,
        clock: &Arc<dyn Clock>,
    ) -> Result<Tokens, SignInFailed> {
        let described = self.described(clock).await?;
        let permit = tokio::time::timeout(ANSWER_TIMEOUT, self.exchanges.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(self.away("does not answer fast enough", "too many other sign-ins wait for it"));
        };
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect),
            ("code_verifier", verifier),
        ];
        let mut request = self.http.post(described.token.clone());
        match &self.client_secret {
            Some(secret) if !described.secret_in_form => {
                // Both are written as in a form before they become a header: RFC 6749, 2.3.1.
                let written = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
                request = request.basic_auth(written(&self.client_id), Some(written(secret)));
            }
            Some(secret) => fields.extend([("client_id", self.client_id.as_str()), ("client_secret", secret)]),
            None => fields.push(("client_id", &self.client_id)),
        }
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form);
        let said = ask(request)
            .await
            .map_err(|why| self.away("did not accept a code", &why))?;
        if said.status.is_success() {
            let text = |name: &str| said.body[name].as_str().map(str::to_owned);
            let id = text("id_token").ok_or(SignInFailed::Wrong(Wrong::Form))?;
            let access = text("access_token");
            return Ok(Tokens { id, access });
        }
        match said.body["error"].as_str() {
            _ if said.status.is_server_error() => {
                Err(self.away("did not accept a code", &format!("it answered {}", said.status)))
            }
            Some("invalid_grant") => Err(SignInFailed::Wrong(Wrong::Code)),
            Some(error) => {
                let error = error_code(error);
                let why = said.body["error_description"].as_str().unwrap_or_default();
                tracing::warn!(
                    issuer = self.issuer,
                    error,
                    why,
                    "the sign-in provider refused a code; check the client id, the client secret and the redirect URL"
                );
                Err(SignInFailed::Denied(error))
            }
            None => Err(self.away("did not accept a code", &format!("it answered {}", said.status))),
        }
    }

    /// Further claims about the person of these tokens; `None`: the provider has no such endpoint. They come over its
    /// own connection and are not signed; the caller checks that they are about the same person.
    pub(super) async fn userinfo(
        self: &Arc<Self>,
        tokens: &Tokens,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Map<String, Value>>, SignInFailed> {
        let described = self.described(clock).await?;
        let (Some(url), Some(access)) = (&described.userinfo, &tokens.access) else {
            return Ok(None);
        };
        let request = self
            .http
            .get(url.clone())
            .bearer_auth(access)
            .header("accept", "application/json");
        let said = ask(request)
            .await
            .map_err(|why| self.away("did not return information about a person", &why))?;
        match (said.status, said.body) {
            (StatusCode::OK, Value::Object(all)) => Ok(Some(all)),
            (status, _) => Err(self.away(
                "did not return information about a person",
                &format!("{url} answered {status}, or no JSON object"),
            )),
        }
    }

    /// The key that a token names.
    pub(super) async fn key_of(self: &Arc<Self>, token: &str, clock: &Arc<dyn Clock>) -> Result<Jwk, SignInFailed> {
        let header = claims::header_of(token).map_err(SignInFailed::Wrong)?;
        let known = |now| self.known.lock().key_of(&header, now);
        if let Some(answer) = known(clock.now()) {
            return answer;
        }
        let _asking = self.asking_keys.lock().await;
        // Others may have asked while this one waited for that.
        if let Some(answer) = known(clock.now()) {
            return answer;
        }
        let described = self.described(clock).await?;
        let said = self.keys(&described, clock).await;
        let mut known = self.known.lock();
        match said {
            Ok(keys) => {
                let found = claims::key_of(&header, &keys).cloned();
                known.keys = Some((Arc::new(keys), clock.now()));
                found.ok_or(SignInFailed::Wrong(Wrong::Key))
            }
            Err(failed) => {
                let old = known.keys.as_ref().and_then(|(keys, _)| claims::key_of(&header, keys));
                old.cloned().ok_or(failed)
            }
        }
    }

    /// Its keys; they are not asked for if it has just been found not to tell them.
    async fn keys(&self, described: &Described, clock: &Arc<dyn Clock>) -> Result<Vec<Jwk>, SignInFailed> {
        if just(self.known.lock().keys_away, clock.now()) {
            return Err(SignInFailed::Away);
        }
        let said = self.read_keys(described).await;
        self.known.lock().keys_away = said.is_err().then(|| clock.now());
        said.map_err(|why| self.away("did not return its keys", &why))
    }

    async fn read_keys(&self, described: &Described) -> Result<Vec<Jwk>, String> {
        let said = ask(self.http.get(described.keys.clone())).await?;
        let keys = said.body["keys"].as_array().filter(|_| said.status == StatusCode::OK);
        let keys = keys.ok_or_else(|| format!("{} answered {} and no keys", described.keys, said.status))?;
        // Those of kinds that nobody here knows are of no use, and no reason to refuse the others.
        let read = |key: &Value| serde_json::from_value(key.clone()).ok();
        Ok(keys.iter().take(KEYS_MAX).filter_map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::pin;

    use futures::future::join_all;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::Role;
    use super::*;

    /// A clock that a test sets.
    #[derive(Debug, Default)]
    struct ManualClock(Mutex<Time>);

    impl Clock for ManualClock {
        fn now(&self) -> Time {
            *self.0.lock()
        }
    }

    impl ManualClock {
        fn pass(&self, time: TimeDelta) {
            *self.0.lock() += time;
        }
    }

    /// A provider whose requests are answered one by one.
    struct Fake {
        listener: TcpListener,
        issuer: String,
    }

    impl Fake {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let issuer = format!("http://{}", listener.local_addr().unwrap());
            Self { listener, issuer }
        }

        fn remote(&self) -> Arc<Remote> {
            let config = ProviderConfig {
                issuer: self.issuer.clone(),
                client_id: "heddle".into(),
                client_secret: None,
                scopes: "openid".into(),
                claim: "groups".into(),
                roles: BTreeMap::new(),
                default_role: Some(Role::Viewer),
                redirect_url: None,
                name: "Example".into(),
            };
            Arc::new(Remote::new(&config).unwrap())
        }

        /// The next request, when its head is there.
        async fn asked(&self) -> TcpStream {
            let (mut stream, _) = self.listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream
        }

        /// Says what it is: people sign in at `path`.
        async fn says(&self, stream: &mut TcpStream, path: &str) {
            let issuer = &self.issuer;
            let body = json!({"issuer": issuer, "authorization_endpoint": format!("{issuer}/{path}"),
                "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/keys")});
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }

        /// Whether it is asked once more.
        async fn is_asked(&self) -> bool {
            let now = tokio::time::timeout(Duration::ZERO, self.listener.accept());
            now.await.is_ok()
        }
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_gets_that_of_the_one_who_asks() {
        let (provider, manual) = (Fake::start().await, Arc::new(ManualClock::default()));
        let (remote, clock) = (provider.remote(), manual.clone() as Arc<dyn Clock>);
        let mut first = pin!(remote.described(&clock));
        let asked = tokio::select! {
            _ = &mut first => panic!("nobody has answered"),
            asked = provider.asked() => asked,
        };
        // It hangs, and some more come; then the connection breaks.
        manual.pass(TimeDelta::seconds(5));
        let waiting = join_all((0..8).map(|_| remote.described(&clock)));
        let breaks = async {
            manual.pass(TimeDelta::seconds(5));
            drop(asked);
        };
        let (first, waited, ()) = tokio::join!(first, waiting, breaks);
        assert_eq!(first.unwrap_err(), SignInFailed::Away);
        assert!(
            waited
                .into_iter()
                .all(|waited| waited.unwrap_err() == SignInFailed::Away)
        );
        assert!(!provider.is_asked().await);
        // After a moment it is asked again.
        manual.pass(AGAIN_AFTER);
        let answers = async { provider.says(&mut provider.asked().await, "here").await };
        let (described, ()) = tokio::join!(remote.described(&clock), answers);
        assert_eq!(described.unwrap().authorization.path(), "/here");
    }

    #[tokio::test]
    async fn what_it_said_serves_while_it_is_asked_anew() {
        let (provider, manual) = (Fake::start().await, Arc::new(ManualClock::default()));
        let (remote, clock) = (provider.remote(), manual.clone() as Arc<dyn Clock>);
        let path = async |remote: &Arc<Remote>| remote.described(&clock).await.unwrap().authorization.path().to_owned();
        let answers = async |path: &str| provider.says(&mut provider.asked().await, path).await;
        let (old, ()) = tokio::join!(path(&remote), answers("old"));
        assert_eq!(old, "/old");
        manual.pass(KEPT_FOR);
        // Nobody answers yet, and nobody waits; one asks.
        for _ in 0..3 {
            assert_eq!(path(&remote).await, "/old");
        }
        answers("new").await;
        drop(remote.asking.lock().await);
        assert_eq!(path(&remote).await, "/new");
        assert!(!provider.is_asked().await);
        // What is too old does not serve any more.
        manual.pass(SERVES_FOR);
        let (newest, ()) = tokio::join!(path(&remote), answers("newest"));
        assert_eq!(newest, "/newest");
    }
}
