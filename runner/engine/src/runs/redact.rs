//! Keeps secrets out of what people read of an attempt: its log, its errors, its progress.
//!
//! An attempt's redactor learns each secret that the attempt asks for, and puts [`MASK`] where one stands: as it is, as a
//! JSON string has it, and (of one with several lines, such as a private key) each of its lines, since logs are kept by
//! line. What a script does to a secret before it logs it (encode it, cut it in two) is beyond this. Outputs and
//! what is sent to others are data, and stay as they are.

use parking_lot::Mutex;

/// What stands for a secret.
pub(crate) const MASK: &str = "***";

/// The shortest text that is masked, in bytes: to mask every `a` would leave nothing to read, and hide nothing.
const MASKED_BYTES_MIN: usize = 4;

/// The secrets that one attempt was given.
#[derive(Default)]
pub(crate) struct Redactor {
    /// The longest first: one may be a part of another.
    forms: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

impl Redactor {
    /// From now on this is hidden.
    pub(crate) fn learn(&self, secret: &str) {
        let mut forms = self.forms.lock();
        let mut add = |text: &str| {
            if text.len() >= MASKED_BYTES_MIN && !forms.iter().any(|form| form == text) {
                forms.push(text.to_owned());
            }
        };
        for text in std::iter::once(secret).chain(secret.lines().map(str::trim)) {
            add(text);
            let quoted = serde_json::Value::from(text).to_string();
            add(quoted.trim_start_matches('"').strip_suffix('"').unwrap_or(&quoted));
        }
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
    }

    /// The text without secrets.
    pub(crate) fn hide(&self, text: String) -> String {
        let forms = self.forms.lock();
        forms.iter().fold(text, |text, form| {
            if text.contains(form.as_str()) {
                text.replace(form.as_str(), MASK)
            } else {
                text
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }
}
