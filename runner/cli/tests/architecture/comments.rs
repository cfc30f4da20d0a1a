//! The files that comments name exist.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::source::{quoted, read, root, rust_files};

/// The files that a text's documentation comments name.
fn named_by_comments(text: &str) -> impl Iterator<Item = &str> {
    let comments = text.lines().map(str::trim_start);
    let comments = comments.filter(|line| line.starts_with("//!") || line.starts_with("///"));
    comments.flat_map(quoted).filter(|name| {
        let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
        (name.ends_with(".rs") || name.ends_with(".sql")) && name.bytes().all(is_path)
    })
}

#[test]
fn files_that_comments_name_are_found() {
    let text = "//! `a/b.rs`, and `c`\n    /// `d.sql` of `*.rs`\n// `e.rs`\nlet f = \"`f.rs`\";";
    assert_eq!(named_by_comments(text).collect::<Vec<_>>(), ["a/b.rs", "d.sql"]);
}

/// Comments name a file relative to the repository, the crate, its `src`, or the place of the comment; or only by its
/// name if it is in the same crate.
#[test]
fn what_comments_name_exists() {
    let root = root();
    let (mut missing, mut looked_at) = (Vec::new(), 0);
    for layer in std::fs::read_dir(root.join("runner"))
        .expect("runner/ is there")
        .flatten()
        .map(|entry| entry.path())
        .filter(|layer| layer.join("src").is_dir())
    {
        let source = layer.join("src");
        let mut files = Vec::new();
        rust_files(&layer, &mut files);
        let statements = std::fs::read_dir(source.join("sql")).into_iter().flatten().flatten();
        let all = files.iter().cloned().chain(statements.map(|entry| entry.path()));
        let names: HashSet<OsString> = all.filter_map(|path| Some(path.file_name()?.to_owned())).collect();
        for file in &files {
            let text = read(file);
            let own = file.parent().expect("a file is in a directory");
            let within = file.with_extension("");
            let bases: [&Path; 6] = [&root, &layer, &source, own, &within, own.parent().unwrap_or(own)];
            for name in named_by_comments(&text) {
                looked_at += 1;
                let exists = bases.iter().any(|base| base.join(name).exists()) || names.contains(OsStr::new(name));
                if !exists {
                    missing.push(format!("{}: {name}", file.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "comments name what is not there: {missing:#?}");
    assert!(looked_at > 100, "only {looked_at} names were found");
}
