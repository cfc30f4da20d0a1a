//! Texts that are too long for people to read as a whole.

/// The beginning of a text, of at most `chars_max` characters; what was cut off is replaced by `…`.
pub fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for (text, shown) in [("", ""), ("éé", "éé"), ("ééé", "éé…"), ("abcd", "ab…")] {
            assert_eq!(shortened(text, 2), shown);
        }
    }
}
