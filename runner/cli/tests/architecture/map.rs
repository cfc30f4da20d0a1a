//! What the pages for people name exists: files of the code, pages behind links. And `ARCHITECTURE.md` names each module.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::source::{modules, quoted, read, root};

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

/// The targets of a text's links that lead into the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
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
