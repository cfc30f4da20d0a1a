//! Refuses templates by their text, before they are compiled: minijinja's parser, compiler and values recurse as deep as
//! the code is nested, every template is checked in the node, and a stack that overflows ends the whole node.

use super::TEMPLATE_MAX_BYTES;
use super::scan::{self, Code, Kind, Token, wrong};

/// Statements that there are: no `macro`, `call`, `include`, no blocks of captured output.
const TAGS: [&str; 7] = ["if", "elif", "else", "endif", "for", "endfor", "set"];
// A debug build of minijinja takes, for each level, some 22 KB of stack for brackets (and as much again for a comparison
// in them), 11 KB for an `if` or `for`, 3 KB for an `elif`, 2 KB for an operator, 4 KB for values in one another. All
// of these together stay well below the 2 MiB that a thread has.

/// How deeply brackets may be nested.
const BRACKETS_MAX: usize = 16;
/// How deeply an expression may be nested. Each operator, dot, filter and bracket counts, except those next to each
/// other in a list: `a.b.c` is two deep, as are `not not x` and `x or y or z`.
const NESTING_MAX: usize = 200;
/// How deeply `if` and `for` may be nested.
const STATEMENTS_MAX: usize = 16;
/// How many `elif` the statements that are open may have: each is an `if` in the `else` of the one before.
const ELIFS_MAX: usize = 64;

/// Checks a template, and gives its code.
pub(super) fn check(template: &str) -> Result<Vec<Code<'_>>, String> {
    if template.len() > TEMPLATE_MAX_BYTES {
        return Err(format!("a template must have at most {TEMPLATE_MAX_BYTES} bytes"));
    }
    let codes = scan::template(template)?;
    let mut bound_nesting = 0;
    let mut statements = Vec::new();
    for code in &codes {
        let nesting = nesting(template, code)?;
        check_words(template, code)?;
        if code.statement {
            check_tag(template, code)?;
            if matches!(code.tag(), "for" | "set") {
                // A bound value may be bound again inside something else, and so on.
                bound_nesting += nesting;
            }
            nest(&mut statements, code.tag());
        }
        let offset = code.range.start;
        if statements.len() > STATEMENTS_MAX {
            let detail = format!("`if` and `for` are nested more than {STATEMENTS_MAX} levels deep");
            return Err(wrong(template, offset, &detail));
        }
        if statements.iter().sum::<usize>() > ELIFS_MAX {
            return Err(wrong(
                template,
                offset,
                &format!("an `if` has more than {ELIFS_MAX} `elif`"),
            ));
        }
        if bound_nesting > NESTING_MAX {
            let detail = format!("`for` and `set` could nest values more than {NESTING_MAX} levels deep");
            return Err(wrong(template, offset, &detail));
        }
    }
    Ok(codes)
}

/// Checks an expression, and gives its code.
pub(super) fn check_expression(expression: &str) -> Result<Code<'_>, String> {
    if expression.len() > TEMPLATE_MAX_BYTES {
        return Err(format!("an expression must have at most {TEMPLATE_MAX_BYTES} bytes"));
    }
    if expression.is_empty() {
        return Err("the expression is empty".into());
    }
    let code = scan::expression(expression)?;
    nesting(expression, &code)?;
    check_words(expression, &code)?;
    Ok(code)
}

/// minijinja takes `in` and the like for a name where it expects an operand; here they are none.
fn check_words(source: &str, code: &Code<'_>) -> Result<(), String> {
    let tags = usize::from(code.statement);
    for index in (tags..code.tokens.len()).filter(|index| code.is_operator(*index)) {
        let token = &code.tokens[index];
        let word = |at: usize| {
            if at >= tags && code.is_operator(at) {
                code.tokens[at].text
            } else {
                ""
            }
        };
        let before = index.checked_sub(1).filter(|before| *before >= tags);
        let sound = match (before.map(word), token.text) {
            // `not in`, `is in` and `is not in`.
            (Some("not" | "is"), "in") | (Some("is"), "not") => true,
            (Some("is"), _) | (Some("in"), "not") => false,
            (None, "not") => true,
            (Some(""), "not") => {
                let before = code.before(index);
                before.is_some_and(|before| before.kind != Kind::Sign || matches!(before.text, "," | ":" | "="))
            }
            // No test is named so.
            (Some("not"), "not") if before.is_some_and(|before| before > tags && word(before - 1) == "is") => false,
            (Some(_), "not") => true,
            (Some(""), _) => code.before(index).is_some_and(Token::ends_operand),
            _ => false,
        };
        if !sound {
            return Err(wrong(
                source,
                token.start,
                &format!("`{}` is not a valid name", token.text),
            ));
        }
        if matches!(token.text, "in" | "not" | "if") && before.is_some_and(|before| code.is_test(before)) {
            let detail = format!(
                "`{}` cannot follow a test directly; put the test in parentheses",
                token.text
            );
            return Err(wrong(source, token.start, &detail));
        }
    }
    Ok(())
}

fn check_tag(template: &str, code: &Code<'_>) -> Result<(), String> {
    let tag = code.tag();
    if !TAGS.contains(&tag) {
        return Err(format!(
            "`{{% {} %}}` is not available; only `if`, `for` and `set` are",
            super::shown(tag)
        ));
    }
    if tag == "set" && !code.tokens.iter().any(|token| token.is("=")) {
        return Err("`set` needs a value, `{% set name = value %}`; blocks are not supported".into());
    }
    // An attribute that is set remains after its block, and a value could contain itself.
    if tag == "set"
        && code
            .tokens
            .iter()
            .take_while(|token| !token.is("="))
            .any(|token| token.is("."))
    {
        return Err(wrong(template, code.range.start, "`set` needs a plain name"));
    }
    if tag == "for" && code.tokens.last().is_some_and(|word| word.is("recursive")) {
        return Err("a `for` cannot be `recursive`".into());
    }
    Ok(())
}

/// Keeps how many `elif` each open statement has.
fn nest(statements: &mut Vec<usize>, tag: &str) {
    match tag {
        "if" | "for" => statements.push(0),
        "elif" => {
            if let Some(open) = statements.last_mut() {
                *open += 1;
            }
        }
        "endif" | "endfor" => {
            statements.pop();
        }
        _ => {}
    }
}

/// The state of the open brackets.
#[derive(Default)]
struct Level {
    /// The count since the last comma.
    operators: usize,
    /// The deepest bracket closed since then.
    inner: usize,
    /// The deepest item before the last comma.
    done: usize,
}

impl Level {
    /// The depth of what follows the last comma.
    fn depth(&self) -> usize {
        self.operators + self.inner
    }
}

/// A bound for the nesting of the code's tree: in a part without commas, all operators might be inside one another,
/// around the deepest bracket.
fn nesting(source: &str, code: &Code<'_>) -> Result<usize, String> {
    let mut levels = vec![Level::default()];
    let mut deepest = 0;
    for (index, token) in code.tokens.iter().enumerate() {
        let Some(level) = levels.last_mut() else { break };
        match token.kind {
            Kind::Sign if matches!(token.text, "," | ":") => {
                level.done = level.done.max(level.depth());
                (level.operators, level.inner) = (0, 0);
            }
            Kind::Sign if token.text == "=" => {}
            Kind::Open => {
                level.operators += 1;
                levels.push(Level::default());
            }
            Kind::Close => {
                let depth = level.done.max(level.depth());
                levels.pop();
                if let Some(level) = levels.last_mut() {
                    level.inner = level.inner.max(depth);
                }
            }
            Kind::Word if !code.is_operator(index) => {}
            Kind::Sign | Kind::Word => level.operators += 1,
            Kind::Number | Kind::Text => {}
        }
        if levels.len() > BRACKETS_MAX + 1 {
            let detail = format!("brackets are nested more than {BRACKETS_MAX} levels deep");
            return Err(wrong(source, token.start, &detail));
        }
        deepest = deepest.max(levels.iter().map(Level::depth).sum());
        if deepest > NESTING_MAX {
            let detail = format!("the expression nests more than {NESTING_MAX} operators, dots and filters");
            return Err(wrong(source, token.start, &detail));
        }
    }
    Ok(deepest)
}
