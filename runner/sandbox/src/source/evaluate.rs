//! Evaluates a script's top level, once, and keeps the resulting memory.
//!
//! Each node that runs a text evaluates it, and does so again if its artefacts are deleted. The clock of a top level
//! therefore shows the instant that belongs to the text, the time of the first upload of its bytes
//! ([`crate::Uploaded`]), and stands still: a value that the text takes from it is the same on all nodes. Only a wait
//! (`time.sleep`) advances it, and takes no time. A text that Heddle does not store is evaluated at the present time.

use super::fault::SourceFault;
use super::image::{Layout, PAGE_BYTES};
use super::language::Language;
use super::linked::Interpreter;
use super::rejected;
use super::runtime::{Exported, Running, Runtime};
use super::snapshot::{Described, NoSnapshot, Snapshot};
use super::state::MAIN;
use crate::attempt::{AttemptRequest, Limits};
use crate::describe;
use crate::guest::Guest;
use crate::journal::Journal;
use crate::lanes::Signals;
use crate::memory::MemoryMeter;
use crate::rehearsal::Rehearsal;
use crate::run::Runner;
use crate::sandbox::CompileError;
use crate::services::HostServices;
use heddle_domain::Time;
use heddle_domain::bounded::Stopped;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::task::Poll;
use tokio::sync::oneshot;
use wasmtime::{Store, Trap};

/// How deep JavaScript may recurse, in bytes of its own stack: some thousand calls. The stack of WebAssembly, which
/// grows by more with each call, must not end first: that would be a trap instead of a `RangeError`.
const RECURSION_BYTES: u32 = 256 << 10;
/// How far below its top the stack may be when the interpreter records its top.
const MAX_STACK_AT_START: u32 = 64 << 10;

/// The error for a module without a function that Heddle calls.
const NOTHING_EXPORTED: &str = "does not export `run`; write `export default async function run(params, ctx) { … }` \
    (or `export async function handle(batch, ctx)` for a topic)";

pub(crate) enum Code {
    Text(String, Language),
    /// The module between an interpreter and a script, without a script.
    Own,
    /// JavaScript instead of our main module; it names the script itself.
    Main(String),
}

/// The host of a top level, which may reach nothing; its clock begins at this instant.
struct Beginning(Time);

impl HostServices for Beginning {
    fn refusal(&self, _: &str) -> String {
        "not available at the top level".to_owned()
    }

    fn rehearsal(&self) -> Option<Rehearsal> {
        Some(Rehearsal {
            now: Some(self.0),
            ..Rehearsal::default()
        })
    }
}

/// The attempt that evaluates a top level at an instant.
pub(super) fn request(at: Time, limits: Limits) -> AttemptRequest {
    AttemptRequest {
        limits,
        host: Arc::new(Beginning(at)),
        ..describe::request(at)
    }
}

/// Evaluates a checked text, within the bounds of an attempt, on a guest thread.
pub(crate) async fn job(
    runner: Arc<Runner>,
    interpreter: Interpreter,
    request: AttemptRequest,
    code: Code,
    signals: Arc<Signals>,
    done: oneshot::Sender<Result<Snapshot, CompileError>>,
) {
    let limits = request.limits;
    let meter = Arc::new(MemoryMeter::default());
    let journal = Journal::new(Arc::clone(&request.host), Arc::clone(&runner.clock), limits.log_bytes);
    let ended = {
        let work = async {
            let mut store = runner.store(request, &journal, Arc::clone(&meter), None);
            match (&interpreter, &code) {
                (Interpreter::JavaScript(runtime), Code::Text(text, language)) => {
                    evaluate(&mut store, runtime, runtime.modules.main(), text, *language).await
                }
                (Interpreter::JavaScript(runtime), Code::Main(main)) => {
                    evaluate(&mut store, runtime, main, "", Language::JavaScript).await
                }
                (Interpreter::Python(python), Code::Text(text, _)) => {
                    super::python::evaluate(&mut store, python, text).await
                }
                (Interpreter::Python(python), Code::Own) => {
                    let memory = super::python::boot(&mut store, python).await?;
                    let described = Described::default();
                    Ok(Snapshot { memory, described })
                }
                (Interpreter::JavaScript(_), Code::Own) => {
                    Err(NoSnapshot::Guest(wasmtime::Error::msg("it needs no preparation")))
                }
                (Interpreter::Python(_), Code::Main(_)) => {
                    Err(NoSnapshot::Guest(wasmtime::Error::msg("it has no main module")))
                }
            }
        };
        let mut work = pin!(work);
        std::future::poll_fn(|cx| match signals.stopped() {
            true => Poll::Ready(None),
            false => work.as_mut().poll(cx).map(Some),
        })
        .await
    };
    let too_much = || {
        let limit = limits.memory_bytes >> 20;
        SourceFault::new(format!("its top level exceeded the memory limit of {limit} MiB"))
    };
    let result = match ended {
        None if signals.exceeds(limits.cpu) => {
            let max = limits.cpu.unwrap_or_default();
            Err(SourceFault::new(format!(
                "its top level exceeded the limit of {max:?} of processor time"
            )))
        }
        None if signals.expired.load(Acquire) => {
            let _ = done.send(Err(Stopped::Trouble("the node is too busy".into()).into()));
            return;
        }
        // The end of the channel tells the caller.
        None => return,
        Some(Ok(snapshot)) => Ok(snapshot),
        Some(_) if meter.refused.load(Relaxed) => Err(too_much()),
        Some(Err(NoSnapshot::Fault(fault))) => Err(fault),
        Some(Err(NoSnapshot::Guest(error))) if matches!(error.downcast_ref::<Trap>(), Some(Trap::StackOverflow)) => {
            let language = match &code {
                Code::Text(_, language) => *language,
                Code::Own => Language::Python,
                Code::Main(_) => Language::JavaScript,
            };
            let too_deep = super::attempt::too_deep(language);
            Err(SourceFault::new(format!("its top level failed: {too_deep}")))
        }
        Some(Err(NoSnapshot::Guest(error))) => Err(SourceFault::new(format!(
            "its top level failed: {}",
            error.root_cause()
        ))),
    };
    let _ = done.send(result.map_err(CompileError::Source));
}

async fn evaluate(
    store: &mut Store<Guest>,
    runtime: &Runtime,
    main: &str,
    code: &str,
    language: Language,
) -> Result<Snapshot, NoSnapshot> {
    store.data_mut().source.loading = Some((Arc::from(code), language.file()));
    let running = runtime.instantiate(store, &runtime.base).await?;
    running.initialize(store, runtime).await?;
    let settled = running.evaluate(store, main, MAIN).await?;
    settled.map_err(|why| unsettled(&why))?;
    if store.data().source.description.is_none() {
        running.send(store, Exported::Describe, "").await?;
    }
    let text = store.data_mut().source.description.take().unwrap_or_default();
    let described: Described = serde_json::from_str(&text)
        .map_err(|error| SourceFault::new(format!("`params`, `defaults` or `description` is not valid: {error}")))?;
    if let Some(error) = &described.error {
        return Err(thrown(code, language, error, described.trace.as_deref()).into());
    }
    described.check(NOTHING_EXPORTED).map_err(SourceFault::new)?;
    set_up(store, &running, runtime);
    let mut memory = running.memory.data(&*store).to_vec();
    // The stack is empty now; its old contents are garbage.
    memory[..runtime.layout.stack as usize].fill(0);
    debug_assert!(memory.len().is_multiple_of(PAGE_BYTES as usize));
    Ok(Snapshot { memory, described })
}

/// What kept the top level from its end. (Thrown errors are reported in another way.) It waits for something that never
/// comes, because nothing that takes time may be called there.
fn unsettled(why: &str) -> SourceFault {
    if why.contains("dead lock") {
        return SourceFault::new("its top level does not end, because it awaits a promise that never settles");
    }
    SourceFault::new(format!("its top level failed: {}", crate::journal::cut(why, 500)))
}

/// Where an error was thrown: the first line of its trace that belongs to the script.
fn thrown(code: &str, language: Language, error: &str, trace: Option<&str>) -> SourceFault {
    let message = format!("its top level failed: {error}");
    match trace.and_then(|trace| position(trace, language.file())) {
        Some((line, column)) => SourceFault::on(code, message, line, column),
        None => SourceFault::new(message),
    }
}

/// The first `file:line:column` of a trace.
fn position(trace: &str, file: &str) -> Option<(u32, u32)> {
    let rest = &trace[trace.find(&format!("{file}:"))? + file.len() + 1..];
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Sets what no export of the interpreter sets, in its memory: the limit of the recursion, and whom it tells of promises
/// that fail.
///
/// The interpreter compares its stack pointer with a limit at each call, but sets none for WASI (`update_stack_limit` in
/// `quickjs.c`). With a limit, it throws a `RangeError` when JavaScript recurses too deep. If the place is not found,
/// deep recursion stays a trap.
fn set_up(store: &mut Store<Guest>, running: &Running, runtime: &Runtime) {
    let memory = running.memory.data_mut(store);
    let layout = &runtime.layout;
    let Some(state) = state_of(memory, layout) else {
        return;
    };
    let limit = layout.stack.saturating_sub(RECURSION_BYTES);
    memory[state + 8..state + 12].copy_from_slice(&limit.to_le_bytes());
    rejected::track(memory, layout, state);
}

/// The address of the interpreter's words about its stack: its size (0: none), its top (which is in the stack's highest
/// part) and the limit, before the current exception, which is uninitialised (tag 4). None, if this pattern is not
/// found in exactly one place.
fn state_of(memory: &[u8], layout: &Layout) -> Option<usize> {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let tops = layout.stack.saturating_sub(MAX_STACK_AT_START)..=layout.stack;
    let mut matches = (layout.heap as usize..memory.len().saturating_sub(24))
        .step_by(4)
        .filter(|at| {
            let words = &memory[*at..*at + 24];
            word(words) == 0
                && tops.contains(&word(&words[4..]))
                && word(&words[8..]) == 0
                && word(&words[12..]) == 0
                && word(&words[16..]) == 4
                && word(&words[20..]) == 0
        });
    let found = matches.next()?;
    matches.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_tell_the_position() {
        let trace =
            "Error: no\n    at g (heddle:web:3:4)\n    at f (script.ts:12:7)\n    at <anonymous> (script.ts:1:1)";
        assert_eq!(position(trace, "script.ts"), Some((12, 7)));
        assert_eq!(position(trace, "script.js"), None);
    }
}
