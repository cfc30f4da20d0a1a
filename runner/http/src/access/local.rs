//! `heddle dev` answers only this machine, and of browsers only its own pages: a page of another port on loopback is
//! foreign.

use axum::http::{HeaderMap, header};

use crate::problem::Problem;

/// Dev mode: Host and Origin must name this machine (or a configured name). So must the request's own target, if it
/// contains a host (`GET http://host/ HTTP/1.1`): a program behind this check may use either.
pub fn check_local(headers: &HeaderMap, authority: Option<&str>, more_hosts: &[String]) -> Result<(), Problem> {
    let unreadable = || Problem::malformed("the header `Host` is missing or not valid");
    let mut hosts = Vec::with_capacity(1);
    for host in headers.get_all(header::HOST) {
        hosts.push(host.to_str().map_err(|_| unreadable())?);
    }
    hosts.extend(authority);
    let host = *hosts.first().ok_or_else(unreadable)?;
    if let Some(stranger) = hosts.iter().find(|host| !is_local(host, more_hosts)) {
        return Err(Problem::forbidden(format!(
            "`heddle dev` accepts only loopback host names such as localhost, not `{stranger}`"
        )));
    }
    let site = headers.get("sec-fetch-site");
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or("");
        let from = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        // The same host and port; or, behind a proxy that sends another `Host`, the browser's own statement of the same
        // origin.
        let own = from.is_some_and(|from| {
            is_local(from, more_hosts)
                && (from.eq_ignore_ascii_case(host) || site.is_some_and(|site| site == "same-origin"))
        });
        if !own {
            return Err(Problem::forbidden(format!(
                "`heddle dev` does not accept requests from pages of `{origin}`"
            )));
        }
    }
    // `none`: somebody typed the address, or chose a bookmark.
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(Problem::forbidden(
            "`heddle dev` does not accept requests from pages of other sites or other ports of this machine",
        ));
    }
    Ok(())
}

/// Whether `host[:port]` is a name of this machine.
fn is_local(host: &str, more_hosts: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || is_port(port) => address,
            _ => return false,
        },
        None => match host.find(':') {
            Some(colon) if is_port(&host[colon..]) => &host[..colon],
            Some(_) => return false,
            None => host,
        },
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost") {
        return true;
    }
    if name
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
    {
        return true;
    }
    more_hosts.iter().any(|more| more.eq_ignore_ascii_case(name))
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|digits| digits.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn dev_answers_this_machine_only() {
        for host in [
            "localhost:8080",
            "127.0.0.1",
            "[::1]:8080",
            "LOCALHOST",
            "app.localhost",
            "127.8.8.8:1",
        ] {
            assert!(check_local(&headers(&[("host", host)]), None, &[]).is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1",
            "10.0.0.1",
            "a:b",
        ] {
            assert!(check_local(&headers(&[("host", host)]), None, &[]).is_err(), "{host}");
        }
        for (host, origin, fine) in [
            ("localhost:8080", "http://localhost:8080", true),
            ("LOCALHOST:8080", "http://localhost:8080", true),
            ("127.0.0.1", "https://127.0.0.1", true),
            // Another program's page on the same machine.
            ("localhost:8080", "http://localhost:3000", false),
            ("localhost:8080", "http://127.0.0.1:8080", false),
            ("localhost", "http://evil.example", false),
            ("localhost", "http://localhost.evil.example", false),
            ("localhost", "null", false),
        ] {
            let headers = headers(&[("host", host), ("origin", origin)]);
            let outcome = check_local(&headers, None, &[]);
            assert_eq!(outcome.is_ok(), fine, "{origin}");
            assert!(outcome.err().is_none_or(|problem| problem.status.as_u16() == 403));
        }
        for (site, fine) in [
            ("same-origin", true),
            ("none", true),
            ("same-site", false),
            ("cross-site", false),
        ] {
            let headers = headers(&[("host", "localhost:8080"), ("sec-fetch-site", site)]);
            assert_eq!(check_local(&headers, None, &[]).is_ok(), fine, "{site}");
        }
        // A proxy that sends its own `Host`.
        let proxied = headers(&[
            ("host", "localhost:8080"),
            ("origin", "http://localhost:3000"),
            ("sec-fetch-site", "same-origin"),
        ]);
        assert!(check_local(&proxied, None, &[]).is_ok());
        assert!(check_local(&headers(&[]), Some("localhost:1"), &[]).is_ok());
        // A target with a host, in addition to the header.
        for (host, target, fine) in [
            ("localhost:1", "localhost:1", true),
            ("localhost:1", "127.0.0.1:1", true),
            ("localhost:1", "evil.example", false),
            ("localhost:1", "localhost@evil.example", false),
            ("evil.example", "localhost:1", false),
        ] {
            let outcome = check_local(&headers(&[("host", host)]), Some(target), &[]);
            assert_eq!(outcome.is_ok(), fine, "{host} {target}");
        }
        let mut twice = headers(&[("host", "localhost:1")]);
        twice.append(header::HOST, "evil.example".parse().unwrap());
        assert!(check_local(&twice, None, &[]).is_err());
        assert!(check_local(&headers(&[]), None, &[]).is_err());
    }
}
