//! Who may do what.
//!
//! `heddle dev` binds loopback only and asks for no token; what protects it is that Host and Origin must name this
//! machine, so that neither a page of another site nor a name rebound to 127.0.0.1 reaches it (`local`).
//!
//! `heddle serve` wants to know who asks. There are three ways to say it:
//!
//! * a bearer token of the table, found by the SHA-256 of its text (`tokens`);
//! * a short-lived token signed for a single uid, which device fleets can be given without a row each (`device`);
//! * the cookie of a session (`session`) that was begun with a token, or with the account that somebody has at an OpenID
//!   Connect provider (`provider`): for the UI. What a cookie vouches for, a page of another site must not be able to ask
//!   for, so requests that write have to come from our own origin.
//!
//! The token is checked when a request begins, and while it lasts (`token_watch`): a stream does not outlive its token.
//!
//! While the database does not answer, no token of the table can be checked. Only for routes that are needed most then
//! (`/metrics`), the last check of the token counts, if it is not long ago (`authenticate_in_outage`).
//!
//! Wrong tokens cost the database almost nothing: the number of unknown ones that are looked up is bounded per address
//! and per node (`rate`); a token that was valid a moment ago never waits in that queue.

mod device;
mod local;
mod peer;
pub mod provider;
mod rate;
pub(crate) mod session;
mod spec;
mod token_cache;
mod token_watch;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use heddle_domain::Time;
use heddle_store::token::TokenRow;

use crate::app::App;
use crate::connection::Connection;
use crate::problem::Problem;

pub use heddle_api::Role;

pub use device::{DEVICE_KEY_BYTES_MIN, DEVICE_TOKEN_MAX, Signer};
pub use local::check_local;
pub use peer::Peer;
pub(crate) use rate::Rates;
pub use spec::TokenSpec;
pub(crate) use spec::shown_token;
use token_cache::Shown;
pub(crate) use token_cache::TokenCache;
pub(crate) use token_watch::TokenWatch;
pub use tokens::{TOKEN_PREFIX, USES_WRITTEN_EVERY, token_hash};

/// What a route requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: health, and the description of the API.
    Open,
    /// To read anything except what only an admin can list; the audit leaves its entries out.
    View,
    /// To change groups and runs.
    Operate,
    Author,
    /// Any role: to ask who the caller is, or to sign out.
    Any,
    /// To try things without changing anything: operators and authors.
    Try,
    /// To do queued work and to poll for offers.
    Work,
    Admin,
}

impl Access {
    /// Whether a role suffices.
    pub fn allows(self, role: Role) -> bool {
        match (self, role) {
            (_, Role::Admin) | (Self::Open | Self::Any, _) => true,
            (Self::View, role) => role != Role::Worker,
            (Self::Operate, role) => role == Role::Operator,
            (Self::Author, role) => role == Role::Author,
            (Self::Try, role) => matches!(role, Role::Operator | Role::Author),
            (Self::Work, role) => role == Role::Worker,
            (Self::Admin, _) => false,
        }
    }

    /// Its text in the description of the API.
    pub fn described(self) -> &'static str {
        match self {
            Self::Open => "No token needed.",
            Self::Any => "Roles: all.",
            Self::View => "Roles: viewer, operator, author, admin.",
            Self::Operate => "Roles: operator, admin.",
            Self::Author => "Roles: author, admin.",
            Self::Try => "Roles: operator, author, admin.",
            Self::Work => "Roles: worker (only for its queues and users), admin.",
            Self::Admin => "Role: admin.",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// For the audit: a token's name, `dev`, `person:` and an address or id at the provider, or `uid:` and a user.
    pub actor: String,
    /// What the caller may do.
    pub role: Role,
    /// A worker's queues; all when empty.
    pub queues: Vec<String>,
    /// A worker's users; all when empty.
    pub uids: Vec<String>,
    /// Until when the token or session is valid; `None`: until it is revoked.
    pub expires_at: Option<Time>,
}

impl Caller {
    /// The caller of a route that is open to all.
    pub(crate) fn anyone() -> Self {
        Self {
            actor: "anyone".into(),
            role: Role::Viewer,
            queues: Vec::new(),
            uids: Vec::new(),
            expires_at: None,
        }
    }

    /// The caller of `heddle dev`.
    pub(crate) fn dev() -> Self {
        Self {
            actor: "dev".into(),
            role: Role::Admin,
            ..Self::anyone()
        }
    }

    /// A device with a token that was signed for it.
    fn device(uid: String, expires_at: Time) -> Self {
        Self {
            actor: format!("uid:{uid}"),
            role: Role::Worker,
            queues: Vec::new(),
            uids: vec![uid],
            expires_at: Some(expires_at),
        }
    }

    /// Whether it may claim from a queue: not if it is bound to others, nor if it is bound to users.
    pub fn may_claim(&self, queue: &str) -> bool {
        if self.queues.is_empty() {
            self.uids.is_empty()
        } else {
            self.queues.iter().any(|own| own == queue)
        }
    }

    /// Whether it may poll for a user, by the bare id: not if it is bound to others, nor if it is bound to queues. What
    /// it is bound to may be written `uid_x`, as in an audience, for `x`.
    pub fn may_poll(&self, uid: &str) -> bool {
        if self.uids.is_empty() {
            self.queues.is_empty()
        } else {
            self.uids
                .iter()
                .any(|own| own.strip_prefix("uid_").unwrap_or(own) == uid)
        }
    }

    pub(crate) fn of(row: &TokenRow) -> Option<Self> {
        Some(Self {
            actor: row.name.clone(),
            role: Role::parse(&row.role)?,
            queues: row.queues.clone(),
            uids: row.uids.clone(),
            expires_at: row.expires_at,
        })
    }
}

/// A caller who was authenticated.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) caller: Arc<Caller>,
    /// The token or session, if it is in the table.
    key: Option<token_cache::Key>,
}

impl Admitted {
    async fn by(app: &App, peer: Peer, shown: Shown, text: &str, now: Time) -> Result<Self, Problem> {
        let hash = token_hash(text);
        let token = tokens::look_up(app, peer, shown, hash, now).await?;
        let caller = token.caller.clone().ok_or_else(refused)?;
        let key = Some((shown, hash));
        Ok(Self { caller, key })
    }
}

/// A caller who was authenticated for the pages, which pass this on to the API.
#[derive(Clone, Debug)]
pub struct Vouched {
    admitted: Arc<Admitted>,
    /// `None`: no token or session was needed.
    token_watch: Option<TokenWatch>,
}

impl Vouched {
    pub(crate) fn new(admitted: Admitted, token_watch: Option<TokenWatch>) -> Self {
        Self {
            admitted: Arc::new(admitted),
            token_watch,
        }
    }

    pub fn caller(&self) -> &Caller {
        &self.admitted.caller
    }

    /// Waits until the token or session is not valid any more: for pages that stay open.
    pub async fn ends(self, app: App) {
        match self.token_watch {
            Some(token_watch) => token_watch.ended(&app).await,
            None => std::future::pending().await,
        }
    }
}

/// Authenticates a request by its headers; `acts`: the request changes something. From then on, its connection is not a
/// stranger's.
pub(crate) async fn authenticate(app: &App, request: &Parts, acts: bool, now: Time) -> Result<Admitted, Problem> {
    let admitted = admitted(app, request, acts, now).await?;
    if let Some(connection) = request.extensions.get::<Arc<Connection>>() {
        connection.mark_known();
    }
    Ok(admitted)
}

/// How long a route that does without the database waits for the check of a token that was valid before.
const CHECK_WAIT: Duration = Duration::from_millis(500);

/// The same for a route that people need most while the database does not answer, and that shows little: then a token
/// or session counts that this node has found valid within the last hour, if no token has changed since, as far as the
/// node knows.
pub(crate) async fn authenticate_in_outage(
    app: &App,
    request: &Parts,
    acts: bool,
    now: Time,
) -> Result<Admitted, Problem> {
    let Some(remembered) = remembered(app, request, now) else {
        return authenticate(app, request, acts, now).await;
    };
    let away = StatusCode::SERVICE_UNAVAILABLE;
    let is_unknown =
        |checked: &Result<Admitted, Problem>| checked.as_ref().is_err_and(|problem| problem.status == away);
    if app.store.stalled_for() < CHECK_WAIT
        && let Ok(checked) = tokio::time::timeout(CHECK_WAIT, authenticate(app, request, acts, now)).await
        && !is_unknown(&checked)
    {
        return checked;
    }
    app.rates.of_callers(&remembered.caller.actor)?;
    Ok(remembered)
}

/// The caller by the last check of what the request shows.
fn remembered(app: &App, request: &Parts, now: Time) -> Option<Admitted> {
    let (shown, text) = match bearer(request) {
        Some(token) => (Shown::Token, token.ok()?),
        None => (Shown::Session, session::cookie(&request.headers)?),
    };
    let key = (shown, token_hash(text));
    let caller = tokens::remembered(app, key, now)?.caller.clone()?;
    Some(Admitted { caller, key: Some(key) })
}

/// The token in the header of a request, if it has that header.
fn bearer(request: &Parts) -> Option<Result<&str, Problem>> {
    let given = request.headers.get(header::AUTHORIZATION)?;
    let token = given
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    Some(
        token
            .ok_or_else(|| Problem::unauthenticated("the header `Authorization` must be `Bearer` followed by a token")),
    )
}

async fn admitted(app: &App, request: &Parts, acts: bool, now: Time) -> Result<Admitted, Problem> {
    if let Some(Vouched { admitted, .. }) = request.extensions.get() {
        let (caller, key) = (admitted.caller.clone(), admitted.key);
        return Ok(Admitted { caller, key });
    }
    if app.config.dev {
        let caller = Arc::new(Caller::dev());
        return Ok(Admitted { caller, key: None });
    }
    let peer = Peer::of(request);
    let admitted = match bearer(request) {
        Some(token) => by_token(app, peer, token?, now).await?,
        None => match session::cookie(&request.headers) {
            Some(text) => {
                let admitted = Admitted::by(app, peer, Shown::Session, text, now).await?;
                if acts {
                    session::check_acts(&request.method)?;
                    session::check_origin(&request.headers, request.uri.authority())?;
                }
                admitted
            }
            None => {
                return Err(Problem::unauthenticated(
                    "a token is required: send the header `Authorization: Bearer hdl_...`",
                ));
            }
        },
    };
    app.rates.of_callers(&admitted.caller.actor)?;
    Ok(admitted)
}

/// The row of a valid token: for signing in.
pub(crate) async fn token(app: &App, peer: Peer, token: &str, now: Time) -> Result<TokenRow, Problem> {
    let token = tokens::look_up(app, peer, Shown::Token, token_hash(token), now).await?;
    Ok(token.row.clone())
}

/// The caller with a token.
async fn by_token(app: &App, peer: Peer, token: &str, now: Time) -> Result<Admitted, Problem> {
    if !token.starts_with(TOKEN_PREFIX)
        && let Some(signer) = &app.signer
    {
        let (uid, expires_at) = signer.verify(token, now).ok_or_else(refused)?;
        let caller = Arc::new(Caller::device(uid, expires_at));
        return Ok(Admitted { caller, key: None });
    }
    Admitted::by(app, peer, Shown::Token, token, now).await
}

pub(crate) fn refused() -> Problem {
    Problem::unauthenticated("the token is unknown, revoked or expired")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_do_their_own_work_only() {
        let worker = |queues: &[&str], uids: &[&str]| Caller {
            actor: "w".into(),
            role: Role::Worker,
            queues: queues.iter().map(|&q| q.into()).collect(),
            uids: uids.iter().map(|&u| u.into()).collect(),
            expires_at: None,
        };
        assert!(worker(&[], &[]).may_claim("q") && worker(&["q"], &[]).may_claim("q"));
        assert!(!worker(&["q"], &[]).may_claim("r") && !worker(&[], &["u"]).may_claim("q"));
        assert!(worker(&[], &["u"]).may_poll("u") && !worker(&["q"], &[]).may_poll("u"));
        assert!(!Access::View.allows(Role::Worker) && Access::Work.allows(Role::Worker));
        assert!(Access::View.allows(Role::Viewer) && !Access::Operate.allows(Role::Viewer));
        assert!(!Access::Author.allows(Role::Operator) && Access::Admin.allows(Role::Admin));
    }
}
