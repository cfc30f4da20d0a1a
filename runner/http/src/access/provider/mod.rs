//! Signing in with an OpenID Connect provider: people of a company, with the accounts that they have there.
//!
//! It is the authorization code flow with PKCE (`sign_in`). The browser is sent to the provider with a `state`, a
//! `nonce` and the challenge of a verifier; all three are made, by SHA-256, from one random text that a cookie of ten
//! minutes keeps. So a node has to remember nothing, and the browser may return to another one. A browser that returns
//! without that cookie, or with another `state`, is refused: nobody can be signed in by a link of somebody else.
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
mod sign_in;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderValue;
use url::Url;

use super::Role;
use crate::problem::Problem;
use remote::Remote;

/// The path to which the provider sends people back, below the address of the pages.
pub const CALLBACK: &str = "/sign-in/callback";

/// The scopes that are asked for unless it is configured.
pub const SCOPES_DEFAULT: &str = "openid email profile";

/// The claim that says what a person may do, unless it is configured.
pub const CLAIM_DEFAULT: &str = "groups";

/// The longest code of an error.
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
pub enum SignInFailed {
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
    /// The id or the address of the person contains control characters.
    Control,
}

impl From<Problem> for SignInFailed {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<heddle_store::StoreError> for SignInFailed {
    fn from(error: heddle_store::StoreError) -> Self {
        Self::Problem(error.into())
    }
}

/// Where the browser goes next, and the cookies that it gets.
#[derive(Clone, Debug)]
pub struct Redirect {
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

    pub(super) fn config() -> ProviderConfig {
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
    fn a_code_of_an_error_is_a_word() {
        assert_eq!(error_code("access_denied"), "access_denied");
        assert_eq!(error_code("<b>\u{202e}"), "b");
        assert_eq!(error_code(""), "error");
    }
}
