//! Each lock of the store has its reason, and a test with a second connection.

use std::collections::HashSet;

use crate::source::{first_name, quoted, read, root, rust_files, without_comments};

/// What the comments of tests in a file name: those that stand right above a test.
fn named_by_tests(text: &str) -> HashSet<String> {
    let mut named = HashSet::new();
    let mut comment = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("/// ") {
            Some(said) => comment.extend(quoted(said).map(str::to_owned)),
            None if line.starts_with("#[tokio::test") => named.extend(comment.drain(..)),
            None => comment.clear(),
        }
    }
    named
}

#[test]
fn statements_that_tests_name_are_found() {
    let text = "/// `a`, `b`:\n/// and `c`.\n#[tokio::test]\nasync fn t() {}\n/// `d`\nfn helper() {}\n// `e`\n#[tokio::test]\n";
    assert_eq!(named_by_tests(text), HashSet::from(["a", "b", "c"].map(str::to_owned)));
}

#[test]
fn statements_that_rest_on_locks_are_tested_with_a_second_connection() {
    let tests = root().join("tests/e2e/interleaved");
    let named: HashSet<String> = std::fs::read_dir(&tests)
        .expect("the tests")
        .flat_map(|entry| named_by_tests(&read(&entry.expect("an entry").path())))
        .collect();
    let statements = root().join("runner/store/src/sql");
    let (mut silent, mut untested, mut count) = (Vec::new(), Vec::new(), 0);
    for entry in std::fs::read_dir(&statements).expect("the statements") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        let has_note = read(&path)
            .lines()
            .take_while(|line| line.starts_with("--"))
            .any(|line| line.starts_with("-- Locking:"));
        count += 1;
        match (has_note, named.contains(&name)) {
            (false, _) => silent.push(name),
            (true, false) => untested.push(name),
            (true, true) => {}
        }
    }
    // Statements between Rust that have a name: a comment in their first line.
    let mut files = Vec::new();
    rust_files(&root().join("runner/store/src"), &mut files);
    for text in files.iter().map(|path| read(path)) {
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("\"-- "));
        for name in names.filter(|&name| !named.contains(name)) {
            untested.push(name.to_owned());
        }
    }
    assert!(count > 40, "{count} statements");
    assert!(silent.is_empty(), "statements without a locking note: {silent:?}");
    assert!(untested.is_empty(), "no interleaved test names these: {untested:?}");
}

/// The public functions of a file with a locking note in their documentation.
fn noted_functions(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let (mut noted, mut functions) = (false, Vec::new());
    for line in code.lines().map(str::trim) {
        if line.starts_with("//") || line.starts_with("#[") {
            noted |= line.starts_with("///") && line.contains("Locking:");
            continue;
        }
        let function = line
            .strip_prefix("pub ")
            .map(|line| line.strip_prefix("async ").unwrap_or(line))
            .and_then(|line| line.strip_prefix("fn "));
        functions.extend(function.filter(|_| noted).map(first_name));
        noted = false;
    }
    functions
}

#[test]
fn functions_with_a_note_are_found() {
    let text = "
        /// Locking: a.
        #[must_use]
        pub async fn a(&self) {
            // Locking: of a statement.
            query();
        }
        /// No word of it.
        pub fn b() {}
        /// Locking: private.
        async fn c() {}
        /// Locking: of the crate.
        pub(crate) fn d() {}
        /// Locking: e,
        /// on two lines.
        pub fn e<'a>() {}
        /// Locking: of nothing.
        pub struct F;
        pub fn f() {}
        #[cfg(test)]
        /// Locking: g.
        pub fn g() {}";
    assert_eq!(noted_functions(text), ["a", "e"]);
}

/// Functions that are not public are reached through these.
#[test]
fn functions_that_rest_on_locks_are_called_beside_a_second_connection() {
    let (mut tests, mut files) = (Vec::new(), Vec::new());
    rust_files(&root().join("tests/e2e/interleaved"), &mut tests);
    let tests: String = tests.iter().map(|path| without_comments(&read(path))).collect();
    rust_files(&root().join("runner/store/src"), &mut files);
    let (mut count, mut untested) = (0, Vec::new());
    for path in &files {
        let text = read(path);
        for function in noted_functions(&text) {
            count += 1;
            if !tests.contains(&format!(".{function}(")) {
                untested.push(format!("{}: {function}", path.display()));
            }
        }
    }
    assert!(count > 30, "{count} functions");
    assert!(untested.is_empty(), "no interleaved test calls these: {untested:#?}");
}

/// What takes a lock, in statements between Rust.
const LOCKS: [&str; 7] = [
    "FOR UPDATE",
    "FOR NO KEY UPDATE",
    "FOR SHARE",
    "FOR KEY SHARE",
    "pg_advisory",
    "pg_try_advisory",
    "LOCK TABLE",
];

/// Whether a function begins in this line.
fn begins_function(line: &str) -> bool {
    let line = ["pub(crate) ", "pub(super) ", "pub "]
        .iter()
        .find_map(|seen| line.strip_prefix(seen))
        .unwrap_or(line);
    line.strip_prefix("async ").unwrap_or(line).starts_with("fn ")
}

/// How many lines take locks, and those of them without a locking note: in the documentation of their function, or in a
/// comment of it above them.
fn silent_locks(text: &str) -> (usize, Vec<&str>) {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let (mut above, mut noted) = (false, false);
    let (mut count, mut silent) = (0, Vec::new());
    for line in code.lines().map(str::trim) {
        if line.starts_with("//") || line.starts_with("#[") {
            above |= line.contains("Locking:");
            continue;
        }
        noted = above || noted && !begins_function(line);
        above = false;
        if LOCKS.iter().any(|lock| line.contains(lock)) {
            count += 1;
            if !noted {
                silent.push(line);
            }
        }
    }
    (count, silent)
}

#[test]
fn locks_without_a_note_are_found() {
    let text = "
        /// Locking: a.
        pub async fn a() {
            query(\"a FOR UPDATE\");
        }
        /// No word of it.
        fn b() {
            query(\"b FOR SHARE\");
            // Locking: c.
            query(\"SELECT pg_advisory_xact_lock(c)\");
        }
        // In a comment: FOR UPDATE.
        /// Locking: of nothing.
        struct D;

        pub(crate) fn d() {
            query(\"LOCK TABLE d\");
        }
        #[cfg(test)]
        fn e() {
            query(\"e FOR UPDATE\");
        }";
    assert_eq!(
        silent_locks(text),
        (4, vec!["query(\"b FOR SHARE\");", "query(\"LOCK TABLE d\");"])
    );
}

#[test]
fn statements_between_rust_say_why_their_locks_wait_in_no_circle() {
    let source = root().join("runner/store/src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let (mut count, mut faults) = (0, Vec::new());
    for path in &files {
        let text = read(path);
        let (locks, silent) = silent_locks(&text);
        count += locks;
        faults.extend(silent.iter().map(|line| format!("{}: {line}", path.display())));
    }
    assert!(count > 60, "{count} locks");
    assert!(faults.is_empty(), "locks without a locking note: {faults:#?}");
}
