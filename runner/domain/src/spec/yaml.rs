//! Reads YAML strictly, as JSON is read.

use serde::de::DeserializeSeed;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};

use super::strict::{NESTING_MAX, Position, Strict, StrictError};
use crate::Fault;

/// How deeply a document may be nested: it has a spec, which has its own bound, in an object with the kind and the name.
const DOCUMENT_NESTING_MAX: usize = NESTING_MAX + 1;

/// Reads the documents of a local file, strictly. Empty documents are left out.
pub fn parse_yaml_documents(text: &str) -> Result<Vec<Value>, String> {
    struct Document(Value);
    impl<'de> Deserialize<'de> for Document {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Strict(&mut Position::default()).deserialize(deserializer).map(Self)
        }
    }
    let documents: Vec<Document> = serde_saphyr::from_multiple_with_options(text, options(text, DOCUMENT_NESTING_MAX))
        .map_err(|error| in_words(&error, DOCUMENT_NESTING_MAX))?;
    Ok(documents.into_iter().map(|Document(value)| value).collect())
}

/// Reads a YAML document in this process, however much it takes.
pub(crate) fn read_yaml(text: &str) -> Result<Value, StrictError> {
    let mut position = Position::default();
    serde_saphyr::with_deserializer_from_str_with_options(text, options(text, NESTING_MAX), |deserializer| {
        Strict(&mut position).deserialize(deserializer)
    })
    .map_err(|error| match (position.duplicate.take(), cause(&error)) {
        (Some(fault), _) => StrictError::Duplicate(fault),
        // The library compares keys as YAML, [`Strict`] compares them as the texts that they become in JSON.
        (None, Error::DuplicateMappingKey { key, .. }) => StrictError::Duplicate(match key {
            Some(key) => position.twice(key),
            None => Fault::at(position.pointer(), "duplicate: a key occurs twice in one object"),
        }),
        (None, _) => StrictError::Malformed(in_words(&error, NESTING_MAX)),
    })
}

/// How a text is read. It may have as many values as its bytes can spell, as JSON may: two bytes (`?,`) spell at most
/// three. Each value has at most two events. (The library's own maximum, 250,000, is less than the fields of 10,000
/// tasks.) What aliases repeat has a bound of its own.
fn options(text: &str, levels: usize) -> Options {
    let values = text.len().saturating_mul(2).saturating_add(16);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: levels,
            max_nodes: values,
            max_events: values.saturating_mul(3),
        },
        with_snippet: false,
    }
}

fn cause(mut error: &Error) -> &Error {
    while let Error::WithSnippet { error: inner, .. } | Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    error
}

/// The error and its position. Some texts of the library are replaced: they are for programmers who call it.
fn in_words(error: &Error, levels: usize) -> String {
    let words = match cause(error) {
        Error::MultipleDocuments { .. } => "there is more than one document".into(),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            let shown: String = key.chars().take(100).collect();
            format!("the key `{shown}` occurs twice in one object")
        }
        Error::DuplicateMappingKey { .. } => "a key occurs twice in one object".into(),
        Error::NullIntoString { .. } => "a key is empty or null; write it in quotes".into(),
        Error::TaggedScalarCannotDeserializeIntoString { .. } | Error::InvalidScalar { .. } => {
            "a value or a key does not fit its tag".into()
        }
        Error::InvalidBinaryBase64 { .. } | Error::BinaryNotUtf8 { .. } => {
            "a `!!binary` value is not a UTF-8 text in base64".into()
        }
        Error::NonFiniteFloat { value, .. } => {
            let shown: String = value.chars().take(100).collect();
            format!("`{shown}` is not a number that JSON allows")
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias is inside its own anchor".into(),
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => format!("nested more than {levels} levels deep"),
        Error::Budget { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => "there are too many values, anchors or aliases".into(),
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    match error.location() {
        Some(at) => format!("{words} at line {} column {}", at.line(), at.column()),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_one_in_json_are_refused() {
        for (text, pointer) in [
            ("a: 1\na: 2\n", "/a"),
            ("1: a\n\"1\": b\n", "/1"),
            ("tasks:\n  !x a: 1\n  a: 2\n", "/tasks/a"),
            ("tasks: {a: [{b/c: 1, 'b/c': 1}]}\n", "/tasks/a/0/b~1c"),
        ] {
            match read_yaml(text) {
                Err(StrictError::Duplicate(fault)) => assert_eq!(fault.pointer, pointer, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
            let said = parse_yaml_documents(text).unwrap_err();
            assert!(said.contains("occurs twice"), "{text}: {said}");
        }
        let merged = "base: &base {x: 1, y: 1}\nother: {<<: *base, x: 2}\n";
        let expect = serde_json::json!({"base": {"x": 1, "y": 1}, "other": {"x": 2, "y": 1}});
        assert_eq!(read_yaml(merged), Ok(expect.clone()));
        assert_eq!(
            parse_yaml_documents(&format!("{merged}---\n---\n7\n")),
            Ok(vec![expect, serde_json::json!(7)])
        );
    }

    /// As `docs/specs.md` says.
    #[test]
    fn numbers_with_leading_zeros_are_decimal() {
        let text = "priority: 010\ntasks: {t: {script: x, shards: 010, max_output: 010, params: {n: 010}}}\n";
        let spec: crate::spec::GroupSpec = crate::spec::read(&read_yaml(text).unwrap()).unwrap();
        let task = spec.tasks.values().next().unwrap();
        assert_eq!(spec.priority, Some(10));
        assert_eq!(task.shards, Some(crate::spec::Shards::Count(10)));
        assert_eq!(task.max_output, Some(crate::spec::ByteSize(10)));
        assert_eq!(task.params["n"], 10.0);
    }

    #[test]
    fn errors_are_written_for_authors() {
        let deep = format!("{}1{}", "[".repeat(NESTING_MAX), "]".repeat(NESTING_MAX));
        let deeper = format!("[{deep}]");
        for (text, words) in [
            ("a: 1\n---\nb: 1\n", "there is more than one document at line"),
            ("a: 1\n~: 2\n", "a key is empty or null; write it in quotes at line 2"),
            ("a: .nan\n", "`.nan` is not a number that JSON allows at line 1"),
            (deeper.as_str(), "nested more than 127 levels deep at line 1"),
        ] {
            match on_a_large_stack(text.to_owned()) {
                Err(StrictError::Malformed(said)) => assert!(said.starts_with(words), "{said}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(on_a_large_stack(deep).is_ok());
    }

    /// What `export` writes of the deepest spec is read again.
    #[test]
    fn a_document_is_a_level_deeper_than_its_spec() {
        let read = |levels: usize| {
            let text = format!("spec: {}1{}\n", "[".repeat(levels), "]".repeat(levels));
            let thread = std::thread::Builder::new().stack_size(16 << 20);
            thread
                .spawn(move || parse_yaml_documents(&text))
                .unwrap()
                .join()
                .unwrap()
        };
        assert!(read(NESTING_MAX).is_ok());
        let said = read(NESTING_MAX + 1).unwrap_err();
        assert!(said.starts_with("nested more than 128 levels deep"), "{said}");
    }

    #[test]
    fn a_text_may_have_as_many_values_as_it_has_room_for() {
        let count = 300_000;
        let text = format!("[{}]", "1,".repeat(count));
        let read = read_yaml(&text).unwrap();
        assert_eq!(read.as_array().map(Vec::len), Some(count));
        assert_eq!(parse_yaml_documents(&text), Ok(vec![read]));
    }

    /// Without optimisations, each level takes kilobytes.
    fn on_a_large_stack(text: String) -> Result<Value, StrictError> {
        let thread = std::thread::Builder::new().stack_size(16 << 20);
        thread.spawn(move || read_yaml(&text)).unwrap().join().unwrap()
    }
}
