//! Addresses of databases, as libpq reads them, where the driver reads them differently.

use std::borrow::Cow;

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
    use tokio_postgres::Config;
    use tokio_postgres::config::Host;

    use super::*;

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
