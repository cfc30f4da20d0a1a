//! Reading the repository: its files, and what their text consists of.

use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The texts between backticks in a line.
pub(crate) fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The modules below a directory, tests left out.
pub(crate) fn modules(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" {
                modules(&path, found);
            }
        } else if name.ends_with(".rs") && !["lib.rs", "main.rs", "tests.rs"].contains(&name.as_str()) {
            found.push(path);
        }
    }
}

/// All Rust files below a directory.
pub(crate) fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => rust_files(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
}

/// The code of a file, without comments.
pub(crate) fn code(path: &Path) -> String {
    without_comments(&read(path))
}

pub(crate) fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let lines = lines.map(|line| line.split(" //").next().unwrap_or_default());
    lines.fold(String::with_capacity(text.len()), |code, line| code + line + "\n")
}

/// The text between the first brace of `text` and its closing one, divided by its own commas.
pub(crate) fn group(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut entries) = (0, 1, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && byte == b',') {
            entries.push(&text[from..at]);
            from = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    entries
}

/// The name that a path begins with.
pub(crate) fn first_name(path: &str) -> &str {
    let path = path.trim_start();
    let end = path.find(|one: char| !one.is_alphanumeric() && one != '_');
    &path[..end.unwrap_or(path.len())]
}

/// What a file imports and shows: paths, and the names that they have there. What its inner modules and functions import
/// is left out.
pub(crate) fn imported(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, begin) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default();
        if ["", "pub "].contains(&before) || (before.starts_with("pub(") && before.ends_with(") ")) {
            let tree = code[at + begin.len()..].split(';').next().unwrap_or_default();
            add_imported("", tree, &mut found);
        }
    }
    found
}

/// Adds what a tree of imports brings into a file.
fn add_imported(before: &str, tree: &str, found: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some(brace) = tree.find('{') {
        let before = format!("{before}{}", &tree[..brace]);
        group(&tree[brace..])
            .into_iter()
            .for_each(|tree| add_imported(&before, tree, found));
    } else if !tree.is_empty() {
        let (path, alias) = tree
            .split_once(" as ")
            .map_or((tree, None), |(path, name)| (path, Some(name)));
        let path = format!("{before}{path}");
        let path = path.strip_suffix("::self").unwrap_or(&path);
        let name = alias.or_else(|| path.rsplit("::").next()).unwrap_or_default();
        found.push((path.to_owned(), name.to_owned()));
    }
}
