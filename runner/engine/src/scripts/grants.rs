//! Secrets and connections, for those to whom they are granted.

use std::fmt;
use std::time::Duration;

use heddle_domain::state::NOT_GRANTED;
use heddle_domain::{Chain, Name};
use heddle_sandbox::{ConnectionTarget, Grants, HostPattern, MAX_ROWS};

use super::Scripts;
use crate::EngineError;

/// How long one statement on a named connection may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The value that a script was granted, or why it was not granted; or an error of Heddle.
pub(crate) type Granted<T> = Result<Result<T, String>, EngineError>;

/// The hosts that can be read; `refused` gets the reason for each of the others.
fn hosts(allow_hosts: &[String], mut refused: impl FnMut(String)) -> Vec<HostPattern> {
    let mut hosts = Vec::with_capacity(allow_hosts.len());
    for host in allow_hosts {
        match host.parse::<HostPattern>() {
            Ok(host) => hosts.push(host),
            Err(why) => refused(why),
        }
    }
    hosts
}

/// What a script may reach, from the names in its task or topic (`of`). A host that cannot be read is not granted, and
/// the log says so.
pub(crate) fn grants(of: fmt::Arguments<'_>, allow_hosts: &[String], sql: &[Name], secrets: &[Name]) -> Grants {
    let names = |names: &[Name]| names.iter().map(|name| name.as_str().to_owned()).collect();
    Grants {
        allow_hosts: hosts(allow_hosts, |why| {
            tracing::warn!(%of, %why, "a host in `allow_hosts` cannot be read, so it is not granted");
        }),
        sql: names(sql),
        secrets: names(secrets),
    }
}

/// The message for a consumer when Heddle itself has failed; the node's log has the details.
pub(crate) fn unavailable(error: &EngineError) -> String {
    tracing::warn!(error = %Chain(error), "a host call of a script failed");
    "internal error of Heddle; try again".to_owned()
}

impl Scripts {
    /// A secret, if it is granted to a group or topic (`noun`) of this name and category.
    pub(crate) async fn granted_secret(
        &self,
        noun: &str,
        user: &str,
        category: Option<&str>,
        name: &str,
    ) -> Granted<String> {
        Ok(match self.node.store.secret_value(&self.keys, name).await? {
            Some((value, grant)) if grant.allows(user, category) => Ok(value),
            Some(_) => Err(format!("{NOT_GRANTED}secret `{name}`: this {noun} may not use it")),
            None => Err(format!("{NOT_GRANTED}secret `{name}`: it does not exist")),
        })
    }

    /// A connection, if it is granted to a group or topic (`noun`) of this name and category.
    pub(crate) async fn granted_connection(
        &self,
        noun: &str,
        user: &str,
        category: Option<&str>,
        name: &str,
    ) -> Granted<ConnectionTarget> {
        let missing = || format!("{NOT_GRANTED}connection `{name}`: it does not exist");
        let Some(row) = self.node.store.connection(name).await? else {
            return Ok(Err(missing()));
        };
        if !row.options.grant.allows(user, category) {
            return Ok(Err(format!(
                "{NOT_GRANTED}connection `{name}`: this {noun} may not use it"
            )));
        }
        let Some((url, _)) = self.node.store.connection_url(&self.keys, name).await? else {
            return Ok(Err(missing()));
        };
        Ok(Ok(ConnectionTarget {
            id: format!("{name}/{}", row.updated_at.timestamp_micros()),
            url,
            statement_timeout: STATEMENT_TIMEOUT,
            max_rows: MAX_ROWS,
            max_connections: u32::try_from(row.options.max_connections).unwrap_or(1),
            read_only: row.options.read_only,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_not_granted_is_told() {
        let written = ["a.example", "b!.example", "*.c.example:443", "*"].map(str::to_owned);
        let mut refused = Vec::new();
        let granted = hosts(&written, |why| refused.push(why));
        assert_eq!(granted.len(), 2);
        assert!(granted[0].matches("a.example", 80) && granted[1].matches("x.c.example", 443));
        assert_eq!(refused.len(), 2);
        for (why, host) in refused.iter().zip(["`b!.example`", "`*`"]) {
            assert!(why.starts_with(host), "{why}");
        }
    }
}
