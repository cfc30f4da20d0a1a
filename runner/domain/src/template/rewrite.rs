//! Writes comparisons and operators as filters, which do the same as minijinja and more: they know instants
//! ([`super::compare`]), and charge their results ([`super::operators`]).
//!
//! | in the source | rewritten |
//! |---|---|
//! | `a < b <= c` | `(a)\|_compare('<', b, '<=', c)` |
//! | `a + b - c`, `a ~ b`, `a * b / c` | `(a)\|_op('+', b, '-', c)`, and so on, each precedence separately |
//! | `f(*a)`, `f(**a)` | `f(*(a)\|_spread)`, `f(**(a)\|_spread)` |
//! | `a[x:y]` | `a[x:y]\|_copied` |
//! | `{a.b: c}`, `a[b.c]`, `loop.changed(a.b)` | `{(a.b)\|_examined: c}`, `a[(b.c)\|_examined]`, `loop.changed((a.b)\|_examined)` |
//!
//! The tokens inside a bracket are read once, from left to right, with the open operand of each precedence; the
//! parser of minijinja defines the precedences. Each rewrite adds an opening bracket before, and a filter
//! after a closing one, so that rewritten pieces may be nested, in whatever order their ends were found.

use std::ops::Range;

use super::compare;
use super::operators::{self, CLASSES, COPIED, EXAMINED, SPREAD};
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
    /// The range in the source; for a filter that replaces a comparison or an operator, the range of all its operands.
    pub(super) fn source_range(&self, range: Range<usize>) -> Range<usize> {
        let (start, end) = (self.source_offset(range.start), self.source_offset(range.end));
        let written = self
            .text
            .get(range.start..)
            .is_some_and(|text| text.starts_with(compare::FILTER) || text.starts_with(operators::FILTER));
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

/// Writes comparisons and what may grow as filters; none if there is neither. The source must be one that minijinja
/// compiles.
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

/// The same source, with the operators that minijinja computes during compilation replaced: constants could become
/// large there. The syntax is checked all the same.
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

/// The open operand of one precedence.
#[derive(Clone, Copy, Default)]
struct Open {
    /// The start of the operand that is being read: `None` before its first token.
    operand: Option<usize>,
    /// The start of the first operand of a chain that is being written as a filter.
    chain: Option<usize>,
}

/// How a bracket's items are wrapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrap {
    Nothing,
    /// Keys of a map: up to the colon.
    Keys,
    /// A subscript, which is no slice, or arguments that are remembered.
    Items,
}

/// A bracket's inside, or all of an expression, up to where it is read.
struct Level {
    /// Comparisons first, then [`CLASSES`] in their order: each binds more than those before it.
    open: [Open; 1 + CLASSES.len()],
    wrap: Wrap,
    /// The first token of the item that is being read, and whether it is after a colon.
    item: Option<usize>,
    value: bool,
    /// The start of a spread value.
    spread: Option<usize>,
    /// The index of the token that opened it.
    bracket: Option<usize>,
}

impl Level {
    fn new(wrap: Wrap, bracket: Option<usize>) -> Self {
        Self {
            open: Default::default(),
            wrap,
            item: None,
            value: false,
            spread: None,
            bracket,
        }
    }
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
        let Some(first) = expression_start(self.code) else {
            return;
        };
        self.levels.push(Level::new(Wrap::Nothing, None));
        let mut index = first;
        while let Some(token) = self.code.tokens.get(index) {
            let Some(level) = self.levels.last() else { return };
            let fresh = level.open[0].operand.is_none();
            let length = match joint(self.code, index, fresh) {
                Joint::Boundary => {
                    self.end_from(0);
                    self.boundary(index);
                    1
                }
                Joint::Chain(class, length) => {
                    self.sign(class, index, length);
                    length
                }
                Joint::Operand => {
                    self.operand(index);
                    1
                }
                Joint::Close => {
                    self.end_from(0);
                    self.end_item();
                    let bracket = self.levels.pop().and_then(|level| level.bracket);
                    if bracket.is_some_and(|open| is_slice(self.code, open)) {
                        self.copied(index + 1);
                    }
                    1
                }
            };
            self.last_end = self.code.tokens.get(index + length - 1).map_or(token.end(), Token::end);
            index += length;
        }
        self.end_from(0);
        self.end_item();
    }

    fn insert(&mut self, at: usize, text: &str) {
        self.edits.push((at..at, text.to_owned()));
    }

    /// Ends the operands of a class and of those that bind more, and with them their chains.
    fn end_from(&mut self, class: usize) {
        let at = self.last_end;
        let Some(level) = self.levels.last_mut() else { return };
        let open = &mut level.open[class..];
        let chains: Vec<usize> = open.iter_mut().rev().filter_map(|one| one.chain.take()).collect();
        open.fill(Open::default());
        for start in chains {
            self.chains.push(start..at);
            self.insert(start, "(");
            self.insert(at, ")");
        }
    }

    /// A sign that joins two operands of a class.
    fn sign(&mut self, class: usize, index: usize, length: usize) {
        let tokens = &self.code.tokens;
        self.end_from(class + 1);
        let range = tokens[index].start..tokens[index + length - 1].end();
        let begins = class == 0 || grows(self.code, index, class);
        let Some(level) = self.levels.last_mut() else { return };
        let open = &mut level.open[class];
        let first = open.chain.is_none();
        if !first || begins {
            open.chain.get_or_insert(open.operand.unwrap_or(range.start));
            let sign: Vec<_> = tokens[index..index + length].iter().map(|token| token.text).collect();
            let sign = sign.join(" ");
            let filter = if class == 0 { compare::FILTER } else { operators::FILTER };
            let written = if first {
                format!(")|{filter}('{sign}',")
            } else {
                format!(",'{sign}',")
            };
            self.edits.push((range, written));
        }
    }

    /// A token that binds less than a comparison.
    fn boundary(&mut self, index: usize) {
        let token = &self.code.tokens[index];
        let Some(level) = self.levels.last_mut() else { return };
        match token.text {
            "," => {
                self.end_item();
            }
            ":" => {
                if level.wrap == Wrap::Keys && !level.value {
                    self.end_item();
                    if let Some(level) = self.levels.last_mut() {
                        level.value = true;
                    }
                }
            }
            "*" | "**" => level.spread = Some(token.end()),
            "=" => level.item = None,
            // A word belongs to the item: `a if b else c`, `not a`.
            _ => {
                level.item.get_or_insert(index);
            }
        }
    }

    fn operand(&mut self, index: usize) {
        let token = &self.code.tokens[index];
        let Some(level) = self.levels.last_mut() else { return };
        for open in &mut level.open {
            open.operand.get_or_insert(token.start);
        }
        level.item.get_or_insert(index);
        if token.kind == Kind::Open {
            self.levels.push(Level::new(wrap(self.code, index), Some(index)));
        }
    }

    /// Ends an item of a bracket, after all that it consists of.
    fn end_item(&mut self) {
        let (at, tokens) = (self.last_end, &self.code.tokens);
        let Some(level) = self.levels.last_mut() else { return };
        let (spread, item, value) = (level.spread.take(), level.item.take(), level.value);
        level.value = false;
        let wrapped = match level.wrap {
            Wrap::Nothing => false,
            Wrap::Keys => !value,
            Wrap::Items => true,
        };
        // A literal is no larger than its text.
        let plain = |first: usize| matches!(tokens[first].kind, Kind::Text | Kind::Number) && tokens[first].end() == at;
        if let Some(start) = spread {
            self.insert(start, "(");
            self.insert(at, &format!("){SPREAD}"));
        } else if let Some(first) = item.filter(|first| wrapped && !plain(*first)) {
            self.insert(tokens[first].start, "(");
            self.insert(at, &format!("){EXAMINED}"));
        }
    }

    /// After a slice, with all attributes, items and calls that follow: none of these may follow a filter. Intermediate
    /// results are freed at once.
    fn copied(&mut self, from: usize) {
        let tokens = &self.code.tokens;
        let mut at = from;
        loop {
            at = match (tokens.get(at), tokens.get(at + 1)) {
                (Some(dot), Some(_)) if dot.is(".") => at + 2,
                (Some(open), _) if open.is("(") || open.is("[") => group_end(self.code, at),
                _ => break,
            };
        }
        if let Some(last) = at.checked_sub(1).and_then(|last| tokens.get(last)) {
            let end = last.end();
            self.insert(end, COPIED);
        }
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
    /// It joins two of a class, and consists of so many tokens.
    Chain(usize, usize),
    /// It closes a bracket.
    Close,
}

fn joint(code: &Code<'_>, index: usize, fresh: bool) -> Joint {
    let token: &Token<'_> = &code.tokens[index];
    match token.kind {
        Kind::Close => Joint::Close,
        Kind::Sign => match token.text {
            "==" | "!=" | "<" | "<=" | ">" | ">=" => Joint::Chain(0, 1),
            "," | ":" | "=" => Joint::Boundary,
            // Before an argument that is spread.
            "*" | "**" if fresh => Joint::Boundary,
            sign => match class_of(sign).filter(|_| is_binary(code, index)) {
                Some(class) => Joint::Chain(class, 1),
                None => Joint::Operand,
            },
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
                "in" => Joint::Chain(0, 1),
                "not" if after_operand && next_in => Joint::Chain(0, 2),
                "not" => Joint::Boundary,
                _ => Joint::Operand,
            }
        }
        _ => Joint::Operand,
    }
}

/// The class of an operator, from 1.
fn class_of(sign: &str) -> Option<usize> {
    let found = CLASSES
        .iter()
        .position(|(growing, others)| growing.contains(&sign) || others.contains(&sign));
    found.map(|class| class + 1)
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

/// Whether a sign at this position, or a later one of the same chain, makes large results from small operands.
fn grows(code: &Code<'_>, index: usize, class: usize) -> bool {
    let (growing, _) = CLASSES[class - 1];
    let mut depth = 0_usize;
    for (at, token) in code.tokens.iter().enumerate().skip(index) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close if depth == 0 => return false,
            Kind::Close => depth -= 1,
            _ if depth > 0 => {}
            _ => match joint(code, at, false) {
                Joint::Boundary => return false,
                Joint::Chain(other, _) if other < class => return false,
                Joint::Chain(other, _) if other == class && growing.contains(&token.text) => return true,
                _ => {}
            },
        }
    }
    false
}

/// How to wrap the items of a bracket that opens here.
fn wrap(code: &Code<'_>, open: usize) -> Wrap {
    let before = open.checked_sub(1).filter(|before| *before > 0 || !code.statement);
    let after_operand = before
        .is_some_and(|before| code.tokens[before].ends_operand() && !code.is_operator(before) && !code.is_test(before));
    match code.tokens[open].text {
        "{" => Wrap::Keys,
        "[" if after_operand && !is_slice(code, open) => Wrap::Items,
        // It remembers what it was called with, and compares.
        "(" if before.is_some_and(|before| code.tokens[before].is("changed"))
            && code.before(open - 1).is_some_and(|dot| dot.is(".")) =>
        {
            Wrap::Items
        }
        _ => Wrap::Nothing,
    }
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

/// Whether a bracket contains a slice: one after an operand, with its own `:`.
fn is_slice(code: &Code<'_>, open: usize) -> bool {
    let after_operand = open
        .checked_sub(1)
        .is_some_and(|before| code.tokens[before].ends_operand() && !code.is_operator(before));
    let mut depth = 0_usize;
    code.tokens[open].is("[")
        && after_operand
        && code.tokens[open..group_end(code, open)].iter().any(|token| {
            match token.kind {
                Kind::Open => depth += 1,
                Kind::Close => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 1 && token.is(":")
        })
}
