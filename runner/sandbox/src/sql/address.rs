//! Addresses of databases, as libpq reads them, where the driver reads them differently.

use std::borrow::Cow;
use std::error::Error;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::services::ConnectionTarget;

/// Says why a URL cannot be the address of a database, without showing it: it may contain a password.
pub fn check_connection_url(url: &str) -> Result<(), String> {
    let unreadable = |letter: char| letter.is_whitespace() || letter.is_control();
    if url.contains(unreadable) {
        return Err("the URL contains a space or a control character; write a space in a name as `%20`".into());
    }
    let config: Config = as_libpq_reads(url).parse().map_err(|error| why(&error))?;
    if config.get_ports().contains(&0) {
        return Err(PORT.into());
    }
    let has_socket = config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_)));
    if has_socket && !config.get_hostaddrs().is_empty() {
        return Err(
            "the URL has an address (`hostaddr`) and a directory of a socket as `host`; leave one of them out".into(),
        );
    }
    for host in config.get_hosts() {
        match host {
            Host::Tcp(name) if name.is_empty() => return Err("the host of the URL is empty".into()),
            Host::Tcp(name) if name.contains(unreadable) => {
                return Err("the host of the URL contains a space or a control character".into());
            }
            _ => {}
        }
    }
    Ok(())
}

const PORT: &str = "the port of the URL must be a number from 1 to 65535";

/// Why the driver cannot read a URL. Its own words name an option, which is shown only if it is a plain word: in a URL
/// with a wrong separator, it may be a part of the password.
fn why(error: &tokio_postgres::Error) -> String {
    let words = error.source().map(ToString::to_string).unwrap_or_default();
    let option = words.split('`').nth(1).unwrap_or_default();
    let is_plain = !option.is_empty()
        && option
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter == '_');
    match option {
        "port" => PORT.into(),
        "host" => "the host of the URL is not valid".into(),
        _ if is_plain && words.starts_with("invalid value") => {
            format!("the value of `{option}` in the URL is not valid")
        }
        _ if is_plain => format!("the URL has an unknown option `{option}`"),
        _ => "the URL cannot be read; write for example postgres://user:password@host:5432/database".into(),
    }
}

/// How the driver connects to a target. Heddle's own settings of a session are options of its start-up: so they are the values
/// to which RESET ALL returns. A script's own `SET` ends with its statement.
pub(super) fn config_of(target: &ConnectionTarget) -> Result<Config, tokio_postgres::Error> {
    let mut config: Config = as_libpq_reads(&target.url).parse()?;
    let timeout = target.statement_timeout.as_millis().max(1);
    let mut options = format!("-c statement_timeout={timeout}");
    if target.read_only {
        options.push_str(" -c default_transaction_read_only=on");
    }
    // The driver has decoded those of the URL. Heddle's come after them: the server takes the last of several values of one
    // setting.
    if let Some(given) = config.get_options() {
        options = format!("{} {options}", ended(given));
    }
    config.options(options);
    Ok(config)
}

/// Options that others can follow. The server ignores a backslash at their end, but with a space after it, it would be a space
/// within the last option, and what follows would be part of that.
fn ended(options: &str) -> &str {
    let backslashes = options.len() - options.trim_end_matches('\\').len();
    &options[..options.len() - backslashes % 2]
}

/// A URL in which `host` in the query replaces the host before it, as in libpq, in `psql` and therefore for people who
/// write such URLs (`postgres://me@localhost/db?host=/run/postgresql`); the driver would use both.
pub(super) fn as_libpq_reads(url: &str) -> Cow<'_, str> {
    let unchanged = Cow::Borrowed(url);
    let Some((scheme, rest)) = url.split_once("://") else {
        return unchanged;
    };
    let Some((target, query)) = rest.split_once('?') else {
        return unchanged;
    };
    let named = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.any(|(name, value)| name == key && !value.is_empty())
    };
    let (authority, path) = match target.find('/') {
        Some(end) => target.split_at(end),
        None => (target, ""),
    };
    let (user, hosts) = match authority.rfind('@') {
        Some(end) => authority.split_at(end + 1),
        None => ("", authority),
    };
    if hosts.is_empty() || !named("host") {
        return unchanged;
    }
    let ports: Vec<&str> = hosts.split(',').map(port_of).collect();
    let port = match named("port") || ports.iter().all(|port| port.is_empty()) {
        true => String::new(),
        false => format!("&port={}", ports.join(",")),
    };
    Cow::Owned(format!("{scheme}://{user}{path}?{query}{port}"))
}

/// The port of `host:port` or `[::1]:port`; empty if there is none.
fn port_of(host: &str) -> &str {
    let rest = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    rest.split_once(':').map_or("", |(_, port)| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_database_can_have_is_refused() {
        for good in [
            "postgres://u:p@db.example.com/d",
            "postgresql://u:p%40%20%2F@db:65535/my%20shop?sslmode=require",
            "postgres://u@one,two:5433/db",
            "postgres://u@[::1]:5433/db",
            "postgres://u@/db?host=/run/pg%20sql",
            "postgres://größe.example/größe",
        ] {
            assert_eq!(check_connection_url(good), Ok(()), "{good}");
        }
        for (bad, words) in [
            ("postgres:///d?host=/run/pg&hostaddr=10.0.0.1", "`hostaddr`"),
            ("postgres://u:hunter2@db:99999/d", "1 to 65535"),
            ("postgres://u:hunter2@db:0/d", "1 to 65535"),
            ("postgres://u:hunter2@db:port/d", "1 to 65535"),
            ("postgres://u:hunter2@db/d?port=-1", "1 to 65535"),
            ("postgres://u:hunter2@my db/d", "space"),
            ("postgres://u:hunter2@my%20db/d", "host"),
            ("postgres://u:hunter2@db/my shop", "`%20`"),
            ("postgres://u:hunter2@db/d\n", "control character"),
            ("postgres://u:hunter2@db/d?host=a%20b", "host"),
            ("postgres://u:hunter2@:5432/d", "empty"),
            ("postgres://u:hunter2@[::1/d", "host"),
            ("postgres://u:hunter2@db/d?sslmode=maybe", "`sslmode`"),
            ("postgres://u:hunter2@db/d?flavour=sweet", "unknown option `flavour`"),
            ("postgres://u:x@y?HUNTER2=@db/d", "cannot be read"),
            ("postgres://u:hunter2@db/d?port", "cannot be read"),
        ] {
            let said = check_connection_url(bad).unwrap_err();
            assert!(said.contains(words), "{bad}: {said}");
            assert!(!said.to_lowercase().contains("hunter2"), "{bad}: {said}");
        }
    }

    #[test]
    fn the_options_of_an_address_are_kept_and_read_only_wins() {
        const OWN: &str = "-c statement_timeout=1500 -c default_transaction_read_only=on";
        let options = |url: &str, read_only: bool| {
            let target = ConnectionTarget {
                id: "x".into(),
                url: url.into(),
                statement_timeout: std::time::Duration::from_millis(1500),
                max_rows: 1,
                max_connections: 1,
                read_only,
            };
            let config = config_of(&target).unwrap();
            assert_eq!(config.get_dbname(), Some("d"), "{url}");
            config.get_options().unwrap().to_owned()
        };
        assert_eq!(options("postgres://db/d", false), "-c statement_timeout=1500");
        for (url, given) in [
            ("postgres://db/d", ""),
            ("postgres://db/d?sslmode=disable", ""),
            ("postgres://db/d?options=-csearch_path%3Dshop", "-csearch_path=shop "),
            (
                "postgres://db/d?options=-c%20search_path%3Da%2Cb%20-c%20work_mem%3D8MB&sslmode=disable",
                "-c search_path=a,b -c work_mem=8MB ",
            ),
            (
                "postgres://db/d?options=-c%20default_transaction_read_only%3Doff",
                "-c default_transaction_read_only=off ",
            ),
            // An escaped space, an escaped backslash at the end, and one there that escapes nothing.
            (
                "postgres://u@one/d?host=two&options=-cDateStyle%3DISO%2C%5C%20MDY",
                "-cDateStyle=ISO,\\ MDY ",
            ),
            (
                "postgres://db/d?options=-capplication_name%3Da%5C%5C",
                "-capplication_name=a\\\\ ",
            ),
            (
                "postgres://db/d?options=-capplication_name%3Da%5C",
                "-capplication_name=a ",
            ),
            // Keys and values without a scheme: the API refuses them, the driver reads them.
            ("host=db dbname=d", ""),
            ("host=db dbname=d options='-c search_path=shop'", "-c search_path=shop "),
        ] {
            assert_eq!(options(url, true), format!("{given}{OWN}"), "{url}");
        }
    }

    #[test]
    fn the_host_of_the_query_is_the_host() {
        let check = |url: &str, hosts: &[&str], ports: &[u16]| {
            let config: Config = as_libpq_reads(url).parse().unwrap();
            let found: Vec<String> = config
                .get_hosts()
                .iter()
                .map(|host| match host {
                    Host::Tcp(name) => name.clone(),
                    Host::Unix(path) => path.display().to_string(),
                })
                .collect();
            assert_eq!(found, hosts, "{url}");
            assert_eq!(config.get_ports(), ports, "{url}");
            assert_eq!(
                (config.get_user(), config.get_dbname()),
                (Some("me"), Some("db")),
                "{url}"
            );
        };
        check("postgres://me@localhost/db?host=/run/pg", &["/run/pg"], &[]);
        check(
            "postgres://me:p%40ss@localhost:5433/db?sslmode=disable&host=/run/pg",
            &["/run/pg"],
            &[5433],
        );
        check(
            "postgresql://me@[::1]:5433/db?host=other.example&port=5434",
            &["other.example"],
            &[5434],
        );
        check("postgres://me@/db?host=/run/pg", &["/run/pg"], &[]);
        check("postgres:///db?user=me&host=/run/pg", &["/run/pg"], &[]);
        check("postgres://localhost/db?user=me&host=/run/pg", &["/run/pg"], &[]);
        // There is no replacement.
        check("postgres://me@one,two:5433/db", &["one", "two"], &[5432, 5433]);
        check("postgres://me@one/db?sslmode=disable", &["one"], &[5432]);
    }
}
