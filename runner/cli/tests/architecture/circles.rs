//! Files use each other in one direction.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::source::{code, first_name, group, modules, root};

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
