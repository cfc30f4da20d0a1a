//! What scripts get from Heddle through host functions.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::NOT_GRANTED;
use heddle_sandbox::{BoxFuture, ConnectionTarget, HostServices, LogLine};
use heddle_store::live::LogRow;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::hands::Hand;
use crate::log_buffer::LogBuffer;
use crate::patience::until;
use crate::redact::Redactor;
use crate::work::Ending;
use crate::{EngineError, Inner, RunContext};

/// How long one statement on a named connection may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How many rows one query may give.
const ROWS_MAX: u32 = 10_000;

/// What a script was granted, or why not; or what kept Heddle from finding out.
pub(crate) type Granted<T> = Result<Result<T, String>, EngineError>;

/// The services of one attempt.
pub(crate) struct Host {
    inner: Arc<Inner>,
    context: Arc<RunContext>,
    at: AttemptKey,
    log: Arc<LogBuffer>,
    progress: Arc<Mutex<Option<(f64, String)>>>,
    secrets: Arc<Redactor>,
    hand: Hand,
    /// When the attempt began.
    began: Instant,
}

impl Host {
    pub(crate) fn new(inner: Arc<Inner>, context: Arc<RunContext>, at: AttemptKey, hand: &Hand) -> Self {
        Self {
            inner,
            context,
            at,
            log: hand.log.clone(),
            progress: hand.progress.clone(),
            secrets: hand.secrets.clone(),
            hand: hand.clone(),
            began: Instant::now(),
        }
    }

    /// What Heddle owes the script: it is waited for. If it cannot be had, the script is not told anything: its attempt
    /// ends, as Heddle's own fault, and with it this call.
    async fn owed<T, F>(&self, what: &'static str, ask: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let task = &self.context.revision.plan.tasks[self.at.key.task as usize];
        let until = until(self.began, task.timeout);
        match self.inner.patient(what, until, ask).await {
            Ok(answer) => answer,
            Err(error) => {
                self.hand.end_as(Ending::ours(what, &error));
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

/// The same address, for sessions in which nothing can be written. (A script's own `SET` ends with its statement.)
fn read_only(url: &str) -> String {
    let divider = if url.contains('?') { '&' } else { '?' };
    format!("{url}{divider}options=-c%20default_transaction_read_only%3Don")
}

/// What a consumer is told when Heddle is at fault; the node's log has the rest.
pub(crate) fn unavailable(error: &EngineError) -> String {
    tracing::warn!(error = %Chain(error), "a host call failed");
    "Heddle could not answer; try again".to_owned()
}

impl HostServices for Host {
    fn upstream(&self, task: &str) -> BoxFuture<'_, Result<String, String>> {
        let task = task.to_owned();
        Box::pin(async move {
            let plan = &self.context.revision.plan;
            let own = self.at.key.task;
            let index = plan
                .index(&task)
                .filter(|&index| plan.is_ancestor(index, own))
                .ok_or_else(|| format!("`{task}` is not a task that this one depends on, directly or indirectly"))?;
            let named = [index];
            let ask = || self.inner.outputs(&self.context, &named);
            let mut outputs = self.owed("read an output", ask).await;
            Ok(outputs.pop().map_or_else(|| "null".into(), |output| output.1))
        })
    }

    fn state_get(&self, key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        let key = key.to_owned();
        Box::pin(async move {
            let group = self.context.facts.group_id;
            let ask = || async { Ok(self.inner.node.store.script_state(group, &key).await?) };
            Ok(self.owed("read the group's state", ask).await)
        })
    }

    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        let name = name.to_owned();
        Box::pin(async move {
            let group = &self.context.revision.group_name;
            let ask = || self.inner.granted_secret("group", group, self.category(), &name);
            let value = self.owed("read a secret", ask).await?;
            self.secrets.learn(&value);
            Ok(value)
        })
    }

    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        let name = name.to_owned();
        Box::pin(async move {
            let group = &self.context.revision.group_name;
            let ask = || self.inner.granted_connection("group", group, self.category(), &name);
            self.owed("read a connection", ask).await
        })
    }

    fn log(&self, line: LogLine) {
        self.log.push(LogRow {
            run: self.context.facts.id,
            at: self.at,
            line: 0,
            time: line.at,
            level: line.level as i16,
            // Postgres keeps no zero bytes in text.
            message: self.secrets.hide(line.message.replace('\0', "\u{fffd}")),
            fields: line
                .fields
                .map(|fields| self.secrets.hide(fields.replace('\0', "\u{fffd}"))),
        });
    }

    fn progress(&self, fraction: f64, note: String) {
        *self.progress.lock() = Some((fraction, self.secrets.hide(note)));
    }
}

impl Inner {
    /// A secret, if a group or topic (`noun`) of this name and category was granted it.
    pub(crate) async fn granted_secret(
        &self,
        noun: &str,
        user: &str,
        category: Option<&str>,
        name: &str,
    ) -> Granted<String> {
        Ok(match self.node.store.secret_value(&self.keys, name).await? {
            Some((value, grant)) if grant.allows(user, category) => Ok(value),
            Some(_) => Err(format!("{NOT_GRANTED}secret `{name}`: this {noun} may not use it")),
            None => Err(format!("{NOT_GRANTED}secret `{name}`: there is none")),
        })
    }

    /// A connection, if a group or topic (`noun`) of this name and category was granted it.
    pub(crate) async fn granted_connection(
        &self,
        noun: &str,
        user: &str,
        category: Option<&str>,
        name: &str,
    ) -> Granted<ConnectionTarget> {
        let missing = || format!("{NOT_GRANTED}connection `{name}`: there is none");
        let Some(row) = self.node.store.connection(name).await? else {
            return Ok(Err(missing()));
        };
        if !row.options.grant.allows(user, category) {
            return Ok(Err(format!(
                "{NOT_GRANTED}connection `{name}`: this {noun} may not use it"
            )));
        }
        let Some((url, _)) = self.node.store.connection_url(&self.keys, name).await? else {
            return Ok(Err(missing()));
        };
        let url = if row.options.read_only { read_only(&url) } else { url };
        Ok(Ok(ConnectionTarget {
            id: format!("{name}/{}", row.updated_at.timestamp_micros()),
            url,
            statement_timeout: STATEMENT_TIMEOUT,
            max_rows: ROWS_MAX,
            max_connections: u32::try_from(row.options.max_connections).unwrap_or(1),
            read_only: row.options.read_only,
        }))
    }
}
