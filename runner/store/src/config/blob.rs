//! Uploaded wasm, by its digest.

use heddle_domain::Time;

use crate::database::PgSession;
use crate::{Store, StoreError};

/// The longest blob, in bytes. The schema CHECKs the same.
pub const BLOB_BYTES_MAX: usize = 64 * 1024 * 1024;

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
    /// The bytes of a digest (SHA-256, lower-case hex).
    pub async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT bytes FROM heddle.blobs WHERE digest = $1", digest)
                .fetch_optional(&self.control)
                .await?,
        )
    }
}
