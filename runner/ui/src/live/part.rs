//! A part of a page as it is sent: its short hash, and its event.

use std::collections::BTreeMap;

use bytes::Bytes;
use heddle_domain::hex;
use sha2::{Digest, Sha256};

use crate::ctx::Part;

/// A short hash of the text of a part.
pub(super) fn hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..4])
}

/// The parts that a page has, in the format for an address.
pub(crate) fn has(parts: &[Part]) -> String {
    let all: Vec<String> = parts
        .iter()
        .map(|part| format!("{}-{}", part.name, hash(&part.html)))
        .collect();
    all.join(".")
}

pub(super) fn parse_has(text: &str) -> BTreeMap<String, String> {
    text.split('.')
        .filter_map(|entry| entry.rsplit_once('-'))
        .map(|(name, hash)| (name.to_owned(), hash.to_owned()))
        .collect()
}

/// A part as an event, without its id. Lines end at `\r` as well, as those of HTML do: a text in a page must not end a
/// line of ours.
pub(super) fn event(name: &str, html: &str) -> Bytes {
    let mut event = format!("event: {name}\n");
    for line in html.replace("\r\n", "\n").split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    Bytes::from(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_has_is_read_back() {
        let parts = [
            Part {
                name: "attention",
                html: "<p>1</p>".into(),
            },
            Part {
                name: "run-head",
                html: "<p>2</p>".into(),
            },
        ];
        let read = parse_has(&has(&parts));
        assert_eq!(read.len(), 2);
        assert_eq!(read["run-head"], hash("<p>2</p>"));
        assert!(parse_has("").is_empty() && parse_has("x").is_empty());
    }

    /// What a browser makes of events, by the HTML standard: their types and their data.
    fn read(stream: &str) -> Vec<(String, String)> {
        let (mut events, mut kind, mut data) = (Vec::new(), String::new(), String::new());
        for line in stream.replace("\r\n", "\n").split(['\n', '\r']) {
            match line.split_once(": ") {
                None if data.is_empty() => kind.clear(),
                None => {
                    data.pop();
                    events.push((std::mem::take(&mut kind), std::mem::take(&mut data)));
                }
                Some(("event", value)) => kind = value.to_owned(),
                Some(("data", value)) => data = format!("{data}{value}\n"),
                Some(_) => {}
            }
        }
        events
    }

    #[test]
    fn what_stands_in_a_part_stays_in_its_event() {
        for (html, shown) in [
            ("<p>1</p>\n<p>2</p>", "<p>1</p>\n<p>2</p>"),
            ("<pre>a\r\nb</pre>\n", "<pre>a\nb</pre>\n"),
            ("10%\r20%", "10%\n20%"),
            (
                "\r\revent: over\rdata: signed-out\r\r",
                "\n\nevent: over\ndata: signed-out\n\n",
            ),
            ("", ""),
        ] {
            let event = event("a", html);
            let read = read(std::str::from_utf8(&event).unwrap());
            assert_eq!(read, [("a".to_owned(), shown.to_owned())], "{html:?}");
        }
    }
}
