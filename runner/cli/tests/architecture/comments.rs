//! Comments: the files that they name exist, and documentation says more than a name does.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::source::{quoted, read, root, rust_files};

/// The directories of the crates below `runner/`.
fn layers(root: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(root.join("runner"))
        .expect("runner/ is there")
        .flatten()
        .map(|entry| entry.path())
        .filter(|layer| layer.join("src").is_dir())
        .collect()
}

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
    for layer in layers(&root) {
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

/// Documentation with this number of words, or fewer, says too little.
const WORDS_FEW: usize = 3;

/// The mark with which a line of documentation begins: `///` or `//!`.
fn mark(line: &str) -> Option<&str> {
    line.get(..3).filter(|mark| matches!(*mark, "///" | "//!"))
}

/// The documentation in a text that says too little: the number of its first line, from 1, and its words. Tests within
/// the text are left out.
fn terse(text: &str) -> Vec<(usize, String)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines: Vec<(usize, &str)> = (1..).zip(code.lines().map(str::trim_start)).collect();
    let mut found = Vec::new();
    // Successive lines with the same mark are one comment.
    for comment in lines.chunk_by(|before, after| mark(before.1) == mark(after.1)) {
        let (first, line) = comment[0];
        if mark(line).is_none() {
            continue;
        }
        let words: Vec<&str> = comment
            .iter()
            .flat_map(|&(_, line)| line[3..].split_whitespace())
            .collect();
        if words.len() <= WORDS_FEW {
            found.push((first, words.join(" ")));
        }
    }
    found
}

#[test]
fn documentation_that_says_too_little_is_found() {
    let text = "//! A file.\n\n/// Three words here.\nfn a() {}\n    /// Four words are enough.\n    fn b() {}\n/// A comment\n/// that continues.\nfn c() {}\n// No documentation.\n    /// The end.\n    #[test]\n#[cfg(test)]\nmod tests {\n    /// In tests.\n";
    let expect =
        [(1, "A file."), (3, "Three words here."), (11, "The end.")].map(|(line, said)| (line, said.to_owned()));
    assert_eq!(terse(text), expect);
}

/// Three words seldom say more than the name below them. Such a comment gets a meaning, a unit or a bound, or is removed.
/// The help of the command line may be that short; it is in the documentation of the CLI's commands.
#[test]
fn documentation_says_more_than_a_name() {
    let root = root();
    let mut files = Vec::new();
    for layer in layers(&root) {
        rust_files(&layer.join("src"), &mut files);
    }
    let (mut faults, mut looked_at) = (Vec::new(), 0);
    for file in &files {
        let inside = file.strip_prefix(&root).expect("it was found there");
        let name = inside.to_string_lossy();
        let is_test = name.ends_with("tests.rs") || inside.iter().any(|part| part == "tests");
        if is_test || inside.starts_with("runner/cli/src/commands") {
            continue;
        }
        looked_at += 1;
        let found = terse(&read(file));
        faults.extend(found.iter().map(|(line, said)| format!("{name}:{line}: {said}")));
    }
    assert!(
        faults.is_empty(),
        "documentation of {WORDS_FEW} words or fewer: say more, or remove it: {faults:#?}"
    );
    assert!(looked_at > 500, "only {looked_at} files were looked at");
}
