//! Addresses of calls: which names can be part of one, and how much of one an error shows.

use url::Url;

/// The longest part of a path, in bytes before it is escaped. Every name that a server knows is far shorter.
const SEGMENT_BYTES_MAX: usize = 4_096;
/// The longest address, in bytes. The HTTP library takes little more, and many proxies take less.
const URL_BYTES_MAX: usize = 64_000;
/// How many characters of a name or of an address an error shows.
const SHOWN_CHARS: usize = 200;

/// The address of `path` below a server's address: each item is one segment, escaped as needed. The error says which item
/// cannot be one.
///
/// The library would change some texts without a word: it drops tabs and line breaks, and takes `.` and `..` for
/// directions. The call would then be about another object than the one that was named.
pub(crate) fn below(base: &Url, path: &[&str]) -> Result<Url, String> {
    if let Some(fault) = path.iter().find_map(|segment| fault_of(segment)) {
        return Err(fault);
    }
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    Ok(url)
}

/// Why a text cannot be a part of a path.
fn fault_of(segment: &str) -> Option<String> {
    let why = match segment {
        "" => "it is empty".to_owned(),
        "." | ".." => "it would mean another address".to_owned(),
        _ if segment.len() > SEGMENT_BYTES_MAX => {
            format!(
                "it has {} bytes, and at most {SEGMENT_BYTES_MAX} are possible",
                segment.len()
            )
        }
        _ if segment.contains(char::is_control) => "it contains a control character".to_owned(),
        _ => return None,
    };
    Some(format!(
        "{:?} cannot be a name in an address: {why}",
        shortened(segment)
    ))
}

/// An address as people may see it: without the user and the password, which a proxy in front of a server may want.
pub(crate) fn shown(url: &Url) -> Url {
    let mut shown = url.clone();
    // Only an address without a host refuses this, and it has neither of both.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown
}

/// The same of a text that may not be an address.
pub(crate) fn shown_text(text: &str) -> &str {
    text.rsplit_once('@').map_or(text, |(_, behind)| behind)
}

/// Refuses an address that is too long to be sent.
pub(crate) fn check_length(url: &Url) -> Result<(), String> {
    let length = url.as_str().len();
    if length > URL_BYTES_MAX {
        return Err(format!(
            "the address {} has {length} bytes, and at most {URL_BYTES_MAX} are possible",
            shortened(shown(url).as_str())
        ));
    }
    Ok(())
}

/// The beginning of a text that may be long.
pub(crate) fn shortened(text: &str) -> String {
    heddle_domain::shortened(text, SHOWN_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        let base = Url::parse("https://example.com/heddle/").unwrap();
        for (name, shown) in [
            ("vic\ntim", r#""vic\ntim""#),
            ("a\tb", r#""a\tb""#),
            ("\r", r#""\r""#),
            ("\u{7f}", r#""\u{7f}""#),
            (".", r#"".""#),
            ("..", r#""..""#),
            ("", r#""""#),
        ] {
            let refused = below(&base, &["v1", "groups", name]).unwrap_err();
            assert!(refused.starts_with(&format!("{shown} cannot be")), "{refused}");
        }
        for name in ["...", ".a", "a..b", "%2e", "\u{5668}"] {
            let url = below(&base, &["v1", "groups", name]).unwrap();
            assert_eq!(url.path_segments().unwrap().count(), 4, "{url}");
        }
    }

    #[test]
    fn long_names_are_refused_in_a_short_error() {
        let base = Url::parse("https://example.com/").unwrap();
        let refused = below(&base, &["v1", "groups", &"x".repeat(100_000)]).unwrap_err();
        assert!(refused.len() < 400 && refused.contains("100000 bytes"), "{refused}");
        assert!(below(&base, &["v1", "groups", &"x".repeat(SEGMENT_BYTES_MAX)]).is_ok());
        let mut url = base.clone();
        url.set_query(Some(&"q".repeat(100_000)));
        let refused = check_length(&url).unwrap_err();
        assert!(refused.len() < 400, "{refused}");
        assert_eq!(check_length(&base), Ok(()));
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let url = Url::parse("https://me:hush@example.com/heddle?a=b@c").unwrap();
        assert_eq!(shown(&url).as_str(), "https://example.com/heddle?a=b@c");
        assert_eq!(shown_text("me:hu@sh@example.com"), "example.com");
        assert_eq!(shown_text("example.com"), "example.com");
        let mut long = url.clone();
        long.set_path(&"x".repeat(100_000));
        assert!(!check_length(&long).unwrap_err().contains("hush"));
    }

    #[test]
    fn text_is_shortened_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "\u{5929}".repeat(SHOWN_CHARS + 1);
        assert_eq!(shortened(&long), format!("{}\u{2026}", "\u{5929}".repeat(SHOWN_CHARS)));
    }
}
