//! Tokens of the table: how they are made, and looked up.
//!
//! A token is 256 random bits; the table has its SHA-256. A lookup is by that hash, here in a map, there in an index:
//! what its timing could leak is something of a hash, from which no token can be made, so nothing is compared byte by
//! byte with what a caller sent.
//!
//! A token that was valid recently is accepted for [`TOKEN_TTL`]. After that, or when the log of changes says that a
//! token has changed, the table is read again, without waiting in the queue of unknown tokens. The same if the node has
//! not read that log for about 2 s ([`Known::is_followed`]): its process may have been stopped, and a token revoked
//! meanwhile. While the table cannot be read, a few routes accept it for [`REMEMBERED_FOR`]; see
//! [`super::authenticate_in_outage`].

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_domain::{Chance, Time};
use heddle_store::token::TokenRow;
use sha2::{Digest, Sha256};

use super::token_cache::{Flight, Key, Known, Shown, Token, USES_MAX};
use super::{Caller, Peer, refused};
use crate::app::App;
use crate::problem::Problem;

/// The prefix of tokens, by which scanners for leaked credentials recognise them.
pub const TOKEN_PREFIX: &str = "hdl_";

/// How long a node uses a result of the table. A revocation takes effect at once all the same: it is in the log of
/// changes.
const TOKEN_TTL: TimeDelta = TimeDelta::seconds(5);

/// How long a check counts for routes that are needed while the database does not answer.
const REMEMBERED_FOR: TimeDelta = TimeDelta::seconds(3_600);

/// How often a node writes which tokens were used.
pub const USES_WRITTEN_EVERY: Duration = Duration::from_secs(2);

/// `prefix` and 256 random bits.
fn random(prefix: &str, chance: &dyn Chance) -> String {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&chance.bits().to_be_bytes());
    bytes[16..].copy_from_slice(&chance.bits().to_be_bytes());
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// Makes a token's text of 256 random bits.
pub(super) fn new_token(chance: &dyn Chance) -> String {
    random(TOKEN_PREFIX, chance)
}

/// Makes the text of a session's cookie of 256 random bits.
pub(super) fn new_session(chance: &dyn Chance) -> String {
    random("hds_", chance)
}

/// The stored form of a token, or of a session's cookie.
pub fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Whether a token has not expired.
fn in_force(row: &TokenRow, now: Time) -> bool {
    row.expires_at.is_none_or(|expires_at| expires_at > now)
}

/// A token that this node has found valid not long ago, if no token has changed since. An answer of the table that it
/// is not valid any more ends this at once.
pub(super) fn remembered(app: &App, key: Key, now: Time) -> Option<Arc<Token>> {
    let known = app.tokens.good.get(&key)?;
    let counts = known.counts_for(REMEMBERED_FOR - TOKEN_TTL, app.tokens.age(), now);
    (counts && in_force(&known.answer.row, now)).then_some(known.answer)
}

/// The token of a hash, if it is valid. 401 if it is not; 429 if too many unknown ones were shown. Its use is noted
/// whenever the table is read, which is often enough.
pub(crate) async fn look_up(
    app: &App,
    peer: Peer,
    shown: Shown,
    hash: [u8; 32],
    now: Time,
) -> Result<Arc<Token>, Problem> {
    let key = (shown, hash);
    // Before the age: what this look at the log has found has changed the age already.
    let looked = app.engine.changes_looked();
    let age = app.tokens.age();
    let was_good = match app.tokens.good.get(&key) {
        Some(known) if known.is_valid(age, now) && known.is_followed(looked, app.engine.elapsed()) => {
            return if in_force(&known.answer.row, now) {
                Ok(known.answer)
            } else {
                Err(refused())
            };
        }
        Some(_) => true,
        None if app.tokens.bad.get(&key).is_some_and(|known| known.is_valid(age, now)) => return Err(refused()),
        None => false,
    };
    let flight = Flight::join(&app.tokens, (key, age));
    flight
        .answer
        .get_or_init(|| ask(app, peer, key, (age, was_good), now))
        .await
        .clone()
}

/// Whether a token that was valid when a request began still is; only a few of these checks run at once, however many
/// requests there are.
pub(super) async fn recheck(app: &App, peer: Peer, key: Key, now: Time) -> Result<(), Problem> {
    let _permit = app.tokens.rechecks.acquire().await;
    look_up(app, peer, key.0, key.1, now).await.map(drop)
}

async fn ask(app: &App, peer: Peer, key: Key, (age, was_good): (u64, bool), now: Time) -> Result<Arc<Token>, Problem> {
    if !was_good {
        app.rates.of_unknown(peer)?;
    }
    let asked = app.engine.elapsed();
    let row = match key {
        (Shown::Token, hash) => app.store.token_by_hash(&hash, now).await?,
        (Shown::Session, hash) => {
            let issuer = app.config.provider.as_ref().map(|provider| provider.issuer());
            app.store.session(&hash, issuer, now).await?
        }
    };
    if row.is_some() && !was_good {
        app.rates.was_known(peer);
    }
    let token = row.map(|row| {
        app.tokens.used(row.id, now);
        let caller = Caller::of(&row).map(Arc::new);
        Arc::new(Token { row, caller })
    });
    let until = now + TOKEN_TTL;
    let answer = token.clone();
    match answer {
        // A newer answer may be there already.
        Some(_) if app.tokens.age() != age => {}
        Some(answer) => {
            let known = Known {
                answer,
                until,
                age,
                asked,
            };
            app.tokens.good.insert(key, known);
        }
        None => {
            app.tokens.good.remove(&key);
            let known = Known {
                answer: (),
                until,
                age,
                asked,
            };
            app.tokens.bad.insert(key, known);
        }
    }
    token.ok_or_else(refused)
}

impl App {
    /// Writes which tokens were used since the last time; called every [`USES_WRITTEN_EVERY`], and at the end.
    pub async fn write_token_uses(&self) {
        loop {
            let uses = self.tokens.take_uses();
            let full = uses.len() == USES_MAX;
            if uses.is_empty() {
                return;
            }
            if let Err(error) = self.store.touch_tokens(&uses).await {
                tracing::warn!(error = %Chain(&error), tokens = uses.len(), "cannot record when tokens were last \
                    used; trying again later");
                return;
            }
            if !full {
                return;
            }
        }
    }
}
