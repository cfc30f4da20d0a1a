//! Bringing the schema up to date, beside nodes that work on it.
//!
//! A migration that changes a table waits until nobody uses the table. Whoever comes later waits behind it: if a backup
//! reads `heddle.nodes` for an hour, the migration waits for the backup, all heartbeats wait for the migration, and all
//! nodes lose their leases. So a migration waits for a lock only for a moment. Then it fails, the heartbeats pass, and it
//! is tried again. Most migrations are one transaction, of which nothing is left; the others can be begun again.

use std::time::Duration;

use sqlx::migrate::MigrateError;
use tokio::time::Instant;

use crate::database::{MIGRATION_MAX, PgSession, Plans};
use crate::error::lacked_rights;
use crate::{Store, StoreError};

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

/// The longest that a statement of a migration waits for a lock, if the server looks for deadlocks soon enough.
const LOCK_WAIT_MIN: Duration = Duration::from_secs(2);

/// The longest at all. All heartbeats wait as long, and the next begins 2 s after the last; a node stops its work after 6 s
/// without one.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(3);

/// So much longer than `deadlock_timeout` a statement waits. At that time, the server cancels an autovacuum that is in the way;
/// whoever gives up earlier would find it there at each try.
const LOCK_WAIT_BEYOND: Duration = Duration::from_secs(1);

/// After which wait the server looks what is in the way, in milliseconds.
const DEADLOCK_TIMEOUT: &str =
    "SELECT (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000)::bigint";

/// Sets the limit of waits for locks, in milliseconds.
const SHORT_WAITS: &str = "SELECT set_config('lock_timeout', $1, false)";

/// The pause after a migration that could not lock a table. In it, each node sends some heartbeats, and the data plane
/// catches up.
const MIGRATES_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The pause after a wait for another node that migrates: nobody waits behind that.
const MIGRATOR_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How often a migration is looked at, whether it waits for somebody.
const BLOCKERS_EVERY: Duration = Duration::from_secs(1);

/// Those for whose locks a session waits, for people. Without the text of their statements, which may contain secrets.
const BLOCKERS: &str = "
    SELECT string_agg(format('process %s (application %L%s)', a.pid, a.application_name,
                             ', in its transaction for '
                             || floor(extract(epoch FROM clock_timestamp() - a.xact_start))::bigint || ' s'),
                      ', ' ORDER BY a.xact_start)
      FROM pg_stat_activity a
     WHERE a.pid = ANY (pg_blocking_pids($1))";

impl Store {
    /// Applies migrations. Nodes that start together wait for each other (an advisory lock).
    ///
    /// Errors: among others [`StoreError::Locked`], if a lock did not become free within [`MIGRATION_MAX`];
    /// [`StoreError::Encoding`], if the database cannot keep all texts; [`StoreError::Pooler`], if a migration is needed and
    /// the connection is not fit for it. Then nothing has changed.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let until = Instant::now() + MIGRATION_MAX;
        let mut session = self.connector.connect(Plans::AsUsual).await?;
        require_utf8(&mut session).await?;
        // The advisory lock belongs to a session of the server. If the pooler gives that to somebody else, the lock stays
        // there, so two programs could migrate at once, or all wait for ever. Settings such as the limit of waits get lost.
        if self.shares_backends(&mut session).await? {
            return match lacks_migrations(&mut session).await? {
                true => Err(StoreError::Pooler),
                false => Ok(()),
            };
        }
        loop {
            let (migrated, blockers) = self.try_migrations(session, until).await;
            let error = match migrated {
                Ok(()) => return Ok(()),
                Err(sqlx::Error::Migrate(error)) => *error,
                Err(error) => return Err(error.into()),
            };
            let Some(waited) = Waited::of(&error) else {
                return Err(self.migration_error(error).await);
            };
            let held_by = blockers.unwrap_or_else(|| "a session that is not known".into());
            let pause = waited.pause();
            if Instant::now() + pause >= until {
                return Err(StoreError::Locked {
                    what: waited.what(),
                    held_by,
                });
            }
            let (what, seconds) = (waited.what(), pause.as_secs_f32());
            match waited {
                Waited::ForTable(_) => tracing::warn!(
                    what,
                    held_by,
                    "the schema cannot be updated yet, because a lock is held; trying again after {seconds} s"
                ),
                Waited::ForMigrator => tracing::info!(held_by, "another program updates the schema; waiting for it"),
            }
            tokio::time::sleep(pause).await;
            // With the old session, the advisory lock has gone, and what was left of a transaction.
            session = self.connector.connect(Plans::AsUsual).await?;
        }
    }

    /// Applies migrations, once; and says for whom they waited when that was last looked at, if they did.
    async fn try_migrations(
        &self,
        mut session: PgSession,
        until: Instant,
    ) -> (Result<(), sqlx::Error>, Option<String>) {
        session.bound_by(until.saturating_duration_since(Instant::now()));
        let process = session.pulse().process;
        if let Err(error) = wait_shortly(&mut session).await {
            return (Err(error), None);
        }
        let mut blockers = None;
        let migrating = session.wait_for(|raw| async move {
            let migrated = MIGRATIONS.run(raw).await;
            migrated.map_err(|error| sqlx::Error::Migrate(Box::new(error)))
        });
        let migrated = tokio::select! {
            biased;
            migrated = migrating => migrated,
            () = self.note_blockers(process, &mut blockers) => unreachable!("it looks for ever"),
        };
        (migrated, blockers)
    }

    /// Looks again and again for whom a session waits, and keeps the last answer. It is only for people, so errors are
    /// passed over.
    async fn note_blockers(&self, process: i32, blockers: &mut Option<String>) {
        loop {
            tokio::time::sleep(BLOCKERS_EVERY).await;
            let found = sqlx::query_scalar::<_, Option<String>>(BLOCKERS)
                .bind(process)
                .fetch_one(&self.control)
                .await;
            if let Ok(Some(found)) = found {
                *blockers = Some(found);
            }
        }
    }

    /// The error of migrations that failed.
    async fn migration_error(&self, error: MigrateError) -> StoreError {
        let known = MIGRATIONS.iter().map(|migration| migration.version).max();
        if let Some(said) = lacked_rights(&error)
            // What is known of the cause is said also if the rest cannot be asked.
            && let Ok(lacked) = self.rights_lacked(said).await
        {
            return lacked;
        }
        StoreError::migration(error, known.unwrap_or_default())
    }

    /// The error about rights that a migration lacks: names the role and the database as the server knows them.
    async fn rights_lacked(&self, said: String) -> Result<StoreError, StoreError> {
        let mut session = self.connector.connect(Plans::AsUsual).await?;
        let named = sqlx::query!(r#"SELECT current_user::text AS "role!", current_database()::text AS "database!""#)
            .fetch_one(&mut session)
            .await?;
        Ok(StoreError::Rights {
            role: named.role,
            database: named.database,
            said,
        })
    }
}

/// Refuses a database that cannot keep every text. Otherwise it would take some writes and refuse others, such as the outcome
/// of an attempt with a character that its encoding does not have.
async fn require_utf8(session: &mut PgSession) -> Result<(), StoreError> {
    let (encoding, database): (String, String) =
        sqlx::query_as("SELECT current_setting('server_encoding'), current_database()::text")
            .fetch_one(session)
            .await?;
    match encoding.as_str() {
        "UTF8" => Ok(()),
        _ => Err(StoreError::Encoding { database, encoding }),
    }
}

/// Whether migrations have to be applied; takes no lock. An error: those that were applied are not those of this program.
async fn lacks_migrations(session: &mut PgSession) -> Result<bool, StoreError> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('public._sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *session)
        .await?;
    if !there {
        return Ok(true);
    }
    let applied: Vec<(i64, Vec<u8>)> = sqlx::query_as("SELECT version, checksum FROM public._sqlx_migrations")
        .fetch_all(session)
        .await?;
    let known = MIGRATIONS.iter().map(|migration| migration.version).max();
    for (version, checksum) in &applied {
        let wrong = match MIGRATIONS.iter().find(|migration| migration.version == *version) {
            Some(migration) if migration.checksum[..] == checksum[..] => None,
            Some(_) => Some(MigrateError::VersionMismatch(*version)),
            None => Some(MigrateError::VersionMissing(*version)),
        };
        if let Some(wrong) = wrong {
            return Err(StoreError::migration(wrong, known.unwrap_or_default()));
        }
    }
    Ok(applied.len() < MIGRATIONS.iter().len())
}

/// How long a statement of a migration waits for a lock on a server with this `deadlock_timeout`.
fn lock_wait(deadlock_timeout: Duration) -> Duration {
    deadlock_timeout
        .saturating_add(LOCK_WAIT_BEYOND)
        .clamp(LOCK_WAIT_MIN, LOCK_WAIT_MAX)
}

/// Limits the waits for locks of a session that migrates.
async fn wait_shortly(session: &mut PgSession) -> Result<(), sqlx::Error> {
    let millis: i64 = sqlx::query_scalar(DEADLOCK_TIMEOUT).fetch_one(&mut *session).await?;
    let wait = lock_wait(Duration::from_millis(millis.unsigned_abs()));
    sqlx::query(SHORT_WAITS)
        .bind(wait.as_millis().to_string())
        .execute(session)
        .await?;
    Ok(())
}

/// For what migrations waited longer than they may at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// The migration with this number, for a table or another object of the schema.
    ForTable(i64),
    /// The first step of all, for another program that applies migrations.
    ForMigrator,
}

impl Waited {
    /// `None`: something else went wrong.
    fn of(error: &MigrateError) -> Option<Self> {
        let (cause, waited) = match error {
            MigrateError::ExecuteMigration(cause, version) => (cause, Self::ForTable(*version)),
            MigrateError::Execute(cause) => (cause, Self::ForMigrator),
            _ => return None,
        };
        let code = cause.as_database_error().and_then(|error| error.code());
        (code.as_deref() == Some("55P03")).then_some(waited)
    }

    /// How long others are let pass before the next try.
    fn pause(self) -> Duration {
        match self {
            Self::ForTable(_) => MIGRATES_AGAIN_AFTER,
            Self::ForMigrator => MIGRATOR_AGAIN_AFTER,
        }
    }

    /// The same in words, for people who read the log or the error.
    fn what(self) -> String {
        match self {
            Self::ForTable(version) => format!("migration {version}"),
            Self::ForMigrator => "the first step of the migrations".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than it takes until an autovacuum is cancelled, as far as heartbeats allow.
    #[test]
    fn a_migration_waits_longer_than_an_autovacuum_is_left_alone() {
        let of = |millis| lock_wait(Duration::from_millis(millis)).as_millis();
        assert_eq!((of(10), of(1_000)), (2_000, 2_000));
        assert_eq!((of(1_500), of(2_000), of(3_000)), (2_500, 3_000, 3_000));
        assert_eq!((of(5_000), of(u64::MAX)), (3_000, 3_000));
    }
}
