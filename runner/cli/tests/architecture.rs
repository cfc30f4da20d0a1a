//! What the pages for people name has to exist: files of the code in `ARCHITECTURE.md`, pages behind links.

use std::path::{Path, PathBuf};

/// Where paths of the repository begin.
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

/// What stands between backticks in a line.
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

#[test]
fn everything_that_the_map_names_exists() {
    let root = root();
    let text = read(&root.join("ARCHITECTURE.md"));
    let mut section: Option<PathBuf> = None;
    let mut missing = Vec::new();
    let mut named = 0;
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if line.starts_with('#') {
            // A section about a crate names it; modules in it stand without the way to them.
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
            named += 1;
            if !path.exists() {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md names what is not there: {missing:?}"
    );
    assert!(
        named > 60,
        "only {named} names were found: has the page another form now?"
    );
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
        let place = page.parent().expect("a page is in a directory");
        broken.extend(
            links(&text)
                .filter(|target| !place.join(target).exists())
                .map(|target| format!("{}: {target}", page.display())),
        );
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
