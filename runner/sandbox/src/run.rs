//! Runs one attempt: a fresh store, one call, an outcome.

use crate::attempt::{AttemptRequest, AttemptResult, Limits, Outcome};
use crate::batch::{self, Batch, MessageOutcome};
use crate::bindings::consumer;
use crate::bindings::task::heddle::task::types::Failure;
use crate::clients::Clients;
use crate::command::Captured;
use crate::effects::{Effect, Effects};
use crate::guest::{CommandIo, Guest, HostSide, Progress};
use crate::journal::Journal;
use crate::lanes::Signals;
use crate::memory::{MemoryBudget, MemoryGuard, MemoryMeter, tells_of_memory};
use crate::outbound::OutboundPolicy;
use crate::outgoing::NodeRequests;
use crate::rehearsal::{Chance, Draws, Rehearsal, StageClock};
use crate::script::{Entry, Script};
use crate::source;
use crate::sql::{AttemptDatabases, Databases};
use crate::texts::{check_json, message};
use crate::web::WebHooks;
use heddle_domain::state::{ErrorKind, tells_of_no_grant};
use heddle_domain::{Clock, ERROR_TRACE_BYTES_MAX, Time, storable_text};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::task::Poll;
use std::time::Duration;
use wasmtime::{Engine, Store, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

/// What all attempts share.
pub(crate) struct Runner {
    pub engine: Engine,
    pub clock: Arc<dyn Clock>,
    pub clients: Arc<Clients>,
    pub policy: OutboundPolicy,
    pub databases: Arc<Databases>,
    pub requests: NodeRequests,
    pub budget: Arc<MemoryBudget>,
    pub node: tokio::runtime::Handle,
    pub io: tokio::runtime::Handle,
}

impl Runner {
    /// A store for an attempt. The caller keeps its params and its batch.
    pub fn store(
        &self,
        request: AttemptRequest,
        journal: &Journal,
        meter: Arc<MemoryMeter>,
        command: Option<CommandIo>,
    ) -> Store<Guest> {
        let grants = Arc::new(request.grants);
        let Rehearsal {
            now,
            paced,
            seed,
            exchanges,
        } = request.host.rehearsal().unwrap_or_default();
        let stage = now.map(|now| {
            let keeps_time = command.as_ref().is_some_and(|command| command.keeps_time);
            let follows = keeps_time.then(|| Arc::clone(&self.clock));
            Arc::new(StageClock::new(now, paced, follows))
        });
        let clock = match &stage {
            Some(stage) => Arc::clone(stage) as Arc<dyn Clock>,
            None => Arc::clone(&self.clock),
        };
        let guard = MemoryGuard::new(request.limits.memory_bytes, meter, Arc::clone(&self.budget));
        let chance = seed.map_or(Chance::System, |seed| Chance::Seeded(Draws::new(seed, 0)));
        let host = HostSide {
            context: Arc::new(request.context),
            grants: Arc::clone(&grants),
            services: request.host,
            journal: journal.clone(),
            effects: Effects::held_by(guard.hold_nothing()),
            databases: Arc::new(AttemptDatabases::new(Arc::clone(&self.databases))),
            clock,
            chance,
            stage: stage.clone(),
            seed,
            exchanges: exchanges.clone(),
            node: self.node.clone(),
            io: self.io.clone(),
            progress: Progress::default(),
        };
        let hooks = WebHooks {
            clients: Arc::clone(&self.clients),
            policy: self.policy.clone(),
            grants,
            exchanges,
            stage,
            outgoing: self.requests.of_attempt(),
        };
        Guest::store(&self.engine, host, hooks, guard, command)
    }
}

/// The export that is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    Work,
    Describe,
}

/// Tells the caller exactly once how the attempt ended, even if the attempt was dropped before its end.
pub(crate) struct Done(Option<Box<dyn FnOnce(AttemptResult) + Send>>);

impl Done {
    pub fn new(done: Box<dyn FnOnce(AttemptResult) + Send>) -> Self {
        Self(Some(done))
    }

    fn call(mut self, result: AttemptResult) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(AttemptResult {
                outcome: Outcome::failed(ErrorKind::Lost, "the node dropped the attempt"),
                messages: Vec::new(),
                effects: Vec::new(),
                memory_bytes: 0,
                cpu: Duration::ZERO,
                duration: Duration::ZERO,
                log_truncated: false,
            });
        }
    }
}

/// The result of a call.
enum Answer {
    /// A JSON text, still to be checked.
    Output(String),
    /// The outcomes of the messages of a batch.
    Handled(Vec<MessageOutcome>),
    Failure(Failure),
    /// What a text script threw.
    Thrown(Outcome),
    /// A command's exit code, if not 0.
    Exit(i32),
}

/// Runs an attempt to its end, or until it is told to stop.
pub(crate) async fn attempt(
    runner: Arc<Runner>,
    script: Script,
    request: AttemptRequest,
    export: Export,
    signals: Arc<Signals>,
    done: Done,
) {
    let began = runner.clock.now();
    let limits = request.limits;
    let journal = Journal::new(Arc::clone(&request.host), Arc::clone(&runner.clock), limits.log_bytes);
    let meter = Arc::new(MemoryMeter::default());
    let output = Captured::new(limits.output_bytes);
    let ended = {
        let work = call(
            &runner,
            &script,
            request,
            export,
            &journal,
            Arc::clone(&meter),
            output.clone(),
        );
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if signals.stopped() {
                Poll::Ready(None)
            } else {
                work.as_mut().poll(cx).map(Some)
            }
        })
        .await
        // The store is dropped here, and with it the instance.
    };
    journal.flush();
    let nothing = |outcome| (outcome, Vec::new(), Vec::new());
    let (outcome, messages, effects) = match ended {
        None if signals.cancelled.load(Acquire) => nothing(Outcome::Cancelled),
        None if signals.exceeds(limits.cpu) => {
            let max = limits.cpu.unwrap_or_default();
            let message = format!("exceeded its limit of {} of processor time", seconds(max));
            nothing(Outcome::failed(ErrorKind::Timeout, message))
        }
        None if signals.expired.load(Acquire) => {
            let timeout = limits.timeout.unwrap_or_default();
            let message = format!("exceeded its timeout of {}", seconds(timeout));
            nothing(Outcome::failed(ErrorKind::Timeout, message))
        }
        None => nothing(Outcome::failed(
            ErrorKind::Lost,
            "the node has no free slot for the attempt",
        )),
        Some(result) => outcome(result, &limits, &meter, &output, &journal),
    };
    done.call(AttemptResult {
        outcome,
        messages,
        effects,
        memory_bytes: meter.peak_bytes.load(Relaxed),
        cpu: signals.cpu(),
        duration: elapsed(began, runner.clock.now()),
        log_truncated: journal.truncated(),
    });
}

/// Creates a store, instantiates, calls.
async fn call(
    runner: &Runner,
    script: &Script,
    request: AttemptRequest,
    export: Export,
    journal: &Journal,
    meter: Arc<MemoryMeter>,
    output: Captured,
) -> wasmtime::Result<(Answer, Vec<Effect>)> {
    let mut request = request;
    let params = std::mem::take(&mut request.params);
    let batch = request.batch.take();
    let context = match script.inner.entry {
        Entry::CommandP1(_) | Entry::CommandP2(_) | Entry::Source(_) => serde_json::to_string(&request.context)?,
        _ => String::new(),
    };
    let command = match script.inner.entry {
        Entry::CommandP1(_) | Entry::CommandP2(_) => Some(CommandIo {
            stdin: params.clone(),
            context: context.clone(),
            stdout: output.clone(),
            keeps_time: matches!(script.inner.entry, Entry::CommandP1(_)),
        }),
        _ => None,
    };
    let mut store = runner.store(request, journal, meter, command);
    if !matches!(script.inner.entry, Entry::Source(_)) {
        store.data_mut().count_statements();
    }
    let answer = match &script.inner.entry {
        Entry::Task(pre) => {
            let instance = pre.instantiate_async(&mut store).await?;
            match export {
                Export::Describe => Answer::Output(instance.call_describe(&mut store).await?),
                Export::Work => match instance.call_run(&mut store, &params).await? {
                    Ok(output) => Answer::Output(output),
                    Err(failure) => Answer::Failure(failure),
                },
            }
        }
        Entry::Consumer(pre) => {
            let instance = pre.instantiate_async(&mut store).await?;
            match export {
                Export::Describe => Answer::Output(instance.call_describe(&mut store).await?),
                Export::Work => handle(&mut store, &instance, &params, batch).await?,
            }
        }
        Entry::Source(script) => match export {
            Export::Describe => Answer::Output(script.description.clone()),
            Export::Work => run_source(&mut store, script, &context, &params, batch).await?,
        },
        Entry::CommandP1(pre) => {
            let instance = pre.instantiate_async(&mut store).await?;
            let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
            exit_of(start.call_async(&mut store, ()).await.map(|()| Ok(())), &output)?
        }
        Entry::CommandP2(pre) => {
            let instance = pre.instantiate_async(&mut store).await?;
            exit_of(instance.wasi_cli_run().call_run(&mut store).await, &output)?
        }
    };
    Ok((answer, finish(store)))
}

/// Lets a script handle messages; when a script is tried out, they are in its params.
async fn handle(
    store: &mut Store<Guest>,
    instance: &consumer::Consumer,
    params: &str,
    batch: Option<Batch>,
) -> wasmtime::Result<Answer> {
    let given = batch.is_some();
    let batch = match batch {
        Some(batch) => batch,
        None => batch::read(params)?,
    };
    let count = batch.messages.len();
    let messages: Vec<consumer::Message> = batch.messages.into_iter().map(Into::into).collect();
    let outcomes = match instance.call_handle(&mut *store, &batch.topic, &messages).await? {
        Ok(outcomes) => outcomes,
        Err(failure) => return Ok(Answer::Failure(failure)),
    };
    if outcomes.len() != count {
        let said = format!("`handle` gave {} outcomes for {count} messages", outcomes.len());
        return Ok(Answer::Failure(Failure::Retryable(said)));
    }
    let outcomes = outcomes.into_iter().map(|said| MessageOutcome::of(said, message));
    handled(outcomes.collect(), given)
}

/// Outcomes, for a caller that gave a batch, or as an output.
fn handled(outcomes: Vec<MessageOutcome>, given: bool) -> wasmtime::Result<Answer> {
    Ok(match given {
        true => Answer::Handled(outcomes),
        false => Answer::Output(batch::write(&outcomes)?),
    })
}

async fn run_source(
    store: &mut Store<Guest>,
    script: &source::attempt::SourceScript,
    context: &str,
    params: &str,
    batch: Option<Batch>,
) -> wasmtime::Result<Answer> {
    let given = batch.is_some();
    let batch = match (batch, script.runs) {
        (None, false) => Some(batch::read(params)?),
        (batch, _) => batch,
    };
    let ended = source::attempt::run(store, script, context, params, batch.as_ref()).await;
    let writes_output = store.data().source.writes_output;
    let ended =
        ended.or_else(|error| source::attempt::ended_by(&error, script.language, writes_output).ok_or(error))?;
    Ok(match ended {
        source::attempt::Ended::Output(output) => Answer::Output(output),
        source::attempt::Ended::Handled(outcomes) => handled(outcomes, given)?,
        source::attempt::Ended::Failure(failure) => Answer::Failure(failure),
        source::attempt::Ended::Thrown {
            kind,
            message,
            trace,
            retry_after,
        } => Answer::Thrown(Outcome::Failed {
            kind,
            message: crate::texts::message(&message),
            trace: trace.map(|trace| storable_text(&trace, ERROR_TRACE_BYTES_MAX)),
            retry_after,
        }),
    })
}

fn finish(mut store: Store<Guest>) -> Vec<Effect> {
    store.data_mut().host.flush_progress();
    std::mem::take(&mut store.data_mut().host.effects).into_list()
}

/// A command's end: by returning, or by an exit before that.
fn exit_of(result: wasmtime::Result<Result<(), ()>>, output: &Captured) -> wasmtime::Result<Answer> {
    let code = match result {
        Ok(Ok(())) => 0,
        Ok(Err(())) => 1,
        Err(error) => exit_code(&error).ok_or(error)?,
    };
    if code != 0 {
        return Ok(Answer::Exit(code));
    }
    // What is not UTF-8 is not JSON either (RFC 8259, section 8.1): a character that is invalid in JSON makes the check
    // fail.
    let text = String::from_utf8(output.take().to_vec()).unwrap_or_else(|_| "\u{fffd}: stdout is not UTF-8".into());
    Ok(Answer::Output(if text.trim().is_empty() {
        "null".into()
    } else {
        text
    }))
}

/// What a result means.
fn outcome(
    result: wasmtime::Result<(Answer, Vec<Effect>)>,
    limits: &Limits,
    meter: &MemoryMeter,
    output: &Captured,
    journal: &Journal,
) -> (Outcome, Vec<MessageOutcome>, Vec<Effect>) {
    let outcome = match result {
        _ if output.exceeded() => too_much_output(limits),
        Ok((Answer::Output(text), effects)) => {
            if text.len() > limits.output_bytes {
                too_much_output(limits)
            } else if let Err(error) = check_json(&text) {
                Outcome::failed(ErrorKind::Invalid, format!("the output is not JSON: {error}"))
            } else {
                return (Outcome::Succeeded(text), Vec::new(), effects);
            }
        }
        Ok((Answer::Handled(outcomes), effects)) => return (Outcome::Succeeded("null".into()), outcomes, effects),
        Ok((Answer::Failure(Failure::Skip(reason)), _)) => Outcome::Skipped(message(&reason)),
        Ok(_) | Err(_) if meter.refused.load(Relaxed) => {
            let message = format!("exceeded its memory limit of {} bytes", limits.memory_bytes);
            Outcome::failed(ErrorKind::Memory, message)
        }
        Ok(_) | Err(_) if meter.exhausted.load(Relaxed) => Outcome::failed(
            ErrorKind::Memory,
            "the node has no memory left for scripts; increase its memory, or run fewer attempts at the same time",
        ),
        Ok((Answer::Failure(failure), _)) => failed(failure),
        Ok((Answer::Thrown(outcome), _)) => outcome,
        Ok((Answer::Exit(code), _)) => {
            let last = journal.last_line();
            let colon = if last.is_empty() { "" } else { ": " };
            Outcome::failed(ErrorKind::Failed, message(&format!("exit code {code}{colon}{last}")))
        }
        Err(error) if too_much_to_carry(&error) => too_much_output(limits),
        Err(error) => broken(&error),
    };
    (of_memory(final_if_not_granted(outcome)), Vec::new(), Vec::new())
}

/// A failure because a call was refused its memory has that kind. A refusal that the script has handled says nothing of
/// the failures after it.
fn of_memory(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failed {
            kind: ErrorKind::Failed,
            message,
            trace,
            retry_after,
        } if tells_of_memory(&message) => Outcome::Failed {
            kind: ErrorKind::Memory,
            message,
            trace,
            retry_after,
        },
        other => other,
    }
}

/// A failure because of a missing grant is final, whatever the script makes of the refusal.
fn final_if_not_granted(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failed {
            kind: ErrorKind::Failed,
            message,
            trace,
            ..
        } if tells_of_no_grant(&message) => Outcome::Failed {
            kind: ErrorKind::Fatal,
            message,
            trace,
            retry_after: None,
        },
        other => other,
    }
}

/// Whether an export's result had more bytes than one call may take from the guest. (In a host call this is a trap,
/// with a trace.)
fn too_much_to_carry(error: &wasmtime::Error) -> bool {
    // Wasmtime does not export the type of this error.
    !error.is::<WasmBacktrace>() && error.root_cause().to_string().contains("allocated for hostcalls")
}

fn too_much_output(limits: &Limits) -> Outcome {
    Outcome::failed(
        ErrorKind::Output,
        format!("the output exceeds its limit of {} bytes", limits.output_bytes),
    )
}

fn failed(failure: Failure) -> Outcome {
    let (kind, text, retry_after) = match failure {
        Failure::Retryable(text) => (ErrorKind::Failed, text, None),
        Failure::RetryAfter((millis, text)) => (ErrorKind::Failed, text, Some(Duration::from_millis(millis))),
        Failure::Fatal(text) => (ErrorKind::Fatal, text, None),
        Failure::Skip(reason) => return Outcome::Skipped(message(&reason)),
    };
    Outcome::Failed {
        kind,
        message: message(&text),
        trace: None,
        retry_after,
    }
}

/// An error of wasmtime: a trap, or a forbidden host call.
fn broken(error: &wasmtime::Error) -> Outcome {
    if error.is::<wasmtime::PoolConcurrencyLimitError>() {
        return Outcome::failed(ErrorKind::Lost, "the node has no free wasm instance");
    }
    if error.is::<serde_json::Error>() {
        return Outcome::failed(
            ErrorKind::Invalid,
            message(&format!("the params are not valid: {error}")),
        );
    }
    let trace = error
        .downcast_ref::<WasmBacktrace>()
        .map(|trace| storable_text(&trace.to_string(), ERROR_TRACE_BYTES_MAX));
    let text = match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => "trap: the call stack is exhausted".to_owned(),
        Some(trap) => format!("trap: {}", trap.to_string().trim_start_matches("wasm trap: ")),
        None => format!("trap: {}", error.root_cause()),
    };
    Outcome::Failed {
        kind: ErrorKind::Trap,
        message: message(&text),
        trace,
        retry_after: None,
    }
}

/// The code of a command that ended by `proc_exit` or `exit-with-code`. The p1 implementation traps for codes of 126
/// and above, which shells and interpreters do use. Only its message distinguishes these from other traps, and it does
/// not contain the code.
fn exit_code(error: &wasmtime::Error) -> Option<i32> {
    if let Some(exit) = error.downcast_ref::<I32Exit>() {
        return Some(exit.0);
    }
    let large = error
        .chain()
        .any(|cause| cause.to_string().contains("exit with invalid exit status"));
    large.then_some(126)
}

fn elapsed(from: Time, to: Time) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

fn seconds(duration: Duration) -> String {
    format!("{duration:?}")
}
