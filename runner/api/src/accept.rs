//! What a client accepts.

/// Whether headers like `Accept` and `Accept-Encoding` name this media type or coding, and do not refuse it by `q=0` (RFC 9110,
/// 12.4.2). Wildcards do not count.
pub fn accepts<'a>(headers: impl IntoIterator<Item = &'a str>, what: &str) -> bool {
    let mut elements = headers.into_iter().flat_map(|text| text.split(','));
    elements.any(|element| {
        let mut parts = element.split(';').map(str::trim);
        let names_it = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(what));
        let is_refusal = |parameter: &str| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>() == Ok(0.0)
        };
        names_it && !parts.any(is_refusal)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_accepted_unless_it_is_refused() {
        for taken in ["gzip", "br, gzip", "deflate;q=0.5, GZip ; q=0.1", "gzip;level=1"] {
            assert!(accepts([taken], "gzip"), "{taken}");
        }
        for not in ["", "*", "br", "gzip;q=0", "br, gzip; Q = 0.000", "x-gzip"] {
            assert!(!accepts([not], "gzip"), "{not}");
        }
        assert!(accepts(["br", "gzip"], "gzip"));
        assert!(accepts([" Text/Event-Stream ; q=0.5, */*"], "text/event-stream"));
        assert!(!accepts(["text/event-streams"], "text/event-stream"));
    }
}
