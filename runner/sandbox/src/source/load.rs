//! From a text to a script that can be started.

use super::attempt::{Ready, SourceScript};
use super::evaluate::{self, Code, Described, Snapshot};
use super::python::{self, Change, Python};
use super::runtime::Runtime;
use super::{Interpreter, Language, MAX_SOURCE_BYTES, SourceFault, calls, code_key, image};
use crate::artefact::digest_of;
use crate::attempt::{AttemptResult, Limits, Outcome};
use crate::bounds::Kind;
use crate::compiler::{Artefact, For};
use crate::describe::{self, Description};
use crate::lanes::Signals;
use crate::run::Export;
use crate::sandbox::{CompileError, Compiled, Sandbox, blocking};
use crate::script::{Entry, Linked, Script, World};
use bytes::Bytes;
use heddle_domain::bounded::or_trouble;
use heddle_domain::state::ErrorKind;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use wasmtime::Module;

/// How long checking or evaluating may take where others want the processor too. A text has a fault when it uses up its
/// processor time, not when the node is busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(120);
/// What checking a text may take.
const CHECK_LIMITS: Limits = Limits {
    memory_bytes: 512 << 20,
    output_bytes: 16 << 20,
    log_bytes: 64 << 10,
    timeout: Some(BUSY_TIMEOUT),
    cpu: Some(Duration::from_secs(20)),
};
/// What a top level may take.
const LOAD_LIMITS: Limits = Limits {
    memory_bytes: 64 << 20,
    output_bytes: 1 << 20,
    log_bytes: 64 << 10,
    timeout: Some(BUSY_TIMEOUT),
    cpu: Some(Duration::from_secs(5)),
};
/// What setting an interpreter up may take, on a busy machine too.
const BOOT_LIMITS: Limits = Limits {
    memory_bytes: 256 << 20,
    output_bytes: 1 << 20,
    log_bytes: 64 << 10,
    timeout: Some(BUSY_TIMEOUT),
    cpu: None,
};
/// How long compiling one may take: CPython needs ten seconds of two idle cores.
const INTERPRETER_TIMEOUT: Duration = Duration::from_secs(300);
/// How many hexadecimal digits tell one version of the interpreter, and of what is around it, from another.
const TAG_DIGITS: usize = 16;

/// The command that checks texts: its digest.
static CHECKER: LazyLock<String> = LazyLock::new(|| digest_of(heddle_runtimes::CHECKER));

/// What a snapshot depends on beside the text: the interpreter, what is ours in its language, the checker.
static JAVASCRIPT_TAG: LazyLock<String> = LazyLock::new(|| {
    let wasm = [heddle_runtimes::JAVASCRIPT.wasm, heddle_runtimes::CHECKER];
    let linking = [
        include_str!("image.rs"),
        include_str!("library.rs"),
        include_str!("runtime.rs"),
    ];
    let own = calls::own_texts().chain(linking);
    tag_of(wasm.into_iter().chain(own.map(str::as_bytes)))
});
static PYTHON_TAG: LazyLock<String> = LazyLock::new(|| {
    let python = &heddle_runtimes::PYTHON;
    let packed = python.libraries.iter().copied().chain([python.standard_library]);
    tag_of(packed.chain(python::own_texts().map(str::as_bytes)))
});

/// What the memory that texts in Python begin with is called on disk.
static BASE: LazyLock<String> = LazyLock::new(|| {
    let runtime = digest_of(python::RUNTIME.as_bytes());
    format!("{runtime}.base-{}", tag(Language::Python))
});

fn tag_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut digest = Sha256::new();
    parts.for_each(|part| digest.update(part));
    let mut tag: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    tag.truncate(TAG_DIGITS);
    tag
}

fn tag(language: Language) -> &'static str {
    match language {
        Language::JavaScript | Language::TypeScript => &JAVASCRIPT_TAG,
        Language::Python => &PYTHON_TAG,
    }
}

/// The interpreter that this build runs a language on, and the version of what is around it: what a script was checked
/// with.
pub fn runtime_id(language: Language) -> String {
    format!("{} {}", language.interpreter(), tag(language))
}

/// What the checker says.
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

/// What stands before an image's code in an artefact.
#[derive(serde::Serialize, Deserialize)]
struct Header {
    description: String,
    runs: bool,
    handles: bool,
    /// The memory that the image is a change of, if it is one.
    #[serde(default)]
    base: Option<String>,
}

impl Sandbox {
    /// Checks a script that is text, evaluates its top level, describes it, and keeps the snapshot.
    pub async fn compile_source(&self, language: Language, text: Bytes) -> Result<Compiled, CompileError> {
        let size = text.len();
        if size > MAX_SOURCE_BYTES {
            return Err(CompileError::TooLarge(MAX_SOURCE_BYTES));
        }
        let digest = digest_of(&text);
        let key = code_key(&digest, language.world());
        let _alone = self.alone(&key).await;
        let script = match self.ready_source(&key, language).await? {
            Some(script) => script,
            None => self.build_source(&key, language, text).await?,
        };
        let description = match &script.inner.entry {
            Entry::Source(script) => or_trouble(|| Description::parse(&script.description))?,
            _ => Err("is no text".into()),
        };
        let description = description
            .map_err(|why| CompileError::Source(SourceFault::new(why.replace("`describe` gives", "it exports"))))?;
        self.keep(&script);
        Ok(Compiled {
            digest,
            world: World::Source(language),
            params_schema: description.params.map(Value::Object),
            defaults: description.defaults.unwrap_or_default(),
            description: description.description,
            size,
        })
    }

    /// Makes what texts in JavaScript and TypeScript need, and keeps it in memory: the interpreter and the checker.
    pub async fn warm_runtimes(&self) -> Result<(), CompileError> {
        self.javascript().await?;
        self.checker().await.map(drop)
    }

    /// Whether Python stands ready on the disk, so that its first text waits for no compiler.
    pub fn has_python(&self) -> bool {
        self.inner.python.initialized() || self.inner.interpreters.has(&BASE)
    }

    /// Makes what texts in Python need, ranking below all else, and keeps it on the disk. It has some 100 MiB, so it
    /// comes into memory when a text wants it. Who wants it meanwhile waits for what is under way here.
    pub async fn prepare_python(&self) -> Result<(), CompileError> {
        self.link_python(For::Ahead).await.map(drop)
    }

    /// A script whose main module is another than ours, so that it has what scripts have not, `eval` above all: for
    /// measuring how much of the language the interpreter knows (`examples/conformance.rs`).
    #[doc(hidden)]
    pub async fn javascript_with_main(&self, main: &str) -> Result<Script, CompileError> {
        let language = Language::JavaScript;
        let interpreter = self.interpreter(language).await?;
        let code = Code::Main(main.to_owned());
        let Snapshot { memory, described } = self.evaluated(interpreter.clone(), code, LOAD_LIMITS).await?;
        let header = Header {
            description: described.description(None),
            runs: described.run,
            handles: described.handle,
            base: base_of(&interpreter),
        };
        let engine = self.inner.runner.engine.clone();
        let key = code_key(&digest_of(main.as_bytes()), language.world());
        blocking(move || {
            let artefact = artefact(&engine, &interpreter, &header, &memory)?;
            link(&engine, interpreter, &key, language, &artefact)
        })
        .await?
        .map_err(CompileError::Internal)
    }

    async fn checker(&self) -> Result<Script, CompileError> {
        let wasm = Bytes::from_static(heddle_runtimes::CHECKER);
        let checker = self.own_wasm(&CHECKER, wasm).await;
        checker.map_err(|error| CompileError::Internal(format!("the checker: {error}")))
    }

    async fn interpreter(&self, language: Language) -> Result<Interpreter, CompileError> {
        Ok(match language {
            Language::JavaScript | Language::TypeScript => Interpreter::JavaScript(self.javascript().await?),
            Language::Python => {
                let cell = &self.inner.python;
                Interpreter::Python(cell.get_or_try_init(|| self.python()).await.cloned()?)
            }
        })
    }

    async fn javascript(&self) -> Result<Arc<Runtime>, CompileError> {
        let cell = &self.inner.javascript;
        cell.get_or_try_init(|| self.link_javascript()).await.cloned()
    }

    async fn link_javascript(&self) -> Result<Arc<Runtime>, CompileError> {
        let library = Runtime::code_of(&heddle_runtimes::JAVASCRIPT).map_err(CompileError::Internal)?;
        let code = self.compiled(Bytes::from(library.code.clone()), For::All).await?;
        let engine = self.inner.runner.engine.clone();
        blocking(move || Runtime::link(&engine, &library, code).map(Arc::new))
            .await?
            .map_err(CompileError::Internal)
    }

    /// Python, for a text. Whoever uploads one may hang up before Python is made: what was begun goes on, and the next
    /// one finds it.
    async fn python(&self) -> Result<Arc<Python>, CompileError> {
        let own = self.clone();
        let made = tokio::spawn(async move { own.link_python(For::All).await });
        made.await.map_err(|error| CompileError::Internal(error.to_string()))?
    }

    async fn link_python(&self, whom: For<'_>) -> Result<Arc<Python>, CompileError> {
        let unpacked = blocking(|| {
            let mut parts = python::Parts::unpack()?;
            let code = parts.code();
            Ok::<_, String>((parts, code))
        });
        let (parts, code) = unpacked.await?.map_err(CompileError::Internal)?;
        let code = self.compiled(code.into(), whom).await?;
        let engine = self.inner.runner.engine.clone();
        let python = blocking(move || Python::new(&engine, parts, code).map(Arc::new));
        let python = python.await?.map_err(CompileError::Internal)?;
        let base = self.python_base(&python).await?;
        let engine = self.inner.runner.engine.clone();
        let base = blocking(move || {
            // SAFETY: we made it ourselves, or have it by checksum from a directory that is ours.
            let memory = unsafe { Module::deserialize(&engine, &base.code) }?;
            Ok::<_, wasmtime::Error>((memory, digest_of(&base.code)))
        });
        let (base, digest) = base
            .await?
            .map_err(|error| CompileError::Internal(format!("{error:#}")))?;
        Ok(Arc::new(python.booted(base, digest)))
    }

    /// The memory that scripts in Python begin with: from the disk, else by setting Python up.
    async fn python_base(&self, python: &Arc<Python>) -> Result<Artefact, CompileError> {
        // Of several who want it, one makes it.
        let _alone = self.alone(&BASE).await;
        let cache = Arc::clone(&self.inner.interpreters);
        if let Some(artefact) = blocking(move || cache.read(&BASE)).await? {
            return Ok(artefact);
        }
        let interpreter = Interpreter::Python(Arc::clone(python));
        let booted = self.evaluated(interpreter, Code::Own, BOOT_LIMITS).await;
        let memory = booted
            .map_err(|error| CompileError::Internal(format!("the interpreter: {error}")))?
            .memory;
        let (cache, engine) = (Arc::clone(&self.inner.interpreters), self.inner.runner.engine.clone());
        let artefact = blocking(move || {
            let code = engine.precompile_module(&python::image(&memory));
            let code = code.map_err(|error| format!("{error:#}"))?;
            let artefact = Artefact {
                kind: Kind::Image,
                code,
            };
            if let Err(error) = cache.write(&BASE, &artefact) {
                tracing::warn!(%error, "the interpreter's memory cannot be kept on disk: it is made again after a restart");
            }
            Ok::<_, String>(artefact)
        });
        artefact.await?.map_err(CompileError::Internal)
    }

    /// An interpreter's code: from the disk, else by compiling it.
    async fn compiled(&self, code: Bytes, whom: For<'_>) -> Result<Module, CompileError> {
        let digest = digest_of(&code);
        let _alone = self.alone(&digest).await;
        let (cache, read) = (Arc::clone(&self.inner.interpreters), digest.clone());
        let artefact = match blocking(move || cache.read(&read)).await? {
            Some(artefact) => artefact,
            None => {
                let artefact = self.inner.compile_within(code, whom, INTERPRETER_TIMEOUT).await?;
                let cache = Arc::clone(&self.inner.interpreters);
                blocking(move || {
                    if let Err(error) = cache.write(&digest, &artefact) {
                        tracing::warn!(%error, "the interpreter cannot be kept on disk: it is compiled again after a restart");
                    }
                    artefact
                })
                .await?
            }
        };
        let engine = self.inner.runner.engine.clone();
        blocking(move || {
            // SAFETY: it comes from our compiler, or by checksum from a directory that is ours.
            unsafe { Module::deserialize(&engine, &artefact.code) }
        })
        .await?
        .map_err(|error| CompileError::Internal(format!("{error:#}")))
    }

    /// From memory or from the disk.
    pub(crate) async fn ready_source(&self, key: &str, language: Language) -> Result<Option<Script>, CompileError> {
        if let Some(script) = self.loaded(key) {
            return Ok(Some(script));
        }
        let interpreter = self.interpreter(language).await?;
        let (cache, engine, key) = (
            Arc::clone(&self.inner.cache),
            self.inner.runner.engine.clone(),
            key.to_owned(),
        );
        let script = blocking(move || {
            let artefact = cache.read(&on_disk(&key, language))?;
            link(&engine, interpreter, &key, language, &artefact)
                .inspect_err(|error| tracing::warn!(key, error, "a snapshot does not link: evaluating again"))
                .ok()
        });
        Ok(script.await?.inspect(|script| self.keep(script)))
    }

    pub(crate) async fn build_source(
        &self,
        key: &str,
        language: Language,
        text: Bytes,
    ) -> Result<Script, CompileError> {
        let text = match String::from_utf8(text.into()) {
            Ok(text) => text,
            Err(error) => {
                let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
                let fault = SourceFault::at(&valid, valid.len(), "the text is not UTF-8");
                return Err(CompileError::Source(fault));
            }
        };
        let (code, params) = self.check(language, &text).await?;
        let interpreter = self.interpreter(language).await?;
        let Snapshot { memory, described } = self
            .evaluated(interpreter.clone(), Code::Text(code, language), LOAD_LIMITS)
            .await
            .map_err(|error| match error {
                // The text of a fault is the author's, types and all.
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
            base: base_of(&interpreter),
        };
        let (cache, engine, key) = (
            Arc::clone(&self.inner.cache),
            self.inner.runner.engine.clone(),
            key.to_owned(),
        );
        blocking(move || {
            let artefact = artefact(&engine, &interpreter, &header, &memory).map_err(CompileError::Internal)?;
            let script = link(&engine, interpreter, &key, language, &artefact).map_err(CompileError::Internal)?;
            if let Err(error) = cache.write(&on_disk(&key, language), &artefact) {
                tracing::warn!(key, %error, "a snapshot cannot be kept on disk: it is made again after a restart");
            }
            Ok(script)
        })
        .await?
    }

    /// The text as JavaScript, and what its types say of the params.
    async fn check(&self, language: Language, text: &str) -> Result<(String, Option<Value>), CompileError> {
        // Python checks its texts itself, where they are evaluated.
        if language == Language::Python {
            let text = own(text);
            return match text.find('\0') {
                Some(at) => Err(CompileError::Source(SourceFault::at(text, at, "a zero character"))),
                None => Ok((text.to_owned(), None)),
            };
        }
        let checker = self.checker().await?;
        let mut request = describe::request(self.inner.clock.now());
        request.limits = CHECK_LIMITS;
        request.params = format!("{}\n{text}", language.as_str());
        let (send, receive) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result: AttemptResult| {
            let _ = send.send(result.outcome);
        });
        self.start_export(&checker, request, Export::Work, done);
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
                "it nests too deep or is too large to be parsed ({message})"
            )))),
            Outcome::Skipped(_) | Outcome::Cancelled => Err(internal(&"it did not end")),
        }
    }

    async fn evaluated(&self, interpreter: Interpreter, code: Code, limits: Limits) -> Result<Snapshot, CompileError> {
        let mut request = describe::request(self.inner.clock.now());
        request.limits = limits;
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
        self.inner.lanes.spawn(signals, &limits, job);
        match receive.await {
            Ok(Ok(snapshot)) => Ok(snapshot),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(CompileError::Internal("the node dropped the evaluation".into())),
        }
    }
}

/// The text without the mark that some editors begin it with, which the checker does not count.
fn own(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// What a snapshot is called on disk: one by another interpreter is another.
fn on_disk(key: &str, language: Language) -> String {
    format!("{key}-{}", tag(language))
}

/// The memory that snapshots on this interpreter are changes of, if they are.
fn base_of(interpreter: &Interpreter) -> Option<String> {
    match interpreter {
        Interpreter::JavaScript(_) => None,
        Interpreter::Python(python) => Some(python.base_digest.clone()),
    }
}

/// The header's length, the header, the memory as compiled code or as a change.
fn artefact(
    engine: &wasmtime::Engine,
    interpreter: &Interpreter,
    header: &Header,
    memory: &[u8],
) -> Result<Artefact, String> {
    let header = serde_json::to_vec(header).map_err(|error| error.to_string())?;
    let image = match interpreter {
        Interpreter::JavaScript(runtime) => engine
            .precompile_module(&image::module(&runtime.layout, memory))
            .map_err(|error| format!("{error:#}"))?,
        Interpreter::Python(_) => memory.to_vec(),
    };
    let length = u32::try_from(header.len()).map_err(|error| error.to_string())?;
    let mut code = length.to_le_bytes().to_vec();
    code.extend_from_slice(&header);
    code.extend_from_slice(&image);
    Ok(Artefact {
        kind: Kind::Image,
        code,
    })
}

fn link(
    engine: &wasmtime::Engine,
    interpreter: Interpreter,
    key: &str,
    language: Language,
    artefact: &Artefact,
) -> Result<Script, String> {
    let parts = || {
        let (length, rest) = artefact.code.split_first_chunk::<4>()?;
        rest.split_at_checked(u32::from_le_bytes(*length) as usize)
    };
    let (header, image) = match (artefact.kind, parts()) {
        (Kind::Image, Some(parts)) => parts,
        _ => return Err("is no snapshot".into()),
    };
    let header: Header = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    if header.base != base_of(&interpreter) {
        return Err("is a change of another memory".into());
    }
    let snapshot = match interpreter {
        Interpreter::JavaScript(runtime) => {
            // SAFETY: we made it ourselves, or have it by checksum from a directory that is ours.
            let image = unsafe { Module::deserialize(engine, image) }.map_err(|error| format!("{error:#}"))?;
            Ready::JavaScript(runtime, image)
        }
        Interpreter::Python(python) => Ready::Python(python, Change::read(image)?),
    };
    Ok(Script {
        inner: Arc::new(Linked {
            digest: key.to_owned(),
            code_bytes: artefact.code.len() as u64,
            entry: Entry::Source(SourceScript {
                snapshot,
                language,
                description: header.description,
                handles: header.handles,
                runs: header.runs,
            }),
        }),
    })
}
