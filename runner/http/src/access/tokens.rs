//! Tokens of the table, and what a node remembers of them.
//!
//! A token is 256 random bits; the table has its SHA-256. A lookup is by that hash, here in a map, there in an index:
//! what its timing could leak is something of a hash, from which no token can be made, so nothing is compared byte by
//! byte with what a caller sent.
//!
//! A token that was valid recently is accepted for [`TOKEN_TTL`]. After that, or when the log of changes says that a
//! token has changed, the table is read again, without waiting in the queue of unknown tokens. Invalid tokens are
//! remembered separately, so that a flood of wrong tokens evicts no valid one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_domain::{Chance, Time};
use heddle_store::token::TokenRow;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore, watch};
use uuid::Uuid;

use super::rate::Peer;
use super::{Caller, refused};
use crate::app::App;
use crate::problem::Problem;

/// The prefix of tokens, by which scanners for leaked credentials recognise them.
pub const TOKEN_PREFIX: &str = "hdl_";

/// How long a node uses a result of the table. A revocation takes effect at once all the same: it is in the log of
/// changes.
const TOKEN_TTL: TimeDelta = TimeDelta::seconds(5);

/// How many tokens in force a node remembers, and how many that were not; beyond that it forgets the least used of a kind.
const TOKENS_MAX: usize = 10_000;

/// How often the use of one token is written at most.
const USED_EVERY: TimeDelta = TimeDelta::seconds(60);

/// How often a node writes which tokens were used.
pub const USES_WRITTEN_EVERY: Duration = Duration::from_secs(2);

/// How many uses one statement writes.
const USES_MAX: usize = 1_000;

/// How many requests of a node check their tokens at once after a change: all others continue meanwhile. Requests with
/// the same token share one check.
const RECHECKS_MAX: usize = 4;

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

/// The source of a hash: each counts only for its own header, remembered or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shown {
    Token,
    /// The cookie of a session.
    Session,
}

/// A token of the table, and its owner.
#[derive(Debug)]
pub(crate) struct Token {
    pub(super) row: TokenRow,
    /// `None`: this program does not know its role.
    pub(super) caller: Option<Arc<Caller>>,
}

/// What a caller has shown: whether it is a token or a session, and its hash.
pub(super) type Key = (Shown, [u8; 32]);

/// An answer of the table, and when it was asked for.
#[derive(Clone, Debug)]
struct Known<T> {
    answer: T,
    until: Time,
    /// The cache's age then: an older answer is not used.
    age: u64,
}

impl<T> Known<T> {
    fn is_valid(&self, age: u64, now: Time) -> bool {
        self.age == age && self.until > now
    }
}

/// The table's answer for all who show the same token meanwhile.
type Answer = Arc<OnceCell<Result<Arc<Token>, Problem>>>;

/// Recent answers of the table, by hash; and which tokens were used and not yet noted.
#[derive(Debug)]
pub(crate) struct TokenCache {
    good: Cache<Key, Known<Arc<Token>>>,
    bad: Cache<Key, Known<()>>,
    /// The cache's age: how often a token has changed.
    changes: watch::Sender<u64>,
    rechecks: Semaphore,
    /// The open look-ups, by hash and age; one entry for each token for which a request waits.
    asked: Mutex<HashMap<(Key, u64), Answer>>,
    /// Uses to be written, and those that were written last.
    uses: Mutex<HashMap<Uuid, Time>>,
    written: Cache<Uuid, Time>,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self {
            good: Cache::new(TOKENS_MAX),
            bad: Cache::new(TOKENS_MAX),
            changes: watch::Sender::default(),
            rechecks: Semaphore::new(RECHECKS_MAX),
            asked: Mutex::default(),
            uses: Mutex::default(),
            written: Cache::new(TOKENS_MAX),
        }
    }
}

impl TokenCache {
    /// Reads the table again for each token, also for those of open requests.
    pub(crate) fn clear(&self) {
        self.changes.send_modify(|age| *age += 1);
    }

    /// How often the answers were forgotten.
    pub(crate) fn age(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Announces when they are forgotten again.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Notes that a token was used; it is written later, with others.
    pub(super) fn used(&self, id: Uuid, now: Time) {
        // A person's session is no token's.
        if id.is_nil() {
            return;
        }
        if self.written.get(&id).is_some_and(|at| now - at < USED_EVERY) {
            return;
        }
        let mut uses = self.uses.lock();
        if uses.len() < TOKENS_MAX || uses.contains_key(&id) {
            uses.insert(id, now);
        }
    }

    /// Takes up to [`USES_MAX`] uses that are to be written.
    fn take_uses(&self) -> Vec<(Uuid, Time)> {
        let mut uses = self.uses.lock();
        let ids: Vec<Uuid> = uses.keys().copied().take(USES_MAX).collect();
        let taken: Vec<(Uuid, Time)> = ids.into_iter().filter_map(|id| uses.remove_entry(&id)).collect();
        for (id, at) in &taken {
            self.written.insert(*id, *at);
        }
        taken
    }
}

/// A request's part in a look-up. A node that has just started gets the same token from all of its pollers at once: one
/// of them looks it up, as an unknown one, and all get the answer.
struct Flight<'a> {
    cache: &'a TokenCache,
    key: (Key, u64),
    answer: Answer,
}

impl<'a> Flight<'a> {
    fn join(cache: &'a TokenCache, key: (Key, u64)) -> Self {
        let answer = cache.asked.lock().entry(key).or_default().clone();
        Self { cache, key, answer }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut asked = self.cache.asked.lock();
        // A request that comes after the answer looks up again; the last one that waits removes the entry.
        let ours = asked
            .get(&self.key)
            .is_some_and(|answer| Arc::ptr_eq(answer, &self.answer));
        if ours && (self.answer.initialized() || Arc::strong_count(&self.answer) == 2) {
            asked.remove(&self.key);
        }
    }
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
    let in_force = |row: &TokenRow| row.expires_at.is_none_or(|expires_at| expires_at > now);
    let age = app.tokens.age();
    let was_good = match app.tokens.good.get(&key) {
        Some(known) if known.is_valid(age, now) => {
            return if in_force(&known.answer.row) {
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
        Some(answer) => app.tokens.good.insert(key, Known { answer, until, age }),
        None => {
            app.tokens.good.remove(&key);
            app.tokens.bad.insert(key, Known { answer: (), until, age });
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
