//! What scripts get from Heddle through host functions.

use std::sync::Arc;

use heddle_domain::Name;
use heddle_domain::run::AttemptKey;
use heddle_sandbox::{BoxFuture, ConnectionTarget, HostServices, LogLine};
use heddle_store::live::LogRow;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Attempts;
use crate::runs::ending::Ending;
use crate::runs::record::log_buffer::LogBuffer;
use crate::runs::take::held::HeldAttempt;
use crate::runs::take::patience::{patient, until};
use crate::scripts::redact::Redactor;
use crate::{EngineError, RunContext};

/// The services of one attempt.
pub(crate) struct Host {
    attempts: Arc<Attempts>,
    context: Arc<RunContext>,
    at: AttemptKey,
    log: Arc<LogBuffer>,
    progress: Arc<Mutex<Option<(f64, String)>>>,
    secrets: Arc<Redactor>,
    held: HeldAttempt,
    /// When the attempt began.
    began: Instant,
}

impl Host {
    pub(crate) fn new(attempts: Arc<Attempts>, context: Arc<RunContext>, at: AttemptKey, held: &HeldAttempt) -> Self {
        Self {
            attempts,
            context,
            at,
            log: held.log.clone(),
            progress: held.progress.clone(),
            secrets: held.secrets.clone(),
            held: held.clone(),
            began: Instant::now(),
        }
    }

    /// Waits for something that Heddle must provide. If Heddle cannot provide it, the script gets no answer: the
    /// attempt ends with an error of Heddle itself, and this call with it.
    async fn provided<T, F>(&self, what: &'static str, ask: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let task = &self.context.revision.plan.tasks[self.at.key.task as usize];
        let until = until(self.began, task.timeout);
        match patient(&self.attempts.node, what, until, ask).await {
            Ok(answer) => answer,
            Err(error) => {
                self.held.end_as(Ending::ours(what, &error));
                std::future::pending().await
            }
        }
    }

    fn category(&self) -> Option<&str> {
        self.context
            .revision
            .plan
            .spec
            .category
            .as_ref()
            .map(|category| category.as_str())
    }
}

impl HostServices for Host {
    fn upstream(&self, task: &str) -> BoxFuture<'_, Result<String, String>> {
        let task = Name::sought(task);
        Box::pin(async move {
            let plan = &self.context.revision.plan;
            let own = self.at.key.task;
            let index = plan
                .index(&task)
                .filter(|&index| plan.is_ancestor(index, own))
                .ok_or_else(|| format!("`{task}` is not a task that this one depends on, directly or indirectly"))?;
            let named = [index];
            let ask = || self.attempts.outputs(&self.context, &named);
            let mut outputs = self.provided("read an output", ask).await;
            outputs.pop().map_or_else(|| Ok("null".into()), |(_, output)| output)
        })
    }

    fn state_get(&self, key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        let key = key.to_owned();
        Box::pin(async move {
            let group = self.context.facts.group_id;
            let ask = || async { Ok(self.attempts.node.store.script_state(group, &key).await?) };
            Ok(self.provided("read the group's state", ask).await)
        })
    }

    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        let name = Name::sought(name);
        Box::pin(async move {
            let group = &self.context.revision.group_name;
            let ask = || {
                self.attempts
                    .runs
                    .scripts
                    .granted_secret("group", group, self.category(), &name)
            };
            let value = self.provided("read a secret", ask).await?;
            self.secrets.learn(&value);
            Ok(value)
        })
    }

    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        let name = name.to_owned();
        Box::pin(async move {
            let group = &self.context.revision.group_name;
            let ask = || {
                self.attempts
                    .runs
                    .scripts
                    .granted_connection("group", group, self.category(), &name)
            };
            self.provided("read a connection", ask).await
        })
    }

    fn log(&self, line: LogLine) {
        let message = match &self.context.resolution.scripts[self.at.key.task as usize] {
            Some(facts) => facts.logged(line.message),
            None => line.message,
        };
        self.log.push(LogRow {
            run: self.context.facts.id,
            at: self.at,
            line: 0,
            time: line.at,
            level: line.level,
            // Postgres keeps no zero bytes in text.
            message: self.secrets.hide(message.replace('\0', "\u{fffd}")),
            fields: line
                .fields
                .map(|fields| self.secrets.hide(fields.replace('\0', "\u{fffd}"))),
        });
    }

    fn cut(&self, beginning: String) -> String {
        self.secrets.hide_cut(beginning)
    }

    fn progress(&self, fraction: f64, note: String) {
        *self.progress.lock() = Some((fraction, self.secrets.hide(note)));
    }
}
