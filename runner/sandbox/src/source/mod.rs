//! Scripts written as text.
//!
//! A text is checked first (syntax, imports; TypeScript's types are erased in place and give the schema of the params),
//! by a WASI command: input from strangers is parsed where it can do no harm. Then, in a separate instance with an
//! attempt's bounds, the language's interpreter evaluates the module's top level, and the resulting memory is kept
//! ([`image`]): a run begins with it. The interpreter is compiled once, for any number of scripts: a script is a module
//! with a memory and no code, and the interpreter one with code that imports its memory ([`runtime`]). So an upload
//! costs milliseconds, a script half a megabyte, and a run two small instances whose pages are mapped when they are
//! used.
//!
//! | module | noun |
//! |---|---|
//! | `bundle`, `own`, `interpreter`, `kept` | a runtime as bytes; this program's own; interpreters from bundles; those that others have kept |
//! | `load` | from a text to a script that can be started: check, evaluation, snapshot |
//! | `library`, `image` | the parts of the interpreter's module; a memory as a module |
//! | `runtime`, `evaluate`, `attempt` | the linked interpreter; evaluating a top level; running a script |
//! | `python/` | the same for Python, whose interpreter is several libraries |
//! | `calls`, `answer`, `pending`, `fetch`, `zones`, `wasi` | the host's part for a script |
//! | `js/` | the modules between the interpreter and the script |

mod answer;
pub(crate) mod attempt;
mod bundle;
mod calls;
pub(crate) mod evaluate;
mod fetch;
pub(crate) mod image;
mod interpreter;
pub(crate) mod kept;
mod library;
mod load;
mod own;
mod pending;
pub(crate) mod python;
pub(crate) mod runtime;
mod wasi;
mod zones;

pub use bundle::{RuntimeBundle, RuntimeId, has_interface};
pub(crate) use calls::SourceState;
pub use own::own_runtime;

use serde::{Deserialize, Serialize};
use std::sync::Arc;

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

/// A linked runtime, ready for any text.
#[derive(Clone)]
pub(crate) enum Interpreter {
    JavaScript(Arc<runtime::Runtime>),
    Python(Arc<python::Python>),
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

/// A trace in which a text's module has another name: JavaScript writes `script.js:1:2`, Python `File "script.py", line
/// 1`.
pub fn trace_of_file(trace: &str, module: &str, shown: &str) -> String {
    trace
        .replace(&format!("{module}:"), &format!("{shown}:"))
        .replace(&format!("File \"{module}\""), &format!("File \"{shown}\""))
}

/// An error in a text, and its position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFault {
    pub message: String,
    /// The line, from 1, if the error has one.
    pub line: Option<u32>,
    /// The character in that line, from 1.
    pub column: Option<u32>,
    pub text: Option<String>,
}

/// The longest line that a fault shows.
const MAX_SHOWN_CHARS: usize = 300;

impl SourceFault {
    /// A fault of the whole text.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// A fault at a byte.
    pub fn at(source: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = &source[..source.floor_char_boundary(offset)];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        Self::on(source, message, line as u32, column as u32)
    }

    /// A fault at a line and a character.
    pub fn on(source: &str, message: impl Into<String>, line: u32, column: u32) -> Self {
        let text = source.split('\n').nth(line.saturating_sub(1) as usize);
        let text = text.map(|text| text.trim_end_matches('\r').chars().take(MAX_SHOWN_CHARS).collect());
        Self {
            message: message.into(),
            line: Some(line),
            column: Some(column),
            text,
        }
    }
}

impl std::fmt::Display for SourceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.line, self.column, &self.text) {
            (Some(line), Some(column), Some(text)) => {
                write!(f, "line {line}, column {column}: {}: {}", self.message, text.trim())
            }
            _ => f.write_str(&self.message),
        }
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

    #[test]
    fn a_trace_names_the_file() {
        let trace = "at run (script.ts:1:2)\n  File \"script.py\", line 3, in run\n    open(\"script.py\")";
        assert_eq!(
            trace_of_file(&trace_of_file(trace, "script.ts", "a.ts"), "script.py", "b.py"),
            "at run (a.ts:1:2)\n  File \"b.py\", line 3, in run\n    open(\"script.py\")"
        );
    }

    #[test]
    fn a_fault_shows_its_line() {
        let fault = SourceFault::at("one\n  zwö lf\r\nthree", 11, "odd");
        assert_eq!((fault.line, fault.column), (Some(2), Some(7)));
        assert_eq!(fault.to_string(), "line 2, column 7: odd: zwö lf");
    }
}
