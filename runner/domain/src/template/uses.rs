//! The names in a template's code: filters, tests, functions, the tasks whose outputs it uses, and the params.

use super::UpstreamNames;
use super::scan::{Code, Kind, Token, wrong};
use crate::Name;

/// Something that code names, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use<'s> {
    Filter(&'s str),
    Test(&'s str),
    Function(&'s str),
}

/// Calls `known` with each filter, test and function, and returns an error with a position where it refuses one.
pub(super) fn check<'s>(
    source: &'s str,
    codes: &[Code<'s>],
    known: impl Fn(Use<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let bound = bound_names(codes);
    for code in codes {
        let skipped = usize::from(code.statement);
        for (index, token) in code.tokens.iter().enumerate().skip(skipped) {
            if let Some(named) = named(code, index)
                && !matches!(named, Use::Function(name) if bound.contains(&name))
            {
                known(named).map_err(|detail| wrong(source, token.start, &detail))?;
            }
            // `map('upper')`, `select('defined')`: a filter or a test by its name.
            if let Some((filter, Some(argument))) = by_name(code, index) {
                let inner = &argument.text[1..argument.text.len() - 1];
                let named = if filter == "map" {
                    Use::Filter(inner)
                } else {
                    Use::Test(inner)
                };
                known(named).map_err(|detail| wrong(source, argument.start, &detail))?;
            }
        }
    }
    Ok(())
}

/// The name at a position, if it is a filter, a test or a called function.
fn named<'s>(code: &Code<'s>, index: usize) -> Option<Use<'s>> {
    let token = code.tokens[index];
    if token.kind != Kind::Word {
        return None;
    }
    let before = code.before(index);
    if before.is_some_and(|before| before.is("|")) {
        return Some(Use::Filter(token.text));
    }
    if code.is_test(index) {
        return Some(Use::Test(token.text));
    }
    let called = code.tokens.get(index + 1).is_some_and(|next| next.is("("));
    let method = before.is_some_and(|before| before.is("."));
    (called && !method && !code.is_operator(index)).then_some(Use::Function(token.text))
}

fn by_name<'c, 's>(code: &'c Code<'s>, index: usize) -> Option<(&'s str, Option<&'c Token<'s>>)> {
    let [pipe, filter, open, argument] = code.tokens.get(index..index + 4)? else {
        return None;
    };
    let plain = pipe.is("|") && matches!(filter.text, "map" | "select" | "reject") && open.is("(");
    plain.then_some((
        filter.text,
        (argument.kind == Kind::Text && !argument.text.contains('\\')).then_some(argument),
    ))
}

/// Names that `for` and `set` bind.
fn bound_names<'s>(codes: &[Code<'s>]) -> Vec<&'s str> {
    let mut bound = Vec::new();
    for code in codes {
        let end = match code.tag() {
            "for" => "in",
            "set" => "=",
            _ => continue,
        };
        let targets = code.tokens.iter().skip(1).take_while(|token| !token.is(end));
        bound.extend(targets.filter(|token| token.kind == Kind::Word).map(|token| token.text));
    }
    bound
}

/// The field of a map that code uses: a task in `upstream`, a param in `params`.
pub(super) enum UsedField<'s> {
    /// The field with this name, which may not exist.
    Field(&'s str),
    /// Perhaps any field: the name is computed, or the map is used as a whole.
    Any,
}

/// Calls `found` with the field of each use of a map, and its position.
pub(super) fn used_fields<'s>(codes: &[Code<'s>], map: &str, mut found: impl FnMut(usize, UsedField<'s>)) {
    let rebound = bound_names(codes).contains(&map);
    for code in codes {
        for (index, token) in code.tokens.iter().enumerate() {
            let attribute = code.before(index).is_some_and(|before| before.is("."));
            if token.kind != Kind::Word || token.text != map || attribute {
                continue;
            }
            let next = |by: usize| code.tokens.get(index + by);
            let field = match (next(1), next(2), next(3)) {
                _ if rebound => UsedField::Any,
                // A method, such as `upstream.items()`, is no field.
                (Some(dot), Some(name), after) if dot.is(".") && name.kind == Kind::Word => {
                    if after.is_some_and(|after| after.is("(")) {
                        UsedField::Any
                    } else {
                        UsedField::Field(name.text)
                    }
                }
                (Some(open), Some(name), Some(close))
                    if open.is("[") && name.kind == Kind::Text && close.is("]") && !name.text.contains('\\') =>
                {
                    UsedField::Field(&name.text[1..name.text.len() - 1])
                }
                _ => UsedField::Any,
            };
            found(token.start, field);
        }
    }
}

/// Adds the tasks that code takes.
pub(super) fn add_upstream(codes: &[Code<'_>], names: &mut UpstreamNames) {
    used_fields(codes, "upstream", |_, field| match field {
        UsedField::Field(name) => match Name::new(name) {
            Ok(name) => drop(names.names.insert(name)),
            Err(_) => names.all = true,
        },
        UsedField::Any => names.all = true,
    });
}

/// Adds the params that code names.
pub(super) fn add_params(codes: &[Code<'_>], names: &mut std::collections::BTreeSet<String>) {
    used_fields(codes, "params", |_, field| {
        if let UsedField::Field(name) = field {
            names.insert(name.to_owned());
        }
    });
}
