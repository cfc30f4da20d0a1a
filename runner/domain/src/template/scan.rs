//! A template's code, divided into tokens exactly as minijinja does: text in quotes, comments and `raw` are no code.
//!
//! All bounds and checks that come before minijinja's parser work on these tokens, so where the two could disagree
//! (a word right after a number, a bracket that closes nothing) the text is refused here.

use super::shown;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Number,
    /// A string, with its quotes.
    Text,
    Open,
    Close,
    Sign,
}

/// A token and where it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'s> {
    pub(super) kind: Kind,
    pub(super) text: &'s str,
    pub(super) start: usize,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text && self.kind != Kind::Text
    }

    /// Whether an operand may end here.
    pub(super) fn ends_operand(&self) -> bool {
        !matches!(self.kind, Kind::Open | Kind::Sign)
    }
}

/// One piece of code.
#[derive(Debug)]
pub(super) struct Code<'s> {
    /// Whether it is a `{% statement %}`.
    pub(super) statement: bool,
    /// Its range, without its delimiters.
    pub(super) range: std::ops::Range<usize>,
    pub(super) tokens: Vec<Token<'s>>,
}

impl Code<'_> {
    /// The word that a statement begins with.
    pub(super) fn tag(&self) -> &str {
        match self.tokens.first() {
            Some(token) if self.statement => token.text,
            _ => "",
        }
    }

    /// Whether the token is a word that joins operands, rather than a name or an attribute.
    pub(super) fn is_operator(&self, index: usize) -> bool {
        let token = &self.tokens[index];
        token.kind == Kind::Word
            && matches!(token.text, "and" | "or" | "not" | "in" | "is" | "if" | "else")
            && !self.before(index).is_some_and(|before| before.is("."))
    }

    /// Whether the token is a test's name: a word after `is`, or after `is not`.
    pub(super) fn is_test(&self, index: usize) -> bool {
        let is = |at: usize| {
            at > 0 && self.tokens[at].is("is") && self.is_operator(at) && self.tokens[at - 1].ends_operand()
        };
        let Some(before) = index.checked_sub(1) else {
            return false;
        };
        let after_not = self.tokens[before].is("not") && before.checked_sub(1).is_some_and(is);
        let word = &self.tokens[index];
        word.kind == Kind::Word && (after_not || (is(before) && !word.is("not")))
    }

    /// The token before one.
    pub(super) fn before(&self, index: usize) -> Option<&Token<'_>> {
        index.checked_sub(1).map(|before| &self.tokens[before])
    }
}

/// An expression as one piece of code.
pub(super) fn expression(source: &str) -> Result<Code<'_>, String> {
    let (code, _) = piece(source, 0, None)?;
    Ok(code)
}

/// The pieces of code in a template.
pub(super) fn template(source: &str) -> Result<Vec<Code<'_>>, String> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|open| open + at) {
        let rest = &source[open + 1..];
        // A sign right after the opening takes white space away, and belongs to it.
        let from = open + 2 + usize::from(rest.get(1..2).is_some_and(|sign| matches!(sign, "-" | "+")));
        at = match rest.as_bytes().first() {
            Some(b'{') => {
                let (code, end) = piece(source, from, Some("}}"))?;
                found.push(code);
                end
            }
            Some(b'%') => match tag_end(&source[from..], "raw") {
                Some(length) => raw_end(source, from + length, open)?,
                None => {
                    let (mut code, end) = piece(source, from, Some("%}"))?;
                    code.statement = true;
                    found.push(code);
                    end
                }
            },
            Some(b'#') => match source[from..].find("#}") {
                Some(length) => from + length + 2,
                None => return Err(wrong(source, open, "the comment has no closing `#}`")),
            },
            _ => open + 1,
        };
    }
    Ok(found)
}

/// The length of ` name %}` or ` name -%}`, if the text begins so.
fn tag_end(text: &str, name: &str) -> Option<usize> {
    let space = |c: char| c.is_ascii_whitespace();
    let rest = text
        .trim_start_matches(space)
        .strip_prefix(name)?
        .trim_start_matches(space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

fn raw_end(source: &str, from: usize, open: usize) -> Result<usize, String> {
    let mut at = from;
    while let Some(start) = source[at..].find("{%").map(|start| start + at + 2) {
        let rest = &source[start..];
        let inner = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if let Some(length) = tag_end(inner, "endraw") {
            return Ok(start + (rest.len() - inner.len()) + length);
        }
        at = start;
    }
    Err(wrong(source, open, "`{% raw %}` has no closing `{% endraw %}`"))
}

/// Reads code from a position to its end, and returns the position after that; an expression ends with its text.
fn piece<'s>(source: &'s str, from: usize, close: Option<&str>) -> Result<(Code<'s>, usize), String> {
    let mut tokens: Vec<Token<'s>> = Vec::new();
    let mut open = Vec::new();
    let mut at = from;
    loop {
        let rest = source[at..].trim_start_matches(|c: char| c.is_ascii_whitespace());
        at = source.len() - rest.len();
        let end = match close {
            None if rest.is_empty() && open.is_empty() => Some(at),
            None if rest.is_empty() => return Err(wrong(source, from, "the bracket is not closed")),
            Some(close) if rest.is_empty() => {
                return Err(wrong(source, from, &format!("the closing `{close}` is missing")));
            }
            Some(close) if open.is_empty() => {
                let inner = rest.strip_prefix(['-', '+']).unwrap_or(rest);
                let after = inner.strip_prefix(close).or_else(|| rest.strip_prefix(close));
                after.map(|after| source.len() - after.len())
            }
            _ => None,
        };
        if let Some(end) = end {
            let code = Code {
                statement: false,
                range: from..at,
                tokens,
            };
            return Ok((code, end));
        }
        let (kind, length) = token(rest).map_err(|detail| wrong(source, at, detail))?;
        let text = &rest[..length];
        match kind {
            Kind::Open => open.push(text),
            Kind::Close => {
                let opened = open.pop();
                if !matches!((opened, text), (Some("("), ")") | (Some("["), "]") | (Some("{"), "}")) {
                    return Err(wrong(source, at, &format!("`{text}` has no matching opening bracket")));
                }
            }
            Kind::Number => {
                // Right after a dot it is an item's number, which has no fraction.
                let after_dot = source[..at].ends_with('.');
                let fraction = rest[length..].strip_prefix('.');
                let bare_dot = fraction.is_some_and(|digits| !digits.starts_with(|c: char| c.is_ascii_digit()));
                if !is_number(text) || (bare_dot && !after_dot) {
                    return Err(wrong(source, at, "letters or a dot directly follow a number"));
                }
            }
            _ => {}
        }
        tokens.push(Token { kind, text, start: at });
        at += length;
    }
}

fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

/// The kind and length of the token that a text begins with. Letters beyond ASCII are left to minijinja, which refuses
/// those that are none.
fn token(rest: &str) -> Result<(Kind, usize), &'static str> {
    let word_length = |text: &str| {
        text.find(|c: char| !starts_word(c) && !c.is_ascii_digit())
            .unwrap_or(text.len())
    };
    if let Some("//" | "**" | "==" | "!=" | ">=" | "<=") = rest.get(..2) {
        return Ok((Kind::Sign, 2));
    }
    match rest.chars().next().unwrap_or(' ') {
        '(' | '[' | '{' => Ok((Kind::Open, 1)),
        ')' | ']' | '}' => Ok((Kind::Close, 1)),
        '+' | '-' | '*' | '/' | '%' | '.' | ',' | ':' | '~' | '|' | '=' | '>' | '<' => Ok((Kind::Sign, 1)),
        quote @ ('\'' | '"') => {
            let mut escaped = false;
            for (offset, c) in rest.char_indices().skip(1) {
                if !escaped && c == quote {
                    return Ok((Kind::Text, offset + 1));
                }
                escaped = !escaped && c == '\\';
            }
            Err("the string is not closed")
        }
        c if c.is_ascii_digit() => Ok((Kind::Number, word_length(rest))),
        c if starts_word(c) => Ok((Kind::Word, word_length(rest))),
        _ => Err("unexpected character"),
    }
}

/// Whether minijinja reads digits and letters as one number. A fraction, and an exponent's sign, are further tokens.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return hex.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'_');
    }
    let rest = ["0b", "0B", "0o", "0O"]
        .iter()
        .find_map(|radix| text.strip_prefix(radix))
        .unwrap_or(text);
    match rest.split_once(['e', 'E']) {
        Some((before, after)) => rest.len() == text.len() && digits(before) && digits(after),
        None => digits(rest),
    }
}

/// An error with its position.
pub(super) fn wrong(source: &str, at: usize, detail: &str) -> String {
    let line = match source[..at].matches('\n').count() {
        _ if !source.contains('\n') => String::new(),
        lines => format!(" (line {})", lines + 1),
    };
    format!("{detail}{line}, at `{}`", shown(&source[at..]))
}
