//! From a text to a script that can be started.
//!
//! A top level is evaluated at the time that belongs to the text (see `evaluate`). At the very first upload this is the
//! time of the upload, before the text is stored. If several first uploads of the same bytes run at once, each is
//! evaluated at its own time, and the one that is stored first gives its time to the text. A node with another one keeps
//! its artefact until that is made again: another upload of the text does this, or the deletion of the artefacts.

use super::attempt::{Ready, SourceScript};
use super::evaluate::{self, Code};
use super::fault::SourceFault;
use super::image;
use super::language::{Key, Language, MAX_SOURCE_BYTES, code_key, split_key};
use super::linked::Interpreter;
use super::python::Change;
use super::snapshot::{Described, Snapshot};
use crate::artefact::{self, Artefact, digest_of};
use crate::attempt::{AttemptResult, Limits, Outcome};
use crate::bounds::Kind;
use crate::describe::{self, Description};
use crate::lanes::{Signals, SlotKind};
use crate::run::Export;
use crate::sandbox::{CompileError, Compiled, LoadError, Sandbox, Uploaded, blocking};
use crate::script::{Entry, Linked, Script, World};
use bytes::Bytes;
use heddle_domain::Time;
use heddle_domain::bounded::or_trouble;
use heddle_domain::state::ErrorKind;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// How long checking or evaluating may take on a busy machine. A text is refused when it uses up its processor time,
/// not when the node is busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(120);
/// The limits of checking a text.
const CHECK_LIMITS: Limits = Limits {
    memory_bytes: 512 << 20,
    output_bytes: 16 << 20,
    log_bytes: 64 << 10,
    timeout: Some(BUSY_TIMEOUT),
    cpu: Some(Duration::from_secs(20)),
};
/// The limits of a top level.
const LOAD_LIMITS: Limits = Limits {
    memory_bytes: 64 << 20,
    output_bytes: 1 << 20,
    log_bytes: 64 << 10,
    timeout: Some(BUSY_TIMEOUT),
    cpu: Some(Duration::from_secs(5)),
};
/// The limits of setting up an interpreter, on a busy machine too.
pub(super) const BOOT_LIMITS: Limits = Limits {
    memory_bytes: 256 << 20,
    output_bytes: 1 << 20,
    log_bytes: 64 << 10,
    timeout: Some(BUSY_TIMEOUT),
    cpu: None,
};
/// What a snapshot depends on besides its text and its runtime: the parts of the host that affect it, or are stored in
/// it. `build.rs` has the list.
pub(super) const HOST: &str = env!("HOST_SOURCES");

/// The answer of the checker.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Checked {
        code: String,
        params: Option<Value>,
    },
    Fault {
        message: String,
        line: Option<u32>,
        column: Option<u32>,
    },
}

/// What is noted with an image.
#[derive(serde::Serialize, Deserialize)]
struct Header {
    description: String,
    runs: bool,
    handles: bool,
    /// What the clock of its top level showed, in microseconds since 1970.
    evaluated_at: i64,
    /// The memory that the image changes, if it is a change.
    #[serde(default)]
    base: Option<String>,
}

impl Sandbox {
    /// Checks a text script with this program's own runtime, evaluates its top level, describes it, and keeps the
    /// snapshot. The clock of the top level shows the present time; a snapshot that was made before is used as it is.
    pub async fn compile_source(&self, language: Language, text: Bytes) -> Result<Compiled, CompileError> {
        let (compiled, script) = self.checked(language, text, None).await?;
        self.keep(&script);
        Ok(compiled)
    }

    /// The same for a text that is uploaded: the clock of its top level shows the time that comes with it. A snapshot
    /// that was made at another time is made again.
    pub async fn compile_uploaded(&self, language: Language, text: Uploaded) -> Result<Compiled, CompileError> {
        let (compiled, script) = self.checked(language, text.bytes, Some(text.at)).await?;
        self.keep(&script);
        Ok(compiled)
    }

    /// The same for a script that will not run here soon: the snapshot stays on the disk.
    pub async fn check_source(&self, language: Language, text: Uploaded) -> Result<Compiled, CompileError> {
        Ok(self.checked(language, text.bytes, Some(text.at)).await?.0)
    }

    async fn checked(
        &self,
        language: Language,
        text: Bytes,
        at: Option<Time>,
    ) -> Result<(Compiled, Script), CompileError> {
        let size = text.len();
        if size > MAX_SOURCE_BYTES {
            return Err(CompileError::TooLarge(MAX_SOURCE_BYTES));
        }
        let digest = digest_of(&text);
        let text = Uploaded {
            bytes: text,
            at: at.unwrap_or_else(|| self.inner.clock.now()),
        };
        let fits = |script: &Script| at.is_none_or(|at| is_of(script, at));
        let interpreter = self.interpreter(language).await?;
        let key = code_key(&digest, language.world(), Some(interpreter.tag()));
        let _alone = self.alone(&key).await;
        let found = match self.loaded(&key).filter(fits) {
            Some(script) => Some(script),
            None => {
                let kept = self.snapshot(&key, &digest, language, interpreter.clone()).await?;
                kept.filter(fits)
            }
        };
        let script = match found {
            Some(script) => script,
            None => self.build_source(&key, &digest, language, interpreter, text).await?,
        };
        let description = match &script.inner.entry {
            // Only an upload is refused: a text that was accepted without this bound still loads.
            Entry::Source(script) if script.description.len() > describe::MAX_BYTES => {
                return Err(CompileError::Source(too_long(script.description.len())));
            }
            Entry::Source(script) => or_trouble(|| Description::parse(&script.description))?,
            _ => Err("is not text".into()),
        };
        let description = description
            .map_err(|why| CompileError::Source(SourceFault::new(why.replace("`describe` returned", "it exports"))))?;
        let compiled = Compiled {
            digest,
            world: World::Source(language),
            runtime: Some(self.own_runtime(language).await?.clone()),
            exports: script.exports(),
            params_schema: description.params.map(Value::Object),
            defaults: description.defaults.unwrap_or_default(),
            description: description.description,
            size,
        };
        Ok((compiled, script))
    }

    /// Loads a text, on the runtime that its key names: `kept` returns that runtime's bundle, `fetch` the text.
    pub(crate) async fn load_source<E>(
        &self,
        key: &str,
        language: Language,
        kept: impl Future<Output = Result<Option<Vec<u8>>, E>> + Send,
        fetch: impl Future<Output = Result<Uploaded, E>> + Send,
    ) -> Result<Script, LoadError<E>> {
        let _alone = self.alone(key).await;
        if let Some(script) = self.loaded(key) {
            return Ok(script);
        }
        let Key { digest, runtime, .. } = split_key(key);
        let other = match runtime {
            Some(tag) if self.own_runtime(language).await?.tag != tag => Some(tag),
            _ => None,
        };
        let kept_one = match other {
            Some(tag) => self.kept_interpreter(tag, language, kept).await?,
            None => None,
        };
        match (kept_one, other) {
            (Some(interpreter), _) => self.made_ready(key, digest, language, interpreter, fetch).await,
            (None, None) => {
                let interpreter = self.interpreter(language).await?;
                self.made_ready(key, digest, language, interpreter, fetch).await
            }
            // It is not kept under its own key: the next call comes here again, when the runtime may be available.
            (None, Some(_)) => {
                let interpreter = self.interpreter(language).await?;
                let key = code_key(digest, language.world(), Some(interpreter.tag()));
                let _alone = self.alone(&key).await;
                match self.loaded(&key) {
                    Some(script) => Ok(script),
                    None => self.made_ready(&key, digest, language, interpreter, fetch).await,
                }
            }
        }
    }

    /// From the disk, or by evaluating the text.
    async fn made_ready<E>(
        &self,
        key: &str,
        digest: &str,
        language: Language,
        interpreter: Interpreter,
        fetch: impl Future<Output = Result<Uploaded, E>> + Send,
    ) -> Result<Script, LoadError<E>> {
        let script = match self.snapshot(key, digest, language, interpreter.clone()).await? {
            Some(script) => script,
            None => {
                let text = self.fetched(digest, fetch).await?;
                self.build_source(key, digest, language, interpreter, text).await?
            }
        };
        self.keep(&script);
        Ok(script)
    }

    /// A script with another main module than ours, which has what scripts do not have, above all `eval`: to measure
    /// how much of the language the interpreter supports (`examples/conformance/main.rs`).
    #[doc(hidden)]
    pub async fn javascript_with_main(&self, main: &str) -> Result<Script, CompileError> {
        let language = Language::JavaScript;
        let interpreter = self.interpreter(language).await?;
        let code = Code::Main(main.to_owned());
        let at = self.inner.clock.now();
        let Snapshot { memory, described } = self.evaluated(interpreter.clone(), code, LOAD_LIMITS, at).await?;
        let header = Header {
            description: described.description(None),
            runs: described.run,
            handles: described.handle,
            evaluated_at: at.timestamp_micros(),
            base: base_of(&interpreter),
        };
        let engine = self.inner.runner.engine.clone();
        let key = code_key(&digest_of(main.as_bytes()), language.world(), Some(interpreter.tag()));
        blocking(move || {
            let artefact = artefact(&engine, &interpreter, &header, &memory)?;
            link(&engine, interpreter, &key, language, &artefact)
        })
        .await?
        .map_err(CompileError::Internal)
    }

    /// Reads a snapshot from the disk, if there is one.
    async fn snapshot(
        &self,
        key: &str,
        digest: &str,
        language: Language,
        interpreter: Interpreter,
    ) -> Result<Option<Script>, CompileError> {
        let (cache, engine, key) = (
            Arc::clone(&self.inner.cache),
            self.inner.runner.engine.clone(),
            key.to_owned(),
        );
        let name = on_disk(digest, language, interpreter.tag());
        blocking(move || {
            let artefact = cache.read(&name)?;
            link(&engine, interpreter, &key, language, &artefact)
                .inspect_err(|error| {
                    tracing::warn!(
                        key,
                        error,
                        "a snapshot of a source script does not link; \
                    evaluating the script again"
                    )
                })
                .ok()
        })
        .await
    }

    async fn build_source(
        &self,
        key: &str,
        digest: &str,
        language: Language,
        interpreter: Interpreter,
        text: Uploaded,
    ) -> Result<Script, CompileError> {
        let Uploaded { bytes, at } = text;
        let text = match String::from_utf8(bytes.into()) {
            Ok(text) => text,
            Err(error) => {
                let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
                let fault = SourceFault::at(&valid, valid.len(), "the text is not UTF-8");
                return Err(CompileError::Source(fault));
            }
        };
        let (code, params) = self.check(&interpreter, language, &text).await?;
        let Snapshot { memory, described } = self
            .evaluated(interpreter.clone(), Code::Text(code, language), LOAD_LIMITS, at)
            .await
            .map_err(|error| match error {
                // A fault shows the author's own text, with its types.
                CompileError::Source(SourceFault {
                    message,
                    line: Some(line),
                    column: Some(column),
                    ..
                }) => CompileError::Source(SourceFault::on(own(&text), message, line, column)),
                other => other,
            })?;
        let Described { run, handle, .. } = described;
        let header = Header {
            description: described.description(params),
            runs: run,
            handles: handle,
            evaluated_at: at.timestamp_micros(),
            base: base_of(&interpreter),
        };
        let (cache, engine, key) = (
            Arc::clone(&self.inner.cache),
            self.inner.runner.engine.clone(),
            key.to_owned(),
        );
        let name = on_disk(digest, language, interpreter.tag());
        blocking(move || {
            let artefact = artefact(&engine, &interpreter, &header, &memory).map_err(CompileError::Internal)?;
            let script =
                link(&engine, interpreter.clone(), &key, language, &artefact).map_err(CompileError::Internal)?;
            let kept = cache.keep(&name, artefact);
            Ok(link(&engine, interpreter, &key, language, &kept).unwrap_or(script))
        })
        .await?
    }

    /// The text as JavaScript, and the schema of its types for the params.
    async fn check(
        &self,
        interpreter: &Interpreter,
        language: Language,
        text: &str,
    ) -> Result<(String, Option<Value>), CompileError> {
        let Interpreter::JavaScript(runtime) = interpreter else {
            // Python checks its texts during their evaluation.
            let text = own(text);
            return match text.find('\0') {
                Some(at) => Err(CompileError::Source(SourceFault::at(
                    text,
                    at,
                    "the character U+0000 is not allowed",
                ))),
                None => Ok((text.to_owned(), None)),
            };
        };
        let checker = self.checker(runtime).await?;
        let mut request = describe::request(self.inner.clock.now());
        request.limits = CHECK_LIMITS;
        request.params = format!("{}\n{text}", language.as_str());
        let (send, receive) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result: AttemptResult| {
            let _ = send.send(result.outcome);
        });
        self.start_export(SlotKind::Checks, &checker, request, Export::Work, done);
        let internal = |error: &dyn std::fmt::Display| CompileError::Internal(format!("the checker: {error}"));
        match receive.await.map_err(|error| internal(&error))? {
            Outcome::Succeeded(answer) => match serde_json::from_str(&answer).map_err(|error| internal(&error))? {
                Answer::Checked { code, params } => Ok((code, params)),
                Answer::Fault { message, line, column } => Err(CompileError::Source(match (line, column) {
                    (Some(line), Some(column)) => SourceFault::on(own(text), message, line, column),
                    _ => SourceFault::new(message),
                })),
            },
            Outcome::Failed {
                kind: ErrorKind::Lost,
                message,
                ..
            } => Err(internal(&message)),
            Outcome::Failed { message, .. } => Err(CompileError::Source(SourceFault::new(format!(
                "it is nested too deeply or too large to be parsed ({message})"
            )))),
            Outcome::Skipped(_) | Outcome::Cancelled => Err(internal(&"it did not end")),
        }
    }

    pub(super) async fn evaluated(
        &self,
        interpreter: Interpreter,
        code: Code,
        limits: Limits,
        at: Time,
    ) -> Result<Snapshot, CompileError> {
        let request = evaluate::request(at, limits);
        let (send, receive) = tokio::sync::oneshot::channel();
        let signals = Arc::new(Signals::default());
        let job = Box::pin(evaluate::job(
            Arc::clone(&self.inner.runner),
            interpreter,
            request,
            code,
            Arc::clone(&signals),
            send,
        ));
        self.inner.lanes.spawn(SlotKind::Checks, signals, &limits, job);
        match receive.await {
            Ok(Ok(snapshot)) => Ok(snapshot),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(CompileError::Internal("the node dropped the evaluation".into())),
        }
    }
}

/// The fault of a text that says too much about itself.
fn too_long(bytes: usize) -> SourceFault {
    let max = describe::MAX_BYTES;
    SourceFault::new(format!(
        "`params`, `defaults` and `description` have {bytes} bytes together as JSON, the maximum is {max}"
    ))
}

/// The text without the byte order mark of some editors, which the checker does not count.
fn own(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Whether a text was evaluated at this instant.
fn is_of(script: &Script, at: Time) -> bool {
    match &script.inner.entry {
        Entry::Source(script) => script.is_of(at),
        _ => false,
    }
}

/// The name of a snapshot on disk; another runtime has another snapshot.
fn on_disk(digest: &str, language: Language, tag: &str) -> String {
    format!("{digest}.{}-{tag}-{HOST}", language.as_str())
}

/// The memory that snapshots for this interpreter change, if they are changes.
fn base_of(interpreter: &Interpreter) -> Option<String> {
    match interpreter {
        Interpreter::JavaScript(_) => None,
        Interpreter::Python(python) => Some(python.base_digest.clone()),
    }
}

/// The memory as compiled code or as a change, and the header.
fn artefact(
    engine: &wasmtime::Engine,
    interpreter: &Interpreter,
    header: &Header,
    memory: &[u8],
) -> Result<Artefact, String> {
    let image = match interpreter {
        Interpreter::JavaScript(runtime) => engine
            .precompile_module(&image::module(&runtime.layout, memory))
            .map_err(|error| format!("{error:#}"))?,
        Interpreter::Python(_) => memory.to_vec(),
    };
    Ok(Artefact {
        kind: Kind::Image,
        note: serde_json::to_vec(header).map_err(|error| error.to_string())?,
        code: artefact::Code::Held(image),
    })
}

fn link(
    engine: &wasmtime::Engine,
    interpreter: Interpreter,
    key: &str,
    language: Language,
    artefact: &Artefact,
) -> Result<Script, String> {
    if artefact.kind != Kind::Image {
        return Err("is not a snapshot".into());
    }
    let header: Header = serde_json::from_slice(&artefact.note).map_err(|error| error.to_string())?;
    if header.base != base_of(&interpreter) {
        return Err("belongs to another memory".into());
    }
    let snapshot = match interpreter {
        Interpreter::JavaScript(runtime) => {
            // SAFETY: we made it ourselves, or have it by checksum from a directory that is ours.
            let image = unsafe { artefact.code.module(engine) }.map_err(|error| format!("{error:#}"))?;
            Ready::JavaScript(runtime, image)
        }
        Interpreter::Python(python) => {
            let change = artefact.code.read().map_err(|error| error.to_string())?;
            Ready::Python(python, Change::read(&change)?)
        }
    };
    Ok(Script {
        inner: Arc::new(Linked {
            digest: key.to_owned(),
            code_bytes: artefact.code.bytes(),
            entry: Entry::Source(SourceScript {
                snapshot,
                language,
                description: header.description,
                handles: header.handles,
                runs: header.runs,
                evaluated_at: header.evaluated_at,
            }),
        }),
    })
}
