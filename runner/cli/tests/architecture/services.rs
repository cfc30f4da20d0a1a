//! The services of the engine: each is in the table of loops, knows no other one, and is driven by a test.

use std::collections::HashMap;

use crate::source::{code, first_name, group, imported, modules, quoted, read, root, rust_files, without_comments};

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

/// What code names of its own crate: the modules, and the items of the crate's root.
fn named_of_crate(code: &str) -> Vec<&str> {
    named_after(code, "crate::")
}

/// The names that follow this beginning of a path in code.
fn named_after<'a>(code: &'a str, begin: &str) -> Vec<&'a str> {
    let paths = code.split(begin).skip(1);
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
fn shown_by(root: &str) -> HashMap<String, String> {
    let shown = imported(root).into_iter();
    shown.map(|(path, name)| (name, first_name(&path).to_owned())).collect()
}

#[test]
fn names_of_a_crate_are_found() {
    let code = "use crate::node::Node;\nuse crate::{a::{b, c}, D};\nlet x = crate::other::y(crate::Z);";
    assert_eq!(named_of_crate(code), ["node", "a", "D", "other", "Z"]);
    let root = "pub use a::{B, C};\npub use d::e::F;\npub use g as h;\n";
    let shown = shown_by(root);
    assert_eq!(
        ["B", "C", "F", "h"].map(|name| shown[name].as_str()),
        ["a", "a", "d", "g"]
    );
}

/// Where the methods of the handle are, `lib.rs` left out.
const OF_HANDLE: [&str; 2] = ["use_cases", "counters.rs"];

/// Whether code names the handle of the engine, or what the handle holds: all services can be reached through it. A path
/// from above (`super`) may lead to the crate's root, too.
fn names_handle(code: &str) -> bool {
    let is_handle = |name: &str| ["Engine", "Services"].contains(&name);
    let mut by_path = ["crate::", "super::"]
        .into_iter()
        .flat_map(|begin| named_after(code, begin));
    let blocks = code.lines().filter(|line| line.starts_with("impl"));
    let mut words = blocks.flat_map(|line| line.split(|one: char| !one.is_alphanumeric() && one != '_'));
    let takes_all = code.lines().any(|line| line.trim_start().starts_with("use crate::*"));
    by_path.any(is_handle) || words.any(is_handle) || takes_all
}

#[test]
fn the_handle_is_found() {
    for code in [
        "use crate::Engine;\n",
        "use crate::{Engine, EngineError};\n",
        "use crate::{\n    EngineError, Services,\n};\n",
        "use crate::Engine as Handle;\n",
        "use super::super::{Engine, EngineError};\n",
        "use crate::*;\n",
        "fn inner() {\n    use crate::Engine;\n}\n",
        "fn f(engine: &crate::Engine) {}\n",
        "let engine = super::Engine::start();\n",
        "impl Engine {\n",
        "impl From<A> for Engine {\n",
    ] {
        assert!(names_handle(code), "{code}");
    }
    for code in [
        "use crate::{EngineError, Runs};\n",
        "use base64::Engine as _;\n",
        "Err(SubmitError::Engine(error)) => Self::Engine(error),\n",
        "    Engine(#[from] EngineError),\n",
        "use super::*;\n",
        "impl EngineConfig {\n",
    ] {
        assert!(!names_handle(code), "{code}");
    }
}

/// The node knows only itself. Scripts know only the node. Runs know the node and the scripts. Services know these three,
/// and no other service. None of them knows the handle, which knows all of them.
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
        if names_handle(&code) && !OF_HANDLE.contains(&own.as_ref()) {
            faults.push(format!("{}: the handle", inside.display()));
        }
        for name in named_of_crate(&code) {
            let module = shown.get(name).map_or(name, String::as_str);
            let may = match own.as_ref() {
                "node" => ["node", "EngineError"].contains(&module),
                "scripts" => ["scripts", "node", "EngineError"].contains(&module),
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
    for service in SERVICES.iter().chain(&["node", "scripts", "runs"]) {
        let folder = source.join(service);
        assert!(folder.is_dir(), "there is no {}", folder.display());
    }
}

/// The tables at the head of the node name each of its modules, and each folder of the engine with structs that are there.
#[test]
fn the_node_says_whose_is_what() {
    let source = root().join("runner/engine/src");
    let text = read(&source.join("node/mod.rs"));
    let head: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("//! | ")).collect();
    let own = text.lines().filter_map(|line| line.strip_prefix("pub(crate) mod "));
    let own: Vec<&str> = own.filter_map(|line| line.strip_suffix(';')).collect();
    let unnamed = own.iter().filter(|name| {
        let link = format!("[`{name}`]");
        !head
            .iter()
            .any(|row| row.split(" | ").next().is_some_and(|cell| cell.contains(&link)))
    });
    assert_eq!(unnamed.collect::<Vec<_>>(), [&""; 0]);
    assert!(own.len() > 10, "{own:?}");
    for folder in SERVICES.iter().chain(&["scripts", "runs"]) {
        let begin = format!("`{folder}/` | ");
        let row = head.iter().find_map(|row| row.strip_prefix(begin.as_str()));
        let row = row.unwrap_or_else(|| panic!("no row of {folder}"));
        let mut files = Vec::new();
        modules(&source.join(folder), &mut files);
        let code: String = files.iter().map(|path| code(path)).collect();
        for name in quoted(row.split(" | ").next().unwrap_or_default()) {
            let declared = [" ", "(", ";"]
                .iter()
                .any(|end| code.contains(&format!("struct {name}{end}")));
            assert!(declared, "{folder}/ has no {name}");
        }
    }
}

/// What a file imports from its own crate: paths, and the names that they have there.
fn imports(code: &str) -> Vec<(String, String)> {
    let all = imported(code).into_iter();
    all.filter_map(|(path, name)| Some((path.strip_prefix("crate::")?.to_owned(), name)))
        .collect()
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
