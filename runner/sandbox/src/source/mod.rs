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
//! | `language`, `fault` | the language of a text, the names of its code; errors in it |
//! | `bundle`, `own` | a runtime as bytes; this program's own |
//! | `interpreter`, `linked`, `kept` | interpreters from bundles; a linked one; those that others have kept |
//! | `load` | from a text to a script that can be started: check, evaluation, snapshot |
//! | `library`, `image` | the parts of the interpreter's module; a memory as a module |
//! | `runtime`, `evaluate`, `rejected` | JavaScript's interpreter, linked; evaluating a top level; promises that nobody awaits |
//! | `snapshot`, `attempt` | what is kept of a top level; running a script |
//! | `python/` | the same for Python, whose interpreter is several libraries |
//! | `state`, `under_way` | what a store keeps for a script |
//! | `calls`, `answer`, `pending`, `fetch`, `zones`, `wasi` | the host's part for a script |
//! | `js/` | the modules between the interpreter and the script |

mod answer;
pub(crate) mod attempt;
mod bundle;
mod calls;
pub(crate) mod evaluate;
mod fault;
mod fetch;
pub(crate) mod image;
mod interpreter;
pub(crate) mod kept;
mod language;
mod library;
mod linked;
mod load;
mod own;
mod pending;
pub(crate) mod python;
mod rejected;
pub(crate) mod runtime;
mod search_params;
mod snapshot;
mod state;
mod under_way;
mod wasi;
mod zones;

pub use bundle::{RuntimeBundle, RuntimeId, has_interface, needs_newer_program};
pub use fault::{SourceFault, log_of_file, trace_of_file};
pub use language::{Key, Language, MAX_SOURCE_BYTES, code_key, split_key};
pub use own::own_runtime;
pub(crate) use state::SourceState;
