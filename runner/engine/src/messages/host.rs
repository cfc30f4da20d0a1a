//! What a consumer gets from Heddle through host functions: the grants of its topic, and nothing of a run.

use std::sync::Arc;

use heddle_domain::Name;
use heddle_domain::state::LogLevel;
use heddle_domain::topic::Topic;
use heddle_sandbox::{BoxFuture, ConnectionTarget, HostServices, LogLine};
use tokio::time::Instant;

use crate::Runs;
use crate::runs::take::patience::{patient, until};
use crate::scripts::grants::{Granted, unavailable};
use crate::scripts::redact::Redactor;

/// The services of one batch.
pub(super) struct ConsumerHost {
    runs: Arc<Runs>,
    name: String,
    topic: Arc<Topic>,
    /// What the batch's log and errors must not show.
    secrets: Arc<Redactor>,
}

impl ConsumerHost {
    pub(super) fn new(runs: Arc<Runs>, name: String, topic: Arc<Topic>, secrets: Arc<Redactor>) -> Self {
        Self {
            runs,
            name,
            topic,
            secrets,
        }
    }

    fn category(&self) -> Option<&str> {
        self.topic.spec.category.as_ref().map(|category| category.as_str())
    }
}

impl ConsumerHost {
    /// Waits for something that Heddle must provide. If Heddle cannot provide it, the messages of the batch fail, and
    /// are retried as their topic says.
    async fn provided<T, F>(&self, what: &'static str, ask: impl FnMut() -> F) -> Result<T, String>
    where
        F: Future<Output = Granted<T>>,
    {
        let answer = patient(&self.runs.node, what, until(Instant::now(), None), ask).await;
        answer.unwrap_or_else(|error| Err(unavailable(&error)))
    }
}

impl HostServices for ConsumerHost {
    fn refusal(&self, what: &str) -> String {
        format!("{what}: not available for a batch of messages")
    }

    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        let name = Name::sought(name);
        Box::pin(async move {
            let ask = || {
                self.runs
                    .scripts
                    .granted_secret("topic", &self.name, self.category(), &name)
            };
            let value = self.provided("read a secret", ask).await?;
            self.secrets.learn(&value);
            Ok(value)
        })
    }

    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        let name = name.to_owned();
        Box::pin(async move {
            let ask = || {
                self.runs
                    .scripts
                    .granted_connection("topic", &self.name, self.category(), &name)
            };
            self.provided("read a connection", ask).await
        })
    }

    fn cut(&self, beginning: String) -> String {
        self.secrets.hide_cut(beginning)
    }

    fn log(&self, line: LogLine) {
        let topic = self.name.as_str();
        let said = self.secrets.hide(line.message);
        let fields = line.fields.map(|fields| self.secrets.hide(fields));
        match line.level {
            LogLevel::Warn | LogLevel::Error => tracing::warn!(topic, said, fields, "from a consumer"),
            _ => tracing::debug!(topic, said, fields, "from a consumer"),
        }
    }
}
