//! Heddle's pages: HTML that is made on the server, works before any script has loaded, and keeps itself up to date after.
//!
//! # How a page comes about
//!
//! [`Ui::answer`] is called for every path that is not the API's. It asks who comes in ([`Host::admit`]), makes a
//! `Ctx` of the request (words, zone, query), and `pages::page`, the one table of pages, picks the function that
//! reads what the page shows and writes it as HTML. Pages read through the store and through the API's own `GET`s
//! (`Ctx::get`, in the types of the wire); whatever changes something goes through the API (`Ctx::send`, or `Ctx::ask` where
//! the answer is read), in the same process and with the caller's own rights, so that a page can do nothing that the API
//! would refuse, and no rule stands twice.
//!
//! # How it stays up to date
//!
//! Parts of a page that may change are written by `Ctx::live`. A page keeps one connection open to `/live` (`live`);
//! there its function runs again when something may have changed, at most four times a second, and only those parts are
//! sent whose text is another than what the browser has.
//!
//! # What is never done
//!
//! Nothing that people wrote is HTML: maud escapes what it is given, and the Content-Security-Policy has neither inline
//! scripts nor inline styles. Nothing is fetched from elsewhere. No page waits for a script.

mod answer;
mod assets;
mod chart;
mod ctx;
pub mod difference;
mod digits;
mod elements;
mod form;
mod frame;
mod home;
mod layout;
mod live;
mod once;
mod pages;
mod span;
mod trouble;
mod typed;
mod words;
mod yaml;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use heddle_domain::Clock;
use heddle_engine::{Engine, FairSlots};
use quick_cache::sync::Cache;

pub(crate) use ctx::Ctx;
pub(crate) use trouble::Trouble;

/// The rights of a caller, as far as pages offer actions; the API decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Viewer,
    /// Groups, runs, offers, topics.
    Operator,
    Author,
    /// No page may be seen.
    Worker,
    Admin,
}

/// The viewer of a page.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// The name of the viewer in the audit.
    pub actor: String,
    /// What the viewer may do.
    pub role: Role,
    /// `heddle dev`: nobody signs in or out.
    pub dev: bool,
}

impl Viewer {
    pub(crate) fn operates(&self) -> bool {
        matches!(self.role, Role::Operator | Role::Admin)
    }

    pub(crate) fn authors(&self) -> bool {
        matches!(self.role, Role::Author | Role::Admin)
    }

    pub(crate) fn tries(&self) -> bool {
        self.operates() || self.authors()
    }

    pub(crate) fn administers(&self) -> bool {
        self.role == Role::Admin
    }
}

/// Why a request was not admitted.
#[derive(Clone, Debug)]
pub struct Turned {
    /// 401: sign in; 403: not from there; 408 and 413: too slow, too large; 429 and 503: later.
    pub status: u16,
    pub detail: String,
}

/// Why a person could not sign in with an account at a provider.
#[derive(Clone, Debug)]
pub enum SignInFailed {
    /// The provider does not answer.
    Away,
    /// The sign-in was begun in another browser, or too long ago.
    NotBegun,
    /// The provider refused, with this code.
    Denied(String),
    /// The provider's answer is invalid: `code`, `form`, `key`, `signature`, `issuer`, `audience`, `expired`, `nonce`,
    /// `person` or `control`.
    Wrong(&'static str),
    /// Nothing gives this person a role.
    NoRole(String),
    /// The request failed for a reason that has nothing to do with the provider.
    Turned(Turned),
}

/// Where a browser goes next on its way to a provider and back, and the cookies that it gets.
#[derive(Clone, Debug)]
pub struct Redirect {
    /// The provider's page, or one of our own.
    pub to: String,
    pub cookies: Vec<HeaderValue>,
}

/// What pages need from their process.
pub trait Host: Send + Sync + 'static {
    /// Authenticates a request. It may leave its result in the request's extensions for [`Host::call`].
    fn admit<'a>(&'a self, parts: &'a mut Parts) -> BoxFuture<'a, Result<Viewer, Turned>>;
    /// Completes when the viewer who was admitted with this request is not admitted any more: a revoked token, an ended
    /// session.
    fn left(&self, parts: &Parts) -> BoxFuture<'static, ()>;
    /// The name of the provider with which people may sign in, if there is one.
    fn provider(&self) -> Option<&str>;
    /// Sends a browser to the provider. Afterwards, the browser goes `to` a page.
    fn begin<'a>(&'a self, parts: &'a Parts, to: &'a str) -> BoxFuture<'a, Result<Redirect, SignInFailed>>;
    /// Handles the browser's return from the provider.
    fn finish<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Redirect, SignInFailed>>;
    /// Reads the body of a request. Its time and size are bounded, more tightly for a caller who is not `known`. If it is
    /// `counted`, so is the memory that all bodies of the node take together.
    fn read<'a>(
        &'a self,
        parts: &'a Parts,
        known: bool,
        body: Body,
        bytes_max: usize,
        counted: bool,
    ) -> BoxFuture<'a, Result<Bytes, Turned>>;
    /// Calls the API, as if the request had come over the network.
    fn call(&self, request: Request) -> BoxFuture<'static, Response>;
}

/// The pages of a node. Cheap to clone.
#[derive(Clone)]
pub struct Ui(Arc<Shared>);

/// The inside of [`Ui`].
pub struct Shared {
    pub(crate) engine: Engine,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) version: &'static str,
    pub(crate) pulse: live::Pulse,
    /// Runs that have ended, as their pages have them.
    pub(crate) ended: pages::EndedRuns,
    /// The names of topics, by their numbers: those that pages have told of.
    pub(crate) topics: Cache<i32, Option<String>>,
    /// What the retention would remove, as it was counted last.
    pub(crate) due: pages::LastCount,
    /// A slot for each upload whose body is in memory.
    pub(crate) uploads: Arc<FairSlots>,
}

impl std::ops::Deref for Ui {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Ui {
    /// The pages of the node that has this engine.
    pub fn new(engine: Engine, host: Arc<dyn Host>, clock: Arc<dyn Clock>, version: &'static str) -> Self {
        Self(Arc::new(Shared {
            engine,
            host,
            clock,
            version,
            pulse: live::Pulse::default(),
            ended: pages::ended_runs(),
            topics: Cache::new(ctx::TOPICS_KEPT),
            due: pages::LastCount::default(),
            uploads: FairSlots::new(answer::UPLOADS_MAX, answer::UPLOADS_OF_ONE_MAX),
        }))
    }

    /// Answers a request for a page, a form, an asset or a page's changes. The boxed future keeps the code of all pages in
    /// this crate: an `async fn` would be compiled where it is called.
    pub fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        Box::pin(answer::answer(self.clone(), request))
    }
}
