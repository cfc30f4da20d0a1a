//! Connects the pages with the API: the API authenticates their requests, and their changes go through its routes.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::Response;
use futures::future::BoxFuture;
use heddle_domain::Clock;
use heddle_engine::Engine;
use heddle_http::App;
use heddle_http::access::{Role, Vouched, provider};
use heddle_http::problem::Problem;
use heddle_ui::{Host, Redirect, SignInFailed, Turned, Ui, Viewer};
use tower::ServiceExt;

/// The parts of this process that pages need.
struct Beside {
    app: App,
    api: Router,
    dev: bool,
}

fn redirect(found: Result<provider::Redirect, provider::SignInFailed>) -> Result<Redirect, SignInFailed> {
    use provider::Wrong;
    match found {
        Ok(provider::Redirect { to, cookies }) => Ok(Redirect { to, cookies }),
        Err(failed) => Err(match failed {
            provider::SignInFailed::Away => SignInFailed::Away,
            provider::SignInFailed::NotBegun => SignInFailed::NotBegun,
            provider::SignInFailed::Denied(code) => SignInFailed::Denied(code),
            provider::SignInFailed::Wrong(what) => SignInFailed::Wrong(match what {
                Wrong::Code => "code",
                Wrong::Form => "form",
                Wrong::Key => "key",
                Wrong::Signature => "signature",
                Wrong::Issuer => "issuer",
                Wrong::Audience => "audience",
                Wrong::Expired => "expired",
                Wrong::Nonce => "nonce",
                Wrong::Person => "person",
                Wrong::Control => "control",
            }),
            provider::SignInFailed::NoRole(person) => SignInFailed::NoRole(person),
            provider::SignInFailed::Problem(problem) => SignInFailed::Turned(turned(problem)),
        }),
    }
}

fn turned(problem: Problem) -> Turned {
    Turned {
        status: problem.status.as_u16(),
        detail: problem.detail,
    }
}

impl Host for Beside {
    fn admit<'a>(&'a self, parts: &'a mut Parts) -> BoxFuture<'a, Result<Viewer, Turned>> {
        Box::pin(async move {
            let vouched = heddle_http::admit(&self.app, parts).await.map_err(turned)?;
            let caller = vouched.caller();
            let viewer = Viewer {
                actor: caller.actor.clone(),
                role: match caller.role {
                    Role::Viewer => heddle_ui::Role::Viewer,
                    Role::Operator => heddle_ui::Role::Operator,
                    Role::Author => heddle_ui::Role::Author,
                    Role::Worker => heddle_ui::Role::Worker,
                    Role::Admin => heddle_ui::Role::Admin,
                },
                dev: self.dev,
            };
            parts.extensions.insert(vouched);
            Ok(viewer)
        })
    }

    fn left(&self, parts: &Parts) -> BoxFuture<'static, ()> {
        let app = self.app.clone();
        match parts.extensions.get::<Vouched>().cloned() {
            Some(vouched) => Box::pin(vouched.ends(app)),
            None => Box::pin(std::future::pending()),
        }
    }

    fn provider(&self) -> Option<&str> {
        self.app.config.provider.as_ref().map(|provider| provider.name())
    }

    fn begin<'a>(&'a self, parts: &'a Parts, to: &'a str) -> BoxFuture<'a, Result<Redirect, SignInFailed>> {
        Box::pin(async move {
            match &self.app.config.provider {
                Some(provider) => redirect(provider.begin(&self.app, parts, to).await),
                None => Err(SignInFailed::NotBegun),
            }
        })
    }

    fn finish<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Redirect, SignInFailed>> {
        Box::pin(async move {
            match &self.app.config.provider {
                Some(provider) => redirect(provider.finish(&self.app, parts).await),
                None => Err(SignInFailed::NotBegun),
            }
        })
    }

    fn read<'a>(
        &'a self,
        parts: &'a Parts,
        known: bool,
        body: Body,
        bytes_max: usize,
        counted: bool,
    ) -> BoxFuture<'a, Result<Bytes, Turned>> {
        Box::pin(async move {
            let read = heddle_http::read_form(&self.app, parts, known, body, bytes_max, counted);
            read.await.map_err(turned)
        })
    }

    fn call(&self, request: Request) -> BoxFuture<'static, Response> {
        let api = self.api.clone();
        Box::pin(async move {
            match api.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

/// The router of the API and the pages.
pub(crate) fn router(app: App, engine: Engine, clock: Arc<dyn Clock>, dev: bool) -> Router {
    let beside = Beside {
        api: heddle_http::router(app.clone()),
        app: app.clone(),
        dev,
    };
    let ui = Ui::new(engine, Arc::new(beside), clock, env!("CARGO_PKG_VERSION"));
    heddle_http::router_with(app, Arc::new(move |request| ui.answer(request)))
}
