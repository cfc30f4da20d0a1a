//! Signing in with an OpenID Connect provider: people of a company, with the accounts that they have there.
//!
//! It is the authorization code flow with PKCE. The browser is sent to the provider with a `state`, a `nonce` and the
//! challenge of a verifier; all three are made, by SHA-256, from one random text that a cookie of ten minutes keeps. So
//! a node has to remember nothing, and the browser may return to another one. A browser that returns without that
//! cookie, or with another `state`, is refused: nobody can be signed in by a link of somebody else.
//!
//! The code is exchanged for an ID token (`remote`), which is accepted if it is signed by a key of the provider, for
//! this client, now, with our nonce (`claims`). One of its claims determines the role. If the token lacks it (providers
//! keep tokens short), the userinfo endpoint is asked about the same person. A person without a role is told so.
//! Otherwise a session begins, like one of a token: with its own cookie, of bounded life, ended by signing out, on all
//! nodes. The session itself contains the person and the role, so a changed claim counts from the next sign-in on: then
//! sessions with another role end. A node whose configuration does not name the provider any more accepts none of its
//! sessions.

mod claims;
mod remote;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_store::session::Person;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};
use url::Url;

use super::session::{self, Cookie, SESSION_FOR};
use super::{Peer, Role};
use crate::app::App;
use crate::problem::Problem;
use remote::Remote;

/// The path to which the provider sends people back, below the address of the pages.
pub const CALLBACK: &str = "/sign-in/callback";

/// The scopes that are asked for unless it is configured.
pub const SCOPES_DEFAULT: &str = "openid email profile";

/// The claim that says what a person may do, unless it is configured.
pub const CLAIM_DEFAULT: &str = "groups";

/// The cookie that keeps what a sign-in began with.
const COOKIE: Cookie = Cookie {
    name: "heddle_sign_in",
    host_name: "__Host-heddle_sign_in",
    path: "/sign-in",
};

/// How long somebody may take at the provider.
const SIGN_IN_FOR: std::time::Duration = std::time::Duration::from_secs(600);

/// The longest address that is returned to.
const TO_BYTES_MAX: usize = 2_000;

/// The longest code, and the longest code of an error.
const CODE_BYTES_MAX: usize = 8 * 1024;
const ERROR_CHARS_MAX: usize = 64;

/// The longest part of a person's id or address that the audit shows.
const ACTOR_CHARS_MAX: usize = 200;

/// What is known of a provider by configuration.
#[derive(Clone)]
pub struct ProviderConfig {
    /// The issuer, exactly as the provider writes it.
    pub issuer: String,
    /// Our id at the provider.
    pub client_id: String,
    /// The client secret; `None`: we only have PKCE.
    pub client_secret: Option<String>,
    /// The scopes, separated by spaces; `openid` is one of them.
    pub scopes: String,
    /// The claim that says what a person may do: a name, or a JSON pointer.
    pub claim: String,
    /// Which value of the claim gives which role.
    pub roles: BTreeMap<String, Role>,
    /// The role of people whose claim gives none; `None`: they are refused.
    pub default_role: Option<Role>,
    /// The address to which people return, as the provider knows it; `None`: the one that they requested.
    pub redirect_url: Option<String>,
    /// Its name on the page.
    pub name: String,
}

pub struct Provider {
    config: ProviderConfig,
    remote: Arc<Remote>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider")
            .field("issuer", &self.config.issuer)
            .finish_non_exhaustive()
    }
}

/// Why a sign-in has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Astray {
    /// The provider does not answer, or not as a provider should. The log has the details.
    Away,
    /// It was begun in another browser, or too long ago.
    NotBegun,
    /// The provider says no, by this code.
    Denied(String),
    /// The provider's answer is invalid.
    Wrong(Wrong),
    /// No claim and no default gives this person a role.
    NoRole(String),
    /// It is not about the provider.
    Problem(Problem),
}

/// What is wrong with a provider's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The code has been used, or is too old.
    Code,
    /// It is no ID token.
    Form,
    /// It is signed with a key, or in a way, that is not the provider's.
    Key,
    Signature,
    /// It is another provider's.
    Issuer,
    /// It is for somebody else.
    Audience,
    /// It has expired, or is not valid yet.
    Expired,
    /// It answers another sign-in.
    Nonce,
    /// The further claims are about another person.
    Person,
}

impl From<Problem> for Astray {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<heddle_store::StoreError> for Astray {
    fn from(error: heddle_store::StoreError) -> Self {
        Self::Problem(error.into())
    }
}

/// Where the browser goes next, and the cookies that it gets.
#[derive(Clone, Debug)]
pub struct Onward {
    /// The provider's page, or one of our own.
    pub to: String,
    pub cookies: Vec<HeaderValue>,
}

/// Says why a URL is not accepted: others must not be able to read the traffic between the provider and Heddle.
pub(super) fn check_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("`{text}` is not a valid URL: {error}"))?;
    let local = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => Ok(url),
        "http" if local => Ok(url),
        _ => Err(format!("`{text}` is not an https URL")),
    }
}

impl Provider {
    /// A provider; sends no request yet. An error says what is wrong with the configuration.
    pub fn new(config: ProviderConfig) -> Result<Arc<Self>, String> {
        let issuer = check_url(&config.issuer)?;
        if issuer.query().is_some() || issuer.fragment().is_some() {
            return Err(format!(
                "the issuer must not have a query or a fragment: `{}`",
                config.issuer
            ));
        }
        if let Some(url) = &config.redirect_url {
            check_url(url)?;
        }
        if config.client_id.is_empty() {
            return Err("the client id must not be empty".into());
        }
        if !config.scopes.split(' ').any(|scope| scope == "openid") {
            return Err("the scopes must contain `openid`".into());
        }
        let mut roles = config.roles.values().chain(&config.default_role);
        if roles.clone().next().is_none() {
            return Err("neither a claim nor a default role is configured, so nobody could sign in".into());
        }
        if roles.any(|role| *role == Role::Worker) {
            return Err(
                "people cannot have the role `worker`; the roles are viewer, operator, author and admin".into(),
            );
        }
        let remote = Arc::new(Remote::new(&config)?);
        Ok(Arc::new(Self { config, remote }))
    }

    /// Its name on the page.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The issuer of people's identities.
    pub(crate) fn issuer(&self) -> &str {
        &self.config.issuer
    }

    /// The address to which the provider sends this browser back: as configured, or where it comes from.
    fn redirect_url(&self, headers: &HeaderMap, authority: Option<&str>) -> Result<String, Problem> {
        if let Some(url) = &self.config.redirect_url {
            return Ok(url.clone());
        }
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = host.or(authority).unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(Problem::malformed("the header `Host` is missing or not valid"));
        }
        let scheme = if session::is_https(headers) { "https" } else { "http" };
        Ok(format!("{scheme}://{host}{CALLBACK}"))
    }

    /// Sends a browser to the provider; after that it is to come `to` a page of ours.
    pub async fn begin(&self, app: &App, parts: &Parts, to: &str) -> Result<Onward, Astray> {
        let described = self.remote.described(&app.clock).await?;
        let redirect = self.redirect_url(&parts.headers, parts.uri.authority().map(|one| one.as_str()))?;
        let flow = Flow(super::tokens::new_session(&*app.chance));
        let mut url = described.authorization.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", &redirect)
            .append_pair("scope", &self.config.scopes)
            .append_pair("state", &flow.state())
            .append_pair("nonce", &flow.nonce())
            .append_pair("code_challenge", &hash(&[&flow.verifier()]))
            .append_pair("code_challenge_method", "S256");
        let to = if to.len() > TO_BYTES_MAX { "/" } else { to };
        let kept = format!("{}.{}", flow.0, utf8_percent_encode(to, NON_ALPHANUMERIC));
        let cookie = set_cookie(&kept, SIGN_IN_FOR.as_secs(), redirect.starts_with("https:"))?;
        Ok(Onward {
            to: url.into(),
            cookies: vec![cookie],
        })
    }

    /// A browser returns from the provider: checks its parameters, and begins a session.
    pub async fn finish(&self, app: &App, parts: &Parts) -> Result<Onward, Astray> {
        let now = app.clock.now();
        let query: Vec<(String, String)> =
            url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let said = |name: &str| {
            query
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        let redirect = self.redirect_url(&parts.headers, parts.uri.authority().map(|one| one.as_str()))?;
        let https = redirect.starts_with("https:");
        let (flow, to) = kept(&parts.headers, https).ok_or(Astray::NotBegun)?;
        if said("state") != Some(&flow.state()) {
            return Err(Astray::NotBegun);
        }
        if said("iss").is_some_and(|issuer| issuer != self.config.issuer) {
            return Err(Astray::Wrong(Wrong::Issuer));
        }
        if let Some(error) = said("error") {
            return Err(Astray::Denied(error_code(error)));
        }
        let code = said("code").filter(|code| !code.is_empty() && code.len() <= CODE_BYTES_MAX);
        let code = code.ok_or(Astray::NotBegun)?;
        // As with wrong tokens: invented codes may cause only a bounded number of requests to the provider.
        let peer = Peer::of(parts);
        app.rates.of_unknown(peer)?;
        let tokens = self
            .remote
            .exchange(code, &flow.verifier(), &redirect, &app.clock)
            .await?;
        let key = self.remote.key_of(&tokens.id, &app.clock).await?;
        let mut claims = claims::verify(&tokens.id, &key, &self.config, &flow.nonce(), now).map_err(Astray::Wrong)?;
        if !claims.has(&self.config.claim)
            && let Some(userinfo) = self.remote.userinfo(&tokens, &app.clock).await?
        {
            claims.add(userinfo).map_err(Astray::Wrong)?;
        }
        let actor = claims.actor();
        let person = Person {
            issuer: &self.config.issuer,
            subject: &claims.subject,
            actor: &actor,
        };
        let Some(role) = claims.role(&self.config) else {
            if app.store.end_sessions_of(now, person).await? {
                app.forget_tokens();
            }
            return Err(Astray::NoRole(claims.shown()));
        };
        let (text, hash) = session::new(&*app.chance);
        let ends = now + SESSION_FOR;
        let begun = app.store.begin_session_of(now, &hash, person, role.as_str(), ends);
        if begun.await? {
            app.forget_tokens();
        }
        app.rates.was_known(peer);
        let secure = https || session::is_https(&parts.headers);
        let session = session::set_cookie(secure, Some((&text, now, ends)));
        let session = session.ok_or_else(|| Problem::malformed("the cookie cannot be written"))?;
        Ok(Onward {
            to,
            cookies: vec![session, set_cookie("", 0, https)?],
        })
    }
}

/// A random text per sign-in; all values that are compared later are made from it.
struct Flow(String);

impl Flow {
    fn state(&self) -> String {
        hash(&["state", &self.0])
    }

    fn nonce(&self) -> String {
        hash(&["nonce", &self.0])
    }

    fn verifier(&self) -> String {
        hash(&["verifier", &self.0])
    }
}

fn hash(parts: &[&str]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(parts.join(" ")))
}

fn set_cookie(value: &str, seconds: u64, secure: bool) -> Result<HeaderValue, Problem> {
    let cookie = COOKIE.set(value, seconds as i64, secure);
    cookie.ok_or_else(|| Problem::malformed("the cookie cannot be written"))
}

/// The sign-in that this browser began, from its cookie, and the address that it wanted.
fn kept(headers: &HeaderMap, https: bool) -> Option<(Flow, String)> {
    let (secret, to) = COOKIE.read(headers, https)?.split_once('.')?;
    let to = percent_decode_str(to).decode_utf8().ok()?.into_owned();
    Some((Flow(secret.to_owned()), to))
}

/// The error code of the provider, without other characters than those of a word, because people see it.
fn error_code(given: &str) -> String {
    let code: String = given
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == '-')
        .take(ERROR_CHARS_MAX)
        .collect();
    if code.is_empty() { "error".into() } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ProviderConfig {
        ProviderConfig {
            issuer: "https://id.example".into(),
            client_id: "heddle".into(),
            client_secret: None,
            scopes: SCOPES_DEFAULT.into(),
            claim: CLAIM_DEFAULT.into(),
            roles: BTreeMap::from([("ops".to_owned(), Role::Operator)]),
            default_role: None,
            redirect_url: None,
            name: "Example".into(),
        }
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        let check = |change: &dyn Fn(&mut ProviderConfig), why: &str| {
            let mut config = config();
            change(&mut config);
            let said = Provider::new(config).map(drop).unwrap_err();
            assert!(said.contains(why), "{said}");
        };
        check(&|config| config.issuer = "http://id.example".into(), "https");
        check(&|config| config.issuer = "https://id.example?a".into(), "query");
        check(&|config| config.issuer = "id".into(), "not a valid URL");
        check(&|config| config.scopes = "email".into(), "openid");
        check(&|config| config.roles.clear(), "nobody");
        check(
            &|config| config.default_role = Some(Role::Worker),
            "cannot have the role `worker`",
        );
        check(&|config| config.client_id.clear(), "id");
        check(
            &|config| config.redirect_url = Some("/sign-in".into()),
            "not a valid URL",
        );
        for local in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"] {
            Provider::new(ProviderConfig {
                issuer: local.into(),
                ..config()
            })
            .unwrap();
        }
    }

    #[test]
    fn people_come_back_to_where_they_were() {
        let headers = |of: &[(&'static str, &str)]| -> HeaderMap {
            of.iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
                .collect()
        };
        let provider = Provider::new(config()).unwrap();
        let of = |of: &[(&'static str, &str)]| provider.redirect_url(&headers(of), None);
        assert_eq!(of(&[("host", "h:8080")]).unwrap(), "http://h:8080/sign-in/callback");
        assert_eq!(
            of(&[("host", "h.example"), ("x-forwarded-proto", "https")]).unwrap(),
            "https://h.example/sign-in/callback"
        );
        for wrong in ["", "a/b", "a b", "u@h"] {
            assert!(of(&[("host", wrong)]).is_err(), "{wrong}");
        }
        let fixed = Provider::new(ProviderConfig {
            redirect_url: Some("https://heddle.example/sign-in/callback".into()),
            ..config()
        })
        .unwrap();
        assert_eq!(
            fixed.redirect_url(&headers(&[("host", "10.0.0.1")]), None).unwrap(),
            "https://heddle.example/sign-in/callback"
        );
        let kept_over = |https, value: &str| kept(&headers(&[("cookie", value)]), https).map(|(flow, to)| (flow.0, to));
        let kept_by = |value: &str| kept_over(false, value);
        assert_eq!(
            kept_by("a=b; heddle_sign_in=hds_x.%2Fruns%3Fa%3D1"),
            Some(("hds_x".into(), "/runs?a=1".into()))
        );
        assert_eq!(kept_by("heddle_sign_in=hds_x"), None);
        // A cookie that a page of a sibling domain may have set is not accepted.
        assert_eq!(kept_over(true, "heddle_sign_in=hds_evil.%2F"), None);
        let both = "heddle_sign_in=hds_evil.%2F; __Host-heddle_sign_in=hds_x.%2F";
        assert_eq!(kept_over(true, both), Some(("hds_x".into(), "/".into())));
        assert_eq!(
            set_cookie("hds_x.%2F", 600, true).unwrap(),
            "__Host-heddle_sign_in=hds_x.%2F; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"
        );
        assert_eq!(
            set_cookie("hds_x.%2F", 600, false).unwrap(),
            "heddle_sign_in=hds_x.%2F; Path=/sign-in; Max-Age=600; HttpOnly; SameSite=Lax"
        );
    }

    #[test]
    fn what_is_sent_tells_nothing_of_what_is_kept() {
        let (one, other) = (Flow("hds_a".into()), Flow("hds_b".into()));
        let all = [one.state(), one.nonce(), one.verifier(), other.state(), other.nonce()];
        for (at, text) in all.iter().enumerate() {
            assert!(text.len() == 43 && !text.contains("hds_"));
            assert!(!all[at + 1..].contains(text));
        }
        assert_eq!(error_code("access_denied"), "access_denied");
        assert_eq!(error_code("<b>\u{202e}"), "b");
        assert_eq!(error_code(""), "error");
    }
}
