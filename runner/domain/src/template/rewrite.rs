//! Writes comparisons as a filter that knows instants ([`super::compare`]); all else stays as it is. `a < b <= c` becomes
//! `(a)|_compare('<', b, '<=', c)`.
//!
//! The tokens inside a bracket are read once, from left to right, with the open operand; the parser of minijinja defines
//! what binds less than a comparison. Each rewrite adds an opening bracket before, and a filter after a closing one, so
//! that rewritten pieces may be nested, in whatever order their ends were found.

use std::ops::Range;

use super::compare;
use super::scan::{Code, Kind, Token};

/// A rewritten text, with what is needed to find the position in the source for a position in it.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) text: String,
    /// From these positions on (in the text, in the source) both are the same.
    alike: Vec<(usize, usize)>,
    /// The ranges in the source that were written as filters.
    chains: Vec<Range<usize>>,
}

impl Rewritten {
    /// The range in the source; for a filter that replaces a comparison, the range of all its operands.
    pub(super) fn source_range(&self, range: Range<usize>) -> Range<usize> {
        let (start, end) = (self.source_offset(range.start), self.source_offset(range.end));
        let written = self
            .text
            .get(range.start..)
            .is_some_and(|text| text.starts_with(compare::FILTER));
        let around = self.chains.iter().filter(|chain| written && chain.contains(&start));
        around.min_by_key(|chain| chain.len()).cloned().unwrap_or(start..end)
    }

    fn source_offset(&self, at: usize) -> usize {
        let known = self.alike.partition_point(|(text, _)| *text <= at);
        let (text, source) = self.alike[..known].last().copied().unwrap_or((0, 0));
        let next = self.alike.get(known).map_or(usize::MAX, |(_, next)| *next);
        (source + (at - text)).min(next)
    }
}

/// A change of the source: this range of it becomes that text.
type Edit = (Range<usize>, String);

/// Writes comparisons as filters; none if there is no comparison. The source must be one that minijinja compiles.
pub(super) fn rewrite(source: &str, codes: &[Code<'_>]) -> Option<Rewritten> {
    let mut edits = Vec::new();
    let mut chains = Vec::new();
    for code in codes {
        Rewriting {
            code,
            levels: Vec::new(),
            last_end: 0,
            edits: &mut edits,
            chains: &mut chains,
        }
        .run();
    }
    if edits.is_empty() {
        return None;
    }
    // Stable: edits that end at one position keep the order in which they were found, from the inside to the outside.
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let mut text = String::with_capacity(source.len() + edits.iter().map(|(_, text)| text.len()).sum::<usize>());
    let mut alike = Vec::with_capacity(edits.len());
    let mut at = 0;
    for (range, replacement) in edits {
        text.push_str(&source[at..range.start]);
        text.push_str(&replacement);
        at = range.end;
        alike.push((text.len(), at));
    }
    text.push_str(&source[at..]);
    Some(Rewritten { text, alike, chains })
}

/// The same source for a check in the node: without the operators that make constants large, since minijinja computes
/// with constants while it compiles. The syntax is checked all the same.
pub(super) fn defused(source: &str, codes: &[Code<'_>]) -> String {
    let mut text = source.as_bytes().to_vec();
    for code in codes {
        for (index, token) in code.tokens.iter().enumerate() {
            // Not those before a spread value, where no other operator is allowed.
            if token.kind == Kind::Sign && matches!(token.text, "*" | "~" | "+") && is_binary(code, index) {
                text[token.start..token.end()].fill(b'-');
            }
        }
    }
    // Operators are ASCII, and so are their replacements.
    String::from_utf8(text).unwrap_or_else(|_| source.to_owned())
}

/// A bracket's inside, or all of an expression, up to where it is read.
#[derive(Clone, Copy, Default)]
struct Level {
    /// The start of the operand that is being read: `None` before its first token.
    operand: Option<usize>,
    /// The start of the first operand of a chain that is being written as a filter.
    chain: Option<usize>,
}

struct Rewriting<'a, 's> {
    code: &'a Code<'s>,
    levels: Vec<Level>,
    /// The end of the last token that was read.
    last_end: usize,
    edits: &'a mut Vec<Edit>,
    chains: &'a mut Vec<Range<usize>>,
}

impl Rewriting<'_, '_> {
    fn run(mut self) {
        let Some(mut index) = expression_start(self.code) else {
            return;
        };
        self.levels.push(Level::default());
        while let Some(token) = self.code.tokens.get(index) {
            let Some(level) = self.levels.last_mut() else { return };
            let mut length = 1;
            match joint(self.code, index, level.operand.is_none()) {
                Joint::Boundary => self.end_operand(),
                Joint::Compare(tokens) => {
                    length = tokens;
                    self.compare(index, length);
                }
                Joint::Operand => {
                    level.operand.get_or_insert(token.start);
                    if token.kind == Kind::Open {
                        self.levels.push(Level::default());
                    }
                }
                Joint::Close => {
                    self.end_operand();
                    self.levels.pop();
                }
            }
            self.last_end = self.code.tokens.get(index + length - 1).map_or(token.end(), Token::end);
            index += length;
        }
        self.end_operand();
    }

    fn insert(&mut self, at: usize, text: &str) {
        self.edits.push((at..at, text.to_owned()));
    }

    /// Ends an operand, and the chain that it belongs to.
    fn end_operand(&mut self) {
        let at = self.last_end;
        let Some(level) = self.levels.last_mut() else { return };
        if let Some(start) = std::mem::take(level).chain {
            self.chains.push(start..at);
            self.insert(start, "(");
            self.insert(at, ")");
        }
    }

    /// A sign that compares two operands.
    fn compare(&mut self, index: usize, length: usize) {
        let tokens = &self.code.tokens[index..index + length];
        let range = tokens[0].start..tokens[length - 1].end();
        let sign: Vec<_> = tokens.iter().map(|token| token.text).collect();
        let sign = sign.join(" ");
        let Some(level) = self.levels.last_mut() else { return };
        let written = match level.chain {
            None => format!(")|{}('{sign}',", compare::FILTER),
            Some(_) => format!(",'{sign}',"),
        };
        level.chain.get_or_insert(level.operand.unwrap_or(range.start));
        self.edits.push((range, written));
    }
}

/// The index of the first token of a code's expression; none for a statement that has none.
fn expression_start(code: &Code<'_>) -> Option<usize> {
    let after = |word: &str| {
        let found = code.tokens.iter().position(|token| token.is(word));
        found.map(|index| index + 1)
    };
    match code.tag() {
        "" => Some(0),
        "if" | "elif" => Some(1),
        "for" => after("in"),
        "set" => after("="),
        _ => None,
    }
}

/// The effect of a token on the operands around it.
enum Joint {
    /// It belongs to one.
    Operand,
    /// It binds less than a comparison.
    Boundary,
    /// It compares two, and consists of so many tokens.
    Compare(usize),
    /// It closes a bracket.
    Close,
}

fn joint(code: &Code<'_>, index: usize, fresh: bool) -> Joint {
    let token: &Token<'_> = &code.tokens[index];
    match token.kind {
        Kind::Close => Joint::Close,
        Kind::Sign => match token.text {
            "==" | "!=" | "<" | "<=" | ">" | ">=" => Joint::Compare(1),
            "," | ":" | "=" => Joint::Boundary,
            // Before an argument that is spread.
            "*" | "**" if fresh => Joint::Boundary,
            _ => Joint::Operand,
        },
        Kind::Word if code.is_operator(index) => {
            let after_is = code.before(index).is_some_and(|before| before.is("is"));
            let after_operand = code.before(index).is_some_and(Token::ends_operand) && !fresh;
            let next_in = code.tokens.get(index + 1).is_some_and(|next| next.is("in"));
            match token.text {
                "and" | "or" | "if" | "else" => Joint::Boundary,
                // `is in`, `is not` and `is not in` are tests.
                "in" | "not" if after_is => Joint::Operand,
                "in" if code.before(index).is_some_and(|before| before.is("not")) => Joint::Operand,
                "in" => Joint::Compare(1),
                "not" if after_operand && next_in => Joint::Compare(2),
                "not" => Joint::Boundary,
                _ => Joint::Operand,
            }
        }
        _ => Joint::Operand,
    }
}

/// Whether a sign is between two operands: not a prefix, and not in a number.
fn is_binary(code: &Code<'_>, index: usize) -> bool {
    let Some(before) = index.checked_sub(1) else {
        return false;
    };
    let (token, last) = (&code.tokens[index], &code.tokens[before]);
    let tag = code.statement && before == 0;
    // `x is eq -1`: a test takes an argument without brackets. (`x is odd + 1` is an error for that reason.)
    let argument = code.is_test(before) && matches!(token.text, "+" | "-");
    let exponent = last.kind == Kind::Number
        && last.text.ends_with(['e', 'E'])
        && !last.text.starts_with("0x")
        && !last.text.starts_with("0X")
        && last.end() == token.start
        && matches!(token.text, "+" | "-");
    last.ends_operand() && !code.is_operator(before) && !tag && !argument && !exponent
}
