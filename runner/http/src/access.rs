//! Who may do what.
//!
//! `heddle dev` binds loopback only and asks for no token; what protects it is that Host and Origin must name this
//! machine, so that neither a page of another site nor a name rebound to 127.0.0.1 reaches it. `heddle serve` wants a
//! bearer token: one of the table, by the SHA-256 of its text, or a short-lived one signed for a single uid (a JWT,
//! HS256, with `sub` and `exp`), which device fleets can be given without a row each.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_domain::{Chance, Time};
use heddle_store::token::TokenRow;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::problem::Problem;

/// What a token lets one do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reads; groups, runs, offers, topics.
    Operator,
    /// Reads; scripts.
    Author,
    /// Claims from its queues, polls for its users; nothing else.
    Worker,
    /// Everything.
    Admin,
}

impl Role {
    /// The word in the API and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Worker => "worker",
            Self::Admin => "admin",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Author, Self::Worker, Self::Admin]
            .into_iter()
            .find(|r| r.as_str() == text)
    }
}

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: health, and the description of the API.
    Open,
    /// To read what is no secret.
    View,
    /// To change groups and runs.
    Operate,
    /// To change scripts.
    Author,
    /// To change nothing, but to try things: operators and authors.
    Try,
    /// To do queued work and to poll for offers.
    Work,
    /// Everything else.
    Admin,
}

impl Access {
    /// Whether a role suffices.
    pub fn allows(self, role: Role) -> bool {
        match (self, role) {
            (_, Role::Admin) | (Self::Open, _) => true,
            (Self::View, role) => role != Role::Worker,
            (Self::Operate, role) => role == Role::Operator,
            (Self::Author, role) => role == Role::Author,
            (Self::Try, role) => matches!(role, Role::Operator | Role::Author),
            (Self::Work, role) => role == Role::Worker,
            (Self::Admin, _) => false,
        }
    }

    /// What the description of the API says of it.
    pub fn described(self) -> &'static str {
        match self {
            Self::Open => "Needs no token.",
            Self::View => "Roles: viewer, operator, author, admin.",
            Self::Operate => "Roles: operator, admin.",
            Self::Author => "Roles: author, admin.",
            Self::Try => "Roles: operator, author, admin.",
            Self::Work => "Roles: worker (its queues and users only), admin.",
            Self::Admin => "Role: admin.",
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// For the audit: a token's name, `dev`, or `uid:` and a user.
    pub actor: String,
    /// What may be done.
    pub role: Role,
    /// A worker's queues; all when empty.
    pub queues: Vec<String>,
    /// A worker's users; all when empty.
    pub uids: Vec<String>,
}

impl Caller {
    /// Whether it may claim from a queue: not if it is bound to others, nor if it is bound to users.
    pub fn may_claim(&self, queue: &str) -> bool {
        if self.queues.is_empty() {
            self.uids.is_empty()
        } else {
            self.queues.iter().any(|own| own == queue)
        }
    }

    /// Whether it may poll for a user: not if it is bound to others, nor if it is bound to queues.
    pub fn may_poll(&self, uid: &str) -> bool {
        if self.uids.is_empty() {
            self.queues.is_empty()
        } else {
            self.uids.iter().any(|own| own == uid)
        }
    }

    fn of(row: &TokenRow) -> Option<Self> {
        Some(Self {
            actor: row.name.clone(),
            role: Role::parse(&row.role)?,
            queues: row.queues.clone(),
            uids: row.uids.clone(),
        })
    }
}

/// What tokens begin with, so that scanners for leaked credentials know them.
pub const TOKEN_PREFIX: &str = "hdl_";

/// Makes a token's text of 256 random bits.
pub fn new_token(chance: &dyn Chance) -> String {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&chance.bits().to_be_bytes());
    bytes[16..].copy_from_slice(&chance.bits().to_be_bytes());
    format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// What is kept of a token.
pub fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// How long a node believes what the table said of a token. A revocation is followed at once all the same: it is in
/// the log of changes.
const TOKEN_TTL: Duration = Duration::from_secs(5);

/// How many tokens a node remembers; beyond that it forgets all of them.
const TOKENS_MAX: usize = 10_000;

/// How often `last_used_at` is written at most.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Known {
    token: Option<TokenRow>,
    until: Time,
}

/// What the table said lately, by hash. Looking up a hash in a map leaks by its timing at most something of the hash,
/// from which no token can be made.
#[derive(Debug, Default)]
pub(crate) struct TokenCache {
    known: Mutex<HashMap<[u8; 32], Known>>,
    touched: Mutex<HashMap<uuid::Uuid, Time>>,
}

impl TokenCache {
    pub(crate) fn clear(&self) {
        self.known.lock().clear();
    }
}

/// Who asks, by the headers of the request.
pub async fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    if app.config.dev {
        return Ok(Caller {
            actor: "dev".into(),
            role: Role::Admin,
            queues: Vec::new(),
            uids: Vec::new(),
        });
    }
    let Some(given) = headers.get(header::AUTHORIZATION) else {
        return Err(Problem::unauthenticated(
            "a bearer token is needed: `Authorization: Bearer hdl_...`",
        ));
    };
    let token = given
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .ok_or_else(|| Problem::unauthenticated("`Authorization` has to be `Bearer` and a token"))?;
    let now = app.clock.now();
    if !token.starts_with(TOKEN_PREFIX)
        && let Some(signer) = &app.signer
    {
        let uid = signer.verify(token, now).ok_or_else(refused)?;
        return Ok(Caller {
            actor: format!("uid:{uid}"),
            role: Role::Worker,
            queues: Vec::new(),
            uids: vec![uid],
        });
    }
    let row = look_up(app, token_hash(token), now).await?.ok_or_else(refused)?;
    let caller = Caller::of(&row).ok_or_else(refused)?;
    touch(app, &row, now).await;
    Ok(caller)
}

fn refused() -> Problem {
    Problem::unauthenticated("the token is unknown, revoked or has expired")
}

async fn look_up(app: &App, hash: [u8; 32], now: Time) -> Result<Option<TokenRow>, Problem> {
    if let Some(known) = app.tokens.known.lock().get(&hash)
        && known.until > now
    {
        let in_force = |row: &&TokenRow| row.expires_at.is_none_or(|expires_at| expires_at > now);
        return Ok(known.token.as_ref().filter(in_force).cloned());
    }
    let token = app.store.token_by_hash(&hash, now).await?;
    let mut known = app.tokens.known.lock();
    if known.len() >= TOKENS_MAX {
        known.clear();
    }
    known.insert(
        hash,
        Known {
            token: token.clone(),
            until: now + TOKEN_TTL,
        },
    );
    Ok(token)
}

async fn touch(app: &App, row: &TokenRow, now: Time) {
    {
        let mut touched = app.tokens.touched.lock();
        if touched.len() >= TOKENS_MAX {
            touched.clear();
        }
        match touched.get(&row.id) {
            Some(at) if now - *at < chrono::TimeDelta::from_std(TOUCH_EVERY).unwrap_or_default() => return,
            _ => touched.insert(row.id, now),
        };
    }
    if let Err(error) = app.store.touch_token(row.id, now).await {
        tracing::warn!(%error, token = row.name, "the use of a token could not be noted");
    }
}

/// Checks tokens that are signed for one uid.
pub struct Signer {
    key: Hmac<Sha256>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct JwtHeader {
    alg: String,
}

#[derive(Serialize, Deserialize)]
struct JwtClaims {
    sub: String,
    exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
}

/// The longest signed token that is looked at, in bytes.
const JWT_BYTES_MAX: usize = 4_096;

impl Signer {
    /// Signs and checks with a key of any length (32 bytes or more, to be of use).
    pub fn new(key: &[u8]) -> Self {
        // HMAC takes keys of any length: longer ones are hashed, shorter ones padded (RFC 2104).
        let key = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
            .unwrap_or_else(|_| <Hmac<Sha256> as KeyInit>::new(&Default::default()));
        Self { key }
    }

    /// A token for one uid.
    pub fn sign(&self, uid: &str, expires_at: Time) -> String {
        let claims = JwtClaims {
            sub: uid.into(),
            exp: expires_at.timestamp(),
            nbf: None,
        };
        let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap_or_default());
        let signed = format!("{header}.{claims}");
        let signature = self.key.clone().chain_update(signed.as_bytes()).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// The uid of a token that is in force.
    pub fn verify(&self, token: &str, now: Time) -> Option<String> {
        if token.len() > JWT_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        // The comparison takes the same time wherever the two differ.
        self.key
            .clone()
            .chain_update(signed.as_bytes())
            .verify_slice(&signature)
            .ok()?;
        let header: JwtHeader = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        let claims: JwtClaims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        let now = now.timestamp();
        let in_force = header.alg == "HS256" && claims.exp > now && claims.nbf.is_none_or(|nbf| nbf <= now);
        (in_force && !claims.sub.is_empty()).then_some(claims.sub)
    }
}

/// Dev mode: Host and Origin must name this machine (or a name that was configured).
pub fn check_local(headers: &HeaderMap, authority: Option<&str>, more_hosts: &[String]) -> Result<(), Problem> {
    let host = match headers.get(header::HOST) {
        Some(host) => host.to_str().ok(),
        None => authority,
    };
    let Some(host) = host else {
        return Err(Problem::malformed("the header `Host` is missing or unreadable"));
    };
    if !is_local(host, more_hosts) {
        return Err(Problem::forbidden(format!(
            "`heddle dev` answers on loopback names only, not on `{host}`"
        )));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or("");
        let host = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        if !host.is_some_and(|host| is_local(host, more_hosts)) {
            return Err(Problem::forbidden(format!(
                "`heddle dev` takes no requests from pages of `{origin}`"
            )));
        }
    }
    if headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") {
        return Err(Problem::forbidden(
            "`heddle dev` takes no requests from pages of other sites",
        ));
    }
    Ok(())
}

/// Whether `host[:port]` is a name of this machine.
fn is_local(host: &str, more_hosts: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || is_port(port) => address,
            _ => return false,
        },
        None => match host.find(':') {
            Some(colon) if is_port(&host[colon..]) => &host[..colon],
            Some(_) => return false,
            None => host,
        },
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost") {
        return true;
    }
    if name
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
    {
        return true;
    }
    more_hosts.iter().any(|more| more.eq_ignore_ascii_case(name))
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|digits| digits.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn dev_answers_this_machine_only() {
        for host in [
            "localhost:8080",
            "127.0.0.1",
            "[::1]:8080",
            "LOCALHOST",
            "app.localhost",
            "127.8.8.8:1",
        ] {
            assert!(check_local(&headers(&[("host", host)]), None, &[]).is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1",
            "10.0.0.1",
            "a:b",
        ] {
            assert!(check_local(&headers(&[("host", host)]), None, &[]).is_err(), "{host}");
        }
        for (origin, fine) in [
            ("http://localhost:8080", true),
            ("https://127.0.0.1", true),
            ("http://evil.example", false),
            ("http://localhost.evil.example", false),
            ("null", false),
        ] {
            let headers = headers(&[("host", "localhost"), ("origin", origin)]);
            let outcome = check_local(&headers, None, &[]);
            assert_eq!(outcome.is_ok(), fine, "{origin}");
            assert!(outcome.err().is_none_or(|problem| problem.status.as_u16() == 403));
        }
        assert!(check_local(&headers(&[]), Some("localhost:1"), &[]).is_ok());
        assert!(check_local(&headers(&[]), None, &[]).is_err());
    }

    #[test]
    fn signed_tokens_hold_for_one_uid_and_a_while() {
        let signer = Signer::new(b"0123456789abcdef0123456789abcdef");
        let now = crate::moment::parse_moment("2026-11-20T08:00:00Z").unwrap();
        let token = signer.sign("u1", now + Duration::from_secs(60));
        assert_eq!(signer.verify(&token, now).as_deref(), Some("u1"));
        assert_eq!(signer.verify(&token, now + Duration::from_secs(60)), None);
        assert_eq!(Signer::new(b"another").verify(&token, now), None);
        let (signed, _) = token.rsplit_once('.').unwrap();
        assert_eq!(signer.verify(&format!("{signed}."), now), None);
        let none = URL_SAFE_NO_PAD.encode(br#"{"alg":"none"}"#);
        assert_eq!(
            signer.verify(&format!("{none}.{}.", signed.split_once('.').unwrap().1), now),
            None
        );
        assert_eq!(signer.verify("x.y.z", now), None);
    }

    #[test]
    fn workers_do_their_own_work_only() {
        let worker = |queues: &[&str], uids: &[&str]| Caller {
            actor: "w".into(),
            role: Role::Worker,
            queues: queues.iter().map(|&q| q.into()).collect(),
            uids: uids.iter().map(|&u| u.into()).collect(),
        };
        assert!(worker(&[], &[]).may_claim("q") && worker(&["q"], &[]).may_claim("q"));
        assert!(!worker(&["q"], &[]).may_claim("r") && !worker(&[], &["u"]).may_claim("q"));
        assert!(worker(&[], &["u"]).may_poll("u") && !worker(&["q"], &[]).may_poll("u"));
        assert!(!Access::View.allows(Role::Worker) && Access::Work.allows(Role::Worker));
        assert!(Access::View.allows(Role::Viewer) && !Access::Operate.allows(Role::Viewer));
        assert!(!Access::Author.allows(Role::Operator) && Access::Admin.allows(Role::Admin));
    }
}
