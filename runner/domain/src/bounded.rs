//! Computes with input from strangers, where time and memory are bounded from outside.
//!
//! A JSON Schema is a program, and so is a template: a few lines of either can take gigabytes, and the library that runs
//! it can neither be interrupted nor be limited. Earlier versions estimated the cost of such a program beforehand, and
//! each estimate was defeated when somebody seriously tried. So the domain does not estimate: it says *what* to compute
//! (as bytes), and a [`Bounds`] that the program installs computes it where it can be stopped. In a node, that is a child
//! process whose memory the kernel limits and whose processor time its parent watches (`heddle-sandbox`, `bounded`). The
//! child is the same program and calls [`answer`], so the result is the same as it would be here.
//!
//! If nothing was installed (tests of this crate, small tools), the work is done in this process.
//!
//! If work was stopped, its input was too expensive. If the work could not be done, the input may still be good. So a
//! caller that acts on the result for a schema or a template calls within [`or_trouble`], and tries again after an
//! error of Heddle.
//!
//! Why not a WebAssembly module in the sandbox: it would be a second build of the validator and of all else that is to
//! run there, take minutes of each clean build, and compile code twice with different features. The child needs nothing
//! new, runs at native speed, and its bounds are the kernel's.

use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::plain::Plain;
use crate::schema::library::{self, Open};
use crate::spec::{StrictError, read_yaml};
use crate::template::seen::{self, Seen};
use crate::{Fault, Faults};

/// Work to be computed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Whether a schema can be used.
    CompileSchema { schema: Plain },
    /// The errors of a value.
    CheckSchema { schema: Plain, value: Plain, open: Open },
    /// Where a value with fractions in these positions lacks integers.
    IntegersAsked { schema: Plain, probe: Plain },
    /// The content of a YAML document.
    ReadYaml { text: String },
    /// The result of a template, or whether a condition is met.
    Render {
        template: String,
        condition: bool,
        seen: Box<Seen>,
    },
}

/// The result of work.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Compiled(Result<(), Fault>),
    Checked(Result<Faults, Fault>),
    Asked(Vec<String>),
    Read(Result<Plain, StrictError>),
    Rendered(Result<Plain, String>),
    /// The work cannot be read: another build has written it.
    Unread(String),
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// It exceeded its processor time.
    #[error("it needs more than the limit of {0} ms of processor time")]
    Time(u64),
    /// It exceeded its memory, or the stack.
    #[error("it needs more than the limit of {0} MiB of memory, or it is nested too deeply")]
    Memory(u64),
    /// No answer could be computed, because of an error of Heddle.
    #[error("this node cannot do it at the moment ({0}); try again")]
    Trouble(String),
}

/// What a work reads, which decides how much processor time each MiB of it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Values that this program wrote: they are read fast.
    Values,
    /// A text of a person, which a parser reads character by character.
    Text,
}

/// Does work that may have to be stopped.
pub trait Bounds: Send + Sync {
    /// Lets a process call [`answer`] with `work`, and ends it when it takes too much for its `input`. Works with the
    /// same `key` probably end in the same way: a work that was ended several times need not be started again. Works
    /// with the same `owner` wait for each other, so that an owner of many works does not delay other owners.
    fn compute(&self, work: Vec<u8>, input: Input, key: u64, owner: u64) -> Result<Vec<u8>, Stopped>;
}

static BOUNDS: OnceLock<Box<dyn Bounds>> = OnceLock::new();

/// Sets where this process does such work from now on. Only the first call has an effect.
pub fn install(bounds: Box<dyn Bounds>) {
    let _ = BOUNDS.set(bounds);
}

/// Does the work that was given to [`Bounds::compute`]. `begun` is called once, after the part of the work that the key
/// identifies.
pub fn answer(work: &[u8], begun: &mut dyn FnMut()) -> Vec<u8> {
    let answer = match postcard::from_bytes(work) {
        Ok(work) => done(work, begun),
        Err(error) => Answer::Unread(error.to_string()),
    };
    // An answer is made of texts and lists: it can be written.
    postcard::to_stdvec(&answer).unwrap_or_default()
}

/// Does work, here and now.
fn done(work: Work, begun: &mut dyn FnMut()) -> Answer {
    match work {
        Work::CompileSchema { schema } => Answer::Compiled(library::compiled(schema)),
        Work::CheckSchema { schema, value, open } => Answer::Checked(library::checked(schema, value, &open, begun)),
        Work::IntegersAsked { schema, probe } => Answer::Asked(library::asked(schema, probe, begun)),
        Work::Render {
            template,
            condition,
            seen,
        } => Answer::Rendered(seen::rendered(&template, condition, *seen)),
        Work::ReadYaml { text } => Answer::Read(read_yaml(&text).map(|value| Plain::from(&value))),
    }
}

/// A key that identifies a text.
pub(crate) fn key_of(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

thread_local! {
    /// The last error of Heddle in work on this thread, for [`or_trouble`].
    static TROUBLE: RefCell<Option<Stopped>> = const { RefCell::new(None) };
}

/// Runs `f`. If bounded work within it failed because of our own trouble, the result of `f` (a fault in somebody's
/// params, an unusable template) is dropped, and the trouble is returned.
///
/// Faults pass through code for which their cause does not matter. So the trouble is not part of each fault, but is
/// noted for the thread on which all of `f` runs.
pub fn or_trouble<T>(f: impl FnOnce() -> T) -> Result<T, Stopped> {
    let outer = TROUBLE.take();
    let result = f();
    match TROUBLE.replace(outer) {
        None => Ok(result),
        Some(trouble) => Err(trouble),
    }
}

/// Does work, with bounds if the process has them.
pub(crate) fn perform(work: Work, key: u64, owner: u64) -> Result<Answer, Stopped> {
    let result = perform_once(work, key, owner);
    if let Err(trouble @ Stopped::Trouble(_)) = &result {
        TROUBLE.set(Some(trouble.clone()));
    }
    result
}

fn perform_once(work: Work, key: u64, owner: u64) -> Result<Answer, Stopped> {
    let trouble = |error: postcard::Error| Stopped::Trouble(error.to_string());
    let Some(bounds) = BOUNDS.get() else {
        return Ok(done(work, &mut || {}));
    };
    let input = match &work {
        Work::ReadYaml { .. } => Input::Text,
        _ => Input::Values,
    };
    let bytes = postcard::to_stdvec(&work).map_err(trouble)?;
    let answer = bounds.compute(bytes, input, key, owner)?;
    match postcard::from_bytes(&answer).map_err(trouble)? {
        Answer::Unread(why) => Err(Stopped::Trouble(why)),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::schema::Schema;
    use crate::template::{Scope, Templates};

    thread_local! {
        static NOBODY: Cell<bool> = const { Cell::new(false) };
    }

    /// Works, unless this thread says that there is nobody.
    struct Sometimes;

    impl Bounds for Sometimes {
        fn compute(&self, work: Vec<u8>, _: Input, _: u64, _: u64) -> Result<Vec<u8>, Stopped> {
            match NOBODY.get() {
                true => Err(Stopped::Trouble("too many requests at the same time".into())),
                false => Ok(answer(&work, &mut || {})),
            }
        }
    }

    #[test]
    fn trouble_of_our_own_is_distinguished_from_what_was_made_of_it() {
        install(Box::new(Sometimes));
        let heavy = json!({"properties": {"n": {"type": "integer"}}, "unevaluatedProperties": false});
        let schema = Schema::compile(&heavy).unwrap();
        assert!(schema.is_heavy());
        let templates = Templates::new();
        let scope = Scope::of_names(BTreeMap::new());
        let render = || templates.render("{% for n in range(3) %}{{ n }}{% endfor %}", &scope);
        let check = || schema.check(&json!({"n": 5.0}));
        let written = || {
            let mut value = json!({"n": 5.0});
            schema.write_integers(&mut value);
            value.to_string()
        };
        assert_eq!(or_trouble(render), Ok(Ok(json!("012"))));
        assert_eq!(or_trouble(check), Ok(Faults::default()));
        assert_eq!(or_trouble(written), Ok(r#"{"n":5}"#.into()));
        NOBODY.set(true);
        let trouble = Stopped::Trouble("too many requests at the same time".into());
        assert_eq!(or_trouble(render), Err(trouble.clone()));
        assert_eq!(or_trouble(check), Err(trouble.clone()));
        assert_eq!(or_trouble(written), Err(trouble.clone()));
        assert_eq!(or_trouble(|| Schema::compile(&heavy).is_err()), Err(trouble.clone()));
        // An error within an inner call belongs to the inner call, and is reported only there.
        assert_eq!(or_trouble(|| or_trouble(check)), Ok(Err(trouble)));
        assert_eq!(or_trouble(|| 2), Ok(2));
        NOBODY.set(false);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let said: Answer = postcard::from_bytes(&answer(&[250, 1, 2], &mut || {})).unwrap();
        assert!(matches!(said, Answer::Unread(_)), "{said:?}");
    }
}
