//! The log of changes, which nodes follow.
//!
//! A node that caches objects of people (specs, tokens, pools, ...) reads this log from its last position and drops
//! what has changed. That works only if no row ever appears before a position that was already read. So writers take an
//! advisory lock before they insert and hold it until they commit: ids become visible in their order. People change
//! things rarely, so that lock does not matter. For runs it would, so they do not use this log.
//!
//! After the commit, the other nodes are woken. That must not be a part of the transaction: if one session of the server does
//! not read its notifications for long, the server's queue of them becomes full, and then it refuses each commit with one.
//!
//! A transaction only notes what it has changed (`announce`). Its commit writes the rows. So this lock is the last one
//! of each transaction, whatever the order of its changes: nobody who holds it waits for another lock.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heddle_domain::{Chain, Time};

use crate::database::{Announced, PgSession, column};
use crate::{Store, StoreError};

/// Who changes something, and when.
#[derive(Clone, Copy, Debug)]
pub struct By<'a> {
    /// A token's name, `dev`, or a part of Heddle itself.
    pub actor: &'a str,
    pub at: Time,
}

/// The nouns and their names: each is written only here.
macro_rules! nouns {
    ($($(#[$said:meta])* $noun:ident = $word:literal,)*) => {
        /// What a change or an audit row is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Noun {
            $($(#[$said])* $noun,)*
        }

        impl Noun {
            /// The names of all of them.
            pub const WORDS: &[&str] = &[$($word),*];

            /// Its name in `changes.kind` and `audit.kind`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$noun => $word,)*
                }
            }

            /// The noun with this name. `None`: only newer builds know it.
            fn of(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$noun),)*
                    _ => None,
                }
            }
        }
    };
}

nouns! {
    Backfill = "backfill",
    Assignment = "assignment",
    /// In the log of changes: the offers of the audience have changed, or some of their stock came back.
    Audience = "audience",
    Category = "category",
    Channel = "channel",
    Connection = "connection",
    Group = "group",
    /// In the log of changes: the members of the audience have changed.
    Members = "members",
    Notification = "notification",
    Offer = "offer",
    Pool = "pool",
    Queue = "queue",
    Run = "run",
    Runtime = "runtime",
    Script = "script",
    Secret = "secret",
    Setting = "setting",
    Template = "template",
    Token = "token",
    Topic = "topic",
}

impl Noun {
    /// Those of which only an admin can list the objects.
    const OF_ADMINS: [Self; 3] = [Self::Connection, Self::Secret, Self::Token];

    /// Their names in the audit. An entry about a session is one about its token.
    pub const WORDS_OF_ADMINS: [&str; 3] = [
        Self::OF_ADMINS[0].as_str(),
        Self::OF_ADMINS[1].as_str(),
        Self::OF_ADMINS[2].as_str(),
    ];
}

/// The result of a PUT.
#[derive(Clone, Debug, PartialEq)]
pub struct Put<T> {
    /// The object after it.
    pub row: T,
    /// Whether it did not exist before.
    pub created: bool,
    /// Whether anything was written.
    pub changed: bool,
}

/// How many bytes of JSON one statement reads for a page whose items may be large: it ends with the item that goes beyond,
/// so it has at least one. A specification can have megabytes, and a page five hundred of them.
///
/// These statements add up twice. First they add up what Postgres stores (`pg_column_size`), which costs nothing: so that no
/// more than so much of it is unpacked, however many rows the limit allows. Then they add up what is left as JSON text,
/// which can be much longer than what is stored.
pub const PAGE_BYTES_MAX: i64 = 4 << 20;

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// At most as many as were requested.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last one.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Makes a page of up to `limit + 1` rows: the extra row only shows that there are more.
    pub(crate) fn of(mut items: Vec<T>, limit: i64, key: impl Fn(&T) -> String) -> Self {
        let limit = usize::try_from(limit).unwrap_or(0);
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(key) } else { None };
        Self { items, next }
    }

    /// The same of rows that were read up to [`PAGE_BYTES_MAX`], each with whether it goes beyond that: then more may
    /// follow the last one.
    pub(crate) fn of_bounded(rows: Vec<(T, bool)>, limit: i64, key: impl Fn(&T) -> String) -> Self {
        let last = rows.last().filter(|(_, cut)| *cut).map(|(row, _)| key(row));
        let page = Self::of(rows.into_iter().map(|(row, _)| row).collect(), limit, key);
        Self {
            next: page.next.or(last),
            ..page
        }
    }
}

/// A row of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub id: i64,
    /// `None`: a newer node wrote it, about a noun that this build does not know.
    pub noun: Option<Noun>,
    pub name: String,
    pub at: Time,
}

/// The channel of notifications that the log has grown.
pub const CHANGES_CHANNEL: &str = "heddle_changes";

/// How long a commit that has succeeded waits for the wake-up to be sent.
const WAKE_MAX: Duration = Duration::from_secs(2);

/// Serialises writers of the log; see the head of this file.
const CHANGES_LOCK: i64 = 0x6865_6464_6c65_0001;

/// Makes the commit of the transaction write the log row of a change.
pub(crate) fn announce(connection: &mut PgSession, at: Time, noun: Noun, name: &str) {
    connection.announce(Announced {
        kind: noun.as_str(),
        name: name.into(),
        at,
    });
}

/// Writes rows of the log, in their order, right before the commit.
///
/// Locking: the last lock of a transaction. Nothing comes after it but the commit.
pub(crate) async fn write(connection: &mut PgSession, announced: &[Announced]) -> Result<(), sqlx::Error> {
    if announced.is_empty() {
        return Ok(());
    }
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", CHANGES_LOCK)
        .execute(&mut *connection)
        .await?;
    sqlx::query!(
        "INSERT INTO heddle.changes (kind, name, at)
         SELECT kind, name, at
           FROM UNNEST($1::text[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS a (kind, name, at, ordinal)
          ORDER BY ordinal",
        &column(announced, |one| one.kind) as &[&str],
        &column(announced, |one| one.name.as_str()) as &[&str],
        &column(announced, |one| one.at),
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Says to the other nodes that the log has grown, after the commit. Without it, they find the change when they poll. So an
/// error is only logged, once in the life of the program: it is about the server, not about this change.
pub(crate) async fn wake(connection: &mut PgSession) {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    let sent = sqlx::query!("SELECT pg_notify($1, '')", CHANGES_CHANNEL).execute(connection);
    if let Some(why) = not_sent(sent).await
        && !IS_LOGGED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            why,
            "other nodes were not told of a change, and find it when they poll; this is not logged again"
        );
    }
}

/// Waits until a notification is sent, no longer than [`WAKE_MAX`]; returns why it was not, if it was not. A statement that is
/// abandoned here is ended before its session is used again.
async fn not_sent<T, E: Error>(sending: impl Future<Output = Result<T, E>>) -> Option<String> {
    match tokio::time::timeout(WAKE_MAX, sending).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(Chain(&error).to_string()),
        Err(_) => Some(format!("no answer within {} s", WAKE_MAX.as_secs())),
    }
}

/// Lets only one writer of a name work at a time, also while there is no row to lock yet.
///
/// Locking: first the name, then the row of that name. Another PUT of the same name waits for this lock, before it
/// locks the row.
pub(crate) async fn lock_name(connection: &mut PgSession, noun: Noun, name: &str) -> Result<(), StoreError> {
    let key = format!("heddle/{}/{name}", noun.as_str());
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key)
        .execute(connection)
        .await?;
    Ok(())
}

impl Store {
    /// Says to the other nodes that ended runs go on, after the commit: `payload` names them. It takes two seconds at most. An
    /// error is only logged, once in the life of the program, as for a change.
    pub async fn wake_for_reopened(&self, channel: &str, payload: &str) {
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        if let Some(why) = not_sent(self.notify(channel, payload)).await
            && !IS_LOGGED.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                why,
                "other nodes were not told that runs go on, and may use what they know of these for a while; this is not \
                 logged again"
            );
        }
    }

    /// The changes after `position`, in order, at most `limit` rows.
    pub async fn changes_since(&self, position: i64, limit: i64) -> Result<Vec<Change>, StoreError> {
        let rows = sqlx::query!(
            "SELECT id, kind, name, at FROM heddle.changes WHERE id > $1 ORDER BY id LIMIT $2",
            position,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let change = rows.into_iter().map(|row| Change {
            id: row.id,
            noun: Noun::of(&row.kind),
            name: row.name,
            at: row.at,
        });
        Ok(change.collect())
    }

    /// The newest position of the log; 0 when nothing has changed yet.
    pub async fn changes_position(&self) -> Result<i64, StoreError> {
        Ok(
            sqlx::query_scalar!(r#"SELECT COALESCE(max(id), 0) AS "id!" FROM heddle.changes"#)
                .fetch_one(&self.pool)
                .await?,
        )
    }

    /// Deletes at most `limit` rows older than `before`, but never the newest one, which keeps the position.
    pub async fn prune_changes(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.changes WHERE id IN (
                 SELECT id FROM heddle.changes
                 WHERE at < $1 AND id < (SELECT max(id) FROM heddle.changes)
                 ORDER BY id LIMIT $2)",
            before,
            limit,
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}
