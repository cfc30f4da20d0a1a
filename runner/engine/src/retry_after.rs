//! `Retry-After`, as servers write it: seconds, or a date (RFC 9110, 10.2.3).

use std::time::Duration;

use heddle_domain::Time;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// How long a server asks us to wait, for a request that was made at `now`. `None`: it does not ask, or the value is
/// unreadable. A past date asks for nothing.
pub(crate) fn retry_after(headers: &HeaderMap, now: Time) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => (Time::from(httpdate::parse_http_date(text).ok()?) - now).to_std().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read() {
        let now = Time::from_timestamp(784_111_770, 0).unwrap();
        let check = |text: &str, seconds: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{text}");
        };
        check("120", Some(120));
        check("0", Some(0));
        // The three forms of one instant in RFC 9110, 5.6.7.
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(7));
        check("Sunday, 06-Nov-94 08:49:37 GMT", Some(7));
        check("Sun Nov  6 08:49:37 1994", Some(7));
        check("Sun, 06 Nov 1994 08:49:00 GMT", None);
        for wrong in ["", "-1", "1.5", "soon", "06 Nov 1994"] {
            check(wrong, None);
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
