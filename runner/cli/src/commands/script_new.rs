//! `heddle script new`: the sources of a new script, from the template of its language.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::build::is_source;
use crate::exit::{done, usage};
use crate::output::Format;

/// The options of `heddle script new`.
#[derive(Args, Debug)]
pub struct New {
    /// The name of the script
    pub name: String,
    /// The language of the new script
    #[arg(short, long, default_value = "rust", value_parser = languages())]
    pub lang: String,
    /// The directory to create [default: the name of the script]
    pub dir: Option<PathBuf>,
    /// For Rust: use the SDK in this directory instead of a copy in the new directory
    #[arg(long, value_name = "DIR")]
    pub sdk: Option<PathBuf>,
}

/// Every language that has a template.
fn languages() -> clap::builder::PossibleValuesParser {
    heddle_scripts::languages().into()
}

/// Writes a template's files. Nothing that exists is overwritten.
pub(crate) fn write_new(new: &New, format: Format) -> Result<ExitCode> {
    let name: heddle_domain::Name = new
        .name
        .parse()
        .map_err(|error| usage(format!("`{}`: {error}", new.name)))?;
    let name = name.to_string();
    let dir = new.dir.clone().unwrap_or_else(|| PathBuf::from(&name));
    let sdk = match &new.sdk {
        Some(dir) => {
            let dir = dir
                .canonicalize()
                .map_err(|error| usage(format!("--sdk {}: {error}", dir.display())))?;
            format!("path = {}", Value::String(dir.display().to_string()))
        }
        None => format!("path = \"{}\"", heddle_scripts::SDK),
    };
    let fill = |text: &str| {
        text.replace("{{name}}", &name)
            .replace("{{crate}}", &crate_name(&name))
            .replace("{{sdk}}", &sdk)
    };
    let files: Vec<(PathBuf, String)> = heddle_scripts::TEMPLATES
        .iter()
        .filter(|(lang, _, _)| *lang == new.lang)
        .filter_map(
            |(_, path, contents)| match Path::new(path).starts_with(heddle_scripts::SDK) {
                // The SDK is copied as it is, unless there is one already.
                true => new.sdk.is_none().then(|| (dir.join(path), (*contents).to_owned())),
                false => Some((dir.join(fill(path)), fill(contents))),
            },
        )
        .collect();
    if let Some((there, _)) = files.iter().find(|(path, _)| path.exists()) {
        return Err(usage(format!(
            "{} already exists; choose another directory",
            there.display()
        )));
    }
    for (path, contents) in &files {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        }
        std::fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let written: Vec<&PathBuf> = files.iter().map(|(path, _)| path).collect();
    let summary = json!({"name": name, "lang": new.lang, "dir": dir, "files": written});
    format.print(&summary, |_| {
        let sdk = dir.join(heddle_scripts::SDK);
        let own = written.iter().filter(|path| !path.starts_with(&sdk));
        let mut lines: Vec<String> = own.map(|path| format!("wrote {}", path.display())).collect();
        if sdk.is_dir() {
            lines.push(format!(
                "wrote {} (heddle-sdk of this version of Heddle)",
                sdk.display()
            ));
        }
        // A directory with one source file is a script by itself; others are built.
        let source = written.iter().find(|path| {
            let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
            ["javascript", "typescript", "python"].contains(&new.lang.as_str()) && is_source(file)
        });
        lines.push(match source {
            Some(file) => format!("next: heddle script push {name} {}", file.display()),
            None => format!(
                "next: heddle script build {0} && heddle script push {name} {0}",
                dir.display()
            ),
        });
        lines.join("\n")
    })?;
    done()
}

/// A name that Cargo accepts: ASCII letters, digits, `-` and `_`, not beginning with a digit.
fn crate_name(name: &str) -> String {
    let mut out: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    if !out.starts_with(|c: char| c.is_ascii_alphabetic()) {
        out.insert_str(0, "script-");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_names_of_crates() {
        assert_eq!(
            [crate_name("Hello.World"), crate_name("7days"), crate_name("\u{5668}_x")],
            ["hello-world", "script-7days", "script--_x"]
        );
    }

    #[test]
    fn a_new_script_overwrites_nothing_and_leaves_no_placeholder() {
        let dir = tempfile::tempdir().unwrap();
        for lang in heddle_scripts::languages() {
            let new = New {
                name: "greet".into(),
                lang: lang.into(),
                dir: Some(dir.path().join(lang)),
                sdk: None,
            };
            write_new(&new, Format::Table).unwrap();
            let written = std::fs::read_dir(dir.path().join(lang))
                .unwrap()
                .flatten()
                .filter(|entry| entry.path().is_file());
            for file in written {
                let text = std::fs::read_to_string(file.path()).unwrap();
                assert!(
                    !text.contains("{{name}}") && !text.contains("{{crate}}"),
                    "{:?}",
                    file.path()
                );
            }
            assert!(write_new(&new, Format::Table).is_err());
        }
    }

    #[test]
    fn a_new_script_in_rust_needs_no_repository() {
        let dir = tempfile::tempdir().unwrap();
        let new = |name: &str, sdk: Option<PathBuf>| {
            let dir = dir.path().join(name);
            let new = New {
                name: name.into(),
                lang: "rust".into(),
                dir: Some(dir.clone()),
                sdk,
            };
            write_new(&new, Format::Table).unwrap();
            let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
            (manifest, dir.join("heddle-sdk"))
        };
        let (manifest, sdk) = new("alone", None);
        assert!(
            manifest.contains(r#"heddle-sdk = { path = "heddle-sdk" }"#),
            "{manifest}"
        );
        for part in ["src/lib.rs", "wit/task.wit", "macros/src/lib.rs"] {
            assert!(sdk.join(part).is_file(), "{part}");
        }
        for manifest in ["Cargo.toml", "macros/Cargo.toml"] {
            let text = std::fs::read_to_string(sdk.join(manifest)).unwrap();
            let manifest: toml::Table = text.parse().unwrap();
            assert_eq!(
                manifest["package"]["version"].as_str(),
                Some(env!("CARGO_PKG_VERSION")),
                "{text}"
            );
            assert!(!text.contains("workspace"), "of a workspace that is not there: {text}");
        }
        // With a checkout there is one already.
        let (manifest, sdk) = new("beside", Some(dir.path().to_owned()));
        assert!(manifest.contains("heddle-sdk = { path = \"/"), "{manifest}");
        assert!(!sdk.exists());
    }
}
