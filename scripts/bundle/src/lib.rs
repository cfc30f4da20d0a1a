//! Scripts as wasm (those of the demo; with the feature `all` also those of tests), the demo's data, and the templates for
//! new scripts: all embedded, so that the binary needs none of the sources. The scripts are packed with zlib. All are
//! statics: of a constant each part of the program that names it gets a copy.

use flate2::read::ZlibDecoder;
use std::io::Read as _;

include!(concat!(env!("OUT_DIR"), "/guests.rs"));

/// The names of all embedded scripts, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PACKED.iter().map(|(name, _)| *name)
}

/// Whether the program carries the script of this name. With the feature `all` there are others besides.
pub fn is_carried(name: &str) -> bool {
    CARRIED.contains(&name)
}

/// The script of this name, unpacked.
pub fn get(name: &str) -> Option<Vec<u8>> {
    let (_, packed) = PACKED.iter().find(|(known, _)| *known == name)?;
    let mut wasm = Vec::new();
    ZlibDecoder::new(*packed)
        .read_to_end(&mut wasm)
        .expect("build.rs packed it");
    Some(wasm)
}

/// Seattle's daily weather, 2012-01-01 to 2015-12-31, with a header line: the rows of `seattle_weather`.
pub static SEATTLE_WEATHER_CSV: &str = include_str!("../../data/seattle-weather.csv");

/// The tables of the demo's warehouse; running it again changes nothing.
pub static WAREHOUSE_SQL: &str = include_str!("../../data/warehouse.sql");

/// Files of the templates for `heddle script new`: language, path, contents.
///
/// In paths and contents `{{name}}` stands for the script's name, `{{crate}}` for one that Cargo, Go and npm take, and
/// `{{sdk}}` (Rust alone) for where `heddle-sdk` comes from: `path = "..."`. Files below [`SDK`] are meant as they are.
pub static TEMPLATES: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The directory of `heddle-sdk` in the template for Rust: whoever writes scripts needs no repository of Heddle.
pub const SDK: &str = "heddle-sdk";

/// The languages that have a template, in alphabetical order.
pub fn languages() -> Vec<&'static str> {
    let mut languages: Vec<&str> = TEMPLATES.iter().map(|file| file.0).collect();
    languages.dedup();
    languages
}

/// The contract, as WIT.
pub static TASK_WIT: &str = include_str!("../../../guest-sdk/wit/task.wit");

#[cfg(test)]
mod tests {
    use super::*;

    /// A wasm binary begins with `\0asm` and a version: 1 for a module, 13 in layer 1 for a component.
    fn is_component(wasm: &[u8]) -> bool {
        assert_eq!(wasm[..4], *b"\0asm");
        wasm[4..8] == [13, 0, 1, 0]
    }

    #[test]
    fn every_script_is_embedded() {
        for name in names() {
            let wasm = get(name).expect("it is embedded");
            assert_eq!(is_component(&wasm), name != "hello-wasi", "{name}");
            assert!(wasm.len() < 400 << 10, "{name} has grown to {} bytes", wasm.len());
        }
        assert!(names().any(|name| name == "hello"));
        assert_eq!(get("nothing"), None);
    }

    #[test]
    fn the_data_is_that_of_four_years() {
        let lines: Vec<&str> = SEATTLE_WEATHER_CSV.lines().collect();
        assert_eq!(lines.len(), 1 + 1461);
        assert_eq!(lines[0], "date,precipitation,temp_max,temp_min,wind,weather");
        assert!(lines[1].starts_with("2012-01-01,") && lines[1461].starts_with("2015-12-31,"));
        assert!(WAREHOUSE_SQL.contains("create table if not exists seattle_weather"));
    }

    #[test]
    fn every_language_has_a_template() {
        assert_eq!(
            languages(),
            [
                "assemblyscript",
                "c",
                "go",
                "javascript",
                "javascript-component",
                "python",
                "python-component",
                "rust",
                "typescript",
                "zig"
            ]
        );
        for language in languages() {
            let paths: Vec<&str> = TEMPLATES
                .iter()
                .filter(|file| file.0 == language)
                .map(|file| file.1)
                .collect();
            assert!(paths.contains(&"README.md"), "{language}: {paths:?}");
        }
    }
}
