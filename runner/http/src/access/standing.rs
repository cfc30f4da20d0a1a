//! For how long what a caller has shown stays in force, of requests that last.
//!
//! A token is looked at when a request begins; but a stream, a poll that hangs or a body that trickles in may go on for
//! hours after that. So each of these keeps what was shown beside it, and ends when that is in force no more: at its
//! `expires_at`, or when the log of changes says that a token has changed, here or on another node, and the table says
//! that it was this one. A poll is dropped like one whose caller has gone away: what it may just have been given goes back.
//!
//! Nothing is missed between the look when a request begins and the moment at which it begins to listen: it knows how
//! often tokens had changed before that look, and compares. What cannot be asked (the database is busy or away) is asked
//! again until there is an answer; until then the request goes on, as it would not have been told of the change either.

use std::time::Duration;

use axum::http::StatusCode;
use heddle_domain::Time;

use super::Admitted;
use super::rate::Peer;
use super::tokens::{self, Key};
use crate::app::App;

/// How many requests of a node ask at once whether their tokens are in force still, after a change: all others go on
/// being served meanwhile. Requests with the same token ask once.
pub(super) const RECHECKS_MAX: usize = 4;

/// How soon a question that got no answer is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What a request's caller has shown.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    peer: Peer,
    /// `None`: what no table knows, so only time ends it.
    key: Option<Key>,
    expires_at: Option<Time>,
    /// How often tokens had changed, to this node's knowledge, before the table was asked for this one.
    age: u64,
}

impl Standing {
    /// Of what was looked at when tokens had changed `age` times.
    pub(crate) fn new(admitted: &Admitted, peer: Peer, age: u64) -> Self {
        Self {
            peer,
            key: admitted.key,
            expires_at: admitted.caller.expires_at,
            age,
        }
    }

    /// Waits until it is in force no more.
    pub(crate) async fn end(&self, app: &App) {
        let mut changes = app.tokens.changes();
        let mut age = self.age;
        loop {
            let now = app.clock.now();
            let left = match self.expires_at.map(|at| (at - now).to_std()) {
                None => None,
                Some(Ok(left)) if !left.is_zero() => Some(left),
                Some(_) => return,
            };
            let newest = *changes.borrow_and_update();
            let mut again = None;
            if let Some(key) = self.key.filter(|_| newest != age) {
                match tokens::recheck(app, self.peer, key, now).await {
                    Ok(()) => age = newest,
                    Err(problem) if problem.status == StatusCode::UNAUTHORIZED => return,
                    Err(_) => again = Some(ASK_AGAIN_AFTER),
                }
            }
            let pause = async {
                match left.into_iter().chain(again).min() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                // The sender lives as long as the app.
                _ = changes.changed() => {}
            }
        }
    }
}
