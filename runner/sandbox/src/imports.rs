//! The host functions of the interface `heddle:task`, which components import.

use crate::bindings::task::heddle::task as wit;
use crate::context::instant_text;
use crate::effects::{Entry, check_key};
use crate::guest::{Guest, HasHostSide, HostSide};
use crate::journal::are_fields;
use crate::rehearsal::{SqlAnswer, SqlStatement, answered};
use crate::services::{BoxFuture, HostServices};
use crate::sql::check_size;
use crate::texts::stored_bytes;
use heddle_domain::state::{LogLevel, NOT_GRANTED};
use heddle_domain::{Name, storable_text};
use std::sync::Arc;
use wasmtime::component::Linker;

/// How often progress is passed on.
const PROGRESS_INTERVAL: chrono::TimeDelta = chrono::TimeDelta::milliseconds(100);
/// The longest note of a progress.
const MAX_NOTE_BYTES: usize = 1 << 10;

/// Links all of `heddle:task`'s imports.
pub(crate) fn add_to_linker(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    wit::types::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::context::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::upstream::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::log::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::progress::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::state::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::enqueue::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::notify::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::secret::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    wit::sql::add_to_linker::<_, HasHostSide>(linker, |guest| &mut guest.host)?;
    Ok(())
}

/// Runs a future on another runtime; dropping the call aborts it.
pub(crate) async fn elsewhere<T: Send + 'static>(
    runtime: &tokio::runtime::Handle,
    future: impl Future<Output = Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    let handle = wasmtime_wasi::runtime::AbortOnDropJoinHandle::from(runtime.spawn(async move {
        match futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(future)).await {
            Ok(result) => result,
            Err(_) => Err("the node failed at this call".into()),
        }
    }));
    handle.await
}

/// What is kept of a note, and whether this is less than all of it.
fn note_of(note: &str) -> (String, bool) {
    (storable_text(note, MAX_NOTE_BYTES), stored_bytes(note) > MAX_NOTE_BYTES)
}

impl HostSide {
    /// Calls the node's services, on the node's runtime.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl for<'a> FnOnce(&'a dyn HostServices) -> BoxFuture<'a, Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let services = Arc::clone(&self.services);
        elsewhere(&self.node, async move { call(services.as_ref()).await }).await
    }

    async fn state_seen(&self, key: &str) -> Result<Entry, String> {
        check_key(key)?;
        let stored = {
            let key = key.to_owned();
            self.ask(move |services| Box::pin(async move { services.state_get(&key).await }))
                .await?
        };
        Ok(self.effects.seen(key, stored))
    }

    /// Passes on the last progress, if it was held back.
    pub fn flush_progress(&mut self) {
        if let Some((fraction, note)) = self.progress.unreported.take() {
            self.services.progress(fraction, note);
        }
    }
}

impl wit::types::Host for HostSide {}

impl wit::context::Host for HostSide {
    fn get(&mut self) -> wit::context::Info {
        let context = &self.context;
        wit::context::Info {
            run: context.run.to_string(),
            group: context.group.clone(),
            task: context.task.clone(),
            attempt: context.attempt,
            trigger: context.trigger.as_str().to_owned(),
            logical_time: instant_text(&context.logical_time),
            data_interval: wit::context::Interval {
                start: instant_text(&context.data_interval.start),
                end: instant_text(&context.data_interval.end),
            },
            deadline: context.deadline.as_ref().map(instant_text),
            item: context.item.as_ref().map(|item| wit::context::MapItem {
                item: item.item.get().to_owned(),
                index: item.index,
                count: item.count,
            }),
            idempotency_key: context.idempotency_key.clone(),
        }
    }
}

impl wit::upstream::Host for HostSide {
    async fn get(&mut self, task: String) -> Result<String, String> {
        self.ask(move |services| Box::pin(async move { services.upstream(&task).await }))
            .await
    }
}

impl wit::log::Host for HostSide {
    fn write(&mut self, level: wit::log::Level, message: String, fields: String) {
        let level = match level {
            wit::log::Level::Trace => LogLevel::Trace,
            wit::log::Level::Debug => LogLevel::Debug,
            wit::log::Level::Info => LogLevel::Info,
            wit::log::Level::Warn => LogLevel::Warn,
            wit::log::Level::Error => LogLevel::Error,
        };
        let fields = are_fields(&fields).then_some(fields);
        self.journal.write(level, &message, fields);
    }
}

impl wit::progress::Host for HostSide {
    fn report(&mut self, fraction: f64, note: String) {
        let fraction = if fraction.is_nan() {
            0.0
        } else {
            fraction.clamp(0.0, 1.0)
        };
        let (mut kept, is_cut) = note_of(&note);
        if is_cut {
            kept = self.services.cut(kept);
        }
        self.progress.unreported = Some((fraction, kept));
        let now = self.clock.now();
        if self
            .progress
            .reported_at
            .is_none_or(|last| now - last >= PROGRESS_INTERVAL)
        {
            self.progress.reported_at = Some(now);
            self.flush_progress();
        }
    }
}

impl wit::state::Host for HostSide {
    async fn get(&mut self, key: String) -> Result<Option<wit::state::Entry>, String> {
        let seen = self.state_seen(&key).await?;
        Ok(seen.map(|(value, version)| wit::state::Entry { value, version }))
    }

    fn set(&mut self, key: String, value: String) -> Result<(), String> {
        self.effects.set(key, value)
    }

    async fn compare_and_set(&mut self, key: String, expected: Option<u64>, value: String) -> Result<(), String> {
        let seen = self.state_seen(&key).await?;
        self.effects.compare_and_set(key, expected, value, &seen)
    }

    fn delete(&mut self, key: String) -> Result<(), String> {
        self.effects.delete(key)
    }
}

impl wit::enqueue::Host for HostSide {
    fn run(&mut self, group: String, params: String, key: Option<String>) -> Result<(), String> {
        self.effects.enqueue(group, params, key)
    }
}

impl wit::notify::Host for HostSide {
    fn send(&mut self, channel: String, subject: String, body: String) -> Result<(), String> {
        self.effects.notify(channel, subject, body)
    }
}

impl wit::secret::Host for HostSide {
    async fn get(&mut self, name: String) -> Result<String, String> {
        self.check_secret(&name)?;
        self.ask(move |services| Box::pin(async move { services.secret(&name).await }))
            .await
    }
}

impl HostSide {
    /// Whether the task has a grant for a secret.
    pub fn check_secret(&self, name: &str) -> Result<(), String> {
        let sought = Name::sought(name);
        if self.grants.secrets.contains(&sought) {
            return Ok(());
        }
        Err(format!(
            "{NOT_GRANTED}secret `{name}`: it is not in the task's `secrets`"
        ))
    }

    /// Whether it has a grant for a connection.
    pub fn check_connection(&self, name: &str) -> Result<(), String> {
        if self.grants.sql.iter().any(|granted| granted == name) {
            return Ok(());
        }
        Err(format!(
            "{NOT_GRANTED}connection `{name}`: it is not in the task's `sql`"
        ))
    }

    /// Begins a statement; without a grant it is refused at once.
    pub fn begin_statement(
        &self,
        statement: SqlStatement,
    ) -> Result<BoxFuture<'static, Result<SqlAnswer, String>>, String> {
        check_size(&statement.statement, &statement.params)?;
        let statement = SqlStatement {
            connection: Name::sought(&statement.connection),
            ..statement
        };
        answered(self.exchanges.as_ref(), statement, |statement| {
            self.check_connection(&statement.connection)?;
            let (services, node) = (Arc::clone(&self.services), self.node.clone());
            let (databases, io) = (Arc::clone(&self.databases), self.io.clone());
            let cutting = Arc::clone(&self.services);
            let cut = Arc::new(move |beginning: String| cutting.cut(beginning));
            Ok(Box::pin(async move {
                let name = statement.connection.clone();
                let target = elsewhere(&node, async move { services.connection(&name).await }).await?;
                elsewhere(&io, async move { databases.carry_out(&target, &statement, cut).await }).await
            }))
        })
    }
}

impl wit::sql::Host for HostSide {
    async fn query(&mut self, connection: String, statement: String, params: String) -> Result<String, String> {
        let asked = SqlStatement {
            connection,
            statement,
            params,
            rows: true,
        };
        self.begin_statement(asked)?.await.map(SqlAnswer::rows)
    }

    async fn execute(&mut self, connection: String, statement: String, params: String) -> Result<u64, String> {
        let asked = SqlStatement {
            connection,
            statement,
            params,
            rows: false,
        };
        self.begin_statement(asked)?.await.map(|answer| answer.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_their_bound() {
        for (note, kept, is_cut) in [
            (String::new(), String::new(), false),
            ("a\0b".into(), "a\u{fffd}b".into(), false),
            ("x".repeat(1_024), "x".repeat(1_024), false),
            ("x".repeat(1_025), "x".repeat(1_024), true),
            // 341 of them take 1,023 bytes.
            ("\0".repeat(341), "\u{fffd}".repeat(341), false),
            ("\0".repeat(342), "\u{fffd}".repeat(341), true),
            ("\0".repeat(1_024), "\u{fffd}".repeat(341), true),
            ("\0".repeat(5_000), "\u{fffd}".repeat(341), true),
        ] {
            assert_eq!(note_of(&note), (kept, is_cut), "{} bytes", note.len());
        }
    }
}
