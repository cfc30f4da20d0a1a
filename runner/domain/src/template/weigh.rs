//! Writes the filters of [`super::budget`] into a template's code, beside whatever could make much out of little.
//!
//! | in the source | what is written |
//! |---|---|
//! | `a ~ b`, `a + b` | each operand is charged: `a\|_text ~ b\|_text`, `a\|_made + b\|_made` |
//! | `a * b` | `a\|_left * b\|_right`: the left side is noted, the right one tells what the product takes |
//! | `a\|filter(…)` | what goes into it is charged by what the filter does to it, and what comes out |
//! | `a[x:y]`, `dict(…)` | what comes out is charged |
//!
//! A filter binds to the operand right before it, so that each of these can be written without knowing how far the
//! expression around it reaches, and none changes a value.

use super::compare::Edit;
use super::scan::{Code, Kind, Token};

/// Filters that make nothing, or nothing that is larger than a number or an instant; and those of ours that charge for
/// themselves.
const FREE: [&str; 28] = [
    "_compare", "abs", "attr", "bool", "count", "d", "date", "datetime", "default", "first", "float", "format",
    "indent", "int", "items", "join", "last", "length", "lines", "minus", "plus", "pprint", "replace", "round", "safe",
    "split", "sum", "tojson",
];
/// Filters that make a list or map of what is in one.
const LISTS: [&str; 9] = [
    "dictsort",
    "groupby",
    "list",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "sort",
    "unique",
];
/// Filters whose text is hardly longer than what they are given, and which `map` may apply to each item.
const PLAIN: [&str; 6] = ["capitalize", "lower", "string", "title", "trim", "upper"];
/// How much more than a text all of its letters as items of a list take.
const LETTERS_TIMES: usize = 32;
/// How much longer `&quot;` is than what it stands for.
const ESCAPED_TIMES: usize = 6;

/// The index of the first token of a code's expression; none for a statement that has none.
pub(super) fn expression_start(code: &Code<'_>) -> Option<usize> {
    let after = |word: &str| {
        code.tokens
            .iter()
            .position(|token| token.is(word))
            .map(|index| index + 1)
    };
    match code.tag() {
        "" => Some(0),
        "if" | "elif" => Some(1),
        "for" => after("in"),
        "set" => after("="),
        _ => None,
    }
}

/// Adds what is to be written into one code.
pub(super) fn add(code: &Code<'_>, edits: &mut Vec<Edit>) {
    let Some(first) = expression_start(code) else { return };
    let mut written = Written { edits, product: None };
    // With these around, the left side of a `*` is more than the operand before it.
    let signs = ["/", "//", "%", "**"];
    let plain = code.tokens.iter().any(|token| signs.iter().any(|sign| token.is(sign)));
    for index in first..code.tokens.len() {
        let token = &code.tokens[index];
        match (token.kind, token.text) {
            (Kind::Sign, "~") if binary(code, index) => written.both(code, index, "|_text"),
            (Kind::Sign, "+") if binary(code, index) => written.both(code, index, "|_made"),
            (Kind::Sign, "*") if binary(code, index) => {
                if plain {
                    written.both(code, index, "|_number");
                } else {
                    written.product(code, index);
                }
            }
            (Kind::Sign, "|") => written.filter(code, index),
            (Kind::Open, "[") if is_slice(code, index) => {
                let end = postfix_end(code, group_end(code, index));
                written.insert(place(code, end), "|_made");
            }
            (Kind::Word, "dict") if code.tokens.get(index + 1).is_some_and(|next| next.is("(")) => {
                let end = postfix_end(code, group_end(code, index + 1));
                written.insert(place(code, end), "|_made");
            }
            _ => {}
        }
    }
}

struct Written<'e> {
    edits: &'e mut Vec<Edit>,
    /// Where the right side of the last `*` ends, and what was written there.
    product: Option<(usize, usize)>,
}

impl Written<'_> {
    fn insert(&mut self, at: usize, text: &str) {
        let edit = (at..at, text.to_owned());
        // One that stands between two signs of a kind is charged once.
        if !self.edits.contains(&edit) {
            self.edits.push(edit);
        }
    }

    fn both(&mut self, code: &Code<'_>, sign: usize, text: &str) {
        self.insert(place(code, sign), text);
        self.insert(place(code, operand_end(code, sign + 1)), text);
    }

    fn product(&mut self, code: &Code<'_>, sign: usize) {
        let (left, right) = (place(code, sign), place(code, operand_end(code, sign + 1)));
        match self.product {
            Some((end, edit)) if end == left => self.edits[edit].1 = "|_right(true)".into(),
            _ => self.edits.push((left..left, "|_left".into())),
        }
        self.edits.push((right..right, "|_right".into()));
        self.product = Some((right, self.edits.len() - 1));
    }

    fn filter(&mut self, code: &Code<'_>, pipe: usize) {
        let Some(name) = code.tokens.get(pipe + 1) else { return };
        let next = |by: usize| code.tokens.get(pipe + by);
        let called = next(2).is_some_and(|open| open.is("("));
        let end = if called { group_end(code, pipe + 2) } else { pipe + 2 };
        let inside = &code.tokens[pipe..end.min(code.tokens.len())];
        let (before, after) = match name.text {
            // With a start that is no number, lists and strings are joined.
            "sum" if inside.iter().any(|token| token.is("start") || token.is(",")) => ("|_text".to_owned(), ""),
            free if FREE.contains(&free) => return,
            list if LISTS.contains(&list) => ("|_items".to_owned(), ""),
            "min" | "max" => ("|_looked".to_owned(), ""),
            "map" if next(4).is_some_and(|sign| sign.is("=")) => ("|_items".to_owned(), ""),
            "map" => (mapped(next(3)), ""),
            "chain" => ("|_looked".to_owned(), "|_made"),
            // Each of its items is a list that is made anew.
            "zip" => ("|_looked".to_owned(), "|_text"),
            "reverse" => ("|_made".to_owned(), ""),
            "escape" | "e" => (format!("|_text({ESCAPED_TIMES})"), ""),
            _ => ("|_text".to_owned(), "|_made"),
        };
        let at = place(code, pipe);
        self.edits.push((at..at, before));
        if !after.is_empty() {
            let at = place(code, end);
            self.edits.push((at..at, after.to_owned()));
        }
    }
}

/// What is charged before a `map` applies the filter that is named by its first argument.
fn mapped(argument: Option<&Token<'_>>) -> String {
    let name = argument.filter(|token| token.kind == Kind::Text);
    let name = name.map(|token| token.text.trim_matches(['\'', '"']));
    match name {
        Some(free) if FREE.contains(&free) && free != "sum" => "|_items".to_owned(),
        Some(plain) if PLAIN.contains(&plain) => "|_items|_text".to_owned(),
        _ => format!("|_items|_text({LETTERS_TIMES})"),
    }
}

/// Where the token before an index ends.
fn place(code: &Code<'_>, index: usize) -> usize {
    let last = code.tokens.get(index.saturating_sub(1)).or_else(|| code.tokens.last());
    last.map_or(code.range.start, Token::end)
}

/// Whether a sign stands between two operands.
fn binary(code: &Code<'_>, index: usize) -> bool {
    let before = index.checked_sub(1);
    before.is_some_and(|before| code.tokens[before].ends_operand() && !code.is_operator(before))
        && !is_exponent_sign(code, index)
}

/// Whether a sign belongs to a number: `1e+5`.
fn is_exponent_sign(code: &Code<'_>, index: usize) -> bool {
    let (Some(before), Some(token)) = (code.before(index), code.tokens.get(index)) else {
        return false;
    };
    let open = before.kind == Kind::Number && before.text.ends_with(['e', 'E']) && !before.text.starts_with("0x");
    open && before.end() == token.start && matches!(token.text, "+" | "-")
}

/// The index after the bracket that an open one is closed by.
fn group_end(code: &Code<'_>, open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in code.tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    code.tokens.len()
}

/// The index after the attributes, items and calls that follow here: nothing of that may follow a filter. What is made
/// between two of them is let go at once.
fn postfix_end(code: &Code<'_>, from: usize) -> usize {
    let mut at = from;
    loop {
        at = match (code.tokens.get(at), code.tokens.get(at + 1)) {
            (Some(dot), Some(_)) if dot.is(".") => at + 2,
            (Some(open), _) if open.is("(") || open.is("[") => group_end(code, at),
            _ => return at,
        };
    }
}

/// The index after an operand with all its attributes, items, calls and filters.
fn operand_end(code: &Code<'_>, from: usize) -> usize {
    let token = |index: usize| code.tokens.get(index);
    let mut at = from;
    while token(at).is_some_and(|sign| sign.is("-") || sign.is("+")) {
        at += 1;
    }
    at = match token(at) {
        Some(open) if open.kind == Kind::Open => group_end(code, at),
        Some(_) => at + 1,
        None => return at,
    };
    loop {
        at = postfix_end(code, at);
        at = match (token(at), token(at + 1)) {
            (Some(_), Some(_)) if is_exponent_sign(code, at) => at + 2,
            (Some(pipe), Some(_)) if pipe.is("|") => at + 2,
            _ => return at,
        };
    }
}

/// Whether a bracket holds a slice: one after an operand, with a `:` of its own.
fn is_slice(code: &Code<'_>, open: usize) -> bool {
    let after_operand = open
        .checked_sub(1)
        .is_some_and(|before| code.tokens[before].ends_operand() && !code.is_operator(before));
    let mut depth = 0_usize;
    let inside = &code.tokens[open..group_end(code, open)];
    after_operand
        && inside.iter().any(|token| {
            match token.kind {
                Kind::Open => depth += 1,
                Kind::Close => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 1 && token.is(":")
        })
}

/// The same source with other signs in place of those that minijinja computes while it compiles: what is constant
/// could be made large there. Whether the source has any sense is told by it all the same.
pub(super) fn defused(source: &str, codes: &[Code<'_>]) -> String {
    let mut text = source.as_bytes().to_vec();
    for token in codes.iter().flat_map(|code| &code.tokens) {
        if token.kind == Kind::Sign && matches!(token.text, "*" | "**" | "~" | "+") {
            text[token.start..token.end()].fill(b'-');
        }
    }
    // Signs are ASCII, and so is what stands for them.
    String::from_utf8(text).unwrap_or_else(|_| source.to_owned())
}
