//! The parts of a JSON text, which are found without reading again what is inside them: each byte is read as often in a
//! deep tree as in a flat one.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// A JSON text, and the end of each array and object in it.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    text: &'a str,
    /// The first and the last byte of each array and object, in the order of the first bytes. A text has at least two
    /// bytes for each, so its own bound is the bound of this list.
    brackets: Vec<(usize, usize)>,
}

/// A value in the text: its first byte, and the byte after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    start: usize,
    end: usize,
}

/// What may be between the parts of a JSON text.
const SPACE: &[u8] = b" \t\r\n";

impl<'a> Parts<'a> {
    /// Checks that a text is JSON, of any depth, and finds its arrays and objects.
    pub(super) fn of(text: &'a str) -> Result<Self, serde_json::Error> {
        // What is kept as text is checked without recursion.
        let _checked: &RawValue = serde_json::from_str(text)?;
        let mut brackets = Vec::new();
        let mut open = Vec::new();
        let (mut in_string, mut escaped) = (false, false);
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'[' | b'{' => {
                    open.push(brackets.len());
                    brackets.push((at, at));
                }
                b']' | b'}' => {
                    if let Some((_, last)) = open.pop().and_then(|index: usize| brackets.get_mut(index)) {
                        *last = at;
                    }
                }
                _ => {}
            }
        }
        Ok(Self { text, brackets })
    }

    /// The value that the whole text is.
    pub(super) fn root(&self) -> Part {
        self.value(0)
    }

    /// The text of a value.
    pub(super) fn text(&self, part: Part) -> &'a str {
        self.text.get(part.start..part.end).unwrap_or_default()
    }

    /// The fields of an object; if a key occurs twice, its last value. `None`: it is no object, or a key is no text.
    pub(super) fn fields(&self, object: Part) -> Option<BTreeMap<String, Part>> {
        let mut at = self.inside(object, b'{')?;
        let mut fields = BTreeMap::new();
        while at + 1 < object.end {
            let key = self.value(at);
            let colon = self.after_space(key.end);
            let value = self.value(colon + 1);
            fields.insert(serde_json::from_str(self.text(key)).ok()?, value);
            at = self.next(value);
        }
        Some(fields)
    }

    /// The items of an array. `None`: it is no array.
    pub(super) fn items(&self, array: Part) -> Option<Vec<Part>> {
        let mut at = self.inside(array, b'[')?;
        let mut items = Vec::new();
        while at + 1 < array.end {
            let item = self.value(at);
            items.push(item);
            at = self.next(item);
        }
        Some(items)
    }

    /// The text from a position on.
    fn rest(&self, at: usize) -> &'a [u8] {
        self.text.as_bytes().get(at..).unwrap_or_default()
    }

    /// The position of the first byte at or after this one that is wanted, or the end of the text.
    fn find(&self, at: usize, is_wanted: impl Fn(u8) -> bool) -> usize {
        let rest = self.rest(at);
        at + rest.iter().position(|byte| is_wanted(*byte)).unwrap_or(rest.len())
    }

    fn after_space(&self, at: usize) -> usize {
        self.find(at, |byte| !SPACE.contains(&byte))
    }

    /// The position of what an array or object begins with, or of its last byte if it is empty.
    fn inside(&self, part: Part, bracket: u8) -> Option<usize> {
        (self.rest(part.start).first() == Some(&bracket)).then(|| self.after_space(part.start + 1))
    }

    /// The position of what follows a value after a comma, or of the last byte of what the value is in.
    fn next(&self, value: Part) -> usize {
        let at = self.after_space(value.end);
        match self.rest(at).first() {
            Some(b',') => self.after_space(at + 1),
            _ => at,
        }
    }

    /// The value that begins here, or after space.
    fn value(&self, at: usize) -> Part {
        let start = self.after_space(at);
        let end = match self.rest(start).first() {
            Some(b'[' | b'{') => self.after_bracket(start),
            Some(b'"') => self.after_string(start),
            _ => self.find(start, |byte| SPACE.contains(&byte) || b",]}".contains(&byte)),
        };
        Part { start, end }
    }

    fn after_bracket(&self, start: usize) -> usize {
        let found = self.brackets.binary_search_by_key(&start, |(first, _)| *first);
        let last = found
            .ok()
            .and_then(|index| self.brackets.get(index))
            .map(|(_, last)| *last);
        last.unwrap_or(start) + 1
    }

    fn after_string(&self, start: usize) -> usize {
        let mut escaped = false;
        let rest = self.rest(start + 1);
        let quote = rest.iter().position(|byte| match byte {
            _ if escaped => {
                escaped = false;
                false
            }
            b'\\' => {
                escaped = true;
                false
            }
            byte => *byte == b'"',
        });
        start + 1 + quote.map_or(rest.len(), |quote| quote + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields_of(text: &str) -> Option<Vec<(String, String)>> {
        let parts = Parts::of(text).unwrap();
        let fields = parts.fields(parts.root())?;
        let shown = |(key, part)| (key, parts.text(part).to_owned());
        Some(fields.into_iter().map(shown).collect())
    }

    fn items_of(text: &str) -> Option<Vec<String>> {
        let parts = Parts::of(text).unwrap();
        let items = parts.items(parts.root())?;
        Some(items.into_iter().map(|part| parts.text(part).to_owned()).collect())
    }

    #[test]
    fn parts_are_found_as_they_are_written() {
        let text =
            " { \"a\" : [1, {\"x\": \"]}\"}] ,\n\"b\\u0062\":\"}\\\"\\\\\", \"c\":-1.5e3\t, \"d\":{} ,\"a]\": null } ";
        let expect = [
            ("a", r#"[1, {"x": "]}"}]"#),
            ("a]", "null"),
            ("bb", r#""}\"\\""#),
            ("c", "-1.5e3"),
            ("d", "{}"),
        ];
        let expect = expect.map(|(key, text)| (key.to_owned(), text.to_owned()));
        assert_eq!(fields_of(text).unwrap(), expect);
        assert_eq!(
            items_of("[ [ ], {\"a\":[]}\n, \"[\", true,0 ]").unwrap(),
            ["[ ]", "{\"a\":[]}", "\"[\"", "true", "0"]
        );
        assert!(fields_of("{ }").unwrap().is_empty());
        assert_eq!(items_of("[\n]").unwrap(), [""; 0]);
        assert_eq!(
            fields_of(r#"{"a": 1, "a": [2]}"#).unwrap(),
            [("a".to_owned(), "[2]".to_owned())]
        );
        for other in ["[1]", "\"{}\"", "null", "7"] {
            assert_eq!(fields_of(other), None, "{other}");
        }
        for other in ["{}", "\"[]\"", "null", "7"] {
            assert_eq!(items_of(other), None, "{other}");
        }
        for wrong in ["", "{", "[1,]", "{\"a\" 1}", "[\"\n\"]", "[] []"] {
            assert!(Parts::of(wrong).is_err(), "{wrong}");
        }
    }
}
