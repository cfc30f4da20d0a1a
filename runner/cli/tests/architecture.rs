//! Everything that the pages for people name must exist: files of the code in `ARCHITECTURE.md`, pages behind links.
//! And every module must be named there. The same holds for files that comments name, and for the engine's table of
//! loops. Also checks that files use each other in one direction, which parts of the engine may use which, and that each
//! lock of the store has its reason.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The beginnings of paths of the repository.
const ROOTS: [&str; 9] = [
    "runner/",
    "guest-sdk/",
    "scripts/",
    "migrations/",
    "tests/",
    "docs/",
    ".ci/",
    ".sqlx",
    "clippy.toml",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The texts between backticks in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of a text's links that lead into the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
}

/// The paths in ARCHITECTURE.md: as written there, and resolved.
fn named() -> Vec<(String, PathBuf)> {
    let root = root();
    let text = read(&root.join("ARCHITECTURE.md"));
    let mut section: Option<PathBuf> = None;
    let mut named = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if line.starts_with('#') {
            // The heading of a crate's section has the crate's path; modules in it are relative to that.
            section = quoted(line).next().map(|name| root.join(name));
        }
        for name in quoted(line) {
            let path = if ROOTS.iter().any(|prefix| name.starts_with(prefix)) {
                root.join(name)
            } else if name.ends_with(".rs") || name.ends_with('/') {
                match &section {
                    Some(layer) => layer.join("src").join(name),
                    None => root.join(name),
                }
            } else {
                continue;
            };
            named.push((name.to_owned(), path));
        }
    }
    named
}

#[test]
fn files_to_touch_exist() {
    let root = root();
    let text = read(&root.join("CONTRIBUTING.md"));
    let table = text
        .split("\n## ")
        .find(|section| section.starts_with("Which files\n"))
        .expect("a section `Which files`");
    let paths: Vec<&str> = table
        .lines()
        .flat_map(quoted)
        .filter(|name| ROOTS.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    let missing: Vec<&&str> = paths.iter().filter(|path| !root.join(path).exists()).collect();
    assert!(
        missing.is_empty(),
        "CONTRIBUTING.md names what is not there: {missing:?}"
    );
    assert!(paths.len() > 30, "only {} paths were found", paths.len());
}

/// The modules below a directory, tests left out.
fn modules(directory: &Path, found: &mut Vec<PathBuf>) {
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

#[test]
fn everything_that_the_map_names_exists() {
    let named = named();
    let missing: Vec<&str> = (named.iter())
        .filter(|(_, path)| !path.exists())
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md names what is not there: {missing:?}"
    );
    assert!(
        named.len() > 60,
        "only {} names were found: has the page another form now?",
        named.len()
    );
}

#[test]
fn every_module_is_on_the_map() {
    let root = root();
    let named: HashSet<PathBuf> = named()
        .into_iter()
        .map(|(_, path)| path.components().collect())
        .collect();
    let mut unnamed = Vec::new();
    let mut looked_at = 0;
    for layer in std::fs::read_dir(root.join("runner"))
        .expect("runner/ is there")
        .flatten()
    {
        // The interpreters for scripts are data to us.
        let source = layer.path().join("src");
        if !source.is_dir() || layer.file_name() == "runtimes" {
            continue;
        }
        let mut found = Vec::new();
        modules(&source, &mut found);
        looked_at += found.len();
        let is_named = |path: &Path| {
            let above = path.ancestors().take_while(|above| *above != source);
            above.into_iter().any(|above| named.contains(above))
        };
        let missing = found.iter().filter(|path| !is_named(path));
        unnamed.extend(missing.map(|path| path.strip_prefix(&root).unwrap_or(path).display().to_string()));
    }
    unnamed.sort();
    assert!(
        unnamed.is_empty(),
        "no row of ARCHITECTURE.md names these modules, or the folders they are in: {unnamed:#?}"
    );
    assert!(looked_at > 300, "only {looked_at} modules were found");
}

/// All Rust files below a directory.
fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => rust_files(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
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

/// The table of loops has a row for each service of the engine, and for each file with group commits. Each service is
/// started.
#[test]
fn every_loop_is_in_the_table() {
    let source = root().join("runner/engine/src");
    let head = read(&source.join("lib.rs"));
    let rows = head.lines().filter_map(|line| line.strip_prefix("//! | "));
    let mut table: Vec<&str> = rows.filter_map(|row| quoted(row.split(" | ").nth(1)?).next()).collect();
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let (mut loops, mut services, mut driven) = (Vec::new(), 0, 0);
    for path in &files {
        let code = code(path);
        let implements = |what: &str| {
            let lines = code.lines().filter(|line| line.starts_with("impl"));
            lines.filter(|line| line.contains(what)).count()
        };
        let ticks = implements(" Service for ");
        let commits = implements(" Commits for ");
        let name = path
            .strip_prefix(&source)
            .expect("it was found there")
            .to_string_lossy()
            .into_owned();
        let is_test = name.ends_with("tests.rs");
        let count = ticks + usize::from(commits > 0 && !is_test);
        loops.extend(std::iter::repeat_n(name, count));
        services += ticks;
        driven += code.matches("spawn(drive(").count();
    }
    table.sort_unstable();
    loops.sort_unstable();
    assert_eq!(
        table, loops,
        "the table of loops in runner/engine/src/lib.rs, and what there is"
    );
    assert_eq!(driven, services, "how many services are driven");
}

#[test]
fn every_layer_is_on_the_map() {
    let text = read(&root().join("ARCHITECTURE.md"));
    for entry in std::fs::read_dir(root().join("runner"))
        .expect("runner/ is there")
        .flatten()
    {
        if !entry.path().join("Cargo.toml").is_file() {
            continue;
        }
        let heading = format!("### `runner/{}`", entry.file_name().to_string_lossy());
        assert!(text.contains(&heading), "ARCHITECTURE.md has no section {heading}");
    }
}

/// The services of the engine, each in a folder of its own.
const SERVICES: [&str; 7] = [
    "attempts",
    "schedules",
    "queues",
    "dispatch",
    "messages",
    "retention",
    "notify",
];

/// The code of a file, without comments.
fn code(path: &Path) -> String {
    without_comments(&read(path))
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let lines = lines.map(|line| line.split(" //").next().unwrap_or_default());
    lines.fold(String::with_capacity(text.len()), |code, line| code + line + "\n")
}

/// The text between the first brace of `text` and its closing one, divided by its own commas.
fn group(text: &str) -> Vec<&str> {
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
fn first_name(path: &str) -> &str {
    let path = path.trim_start();
    let end = path.find(|one: char| !one.is_alphanumeric() && one != '_');
    &path[..end.unwrap_or(path.len())]
}

/// What code names of its own crate: the modules, and the items of the crate's root.
fn named_of_crate(code: &str) -> Vec<&str> {
    let paths = code.split("crate::").skip(1);
    paths
        .flat_map(|path| match path.starts_with('{') {
            true => group(path),
            false => vec![path],
        })
        .map(first_name)
        .filter(|name| !name.is_empty())
        .collect()
}

/// By name, from which module the crate's root has what it shows to others.
fn shown_by(root: &str) -> HashMap<&str, &str> {
    let uses = root.split("pub use ").skip(1);
    uses.flat_map(|path| {
        let module = first_name(path);
        let rest = path.split(';').next().unwrap_or_default();
        let names = match rest.find('{') {
            Some(brace) => group(&rest[brace..]),
            None => rest.rsplit("::").take(1).collect(),
        };
        names.into_iter().map(move |name| (first_name(name), module))
    })
    .collect()
}

#[test]
fn names_of_a_crate_are_found() {
    let code = "use crate::node::Node;\nuse crate::{a::{b, c}, D};\nlet x = crate::other::y(crate::Z);";
    assert_eq!(named_of_crate(code), ["node", "a", "D", "other", "Z"]);
    let root = "pub use a::{B, C};\npub use d::e::F;\npub use g as h;\n";
    let shown = shown_by(root);
    assert_eq!((shown["B"], shown["C"], shown["F"]), ("a", "a", "d"));
}

/// The node knows no service; services know the node and the runs, and no other service; runs know no service.
#[test]
fn services_of_the_engine_do_not_know_each_other() {
    let source = root().join("runner/engine/src");
    let root = code(&source.join("lib.rs"));
    let shown = shown_by(&root);
    let mut found = Vec::new();
    modules(&source, &mut found);
    let mut faults = Vec::new();
    for path in &found {
        let inside = path.strip_prefix(&source).expect("it was found there");
        let own = inside
            .components()
            .next()
            .expect("a name")
            .as_os_str()
            .to_string_lossy();
        let code = code(path);
        for name in named_of_crate(&code) {
            let module = shown.get(name).copied().unwrap_or(name);
            let may = match own.as_ref() {
                "node" => ["node", "EngineError"].contains(&module),
                // The tests that drive services by themselves.
                "simulation" | "simulation.rs" => true,
                own => own == module || !SERVICES.contains(&module),
            };
            if !may {
                faults.push(format!("{}: {name}", inside.display()));
            }
        }
    }
    assert!(faults.is_empty(), "what the engine's files may not name: {faults:#?}");
    for service in SERVICES.iter().chain(&["node", "runs"]) {
        let folder = source.join(service);
        assert!(folder.is_dir(), "there is no {}", folder.display());
    }
}

/// Of files that use each other, those that are in a circle or use one that is.
fn in_a_circle(mut uses: HashMap<String, HashSet<String>>) -> Vec<String> {
    loop {
        let without: HashSet<String> = uses
            .iter()
            .filter(|(_, used)| used.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        if without.is_empty() {
            let mut left: Vec<String> = uses.into_keys().collect();
            left.sort();
            return left;
        }
        uses.retain(|name, _| !without.contains(name));
        for used in uses.values_mut() {
            used.retain(|name| !without.contains(name));
        }
    }
}

/// By which of the files each of them is used.
fn reversed(uses: &HashMap<String, HashSet<String>>) -> HashMap<String, HashSet<String>> {
    let mut users: HashMap<String, HashSet<String>> = uses.keys().map(|name| (name.clone(), HashSet::new())).collect();
    for (name, used) in uses {
        for other in used {
            users.entry(other.clone()).or_default().insert(name.clone());
        }
    }
    users
}

#[test]
fn circles_are_found() {
    let of = |pairs: &[(&str, &[&str])]| {
        let owned = |names: &&[&str]| names.iter().map(|&name| name.to_owned()).collect();
        in_a_circle(
            pairs
                .iter()
                .map(|(name, used)| (name.to_string(), owned(used)))
                .collect(),
        )
    };
    assert_eq!(of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]), [""; 0]);
    assert_eq!(
        of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &[])]),
        ["a", "b", "c"]
    );
}

/// The paths with which a text begins: one, or several in braces.
fn paths(text: &str) -> Vec<String> {
    let text = text.trim_start();
    if text.starts_with('{') {
        return group(text).into_iter().flat_map(paths).collect();
    }
    let name = first_name(text);
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => paths(rest).iter().map(|rest| format!("{name}::{rest}")).collect(),
        None => vec![name.to_owned()],
    }
}

/// The paths in code that begin at its crate's root, or in the module above it.
fn own_paths(code: &str) -> Vec<String> {
    let begun = ["crate::", "super::"]
        .into_iter()
        .flat_map(|begin| code.match_indices(begin));
    let goes_on = |at: usize| code[..at].ends_with(|one: char| one.is_alphanumeric() || one == '_' || one == ':');
    begun
        .filter(|(at, _)| !goes_on(*at))
        .flat_map(|(at, _)| paths(&code[at..]))
        .collect()
}

/// Where a path in a module leads: to the deepest of these modules on its way.
fn leads_to(module: &str, path: &str, modules: &HashMap<String, &PathBuf>) -> Option<String> {
    let mut found: Vec<&str> = module.split("::").collect();
    for part in path.split("::") {
        match part {
            "crate" => found.clear(),
            "super" => {
                found.pop();
            }
            name => found.push(name),
        }
    }
    let mut ways = (1..=found.len()).rev().map(|depth| found[..depth].join("::"));
    ways.find(|way| modules.contains_key(way))
}

#[test]
fn paths_lead_to_the_deepest_module() {
    let code = "use super::{a::{b, self}, C};\nuse crate::d::e as f;\nlet x = super::super::g::<T>(my_crate::h);";
    let expect = [
        "crate::d::e",
        "super::a::b",
        "super::a::self",
        "super::C",
        "super::super::g::",
    ];
    assert_eq!(own_paths(code), expect);
    let file = PathBuf::new();
    let modules = ["x", "x::a", "x::a::b", "x::y"].map(|module| (module.to_owned(), &file));
    let modules = HashMap::from(modules);
    let led = |path| leads_to("x::y", path, &modules);
    assert_eq!(led("super::a::b::Item").as_deref(), Some("x::a::b"));
    assert_eq!(led("super::a::self").as_deref(), Some("x::a"));
    assert_eq!(led("crate::x::Item").as_deref(), Some("x"));
    assert_eq!(led("super::super::Item"), None);
}

/// Which files of a crate each of them uses, as modules. Left out are those that hold others, and so know them: a folder's
/// `mod.rs`, a file with modules below it.
fn uses_of_files(source: &Path) -> HashMap<String, HashSet<String>> {
    let mut found = Vec::new();
    modules(source, &mut found);
    let module = |path: &Path| {
        let inside = path
            .strip_prefix(source)
            .expect("it was found there")
            .with_extension("");
        let module = inside.to_string_lossy().replace('/', "::");
        module.strip_suffix("::mod").unwrap_or(&module).to_owned()
    };
    let modules: HashMap<String, &PathBuf> = found.iter().map(|path| (module(path), path)).collect();
    let holds_others = |module: &str| {
        let below = format!("{module}::");
        modules[module].ends_with("mod.rs") || modules.keys().any(|other| other.starts_with(&below))
    };
    let files = modules.iter().filter(|(module, _)| !holds_others(module));
    files
        .map(|(file, path)| {
            let code = code(path);
            let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let led = own_paths(code);
            let led = led.iter().filter_map(|path| leads_to(file, path, &modules));
            let used = led.filter(|other| other != file && !holds_others(other));
            (file.clone(), used.collect())
        })
        .collect()
}

/// The files of a crate use each other in one direction: each can be read after those that it uses.
#[test]
fn files_use_each_other_in_no_circle() {
    let (mut circles, mut looked_at) = (Vec::new(), 0);
    for layer in std::fs::read_dir(root().join("runner"))
        .expect("runner/ is there")
        .flatten()
    {
        let source = layer.path().join("src");
        if !source.is_dir() {
            continue;
        }
        let uses = uses_of_files(&source);
        looked_at += uses.len();
        let used_by_some = in_a_circle(reversed(&uses));
        let mut circle = in_a_circle(uses);
        circle.retain(|file| used_by_some.contains(file));
        if !circle.is_empty() {
            let layer = layer.file_name();
            circles.push(format!("{}: {}", layer.to_string_lossy(), circle.join(", ")));
        }
    }
    assert!(circles.is_empty(), "files that use each other: {circles:#?}");
    assert!(looked_at > 400, "only {looked_at} files were found");
}

/// Adds what a tree of imports brings into a file: paths, and the names that they have there.
fn imported(before: &str, tree: &str, found: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some(brace) = tree.find('{') {
        let before = format!("{before}{}", &tree[..brace]);
        group(&tree[brace..])
            .into_iter()
            .for_each(|tree| imported(&before, tree, found));
    } else if !tree.is_empty() {
        let (path, name) = tree
            .split_once(" as ")
            .unwrap_or((tree, tree.rsplit("::").next().unwrap_or_default()));
        found.push((format!("{before}{path}"), name.to_owned()));
    }
}

/// What a file imports from its own crate: paths, and the names that they have there.
fn imports(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for tree in code.split("use crate::").skip(1) {
        imported("", tree.split(';').next().unwrap_or_default(), &mut found);
    }
    found
}

/// Whether code makes a value of a type: `Type(..)`, or `Type::function(..)`.
fn makes(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let is_part = |one: char| one.is_alphanumeric() || one == '_' || one == ':';
        let rest = &code[at + name.len()..];
        let called = rest.strip_prefix("::").map_or(rest, |path| {
            path.trim_start_matches(|one: char| one.is_lowercase() || one == '_')
        });
        !code[..at].ends_with(is_part) && called.starts_with('(')
    })
}

/// Whether code imports and makes a value of this type of a module (`queues/reaper`): a shorter path may lead to it.
/// `shared` are imports of the module above, which the file has too.
fn makes_type(code: &str, shared: &[(String, String)], module: &str, name: &str) -> bool {
    let own = imports(code);
    own.iter().chain(shared).any(|(path, known)| {
        let modules = path.strip_suffix(name).and_then(|path| path.strip_suffix("::"));
        modules.is_some_and(|modules| {
            let modules = modules.replace("::", "/");
            (module == modules || module.starts_with(&format!("{modules}/"))) && makes(code, known)
        })
    })
}

#[test]
fn types_that_code_makes_are_found() {
    let code = "use crate::a::{B, c::{D, E as F}};\nuse crate::g::H as I;\nB(x); F::of(y); &mut I::of_all(z); D; D::X;";
    let of = |module: &str, name: &str| makes_type(code, &[], module, name);
    assert!(of("a/b", "B") && of("a", "B") && of("a/c", "E") && of("g", "H"));
    assert!(!of("b", "B") && !of("ab", "B") && !of("a/b", "E"), "it is another's");
    assert!(!of("a/c", "D"), "it is only named");
    assert!(makes_type("J::of(x)", &[("k::J".into(), "J".into())], "k", "J"));
    assert!(!makes("a::B(x); Bc(x)", "B"));
    assert!(
        !makes(&without_comments("// B(x)\nlet x = y; // B(x)"), "B"),
        "a comment makes nothing"
    );
}

/// For each service there is a test that drives it alone, by a clock that the test sets: it makes the service, and ticks.
#[test]
fn every_service_is_driven_by_a_simulated_clock() {
    let source = root().join("runner/engine/src");
    let mut files = Vec::new();
    rust_files(&source.join("simulation"), &mut files);
    let head = code(&source.join("simulation.rs"));
    let shared = imports(&head);
    let tests: Vec<String> = files.iter().map(|path| code(path)).chain([head.clone()]).collect();
    let mut all = Vec::new();
    rust_files(&source, &mut all);
    let (mut undriven, mut count) = (Vec::new(), 0);
    for path in &all {
        let inside = path
            .strip_prefix(&source)
            .expect("it was found there")
            .with_extension("");
        let module = inside.to_string_lossy();
        let module = module.strip_suffix("/mod").unwrap_or(&module);
        for line in code(path).lines().filter(|line| line.starts_with("impl")) {
            let Some((_, named)) = line.split_once(" Service for ") else {
                continue;
            };
            // A service may be shared: `Arc<Type>`.
            let name = first_name(named.strip_prefix("Arc<").unwrap_or(named));
            count += 1;
            let drives = |test: &String| test.contains("tick(") && makes_type(test, &shared, module, name);
            if !tests.iter().any(drives) {
                undriven.push(format!("{module}: {name}"));
            }
        }
    }
    assert!(
        undriven.is_empty(),
        "no file of simulation/ makes and drives these: {undriven:#?}"
    );
    assert!(count > 20, "only {count} services were found");
}

/// The histogram of transactions tells those apart that record outcomes, by the place that begins them.
#[test]
fn each_transaction_that_records_outcomes_has_its_own_name() {
    let mut found = Vec::new();
    modules(&root().join("runner/engine/src"), &mut found);
    let code: String = found.iter().map(|path| code(path)).collect();
    let begun = code.split(".completion(").skip(1);
    // The node's own way to the store's takes the name that it is given.
    let mut names: Vec<&str> = begun
        .filter_map(|rest| rest.strip_prefix('"')?.split('"').next())
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
    assert!(count > 15, "{names:?}");
}

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
    assert!(count > 40, "{count} statements");
    assert!(silent.is_empty(), "statements without a locking note: {silent:?}");
    assert!(untested.is_empty(), "no interleaved test names these: {untested:?}");
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

#[test]
fn links_lead_somewhere() {
    let root = root();
    let mut pages: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .iter()
        .map(|page| root.join(page))
        .collect();
    let docs = std::fs::read_dir(root.join("docs"))
        .expect("docs/ is there")
        .flatten()
        .map(|entry| entry.path());
    pages.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut broken = Vec::new();
    for page in pages {
        let text = read(&page);
        let directory = page.parent().expect("a page is in a directory");
        broken.extend(
            links(&text)
                .filter(|target| !directory.join(target).exists())
                .map(|target| format!("{}: {target}", page.display())),
        );
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
