//! Removes secrets from what people read of an attempt: its log, its errors, its progress.
//!
//! An attempt's redactor learns each secret that the attempt asks for, and replaces it by [`MASK`]: as it is, as a JSON
//! string, and (if it has several lines, such as a private key) each of its lines, because logs are kept by line. It
//! cannot recognise a secret that a script changes before it logs it (encodes it, cuts it in two). Where Heddle itself
//! has cut a text, the beginning of a secret at its end is masked too. Outputs and what is sent to others are data, and
//! stay unchanged.

use aho_corasick::AhoCorasick;
use parking_lot::Mutex;

/// The text that replaces a secret in logs and errors.
pub(crate) const MASK: &str = "***";

/// The shortest text that is masked, in bytes: masking every `a` would leave nothing to read, and hide nothing.
const MASKED_BYTES_MIN: usize = 4;

/// How many bytes less than its bound a text may have that was cut between characters.
const CUT_BYTES_MAX: usize = 3;

/// The secrets that one attempt was given.
#[derive(Default)]
pub(crate) struct Redactor {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Each secret in the forms that may occur in a text.
    forms: Vec<String>,
    /// Finds all of them in one pass: texts are many and long, secrets few. `None`: it could not be built.
    finder: Option<AhoCorasick>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

impl Redactor {
    /// Hides this secret from now on.
    pub(crate) fn learn(&self, secret: &str) {
        let mut known = self.known.lock();
        let before = known.forms.len();
        let mut add = |text: &str| {
            if text.len() >= MASKED_BYTES_MIN && !known.forms.iter().any(|form| form == text) {
                known.forms.push(text.to_owned());
            }
        };
        for text in std::iter::once(secret).chain(secret.lines().map(str::trim)) {
            add(text);
            let quoted = serde_json::Value::from(text).to_string();
            add(quoted.trim_start_matches('"').strip_suffix('"').unwrap_or(&quoted));
        }
        if known.forms.len() > before {
            known.finder = AhoCorasick::new(&known.forms).ok();
        }
    }

    /// The text without secrets. If secrets overlap in it, all that any of them covers is masked.
    pub(crate) fn hide(&self, text: String) -> String {
        self.hidden(text, false)
    }

    /// The same for the beginning of a longer text: the rest of a secret at its end may be missing.
    pub(crate) fn hide_cut(&self, text: String) -> String {
        self.hidden(text, true)
    }

    /// The same for a text that was cut to so many bytes if it was longer, by [`heddle_domain::storable_text`].
    pub(crate) fn hide_within(&self, text: String, bytes_max: usize) -> String {
        let cut = text.len() + CUT_BYTES_MAX >= bytes_max;
        self.hidden(text, cut)
    }

    fn hidden(&self, text: String, cut: bool) -> String {
        let known = self.known.lock();
        if known.forms.is_empty() {
            return text;
        }
        let Some(finder) = &known.finder else {
            return MASK.to_owned();
        };
        // Matches come in the order of their ends, so a later one may begin before known ones.
        let mut covered: Vec<std::ops::Range<usize>> = Vec::new();
        let found = finder.find_overlapping_iter(&text).map(|found| found.range());
        let begun = match cut {
            true => known.forms.iter().map(|form| begun_at_end(form, &text)).max(),
            false => None,
        };
        let at_end = begun.map(|bytes| text.len() - bytes..text.len());
        for mut range in found.chain(at_end.filter(|range| !range.is_empty())) {
            while let Some(before) = covered.pop_if(|before| before.end > range.start) {
                range.start = range.start.min(before.start);
            }
            covered.push(range);
        }
        drop(known);
        let mut shown = String::with_capacity(text.len());
        let mut from = 0;
        for range in covered {
            shown.push_str(&text[from..range.start]);
            shown.push_str(MASK);
            from = range.end;
        }
        shown.push_str(&text[from..]);
        shown
    }
}

/// How many bytes at the end of the text are the beginning of a secret, without being all of it (Knuth, Morris, Pratt).
fn begun_at_end(secret: &str, text: &str) -> usize {
    let (secret, text) = (secret.as_bytes(), text.as_bytes());
    // By position in the secret: how much of it has begun again there.
    let mut again = vec![0; secret.len()];
    for at in 1..secret.len() {
        again[at] = after(secret, &again, again[at - 1], secret[at]);
    }
    // Shorter than the secret, so that it never matches as a whole.
    let end = &text[(text.len() + 1).saturating_sub(secret.len())..];
    end.iter().fold(0, |begun, byte| after(secret, &again, begun, *byte))
}

/// How much of a secret is there after one more byte.
fn after(secret: &[u8], again: &[usize], mut begun: usize, byte: u8) -> usize {
    while begun > 0 && secret[begun] != byte {
        begun = again[begun - 1];
    }
    begun + usize::from(secret[begun] == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_shows_no_part_of_a_secret() {
        let redactor = Redactor::default();
        assert_eq!(redactor.hide_cut("hunt".into()), "hunt");
        redactor.learn("hunter2-and-more");
        redactor.learn("abcabcabd");
        redactor.learn("\u{e4}\u{f6}\u{fc}");
        let hides = |text: &str, shown: &str| assert_eq!(redactor.hide_cut(text.into()), shown, "{text}");
        for end in 1.."hunter2-and-more".len() {
            hides(&format!("is {}", &"hunter2-and-more"[..end]), "is ***");
        }
        hides("is hunter2-and-more", "is ***");
        hides("is hunter3", "is hunter3");
        hides("abcabcabc", "abc***");
        hides("abcabcabdabcab", "******");
        hides("abcabcabcabd", "abc***");
        hides("xabcabcabx", "xabcabcabx");
        hides("x\u{e4}\u{f6}", "x***");
        hides("", "");
        assert_eq!(redactor.hide("is hunter2".into()), "is hunter2");
        // Only a text that is as long as its bound, but for a part of a character, was cut.
        assert_eq!(redactor.hide_within("is hunter2".into(), 14), "is hunter2");
        for bytes_max in [10, 13] {
            assert_eq!(redactor.hide_within("is hunter2".into(), bytes_max), "is ***");
        }
    }

    #[test]
    fn what_was_learned_is_hidden() {
        let redactor = Redactor::default();
        assert_eq!(redactor.hide("hunter2".into()), "hunter2");
        redactor.learn("hunter2");
        redactor.learn("hunter2-and-more");
        redactor.learn("abc");
        redactor.learn("say \"hi\"\nBEGIN KEY\r\nxy");
        let hides = |text: &str, shown: &str| assert_eq!(redactor.hide(text.into()), shown, "{text}");
        hides("a hunter2 b hunter2", "a *** b ***");
        hides("hunter2-and-more", "***");
        hides("abc stays: it is too short", "abc stays: it is too short");
        hides(r#"{"field": "say \"hi\""}"#, r#"{"field": "***"}"#);
        hides("line: BEGIN KEY", "line: ***");
        hides("xy", "xy");
        hides("hunter2hunter2", "******");
        redactor.learn("more-is-less");
        redactor.learn("and-more-is");
        redactor.learn("\u{e4}\u{f6}\u{fc}");
        hides("(hunter2-and-more-is-less)", "(***)");
        hides("x\u{e4}\u{f6}\u{fc}\u{e9}", "x***\u{e9}");
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }
}
