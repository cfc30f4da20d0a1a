//! What a template may not do, told from its text before it is compiled: bounds that fuel does not give, since one
//! step of fuel may double a string.

use super::{TEMPLATE_MAX_BYTES, UpstreamNames};
use crate::Name;

/// Statements that there are. `macro`, `call`, `include` and blocks of captured output are not: they bind grown
/// strings to names.
const TAGS: [&str; 9] = ["if", "elif", "else", "endif", "for", "endfor", "set", "raw", "endraw"];
/// How often `~`, `+` may stand in a template that binds no names.
const JOINS_MAX: usize = 64;
/// How often they may stand in one that does (`for`, `set`), and `*` in any.
const GROWTHS_MAX: usize = 8;

/// Checks a template.
pub(super) fn check(template: &str) -> Result<(), String> {
    if template.len() > TEMPLATE_MAX_BYTES {
        return Err(format!("a template has at most {TEMPLATE_MAX_BYTES} bytes"));
    }
    let mut binds = false;
    let mut counts = Counts::default();
    let mut rest = template;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let statement = rest[start..].starts_with("{%");
        let body = &rest[start + 2..];
        let end = body.find(if statement { "%}" } else { "}}" }).unwrap_or(body.len());
        let code = &body[..end];
        counts.add(code);
        if statement {
            let code = code.trim_start_matches(['-', '+']).trim();
            let tag = code
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or_default();
            if !TAGS.contains(&tag) {
                return Err(format!(
                    "there is no `{{% {} %}}` here; there are `if`, `for` and `set`",
                    super::shown(tag)
                ));
            }
            if tag == "set" && !code.contains('=') {
                return Err("`set` takes a value, `{% set name = value %}`, not a block".into());
            }
            if tag == "for"
                && code
                    .split_whitespace()
                    .next_back()
                    .is_some_and(|word| word.starts_with("recursive"))
            {
                return Err("a `for` is not `recursive` here".into());
            }
            binds |= matches!(tag, "for" | "set");
        }
        rest = &body[end..];
    }
    counts.check(binds)
}

/// Checks an expression.
pub(super) fn check_expression(expression: &str) -> Result<(), String> {
    if expression.len() > TEMPLATE_MAX_BYTES {
        return Err(format!("an expression has at most {TEMPLATE_MAX_BYTES} bytes"));
    }
    if expression.is_empty() {
        return Err("an empty expression".into());
    }
    let mut counts = Counts::default();
    counts.add(expression);
    counts.check(false)
}

#[derive(Default)]
struct Counts {
    joins: usize,
    products: usize,
}

impl Counts {
    fn add(&mut self, code: &str) {
        self.joins += code.bytes().filter(|byte| matches!(byte, b'~' | b'+')).count();
        self.products += code.bytes().filter(|byte| *byte == b'*').count();
    }

    fn check(&self, binds: bool) -> Result<(), String> {
        let joins_max = if binds { GROWTHS_MAX } else { JOINS_MAX };
        if self.joins > joins_max {
            return Err(format!("more than {joins_max} of `~` and `+` in one template"));
        }
        if self.products > GROWTHS_MAX {
            return Err(format!("more than {GROWTHS_MAX} of `*` in one template"));
        }
        Ok(())
    }
}

/// Finds `upstream.name` and `upstream["name"]`; any other use of `upstream` means all.
pub(super) fn upstream_names(template: &str, found: &mut UpstreamNames) {
    const WORD: &str = "upstream";
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    while let Some(place) = template[from..].find(WORD).map(|place| place + from) {
        from = place + WORD.len();
        let before = template[..place].chars().next_back();
        let after = &template[from..];
        if before.is_some_and(|c| is_word(c) || matches!(c, '.' | '"' | '\'')) || after.starts_with(is_word) {
            continue;
        }
        let after = after.trim_start();
        let name = if let Some(rest) = after.strip_prefix('.') {
            let rest = rest.trim_start();
            Some(&rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())])
        } else if let Some(rest) = after.strip_prefix('[') {
            let rest = rest.trim_start();
            let quoted = |quote: char| {
                let inner = rest.strip_prefix(quote)?;
                let (name, rest) = inner.split_once(quote)?;
                rest.trim_start().starts_with(']').then_some(name)
            };
            quoted('"').or_else(|| quoted('\''))
        } else {
            None
        };
        // A combining mark ends a word here but not a name; and a method of a map is none of its fields.
        match name.and_then(|name| Name::new(name).ok()) {
            Some(name) if !matches!(name.as_str(), "items" | "keys" | "values" | "get") && name.is_ascii() => {
                found.names.insert(name);
            }
            Some(name) => {
                found.names.insert(name);
                found.all = true;
            }
            None => found.all = true,
        }
    }
}
