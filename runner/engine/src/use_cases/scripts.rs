//! Scripts: loading them, and their runtimes.

use heddle_sandbox::{Language, RuntimeId, Script};
use heddle_store::change::By;

use crate::node::catalog::ScriptFacts;
use crate::scripts::runtimes::Retirement;
use crate::{Engine, EngineError, UseCase};

impl Engine {
    /// Loads the scripts that enabled groups use, so that no run waits for a compiler here. A node with a new data
    /// directory may have to compile many scripts, or slow ones: this waits for at most 10 s, or for 60 s while another
    /// node can do the work, and the rest is compiled afterwards.
    pub fn warm(&self) -> UseCase<'_, ()> {
        Box::pin(self.scripts.warm_in_time())
    }

    /// Whether the node has not loaded the scripts of the enabled groups since its start.
    pub fn is_warming(&self) -> bool {
        self.runs.node.state.now().warming
    }

    /// Whether the node leaves task runs to other nodes, because it is warming and they are not.
    pub fn leaves_work(&self) -> bool {
        self.runs.node.state.now().leaves_work()
    }

    /// Makes a script ready to run on this node; the inner error is for the caller.
    pub fn load_script<'a>(
        &'a self,
        script: &'a ScriptFacts,
    ) -> UseCase<'a, Result<Result<Script, String>, EngineError>> {
        Box::pin(self.scripts.load(script))
    }

    /// This program's runtime for a language.
    pub fn own_runtime(&self, language: Language) -> UseCase<'_, Result<&'static RuntimeId, EngineError>> {
        Box::pin(self.scripts.own_runtime(language))
    }

    /// Stores this program's own runtime for other programs: before a script is stored that was checked with it.
    pub fn keep_runtime(&self, language: Language) -> UseCase<'_, Result<&'static RuntimeId, EngineError>> {
        Box::pin(self.scripts.keep_runtime(language))
    }

    /// Moves the scripts of another runtime to this program's own.
    pub fn retire_runtime<'a>(
        &'a self,
        by: By<'a>,
        tag: &'a str,
        force: bool,
    ) -> UseCase<'a, Result<Retirement, EngineError>> {
        Box::pin(self.scripts.retire_runtime(by, tag, force))
    }
}
