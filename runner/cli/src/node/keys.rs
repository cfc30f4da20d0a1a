//! The identity of a node, and its keys: configured, or stored in its data directory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use heddle_domain::{Chance, Time};
use heddle_http::access::DEVICE_KEY_BYTES_MIN;
use heddle_store::Store;
use heddle_store::rotate::{ForeignCounts, ForeignSeal};
use heddle_store::secret::{SecretKey, SecretKeys};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::config::NodeConfig;
use crate::config::NodeOptions;
use crate::exit::usage;

/// The minimum length of the key for secrets.
const SECRETS_KEY_CHARS_MIN: usize = 16;

/// The keys for tokens of devices. The first one signs.
pub(crate) fn device_keys(options: &NodeOptions) -> Result<Vec<Vec<u8>>> {
    let keys = [
        ("HEDDLE_DEVICE_KEY", &options.device_key),
        ("HEDDLE_DEVICE_KEY_PREVIOUS", &options.device_key_previous),
    ];
    let mut bytes = Vec::new();
    for (name, key) in keys {
        let Some(key) = key.as_ref().filter(|key| !key.is_empty()) else {
            continue;
        };
        if key.len() < DEVICE_KEY_BYTES_MIN {
            bail!(usage(format!(
                "{name} has {} bytes, but must have at least {DEVICE_KEY_BYTES_MIN}, so that nobody can guess it; \
                generate a key with `openssl rand -hex 32`",
                key.len()
            )));
        }
        bytes.push(key.clone().into_bytes());
    }
    Ok(bytes)
}

/// Locks the data directory: two processes with the same identity would take each other's lease again and again.
pub(super) fn lock_identity(data_dir: &Path, node_id: Option<&str>) -> Result<std::fs::File> {
    let path = data_dir.join(match node_id {
        Some(name) => format!("node-{}.lock", Uuid::from_bytes(digest16(name))),
        None => "node.lock".to_owned(),
    });
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(usage(format!(
            "another Heddle node uses the data directory {}; give this node another directory with --data-dir",
            data_dir.display()
        ))),
    }
}

fn digest16(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(text)[..16]);
    bytes
}

/// The id of this node, which stays the same after a restart.
pub(super) fn identity(data_dir: &Path, given: Option<&str>, now: Time, chance: &dyn Chance) -> Result<Uuid> {
    if let Some(given) = given {
        let named = || uuid::Builder::from_custom_bytes(digest16(given)).into_uuid();
        return Ok(given.parse().unwrap_or_else(|_| named()));
    }
    let path = data_dir.join("node-id");
    if let Ok(text) = std::fs::read_to_string(&path) {
        return text
            .trim()
            .parse()
            .with_context(|| format!("{} does not contain a UUID", path.display()));
    }
    let id = heddle_domain::id::uuid_v7(now, chance.bits());
    write_private(&path, &id.to_string())?;
    Ok(id)
}

/// Refuses a key for secrets that can be guessed.
pub(super) fn check_secrets_key(options: &NodeOptions) -> Result<()> {
    let is_short = |text: &String| text.len() < SECRETS_KEY_CHARS_MIN;
    if options.secrets_key.as_ref().is_some_and(is_short) {
        bail!(usage(format!(
            "HEDDLE_SECRETS_KEY must have at least {SECRETS_KEY_CHARS_MIN} characters"
        )));
    }
    Ok(())
}

/// The file with the key for secrets that a node has generated.
fn key_file(data_dir: &Path) -> PathBuf {
    data_dir.join("secrets.key")
}

/// The keys for secrets. If there is no key, one is generated in the data directory.
pub(super) fn secret_keys(config: &NodeConfig, chance: &dyn Chance) -> Result<SecretKeys> {
    if let Some(keys) = known_keys(&config.options, &config.data_dir)? {
        return Ok(keys);
    }
    let path = key_file(&config.data_dir);
    if !config.dev {
        tracing::warn!(
            path = %path.display(),
            "HEDDLE_SECRETS_KEY is not set, so secrets are encrypted with a key that only this node has; with several \
            nodes, set the same key on all of them"
        );
    }
    write_private(&path, &format!("{:032x}{:032x}", chance.bits(), chance.bits()))?;
    let keys = known_keys(&config.options, &config.data_dir)?;
    keys.with_context(|| format!("{} was removed", path.display()))
}

/// The keys for secrets, if there is one. The configured key encrypts, or else the one in the data directory. Configured
/// former keys and the one in the data directory can only decrypt.
pub(super) fn known_keys(options: &NodeOptions, data_dir: &Path) -> Result<Option<SecretKeys>> {
    let key = |text: &str| SecretKey::new(Sha256::digest(text).into());
    let path = key_file(data_dir);
    let mut previous: Vec<SecretKey> = Vec::new();
    if let Some(text) = &options.secrets_key_previous {
        // The list may also be one former key that contains a comma.
        let parts = text.split(',').map(str::trim).chain([text.as_str()]);
        previous.extend(parts.filter(|part| !part.is_empty()).map(key));
    }
    check_secrets_key(options)?;
    let exists = path
        .try_exists()
        .with_context(|| format!("cannot look for {}", path.display()))?;
    let generated = match exists {
        true => Some(key(read_key(&path)?.trim())),
        false => None,
    };
    Ok(match (&options.secrets_key, generated) {
        (Some(text), generated) => {
            previous.extend(generated);
            Some(SecretKeys::new(key(text), previous))
        }
        (None, generated) => generated.map(|generated| SecretKeys::new(generated, previous)),
    })
}

fn read_key(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Refuses to start with keys that cannot decrypt the stored secrets: otherwise, scripts would fail one by one, long
/// after the mistake.
pub(super) async fn require_keys(config: &NodeConfig, store: &Store, keys: &SecretKeys) -> Result<()> {
    let foreign = store.foreign_seals(keys).await.context("cannot read secrets")?;
    let Some(first) = foreign.first() else { return Ok(()) };
    let counts = store.count_foreign_seals(keys).await.context("cannot read secrets")?;
    let own = match &config.options.secrets_key {
        Some(_) => "HEDDLE_SECRETS_KEY".to_owned(),
        None => format!("the key in {}", key_file(&config.data_dir).display()),
    };
    bail!(usage(format!(
        "{own} is not the key with which {} encrypted (that key has the fingerprint {}, this one {}); start with that \
        key, or give it in HEDDLE_SECRETS_KEY_PREVIOUS. If it is lost for good, `heddle secret forget` lists what \
        cannot be decrypted any more, and deletes it with --yes",
        all_foreign(&foreign, counts),
        first.key_id,
        keys.current_id(),
    )))
}

/// The objects that the keys do not decrypt, with their verb: some by name, the others by their number.
fn all_foreign(named: &[ForeignSeal], counts: ForeignCounts) -> String {
    let mut all: Vec<String> = named
        .iter()
        .map(|seal| format!("{} `{}`", seal.kind, seal.name))
        .collect();
    for (kind, count) in [
        ("secret", counts.secrets),
        ("connection", counts.connections),
        ("channel", counts.channels),
    ] {
        let shown = named.iter().filter(|seal| seal.kind == kind).count() as i64;
        match count - shown {
            ..=0 => {}
            1 => all.push(format!("1 more {kind}")),
            more => all.push(format!("{more} more {kind}s")),
        }
    }
    match all.split_last() {
        Some((last, [])) => format!("{last} was"),
        Some((last, rest)) => format!("{} and {last} were", rest.join(", ")),
        None => String::new(),
    }
}

/// Writes a file that only its owner can read. It is written completely or not at all.
fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let temporary = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_decrypted_is_named_or_counted() {
        let seal = |kind: &str, name: &str| ForeignSeal {
            kind: kind.into(),
            name: name.into(),
            key_id: "k".into(),
        };
        let counts = |secrets, connections, channels| ForeignCounts {
            secrets,
            connections,
            channels,
        };
        let one = [seal("secret", "a")];
        assert_eq!(all_foreign(&one, counts(1, 0, 0)), "secret `a` was");
        // Deleted meanwhile, by another node.
        assert_eq!(all_foreign(&one, counts(0, 0, 0)), "secret `a` was");
        assert_eq!(
            all_foreign(&one, counts(4, 1, 32)),
            "secret `a`, 3 more secrets, 1 more connection and 32 more channels were"
        );
        let all = [seal("secret", "a"), seal("connection", "b"), seal("channel", "c")];
        assert_eq!(
            all_foreign(&all, counts(1, 1, 1)),
            "secret `a`, connection `b` and channel `c` were"
        );
    }
}
