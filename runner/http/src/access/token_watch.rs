//! Requests that last end with the token of their caller.
//!
//! A token is checked when a request begins; but a stream, a waiting poll or a slow body may last for hours after that.
//! So each of these keeps its token, and ends when the token is not valid any more: at its `expires_at`, or when the
//! log of changes says that a token has changed, here or on another node, and the table says that it was this one. A
//! poll is dropped as if its caller had gone away: what it may just have been given is given back.
//!
//! No change is missed between the check at the begin of a request and the moment at which it begins to listen: it
//! knows how many changes of tokens there had been before that check, and compares. If the table cannot be read (the
//! database is busy or away), it is tried again until there is an answer; until then the request continues, as it would
//! without news of the change.

use std::time::Duration;

use axum::http::StatusCode;
use heddle_domain::Time;

use super::token_cache::Key;
use super::{Admitted, Peer, tokens};
use crate::app::App;

/// How soon a check that got no answer is repeated.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The token or session of a request's caller, and how to learn of its end.
#[derive(Clone, Debug)]
pub(crate) struct TokenWatch {
    peer: Peer,
    /// `None`: the token is in no table, so only its expiry ends it.
    key: Option<Key>,
    expires_at: Option<Time>,
    /// How many changes of tokens this node knew before it read this token from the table.
    age: u64,
}

impl TokenWatch {
    /// For a token that was checked when tokens had changed `age` times.
    pub(crate) fn new(admitted: &Admitted, peer: Peer, age: u64) -> Self {
        Self {
            peer,
            key: admitted.key,
            expires_at: admitted.caller.expires_at,
            age,
        }
    }

    /// Waits until it is not valid any more.
    pub(crate) async fn ended(&self, app: &App) {
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
