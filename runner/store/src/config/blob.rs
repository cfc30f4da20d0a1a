//! Uploaded scripts, by their digest. None is ever deleted.

use heddle_domain::Time;

use crate::database::PgSession;
use crate::{Store, StoreError};

/// The longest blob, in bytes. The schema CHECKs the same.
pub const BLOB_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that were uploaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Blob {
    pub bytes: Vec<u8>,
    /// When they were first stored: the `created_at` of the first script version with them. It never changes.
    pub created_at: Time,
}

/// Stores bytes under their digest, unless they are stored already.
pub(crate) async fn put(connection: &mut PgSession, digest: &str, bytes: &[u8], at: Time) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO heddle.blobs (digest, bytes, created_at) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING",
        digest,
        bytes,
        at,
    )
    .execute(connection)
    .await?;
    Ok(())
}

impl Store {
    /// The bytes of a digest (SHA-256, lower-case hex), and when they were first stored.
    pub async fn blob(&self, digest: &str) -> Result<Option<Blob>, StoreError> {
        Ok(sqlx::query_as!(
            Blob,
            "SELECT bytes, created_at FROM heddle.blobs WHERE digest = $1",
            digest,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// When the bytes of a digest were first stored; `None`: they are not.
    pub async fn blob_created_at(&self, digest: &str) -> Result<Option<Time>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT created_at FROM heddle.blobs WHERE digest = $1", digest)
                .fetch_optional(&self.control)
                .await?,
        )
    }
}
