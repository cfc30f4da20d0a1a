//! Names of groups, tasks, scripts, queues, channels and everything else that people name.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::UnicodeNormalization;

/// 1 to 63 letters and digits of any writing system, `_`, `.`, `-`, beginning with a letter, a digit or `_`.
///
/// Kept in Unicode's NFC: what arrives decomposed (NFD) is composed, so that two spellings that look alike are one
/// name. Letters are Unicode's categories L and Nl, digits Nd; combining marks (Mn, Mc), which Indic scripts need to
/// write vowels and conjuncts, belong to the letter before them, count as characters, and may not come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is no [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name must not be empty")]
    Empty,
    /// More than [`Name::MAX_CHARS`] characters.
    #[error("a name must have at most 63 characters")]
    TooLong,
    /// A character that may not begin a name.
    #[error("a name must begin with a letter, a digit or `_`, not with {}", shown(*.0))]
    BadStart(char),
    /// A character that is not allowed in a name, with its position counted from 1.
    #[error("a name may contain only letters, digits, `_`, `.` and `-`; character {position} is {}", shown(*.character))]
    BadCharacter {
        /// The first character that is not allowed.
        character: char,
        /// Its position, from 1.
        position: usize,
    },
}

fn shown(character: char) -> String {
    if character.is_control() || character.is_whitespace() || is_mark(character) || !character.is_ascii() {
        format!("`{}` (U+{:04X})", character.escape_debug(), u32::from(character))
    } else {
        format!("`{character}`")
    }
}

fn is_mark(character: char) -> bool {
    use GeneralCategory::*;
    matches!(get_general_category(character), NonspacingMark | SpacingMark)
}

fn is_letter_or_digit(character: char) -> bool {
    use GeneralCategory::*;
    character.is_ascii_alphanumeric()
        || (!character.is_ascii()
            && matches!(
                get_general_category(character),
                UppercaseLetter
                    | LowercaseLetter
                    | TitlecaseLetter
                    | ModifierLetter
                    | OtherLetter
                    | LetterNumber
                    | DecimalNumber
            ))
}

impl Name {
    /// How many characters (Unicode scalar values, after NFC) a name may have.
    pub const MAX_CHARS: usize = 63;
    /// Longer texts are not checked: decomposed, 63 characters need less.
    const MAX_BYTES: usize = 4096;

    /// Checks and normalises a text.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(NameError::TooLong);
        }
        let normal: String = text.nfc().take(Self::MAX_CHARS + 1).collect();
        for (index, character) in normal.chars().enumerate() {
            let letter = character == '_' || is_letter_or_digit(character);
            if index == 0 && !letter {
                return Err(NameError::BadStart(character));
            }
            if !letter && !matches!(character, '.' | '-') && !is_mark(character) {
                return Err(NameError::BadCharacter {
                    character,
                    position: index + 1,
                });
            }
        }
        if normal.chars().count() > Self::MAX_CHARS {
            return Err(NameError::TooLong);
        }
        Ok(Self(normal.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The form in which a text is searched for as a name: normalised if it can be a name, otherwise unchanged (no
    /// object has that name).
    pub fn sought(text: &str) -> String {
        Self::new(text).map_or_else(|_| text.to_owned(), Self::into)
    }
}

/// A part of a name as it is searched for: in NFC, as names are kept.
pub fn composed(part: &str) -> String {
    part.nfc().collect()
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<&str> for Name {
    type Error = NameError;
    fn try_from(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::ops::Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.as_ref().into()
    }
}

impl JsonSchema for Name {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": Self::MAX_CHARS,
            "description": "1 to 63 characters: letters and digits of any writing system (NFC), `_`, `.`, `-`. The \
                first is a letter, a digit or `_`.",
        })
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Name, E> {
                Name::new(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expect: Result<&str, &str>) {
        let got = Name::new(input).map(String::from).map_err(|error| error.to_string());
        assert_eq!(got.as_deref().map_err(String::as_str), expect, "{input:?}");
    }

    #[test]
    fn accepts_letters_of_any_script() {
        for name in [
            "a",
            "_x",
            "0-0",
            "raw-import.v2",
            "订单",
            "заказ",
            "طلب",
            "हिन्दी",
            "한국어",
            "〇",
            "Ⅷ",
        ] {
            check(name, Ok(name));
        }
        check(&"x".repeat(63), Ok(&"x".repeat(63)));
        check(&"订".repeat(63), Ok(&"订".repeat(63)));
    }

    #[test]
    fn composes_what_is_decomposed() {
        check("cafe\u{301}", Ok("caf\u{e9}"));
        check("\u{1112}\u{1161}\u{11ab}", Ok("한"));
        check(&"e\u{301}".repeat(63), Ok(&"\u{e9}".repeat(63)));
    }

    #[test]
    fn what_is_sought_is_composed_too() {
        assert_eq!(Name::sought("cafe\u{301}"), "caf\u{e9}");
        assert_eq!(Name::sought("e\u{301} b"), "e\u{301} b");
        assert_eq!(Name::sought(""), "");
    }

    #[test]
    fn says_which_character_and_where() {
        check("", Err("a name must not be empty"));
        check(&"x".repeat(64), Err("a name must have at most 63 characters"));
        check(&"x".repeat(1 << 20), Err("a name must have at most 63 characters"));
        check(
            "-a",
            Err("a name must begin with a letter, a digit or `_`, not with `-`"),
        );
        check(
            ".a",
            Err("a name must begin with a letter, a digit or `_`, not with `.`"),
        );
        check(
            "\u{301}a",
            Err("a name must begin with a letter, a digit or `_`, not with `\\u{301}` (U+0301)"),
        );
        check(
            "a b",
            Err("a name may contain only letters, digits, `_`, `.` and `-`; character 2 is ` ` (U+0020)"),
        );
        check(
            "a/b",
            Err("a name may contain only letters, digits, `_`, `.` and `-`; character 2 is `/`"),
        );
        check(
            "ab\n",
            Err("a name may contain only letters, digits, `_`, `.` and `-`; character 3 is `\\n` (U+000A)"),
        );
        check(
            "x²",
            Err("a name may contain only letters, digits, `_`, `.` and `-`; character 2 is `²` (U+00B2)"),
        );
        check(
            "a😀",
            Err("a name may contain only letters, digits, `_`, `.` and `-`; character 2 is `😀` (U+1F600)"),
        );
        check(
            "a\u{200d}b",
            Err("a name may contain only letters, digits, `_`, `.` and `-`; character 2 is `\\u{200d}` (U+200D)"),
        );
    }
}
