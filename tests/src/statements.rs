//! The statements of the store as the macros of sqlx have checked them.

use std::path::Path;

use serde_json::Value;

/// All statements that were checked when the store was compiled.
pub fn checked_statements() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.sqlx");
    let entries = std::fs::read_dir(directory).expect("the checked statements");
    entries
        .map(|entry| {
            let text = std::fs::read(entry.expect("an entry").path()).expect("a file");
            let described: Value = serde_json::from_slice(&text).expect("JSON");
            described["query"].as_str().expect("a statement").to_owned()
        })
        .collect()
}

/// The statement whose first line is a comment with this name.
#[track_caller]
pub fn checked_statement(name: &str) -> String {
    let head = format!("-- {name}\n");
    let mut statements = checked_statements().into_iter();
    let found = statements.find(|statement| statement.starts_with(&head));
    found.unwrap_or_else(|| panic!("no statement begins with {head:?}"))
}
