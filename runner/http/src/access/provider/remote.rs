//! The provider at the other end of the wire: what it says of itself, its keys, and codes that become tokens.
//!
//! What it says of itself and its keys are kept for an hour. A token that names a key that we do not have makes us look
//! again, so that a provider may change its keys whenever it likes. Every answer is bounded in time and bytes, redirects
//! are not followed, and a provider that is away is asked again only after a moment: who signs in meanwhile is told at once.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use chrono::TimeDelta;
use heddle_domain::{Chain, Time};
use heddle_engine::heddle_sandbox::outbound::{choose_cryptography, read_bounded};
use jsonwebtoken::jwk::Jwk;
use reqwest::RequestBuilder;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Semaphore};
use url::Url;

use super::{Astray, ProviderConfig, Wrong, check_url, claims, error_code};

/// How long a provider may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The most that an answer may have.
const ANSWER_BYTES_MAX: usize = 512 * 1024;

/// How many keys of a provider are looked at.
const KEYS_MAX: usize = 100;

/// How long what it says of itself, and its keys, are believed.
const KEPT_FOR: TimeDelta = TimeDelta::hours(1);

/// After so long a provider that did not answer is asked again, and one whose keys lack the one that is named.
const AGAIN_AFTER: TimeDelta = TimeDelta::seconds(1);

/// Codes that are exchanged at once; others wait.
const EXCHANGES_MAX: usize = 16;

/// What a provider says of itself.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) authorization: Url,
    token: Url,
    keys: Url,
    /// Where it tells more of a person than the ID token does.
    userinfo: Option<Url>,
    /// The secret goes into the form, for it is not taken in the header.
    secret_in_form: bool,
}

#[derive(Default)]
struct Known {
    described: Option<(Arc<Described>, Time)>,
    keys: Option<(Arc<Vec<Jwk>>, Time)>,
    /// When it did not answer last.
    away: Option<Time>,
}

pub(super) struct Remote {
    issuer: String,
    client_id: String,
    client_secret: Option<String>,
    http: reqwest::Client,
    /// Held by who asks: others wait for the answer instead of asking as well.
    known: Mutex<Known>,
    exchanges: Semaphore,
}

/// What a code is exchanged for.
pub(super) struct Tokens {
    pub(super) id: String,
    /// Good for asking what else the provider says of the person.
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
            .map_err(|error| format!("there is no HTTP client: {}", Chain(&error)))?;
        Ok(Self {
            issuer: config.issuer.clone(),
            client_id: config.client_id.clone(),
            client_secret: config.client_secret.clone(),
            http,
            known: Mutex::default(),
            exchanges: Semaphore::new(EXCHANGES_MAX),
        })
    }

    /// The provider is away: why is for whoever runs the node.
    fn away(&self, what: &str, why: &str) -> Astray {
        tracing::warn!(issuer = self.issuer, why, "the provider of sign-ins {what}");
        Astray::Away
    }

    /// What the provider says of itself.
    pub(super) async fn described(&self, now: Time) -> Result<Arc<Described>, Astray> {
        let mut known = self.known.lock().await;
        self.described_in(&mut known, now).await
    }

    async fn described_in(&self, known: &mut Known, now: Time) -> Result<Arc<Described>, Astray> {
        let fresh = |at: Time| now - at < KEPT_FOR;
        if let Some((described, _)) = known.described.as_ref().filter(|(_, at)| fresh(*at)) {
            return Ok(described.clone());
        }
        if known.away.is_some_and(|at| now - at < AGAIN_AFTER) {
            return match &known.described {
                Some((old, _)) => Ok(old.clone()),
                None => Err(Astray::Away),
            };
        }
        match self.describe().await {
            Ok(described) => {
                let described = Arc::new(described);
                known.described = Some((described.clone(), now));
                known.away = None;
                Ok(described)
            }
            Err(why) => {
                known.away = Some(now);
                let astray = self.away("cannot be asked what it is", &why);
                // What it said before will do for as long as it says nothing else.
                known.described.as_ref().map(|(old, _)| old.clone()).ok_or(astray)
            }
        }
    }

    async fn describe(&self) -> Result<Described, String> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let said = ask(self.http.get(&url)).await?;
        if said.status != StatusCode::OK {
            return Err(format!("{url} answers {}", said.status));
        }
        let issuer = said.body["issuer"].as_str().unwrap_or_default();
        if issuer != self.issuer {
            return Err(format!(
                "{url} says that the issuer is `{issuer}`, not `{}`: the two have to be the same to the letter",
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
        &self,
        code: &str,
        verifier: &str,
        redirect: &str,
        now: Time,
    ) -> Result<Tokens, Astray> {
        let described = self.described(now).await?;
        let turn = tokio::time::timeout(ANSWER_TIMEOUT, self.exchanges.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(self.away("has too many codes to exchange", "other sign-ins wait for it"));
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
        let said = ask(request).await.map_err(|why| self.away("takes no code", &why))?;
        if said.status.is_success() {
            let text = |name: &str| said.body[name].as_str().map(str::to_owned);
            let id = text("id_token").ok_or(Astray::Wrong(Wrong::Form))?;
            let access = text("access_token");
            return Ok(Tokens { id, access });
        }
        match said.body["error"].as_str() {
            _ if said.status.is_server_error() => {
                Err(self.away("takes no code", &format!("it answers {}", said.status)))
            }
            Some("invalid_grant") => Err(Astray::Wrong(Wrong::Code)),
            Some(error) => {
                let error = error_code(error);
                let why = said.body["error_description"].as_str().unwrap_or_default();
                tracing::warn!(
                    issuer = self.issuer,
                    error,
                    why,
                    "the provider of sign-ins refuses a code"
                );
                Err(Astray::Denied(error))
            }
            None => Err(self.away("takes no code", &format!("it answers {}", said.status))),
        }
    }

    /// What else the provider says of the person whom these tokens are about; `None`: it has no place to ask. What it says
    /// comes over its own connection and is not signed; whoever uses it checks that it is about the same person.
    pub(super) async fn userinfo(&self, tokens: &Tokens, now: Time) -> Result<Option<Map<String, Value>>, Astray> {
        let described = self.described(now).await?;
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
            .map_err(|why| self.away("tells nothing of people", &why))?;
        match (said.status, said.body) {
            (StatusCode::OK, Value::Object(all)) => Ok(Some(all)),
            (status, _) => Err(self.away(
                "tells nothing of people",
                &format!("{url} answers {status}, or no JSON object"),
            )),
        }
    }

    /// The key that a token names.
    pub(super) async fn key_of(&self, token: &str, now: Time) -> Result<Jwk, Astray> {
        let header = claims::header_of(token).map_err(Astray::Wrong)?;
        let mut known = self.known.lock().await;
        if let Some((keys, at)) = &known.keys {
            let found = claims::key_of(&header, keys);
            let age = now - *at;
            match found {
                Some(key) if age < KEPT_FOR => return Ok(key.clone()),
                None if age < AGAIN_AFTER => return Err(Astray::Wrong(Wrong::Key)),
                _ => {}
            }
        }
        let described = self.described_in(&mut known, now).await?;
        match self.read_keys(&described).await {
            Ok(keys) => {
                let found = claims::key_of(&header, &keys).cloned();
                known.keys = Some((Arc::new(keys), now));
                found.ok_or(Astray::Wrong(Wrong::Key))
            }
            Err(why) => {
                let astray = self.away("does not tell its keys", &why);
                let old = known.keys.as_ref().and_then(|(keys, _)| claims::key_of(&header, keys));
                old.cloned().ok_or(astray)
            }
        }
    }

    async fn read_keys(&self, described: &Described) -> Result<Vec<Jwk>, String> {
        let said = ask(self.http.get(described.keys.clone())).await?;
        let keys = said.body["keys"].as_array().filter(|_| said.status == StatusCode::OK);
        let keys = keys.ok_or_else(|| format!("{} answers {} and no keys", described.keys, said.status))?;
        // Those of kinds that nobody here knows are of no use, and no reason to refuse the others.
        let read = |key: &Value| serde_json::from_value(key.clone()).ok();
        Ok(keys.iter().take(KEYS_MAX).filter_map(read).collect())
    }
}
