//! The user that the server runs as.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail};

/// Users that a server may run as when we are root, best first.
const CANDIDATES: [&str; 3] = ["postgres", "heddle", "nobody"];

/// An unprivileged user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
}

/// Whether we run as root, as which Postgres refuses to.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user for a cluster: ourselves (`None`) unless we are root; else who owns the existing one, else the first of
/// the [`CANDIDATES`] that this system has.
pub(crate) fn choose(data: &Path) -> Result<Option<Owner>> {
    if !is_root() {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Ok(existing) = data.metadata() {
        // `initdb` needs its user to have a name; the server itself does not.
        let (uid, gid) = (existing.uid(), existing.gid());
        if uid != 0 {
            let known = users(&passwd).find(|user| user.uid == uid);
            return Ok(Some(known.unwrap_or(Owner {
                uid,
                gid,
                name: uid.to_string(),
            })));
        }
    }
    match CANDIDATES
        .iter()
        .find_map(|name| users(&passwd).find(|user| user.name == *name && user.uid != 0))
    {
        Some(owner) => Ok(Some(owner)),
        None => bail!(
            "Postgres does not run as root, and none of the users {} exists; create one (useradd --system postgres), \
            or start heddle as another user",
            CANDIDATES.join(", ")
        ),
    }
}

fn users(passwd: &str) -> impl Iterator<Item = Owner> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Owner { uid, gid, name })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n# note\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\n";
        let found: Vec<Owner> = users(passwd).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[1],
            Owner {
                uid: 101,
                gid: 104,
                name: "postgres".into()
            }
        );
    }
}
