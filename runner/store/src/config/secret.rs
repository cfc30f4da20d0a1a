//! Secrets, and how they and connection URLs are stored: XChaCha20-Poly1305 under a key from the configuration.
//!
//! The associated data binds a ciphertext to its kind and name, so that a row that is copied over another one does not
//! open. Nonces are 192 random bits, enough to draw at random as long as a key is used. To rotate keys, the new one is
//! configured first and the old one after it: what the old one sealed still opens, and is sealed again when it is put,
//! or all at once ([`crate::rotate`]).

use std::borrow::Borrow;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use heddle_domain::{Chance, Time, hex};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::change::{By, Noun, Page, Put};
use crate::config::named::{Deleted, Named, Stop};
use crate::database::PgSession;
use crate::usage::{self, Removal};
use crate::{Store, StoreError};

/// The longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// A key of 256 bits, which encrypts secrets.
#[derive(Clone)]
pub struct SecretKey {
    bytes: [u8; 32],
    id: String,
}

impl SecretKey {
    /// A key of random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        let id = hex(&Sha256::digest(bytes)[..8]);
        Self { bytes, id }
    }

    /// A fingerprint that reveals nothing of the key; stored next to what it sealed.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The key that seals, and those that only open what they sealed before.
#[derive(Clone, Debug)]
pub struct SecretKeys {
    current: SecretKey,
    previous: Vec<SecretKey>,
}

/// An encrypted value as it is stored, and with which key.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub ciphertext: Vec<u8>,
    pub nonce: Vec<u8>,
    pub key_id: String,
}

/// The sealed part of a row that a statement has returned.
macro_rules! sealed_of {
    ($row:ident) => {
        $crate::secret::Sealed {
            ciphertext: $row.ciphertext,
            nonce: $row.nonce,
            key_id: $row.key_id,
        }
    };
}
pub(crate) use sealed_of;

impl SecretKeys {
    /// Seals with `current`; opens with `previous` as well.
    pub fn new(current: SecretKey, previous: Vec<SecretKey>) -> Self {
        Self { current, previous }
    }

    /// The fingerprint of the key that seals.
    pub fn current_id(&self) -> &str {
        &self.current.id
    }

    /// The fingerprints of all keys, that of the current key first.
    pub fn ids(&self) -> Vec<String> {
        std::iter::once(&self.current)
            .chain(&self.previous)
            .map(|key| key.id.clone())
            .collect()
    }

    pub(crate) fn seal(&self, chance: &dyn Chance, noun: Noun, name: &str, plain: &str) -> Result<Sealed, StoreError> {
        let mut nonce = [0u8; 24];
        nonce[..16].copy_from_slice(&chance.bits().to_be_bytes());
        nonce[16..].copy_from_slice(&chance.bits().to_be_bytes()[..8]);
        let aad = associated(noun, name);
        let ciphertext = XChaCha20Poly1305::new((&self.current.bytes).into())
            .encrypt(
                &XNonce::from(nonce),
                Payload {
                    msg: plain.as_bytes(),
                    aad: aad.as_bytes(),
                },
            )
            .map_err(|_| unreadable(noun, name, "it cannot be encrypted"))?;
        Ok(Sealed {
            ciphertext,
            nonce: nonce.to_vec(),
            key_id: self.current.id.clone(),
        })
    }

    pub(crate) fn open(&self, noun: Noun, name: &str, sealed: &Sealed) -> Result<String, StoreError> {
        let key = std::iter::once(&self.current)
            .chain(&self.previous)
            .find(|key| key.id == sealed.key_id)
            .ok_or_else(|| unreadable(noun, name, &format!("it was encrypted with key {}", sealed.key_id)))?;
        let nonce: [u8; 24] = sealed
            .nonce
            .as_slice()
            .try_into()
            .map_err(|_| unreadable(noun, name, "its nonce is not 24 bytes"))?;
        let aad = associated(noun, name);
        let plain = XChaCha20Poly1305::new((&key.bytes).into())
            .decrypt(
                &XNonce::from(nonce),
                Payload {
                    msg: &sealed.ciphertext,
                    aad: aad.as_bytes(),
                },
            )
            .map_err(|_| unreadable(noun, name, "its ciphertext was altered"))?;
        String::from_utf8(plain).map_err(|_| unreadable(noun, name, "it is not UTF-8"))
    }
}

fn associated(noun: Noun, name: &str) -> String {
    format!("heddle/{}/{name}", noun.as_str())
}

fn unreadable(noun: Noun, name: &str, why: &str) -> StoreError {
    let table = match noun {
        Noun::Secret => "secrets",
        Noun::Channel => "channels",
        _ => "connections",
    };
    StoreError::unreadable(table, "sealed", name, why)
}

/// Who may use a secret or a connection: these groups, and all groups of these categories; `*` means all. If both are
/// empty, nobody may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    pub groups: Vec<String>,
    pub categories: Vec<String>,
}

impl Grant {
    /// Whether a group may use it.
    pub fn allows(&self, group: &str, category: Option<&str>) -> bool {
        self.groups.iter().any(|granted| granted == "*" || granted == group)
            || self
                .categories
                .iter()
                .any(|granted| granted == "*" || category == Some(granted))
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({"groups": self.groups, "categories": self.categories})
    }
}

/// The grant in a row that a statement has returned.
macro_rules! grant_of {
    ($row:ident) => {
        $crate::secret::Grant {
            groups: $row.groups,
            categories: $row.categories,
        }
    };
}
pub(crate) use grant_of;

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    pub name: String,
    pub grant: Grant,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A secret to be put.
struct SecretWrite<'a> {
    keys: &'a SecretKeys,
    chance: &'a dyn Chance,
    name: &'a str,
    value: &'a str,
    grant: &'a Grant,
}

/// A stored row with a sealed value, and how it compares with the value that is put.
pub(crate) struct KeptSealed<R> {
    pub row: R,
    pub sealed: Sealed,
    /// It is sealed with the current key.
    pub current: bool,
    pub same_value: bool,
}

impl<R> KeptSealed<R> {
    /// `given`: the value that is put; `None`: the stored one stays.
    pub(crate) fn new(
        keys: &SecretKeys,
        (noun, name): (Noun, &str),
        row: R,
        sealed: Sealed,
        given: Option<&str>,
    ) -> Self {
        let is_kept = |given| keys.open(noun, name, &sealed).is_ok_and(|plain| plain == given);
        Self {
            same_value: given.is_none_or(is_kept),
            current: sealed.key_id == keys.current_id(),
            row,
            sealed,
        }
    }
}

impl<R> Borrow<R> for KeptSealed<R> {
    fn borrow(&self) -> &R {
        &self.row
    }
}

impl Named for SecretWrite<'_> {
    const PUT: &'static str = "put_secret";
    const NOUN: Noun = Noun::Secret;
    type Kept = KeptSealed<SecretRow>;
    type Row = SecretRow;
    type Answer = Put<SecretRow>;

    fn name(&self) -> &str {
        self.name
    }

    /// Locking: the same lock as [`Named::locked`] describes.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<Self::Kept>, StoreError> {
        let kept = sqlx::query!(
            "SELECT ciphertext, nonce, key_id, groups, categories, created_at, updated_at
             FROM heddle.secrets WHERE name = $1 FOR UPDATE",
            self.name,
        )
        .fetch_optional(tx)
        .await?;
        Ok(kept.map(|kept| {
            let row = SecretRow {
                name: self.name.into(),
                grant: grant_of!(kept),
                created_at: kept.created_at,
                updated_at: kept.updated_at,
            };
            KeptSealed::new(
                self.keys,
                (Noun::Secret, self.name),
                row,
                sealed_of!(kept),
                Some(self.value),
            )
        }))
    }

    fn is_same(&self, kept: &Self::Kept) -> bool {
        kept.row.grant == *self.grant && kept.current && kept.same_value
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        kept: Option<&Self::Kept>,
    ) -> Result<SecretRow, Stop<Self::Answer>> {
        let sealed = self.keys.seal(self.chance, Noun::Secret, self.name, self.value)?;
        sqlx::query!(
            "INSERT INTO heddle.secrets (name, ciphertext, nonce, key_id, groups, categories, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $7)
             ON CONFLICT (name) DO UPDATE
             SET ciphertext = excluded.ciphertext, nonce = excluded.nonce, key_id = excluded.key_id,
                 groups = excluded.groups, categories = excluded.categories, updated_at = excluded.updated_at",
            self.name,
            sealed.ciphertext,
            sealed.nonce,
            sealed.key_id,
            &self.grant.groups,
            &self.grant.categories,
            at,
        )
        .execute(tx)
        .await?;
        Ok(SecretRow {
            name: self.name.into(),
            grant: self.grant.clone(),
            created_at: kept.map_or(at, |kept| kept.row.created_at),
            updated_at: at,
        })
    }

    fn shown(row: &SecretRow) -> Result<Value, StoreError> {
        Ok(row.grant.to_json())
    }

    fn after(&self, row: &SecretRow, kept: Option<&Self::Kept>) -> Result<Value, StoreError> {
        let mut after = Self::shown(row)?;
        if let Some(kept) = kept {
            after["value_changed"] = json!(!kept.same_value);
        }
        Ok(after)
    }
}

impl Store {
    /// Creates or changes a secret.
    pub async fn put_secret(
        &self,
        by: By<'_>,
        keys: &SecretKeys,
        chance: &dyn Chance,
        name: &str,
        value: &str,
        grant: &Grant,
    ) -> Result<Put<SecretRow>, StoreError> {
        let write = SecretWrite {
            keys,
            chance,
            name,
            value,
            grant,
        };
        self.put(by, &write).await
    }

    /// A secret without its value.
    pub async fn secret(&self, name: &str) -> Result<Option<SecretRow>, StoreError> {
        Ok(sqlx::query!(
            "SELECT name, groups, categories, created_at, updated_at FROM heddle.secrets WHERE name = $1",
            name
        )
        .fetch_optional(&self.control)
        .await?
        .map(|row| SecretRow {
            name: row.name,
            grant: grant_of!(row),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }))
    }

    /// A secret's value and its grant: for scripts to which it is granted, never for the API.
    pub async fn secret_value(&self, keys: &SecretKeys, name: &str) -> Result<Option<(String, Grant)>, StoreError> {
        let row = sqlx::query!(
            "SELECT ciphertext, nonce, key_id, groups, categories FROM heddle.secrets WHERE name = $1",
            name,
        )
        .fetch_optional(&self.control)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let plain = keys.open(Noun::Secret, name, &sealed_of!(row))?;
        Ok(Some((plain, grant_of!(row))))
    }

    /// Secrets by name, after `cursor`, without their values.
    pub async fn secrets(&self, cursor: Option<&str>, limit: i64) -> Result<Page<SecretRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT name, groups, categories, created_at, updated_at FROM heddle.secrets
             WHERE ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2",
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?
        .into_iter()
        .map(|row| SecretRow {
            name: row.name,
            grant: grant_of!(row),
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
        .collect();
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Deletes a secret that no current spec of a group or topic names.
    pub async fn delete_secret(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        self.delete::<SecretWrite<'static>>(by, name).await
    }
}

impl Deleted for SecretWrite<'_> {
    const DELETE: &'static str = "delete_secret";
    const KIND: usage::Kind = usage::SECRETS;

    async fn delete_row(tx: &mut PgSession, name: &str) -> Result<Option<Value>, StoreError> {
        let gone = sqlx::query_as!(
            Grant,
            "DELETE FROM heddle.secrets WHERE name = $1 RETURNING groups, categories",
            name
        )
        .fetch_optional(tx)
        .await?;
        Ok(gone.map(|grant| grant.to_json()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Same;

    impl Chance for Same {
        fn bits(&self) -> u128 {
            7
        }
    }

    #[test]
    fn what_was_sealed_opens_only_under_its_own_kind_name_and_key() {
        let old = SecretKey::new([1; 32]);
        let keys = SecretKeys::new(old.clone(), Vec::new());
        let sealed = keys.seal(&Same, Noun::Secret, "a", "hunter2").unwrap();
        assert_eq!(keys.open(Noun::Secret, "a", &sealed).unwrap(), "hunter2");
        assert!(keys.open(Noun::Secret, "b", &sealed).is_err());
        assert!(keys.open(Noun::Connection, "a", &sealed).is_err());
        let rotated = SecretKeys::new(SecretKey::new([2; 32]), vec![old]);
        assert_eq!(rotated.open(Noun::Secret, "a", &sealed).unwrap(), "hunter2");
        assert!(
            SecretKeys::new(SecretKey::new([2; 32]), Vec::new())
                .open(Noun::Secret, "a", &sealed)
                .is_err()
        );
        assert!(!format!("{keys:?}").contains("1, 1"));
    }

    #[test]
    fn nobody_may_use_what_was_granted_to_nobody() {
        assert!(!Grant::default().allows("g", Some("c")));
        let grant = Grant {
            groups: vec!["g".into()],
            categories: vec!["c".into()],
        };
        assert!(grant.allows("g", None) && grant.allows("x", Some("c")) && !grant.allows("x", None));
        assert!(
            Grant {
                groups: vec!["*".into()],
                categories: vec![]
            }
            .allows("any", None)
        );
    }
}
