//! The language of a text, and the names of its scripts' code.

use serde::{Deserialize, Serialize};

/// The largest text script, in bytes.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// The language of a text script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// ECMAScript, as a module.
    JavaScript,
    /// The same with types.
    TypeScript,
    Python,
}

impl Language {
    pub const ALL: [Self; 3] = [Self::JavaScript, Self::TypeScript, Self::Python];

    /// Its name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Python => "python",
        }
    }

    /// The world of a script in it, in API and database.
    pub const fn world(self) -> &'static str {
        match self {
            Self::JavaScript => "source/javascript",
            Self::TypeScript => "source/typescript",
            Self::Python => "source/python",
        }
    }

    /// The language of a world, if its scripts are text.
    pub fn of_world(world: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.world() == world)
    }

    /// The media type of its texts.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::JavaScript => "text/javascript; charset=utf-8",
            Self::TypeScript => "text/typescript; charset=utf-8",
            Self::Python => "text/x-python; charset=utf-8",
        }
    }

    /// The language that a media type names, without its parameters.
    pub fn of_media_type(media_type: &str) -> Option<Self> {
        match media_type {
            "text/javascript" | "application/javascript" => Some(Self::JavaScript),
            "text/typescript" | "application/typescript" => Some(Self::TypeScript),
            "text/x-python" | "text/python" | "application/x-python" => Some(Self::Python),
            _ => None,
        }
    }

    /// The language of a file, by its extension.
    pub fn of_file(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "js" | "mjs" => Some(Self::JavaScript),
            "ts" | "mts" => Some(Self::TypeScript),
            "py" => Some(Self::Python),
            _ => None,
        }
    }

    /// The name of its module in stack traces.
    pub const fn file(self) -> &'static str {
        match self {
            Self::JavaScript => "script.js",
            Self::TypeScript => "script.ts",
            Self::Python => "script.py",
        }
    }

    /// The language whose runtime runs it: TypeScript has become JavaScript by then.
    pub const fn runs_as(self) -> Self {
        match self {
            Self::JavaScript | Self::TypeScript => Self::JavaScript,
            Self::Python => Self::Python,
        }
    }

    /// The interpreter that runs it, and its version.
    pub const fn interpreter(self) -> &'static str {
        match self {
            Self::JavaScript | Self::TypeScript => heddle_runtimes::JAVASCRIPT.id,
            Self::Python => heddle_runtimes::PYTHON.id,
        }
    }
}

/// The name of a script's code in a sandbox: the digest of the upload, and for a text its language, which the bytes do
/// not tell, and the tag of the runtime with which it was checked. Without a tag, it is the program's own.
pub fn code_key(digest: &str, world: &str, runtime: Option<&str>) -> String {
    let digest = digest.trim_start_matches("sha256:");
    match (Language::of_world(world), runtime) {
        (Some(language), Some(tag)) => format!("sha256:{digest}.{}-{tag}", language.as_str()),
        (Some(language), None) => format!("sha256:{digest}.{}", language.as_str()),
        (None, _) => format!("sha256:{digest}"),
    }
}

/// The parts of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// `sha256:` and the digest.
    pub digest: &'a str,
    /// If the code is text.
    pub language: Option<Language>,
    /// The tag of its runtime.
    pub runtime: Option<&'a str>,
}

/// Reads a key of [`code_key`].
pub fn split_key(key: &str) -> Key<'_> {
    let (digest, rest) = key.split_once('.').unwrap_or((key, ""));
    let (word, runtime) = match rest.split_once('-') {
        Some((word, tag)) => (word, Some(tag)),
        None => (rest, None),
    };
    Key {
        digest,
        language: Language::ALL.into_iter().find(|language| language.as_str() == word),
        runtime,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_the_language() {
        let key = code_key("ab12", "source/typescript", Some("c3"));
        assert_eq!(key, "sha256:ab12.typescript-c3");
        let language = Some(Language::TypeScript);
        let read = |runtime| Key {
            digest: "sha256:ab12",
            language,
            runtime,
        };
        assert_eq!(split_key(&key), read(Some("c3")));
        assert_eq!(
            split_key(&code_key("sha256:ab12", "source/typescript", None)),
            read(None)
        );
        let wasm = split_key("sha256:ab12");
        assert_eq!((wasm.digest, wasm.language, wasm.runtime), ("sha256:ab12", None, None));
        assert_eq!(code_key("ab12", "heddle:task/task", Some("c3")), "sha256:ab12");
    }
}
