//! From a runtime's bundle to the interpreter that runs texts: this program's own runtimes, and those that other
//! programs have kept.
//!
//! A program's own runtime stays loaded as long as the program runs. A kept one is loaded from its bundle when a script
//! names it, and stays as long as a script in memory uses it; its compiled parts stay on the disk, under the digest of
//! their source. If one cannot be loaded, that is reported once, its scripts use the program's own runtime, and after a
//! while it is tried again.

use super::attempt::Ready;
use super::bundle::{RuntimeBundle, RuntimeId};
use super::evaluate::Code;
use super::kept::AGAIN_AFTER;
use super::language::Language;
use super::linked::Interpreter;
use super::load::{BOOT_LIMITS, HOST};
use super::own;
use super::python::{self, Python};
use super::runtime::{self, Runtime};
use crate::artefact::{self, Artefact, digest_of};
use crate::bounds::Kind;
use crate::compiler::For;
use crate::sandbox::{CompileError, LoadError, Sandbox, blocking};
use crate::script::{Entry, Script};
use crate::services::BoxFuture;
use bytes::Bytes;
use heddle_domain::bounded::Stopped;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use wasmtime::Module;

/// How long compiling an interpreter may take: CPython needs ten seconds of two idle cores.
const INTERPRETER_TIMEOUT: Duration = Duration::from_secs(300);
/// Its file on the disk says that this program's Python is ready there, without unpacking it.
static PYTHON_IS_THERE: LazyLock<String> = LazyLock::new(|| {
    let made_of = [heddle_runtimes::PYTHON.digest, env!("PYTHON_SOURCES")].concat();
    format!("{}.python-{HOST}", digest_of(made_of.as_bytes()))
});

/// Why a bundle did not become an interpreter.
#[derive(Debug)]
enum NotMade {
    /// The bundle cannot be used, for this reason.
    Unusable(String),
    /// Compiling it takes longer than this: the machine is busy.
    Timeout(Duration),
    /// Something else that passes by itself.
    NotNow(Stopped),
    /// An error of this machine, at the moment.
    Internal(String),
}

impl From<CompileError> for NotMade {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::Internal(error) => Self::Internal(error),
            CompileError::NotNow(stopped) => Self::NotNow(stopped),
            CompileError::Timeout(after) => Self::Timeout(after),
            other => Self::Unusable(format!("its interpreter cannot be used: {other}")),
        }
    }
}

/// An error in our own runtime is never the fault of a text. What passes by itself is tried again with the next text.
impl From<NotMade> for CompileError {
    fn from(error: NotMade) -> Self {
        match error {
            NotMade::NotNow(stopped) => Self::NotNow(stopped),
            NotMade::Timeout(after) => not_ready(after),
            NotMade::Unusable(why) | NotMade::Internal(why) => Self::Internal(format!("the runtime: {why}")),
        }
    }
}

/// Our own code took too long to compile. It is compiled again when it is needed again.
fn not_ready(after: Duration) -> CompileError {
    let seconds = after.as_secs();
    CompileError::NotNow(Stopped::Trouble(format!(
        "the interpreter of the script is not ready: it could not be compiled within {seconds} s, and is compiled again \
        for the next request"
    )))
}

/// An error in the checker of texts.
fn of_checker(error: CompileError) -> CompileError {
    match error {
        CompileError::NotNow(stopped) => CompileError::NotNow(stopped),
        CompileError::Timeout(after) => not_ready(after),
        error => CompileError::Internal(format!("the checker: {error}")),
    }
}

impl Interpreter {
    /// The tag of its runtime.
    pub fn tag(&self) -> &str {
        match self {
            Self::JavaScript(runtime) => &runtime.tag,
            Self::Python(python) => &python.tag,
        }
    }
}

impl Script {
    /// The tag of its runtime, if it is a text.
    pub fn runtime(&self) -> Option<&str> {
        match &self.inner.entry {
            Entry::Source(script) => Some(match &script.snapshot {
                Ready::JavaScript(runtime, _) => &runtime.tag,
                Ready::Python(python, _) => &python.tag,
            }),
            _ => None,
        }
    }
}

impl Sandbox {
    /// Prepares the interpreter and the checker for texts in JavaScript and TypeScript, and keeps them in memory.
    pub async fn warm_runtimes(&self) -> Result<(), CompileError> {
        let runtime = self.javascript().await?;
        self.checker(&runtime).await.map(drop)
    }

    /// Whether Python is ready on the disk, so that its first text does not wait for a compiler.
    pub fn has_python(&self) -> bool {
        self.inner.python.initialized() || self.inner.interpreters.has(&PYTHON_IS_THERE)
    }

    /// Prepares all that texts in Python need, with a low priority, and keeps it on the disk. It has some 100 MiB, so
    /// it is loaded only when a text needs it. A text that comes meanwhile waits for this work.
    pub async fn prepare_python(&self) -> Result<(), CompileError> {
        self.own_python(For::Ahead).await.map(drop)
    }

    /// This program's runtime for a language.
    pub async fn own_runtime(&self, language: Language) -> Result<&'static RuntimeId, CompileError> {
        let found = blocking(move || own::own_runtime(language)).await?;
        found.map_err(CompileError::Internal)
    }

    /// Whether this program's interpreter for a language is in memory.
    pub fn has_interpreter(&self, language: Language) -> bool {
        match language.runs_as() {
            Language::Python => self.inner.python.initialized(),
            _ => self.inner.javascript.initialized(),
        }
    }

    /// Prepares it, as a text of this language would.
    pub async fn prepare_interpreter(&self, language: Language) -> Result<(), CompileError> {
        self.interpreter(language).await.map(drop)
    }

    /// This program's own interpreter. The future is boxed, so that its large body is compiled once, and not with each
    /// crate that loads scripts.
    pub(super) fn interpreter(&self, language: Language) -> BoxFuture<'_, Result<Interpreter, CompileError>> {
        Box::pin(async move {
            Ok(match language.runs_as() {
                Language::Python => {
                    let cell = &self.inner.python;
                    Interpreter::Python(cell.get_or_try_init(|| self.python()).await.cloned()?)
                }
                _ => Interpreter::JavaScript(self.javascript().await?),
            })
        })
    }

    /// The command that checks texts before they are evaluated.
    pub(super) async fn checker(&self, runtime: &Runtime) -> Result<Script, CompileError> {
        let checker = self.own_wasm(&runtime.checker_digest, runtime.checker.clone()).await;
        checker.map_err(of_checker)
    }

    async fn javascript(&self) -> Result<Arc<Runtime>, CompileError> {
        let own = async {
            let own = blocking(|| RuntimeBundle::own(Language::JavaScript)).await?;
            let own = own.map_err(CompileError::Internal)?;
            let tag = own::own_id(&own).tag.clone();
            Ok(self.link_javascript(own, tag).await?)
        };
        self.inner.javascript.get_or_try_init(|| own).await.cloned()
    }

    async fn link_javascript(&self, bundle: RuntimeBundle, tag: String) -> Result<Arc<Runtime>, NotMade> {
        let code = runtime::code_of(&bundle).map_err(NotMade::Unusable)?;
        let glue = runtime::glue_of(&bundle).map_err(NotMade::Unusable)?;
        let code = self.compiled(code, For::All).await?;
        let glue = self.compiled(glue, For::All).await?;
        let engine = self.inner.runner.engine.clone();
        let linked = blocking(move || Runtime::link(&engine, &bundle, tag, code, glue));
        linked.await?.map(Arc::new).map_err(NotMade::Unusable)
    }

    /// Python, for a text. If the uploader goes away before Python is made, the work goes on, and the next one finds
    /// it.
    async fn python(&self) -> Result<Arc<Python>, CompileError> {
        let own = self.clone();
        let made = tokio::spawn(async move { own.own_python(For::All).await });
        let made = made.await.map_err(|error| CompileError::Internal(error.to_string()))?;
        if let Err(CompileError::NotNow(stopped)) = &made {
            tracing::warn!(error = %stopped, "the Python interpreter is not ready; the next script in Python tries again");
        }
        made
    }

    async fn own_python(&self, whom: For<'_>) -> Result<Arc<Python>, CompileError> {
        let own = blocking(|| RuntimeBundle::own(Language::Python)).await?;
        let own = own.map_err(CompileError::Internal)?;
        let tag = own::own_id(&own).tag.clone();
        let python = self.link_python(own, tag, whom).await?;
        let cache = Arc::clone(&self.inner.interpreters);
        blocking(move || {
            let there = Artefact {
                kind: Kind::Image,
                note: Vec::new(),
                code: artefact::Code::Held(Vec::new()),
            };
            // Without this file, the next start only checks once more.
            let _ = cache.write(&PYTHON_IS_THERE, &there);
        })
        .await?;
        Ok(python)
    }

    async fn link_python(&self, bundle: RuntimeBundle, tag: String, whom: For<'_>) -> Result<Arc<Python>, NotMade> {
        let code = python::code_of(&bundle).map_err(NotMade::Unusable)?;
        let code = self.compiled(code, whom).await?;
        let engine = self.inner.runner.engine.clone();
        let python = blocking(move || Python::new(&engine, &bundle, tag, code).map(Arc::new));
        let python = python.await?.map_err(NotMade::Unusable)?;
        let base = self.python_base(&python).await?;
        let engine = self.inner.runner.engine.clone();
        let base = blocking(move || {
            // SAFETY: we made it ourselves, or have it by checksum from a directory that is ours.
            let memory = unsafe { base.code.module(&engine) }?;
            Ok::<_, wasmtime::Error>((memory, base.code.digest()?))
        });
        let (base, digest) = base.await?.map_err(|error| NotMade::Internal(format!("{error:#}")))?;
        Ok(Arc::new(python.booted(base, digest)))
    }

    /// The memory with which scripts in Python begin: from the disk, or by setting Python up.
    async fn python_base(&self, python: &Arc<Python>) -> Result<Artefact, NotMade> {
        let name = format!("{}.base-{}-{HOST}", digest_of(python.tag.as_bytes()), python.tag);
        // If several callers need it, one makes it.
        let _alone = self.alone(&name).await;
        let (cache, wanted) = (Arc::clone(&self.inner.interpreters), name.clone());
        if let Some(artefact) = blocking(move || cache.read(&wanted)).await? {
            return Ok(artefact);
        }
        let interpreter = Interpreter::Python(Arc::clone(python));
        let now = self.inner.clock.now();
        let memory = self.evaluated(interpreter, Code::Own, BOOT_LIMITS, now).await?.memory;
        let (cache, engine) = (Arc::clone(&self.inner.interpreters), self.inner.runner.engine.clone());
        let artefact = blocking(move || {
            let code = engine.precompile_module(&python::image(&memory));
            let code = code.map_err(|error| format!("{error:#}"))?;
            let artefact = Artefact {
                kind: Kind::Image,
                note: Vec::new(),
                code: artefact::Code::Held(code),
            };
            Ok::<_, String>(cache.keep(&name, artefact))
        });
        artefact.await?.map_err(NotMade::Internal)
    }

    /// An interpreter's code: from the disk, or by compiling it.
    async fn compiled(&self, code: Bytes, whom: For<'_>) -> Result<Module, CompileError> {
        let (digest, code) = blocking(move || (digest_of(&code), code)).await?;
        let _alone = self.alone(&digest).await;
        let (cache, read) = (Arc::clone(&self.inner.interpreters), digest.clone());
        let artefact = match blocking(move || cache.read(&read)).await? {
            Some(artefact) => artefact,
            None => {
                let artefact = self.inner.compile_within(code, whom, INTERPRETER_TIMEOUT).await?;
                let cache = Arc::clone(&self.inner.interpreters);
                blocking(move || cache.keep(&digest, artefact)).await?
            }
        };
        let engine = self.inner.runner.engine.clone();
        blocking(move || {
            // SAFETY: it comes from our compiler, or by checksum from a directory that is ours.
            unsafe { artefact.code.module(&engine) }
        })
        .await?
        .map_err(|error| CompileError::Internal(format!("{error:#}")))
    }

    /// The runtime with which a text was checked, if it is not this program's own: loaded before, or from the bundle
    /// that `kept` returns. `None`: it cannot be used, which has been reported.
    pub(super) async fn kept_interpreter<E>(
        &self,
        tag: &str,
        language: Language,
        kept: impl Future<Output = Result<Option<Vec<u8>>, E>> + Send,
    ) -> Result<Option<Interpreter>, LoadError<E>> {
        let known = || self.inner.kept.get(tag, self.inner.clock.now());
        if let Some(known) = known() {
            return Ok(known);
        }
        let _alone = self.alone(&format!("runtime {tag}")).await;
        if let Some(known) = known() {
            return Ok(known);
        }
        let packed = kept.await.map_err(LoadError::Fetch)?;
        let made = match packed {
            Some(packed) => self.interpreter_of(packed, tag, language).await,
            None => Err(NotMade::Unusable("it is not in the database".into())),
        };
        let interpreter = match made {
            Ok(interpreter) => Some(interpreter),
            Err(NotMade::Internal(error)) => return Err(CompileError::Internal(error).into()),
            Err(NotMade::NotNow(stopped)) => return Err(CompileError::NotNow(stopped).into()),
            // Its scripts do not wait for such a compilation again and again.
            Err(error @ (NotMade::Unusable(_) | NotMade::Timeout(_))) => {
                let why = match error {
                    NotMade::Unusable(why) => why,
                    error => CompileError::from(error).to_string(),
                };
                let again = AGAIN_AFTER.num_minutes();
                tracing::warn!(
                    runtime = tag,
                    language = language.runs_as().as_str(),
                    "a kept runtime cannot be used on this node: {why}. Meanwhile, its scripts run here on the runtime of \
                    this version of Heddle. Trying again in {again} minutes"
                );
                None
            }
        };
        self.inner.kept.put(tag, interpreter.as_ref(), self.inner.clock.now());
        Ok(interpreter)
    }

    /// Compiles what a kept runtime needs before a script asks for it, if it is not this program's own; returns whether
    /// it can be used.
    pub async fn prepare_kept<E>(
        &self,
        tag: &str,
        language: Language,
        kept: impl Future<Output = Result<Option<Vec<u8>>, E>> + Send,
    ) -> Result<bool, LoadError<E>> {
        if self.own_runtime(language).await?.tag == tag {
            return Ok(true);
        }
        Ok(self.kept_interpreter(tag, language, kept).await?.is_some())
    }

    /// Removes the scripts on a runtime from memory: the next load finds out which runtime they have now. Running
    /// attempts keep theirs.
    pub fn forget_runtime(&self, tag: &str) {
        // (Dropped outside of the lock.)
        let gone = self.inner.loaded().lock().take(|script| script.runtime() == Some(tag));
        tracing::debug!(
            runtime = tag,
            scripts = gone.len(),
            "scripts run on another runtime from now on"
        );
    }

    async fn interpreter_of(&self, packed: Vec<u8>, tag: &str, language: Language) -> Result<Interpreter, NotMade> {
        let own = tag.to_owned();
        let bundle = blocking(move || RuntimeBundle::unpack(&packed, &own)).await?;
        let bundle = bundle.map_err(NotMade::Unusable)?;
        let tag = tag.to_owned();
        match (bundle.language(), language.runs_as()) {
            (Language::Python, Language::Python) => {
                let python = self.link_python(bundle, tag, For::All).await?;
                Ok(Interpreter::Python(python))
            }
            (Language::JavaScript, Language::JavaScript) => {
                Ok(Interpreter::JavaScript(self.link_javascript(bundle, tag).await?))
            }
            (other, _) => Err(NotMade::Unusable(format!("it is one of {}", other.as_str()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fault::SourceFault;

    fn of_own(error: CompileError) -> CompileError {
        NotMade::from(error).into()
    }

    /// A text is not refused, and Heddle is not blamed, for what passes by itself.
    #[test]
    fn an_interpreter_that_is_not_ready_is_tried_again() {
        let late = of_own(CompileError::Timeout(INTERPRETER_TIMEOUT));
        assert!(matches!(&late, CompileError::NotNow(Stopped::Trouble(_))), "{late:?}");
        let said = late.to_string();
        for words in [
            "the interpreter of the script is not ready",
            "within 300 s",
            "try again",
        ] {
            assert!(said.contains(words), "{said}");
        }
        let busy = Stopped::Trouble("the node is too busy".into());
        assert!(matches!(of_own(busy.clone().into()), CompileError::NotNow(stopped) if stopped == busy));
        let checker = of_checker(CompileError::Timeout(INTERPRETER_TIMEOUT));
        assert!(matches!(checker, CompileError::NotNow(_)), "{checker:?}");
    }

    #[test]
    fn a_fault_of_the_program_stays_one() {
        for error in [
            CompileError::Internal("no disk".into()),
            CompileError::Rejected("is empty".into()),
            CompileError::Source(SourceFault::new("its top level failed")),
        ] {
            let told = of_own(error);
            assert!(matches!(told, CompileError::Internal(_)), "{told:?}");
        }
    }
}
