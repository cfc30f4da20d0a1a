//! A bound that several crates keep is declared once, and the others import it.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{code, first_name, root, rust_files};

/// Names that crates use for different bounds, which have the same value only by chance; and what they bound. Scripts
/// cannot import what the runner declares.
const DIFFERENT: [(&str, &str); 13] = [
    (
        "BATCH_MAX",
        "spans of a request; users of a take; schedules of a transaction; messages of a batch",
    ),
    (
        "DEPTH_MAX",
        "groups that follow one another; levels of a template's result",
    ),
    ("IDS_MAX", "messages of a report; runs of a bulk control's answer"),
    (
        "INSTANTS_MAX",
        "instants of an interval that a run waits for; instants of a backfill",
    ),
    (
        "LINES_MAX",
        "lines that one statement writes; lines that one heartbeat carries",
    ),
    ("MAX_KEY_BYTES", "the same bound, in the SDK's double of the host"),
    ("MAX_VALUE_BYTES", "the same bound, in the SDK's double of the host"),
    ("PAGE", "changes, events and runs that different readers take at once"),
    (
        "QUEUES_MAX",
        "queues whose minutes are kept; queues that a search looks at",
    ),
    ("ROUNDS_MAX", "repetitions of deletions; unreadable parts of a spec"),
    ("SHOWN_CHARS", "characters of a statement; characters of an address"),
    (
        "SHOWN_CHARS_MAX",
        "characters of a parameter's name; characters of a value in a spec",
    ),
    (
        "TRIES_MAX",
        "tries of a transaction; tries of a spec's check; tries of a new lease",
    ),
];

/// The value of an expression of whole numbers with `*` and `<<`; `None` for any other.
fn value(expression: &str) -> Option<u128> {
    let spaced = expression.replace('_', "").replace('*', " * ").replace("<<", " << ");
    let mut words = spaced.split_whitespace();
    let mut value: u128 = words.next()?.parse().ok()?;
    while let Some(operator) = words.next() {
        let other: u128 = words.next()?.parse().ok()?;
        value = match operator {
            "*" => value.checked_mul(other)?,
            "<<" => value.checked_shl(u32::try_from(other).ok()?)?,
            _ => return None,
        };
    }
    Some(value)
}

/// The constants in a text that are whole numbers, tests left out.
fn constants(code: &str) -> Vec<(String, u128)> {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let begun = code
        .match_indices("const ")
        .map(|(at, begin)| &code[at + begin.len()..]);
    begun
        .filter_map(|rest| {
            let (declared, _) = rest.split_once(';')?;
            let (head, expression) = declared.split_once('=')?;
            let name = first_name(head);
            // The `const` of a generic parameter is followed by the body of a function or a type.
            let is_constant = !name.is_empty() && head[name.len()..].starts_with(':') && !head.contains(['{', '(']);
            Some((name.to_owned(), value(expression)?)).filter(|_| is_constant)
        })
        .collect()
}

#[test]
fn constants_are_found_with_their_values() {
    let code = "const A: usize = 64 << 10;\npub(crate) const B: i64 = 64 * 1_024;\nconst C: &str = \"x\";\n\
                fn f<const N: usize>() {}\n    const D: u8 =\n        7;\nconst E: Duration = Duration::from_secs(1);\n\
                #[cfg(test)]\nmod tests {\n    const F: u8 = 1;\n}\n";
    let found = constants(code);
    let found: Vec<(&str, u128)> = found.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(found, [("A", 65_536), ("B", 65_536), ("D", 7)]);
    assert_eq!(value("1 + 2"), None);
}

#[test]
fn no_bound_is_declared_in_two_crates() {
    let mut crates = vec![("guest-sdk".to_owned(), root().join("guest-sdk/src"))];
    for layer in std::fs::read_dir(root().join("runner"))
        .expect("runner/ is there")
        .flatten()
    {
        let source = layer.path().join("src");
        if source.is_dir() {
            crates.push((layer.file_name().to_string_lossy().into_owned(), source));
        }
    }
    let mut declared: BTreeMap<(String, u128), BTreeSet<String>> = BTreeMap::new();
    for (name, source) in crates {
        let mut files = Vec::new();
        rust_files(&source, &mut files);
        for path in files {
            let below = path
                .strip_prefix(&source)
                .expect("it was found there")
                .to_string_lossy();
            if below.contains("tests") {
                continue;
            }
            for constant in constants(&code(&path)) {
                declared.entry(constant).or_default().insert(format!("{name}: {below}"));
            }
        }
    }
    assert!(declared.len() > 300, "only {} constants were found", declared.len());
    let crate_of = |place: &String| place.split(':').next().unwrap_or_default().to_owned();
    let twice: Vec<(&(String, u128), &BTreeSet<String>)> = declared
        .iter()
        .filter(|(_, places)| places.iter().map(crate_of).collect::<BTreeSet<_>>().len() > 1)
        .collect();
    let is_different = |name: &str| DIFFERENT.iter().any(|(different, _)| *different == name);
    let faults: Vec<_> = twice.iter().filter(|((name, _), _)| !is_different(name)).collect();
    assert!(
        faults.is_empty(),
        "declare each once, in the crate that the others use: {faults:#?}"
    );
    let needless = DIFFERENT
        .iter()
        .find(|(name, _)| !twice.iter().any(|((other, _), _)| other == name));
    assert_eq!(needless, None, "this is no exception any more");
}
