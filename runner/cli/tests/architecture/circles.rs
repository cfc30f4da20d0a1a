//! Files use each other in one direction.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::source::{code, first_name, group, imported, modules, root};

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
        let entries = group(text).into_iter().filter(|entry| !entry.trim().is_empty());
        return entries.flat_map(paths).collect();
    }
    let name = first_name(text);
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => paths(rest).iter().map(|rest| format!("{name}::{rest}")).collect(),
        None => vec![name.to_owned()],
    }
}

/// A file of a crate.
struct Module {
    code: String,
    /// By the names that it imports or shows: the paths.
    imports: HashMap<String, String>,
}

impl Module {
    fn new(code: String) -> Self {
        let imports = imported(&code).into_iter().map(|(path, name)| (name, path)).collect();
        Self { code, imports }
    }

    /// The paths in its code that may lead to other files: they begin at its crate's root, in the module above it, or with
    /// a name that it imports. Its tests are left out.
    fn paths(&self) -> Vec<String> {
        let code = self.code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let is_part = |one: char| one.is_alphanumeric() || one == '_' || one == ':';
        let imports = self.imports.keys().map(String::as_str);
        let begins = ["crate", "super"].into_iter().chain(imports);
        begins
            .flat_map(|name| {
                let begin = format!("{name}::");
                let begun = code.match_indices(&begin).map(|(at, _)| at);
                let begun = begun.filter(|at| !code[..*at].ends_with(is_part));
                begun.flat_map(|at| paths(&code[at..])).collect::<Vec<_>>()
            })
            .collect()
    }
}

/// The files of a crate by their modules; that of its root is empty.
type Modules = HashMap<String, Module>;

/// The module of this name in another one.
fn inside(module: &str, name: &str) -> String {
    match module {
        "" => name.to_owned(),
        module => format!("{module}::{name}"),
    }
}

/// The module that declares what a path in a module names. The path may name it by a `pub use` of another module.
fn leads_to(modules: &Modules, module: &str, path: &str) -> Option<String> {
    let (name, rest) = path.split_once("::").unwrap_or((path, ""));
    match name {
        "" => return Some(module.to_owned()),
        "self" => return leads_to(modules, module, rest),
        "crate" => return leads_to(modules, "", rest),
        "super" if module.is_empty() => return None,
        "super" => return leads_to(modules, module.rsplit_once("::").map_or("", |(above, _)| above), rest),
        _ => {}
    }
    let below = inside(module, name);
    if modules.contains_key(&below) {
        return leads_to(modules, &below, rest);
    }
    let from = modules.get(module)?.imports.get(name).filter(|path| {
        let begin = first_name(path);
        // What it imports from other crates does not lead on.
        ["crate", "super", "self"].contains(&begin) || modules.contains_key(&inside(module, begin))
    });
    match from {
        Some(path) => leads_to(modules, module, &format!("{path}::{rest}")),
        None => Some(module.to_owned()),
    }
}

/// Whether a module is the other one, or holds it.
fn holds(above: &str, module: &str) -> bool {
    let rest = module.strip_prefix(above);
    above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Which files of a crate each of them uses. Uses between a file and those that it holds are left out: these may use each
/// other.
fn uses_of_files(modules: &Modules) -> HashMap<String, HashSet<String>> {
    let uses = modules.iter().map(|(file, module)| {
        let paths = module.paths();
        let led = paths.iter().filter_map(|path| leads_to(modules, file, path));
        let used = led.filter(|other| !holds(file, other) && !holds(other, file));
        (file.clone(), used.collect())
    });
    uses.collect()
}

#[test]
fn paths_are_followed_to_where_things_are_declared() {
    let module = |name: &str, code: &str| (name.to_owned(), Module::new(code.to_owned()));
    let y = "use super::{a::{b, self}, C};\nuse crate::d::e as f;\nlet x = super::super::g::<T>(my_crate::h, f::I);";
    let modules = Modules::from([
        module("", "mod x;\npub use x::{Shown, a::Deep as Renamed};\n"),
        module(
            "x",
            "mod a;\nmod y;\npub(crate) use a::b::Shown;\npub use std::sync::Arc;\n",
        ),
        module("x::a", "pub use super::y::Deep;\n"),
        module(
            "x::a::b",
            "use crate::x;\nx::y::Item;\n#[cfg(test)]\nmod tests {\n    use crate::z::Z;\n}\n",
        ),
        module("x::y", y),
        module("z", "use crate::{Shown, x};\nx::Shown;\ncrate::Renamed;\n"),
    ]);
    let mut paths = modules["x::y"].paths();
    paths.sort();
    let expect = [
        "a::b",
        "a::self",
        "crate::d::e",
        "f::I",
        "super::C",
        "super::a::b",
        "super::a::self",
        "super::super::g::",
    ];
    assert_eq!(paths, expect);
    let led = |path| leads_to(&modules, "x::y", path);
    for (path, module) in [
        ("super::a::b::Item", Some("x::a::b")),
        ("super::a::self", Some("x::a")),
        ("super::Item", Some("x")),
        ("super::super::Item", Some("")),
        ("super::super::super::Item", None),
        ("super::Shown::new", Some("x::a::b")),
        ("crate::Shown", Some("x::a::b")),
        ("crate::Renamed", Some("x::y")),
        ("super::Arc", Some("x")),
    ] {
        assert_eq!(led(path).as_deref(), module, "{path}");
    }
    let uses = uses_of_files(&modules);
    let used = |file: &str| {
        let mut used: Vec<&str> = uses[file].iter().map(String::as_str).collect();
        used.sort_unstable();
        used
    };
    assert_eq!(used("z"), ["x", "x::a::b", "x::y"]);
    assert_eq!(used("x::y"), ["x::a", "x::a::b"]);
    assert_eq!(used("x::a::b"), ["x::y"], "its tests may use more");
    assert_eq!(used("x::a"), ["x::y"]);
    assert!(
        used("x").is_empty() && used("").is_empty(),
        "they hold all that they use"
    );
}

/// The files of the crate with this directory of sources.
fn modules_of(source: &Path) -> Modules {
    let mut found = Vec::new();
    modules(source, &mut found);
    found.push(source.join("lib.rs"));
    let module = |path: &Path| {
        let below = path
            .strip_prefix(source)
            .expect("it was found there")
            .with_extension("");
        let module = below.to_string_lossy().replace('/', "::");
        match module.as_str() {
            "lib" => String::new(),
            module => module.strip_suffix("::mod").unwrap_or(module).to_owned(),
        }
    };
    found
        .iter()
        .map(|path| (module(path), Module::new(code(path))))
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
        let uses = uses_of_files(&modules_of(&source));
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
