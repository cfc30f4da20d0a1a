//! The `query` executor: one SQL statement on a named connection.
//!
//! The statement is used as it was written, the same for each attempt. Its params are rendered and bound. The group's
//! grant for the connection is checked when the spec is put, and again here, since a grant can be revoked.
//!
//! A statement runs in its own transaction, on the server that it names. If the connection breaks before the answer,
//! nobody knows whether the statement was committed. Such an attempt has failed, and is retried if the task says so.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::plan::PlanTask;
use heddle_domain::spec::{QueryMode, QuerySpec};
use heddle_domain::state::ErrorKind;
use heddle_domain::template::{Scope, Templates};
use heddle_sandbox::{QueryClass, QueryReach, QueryRequest};
use serde_json::Value;
use tokio::time::Instant;

use super::Attempts;
use super::http_task::OUTPUT_BYTES_DEFAULT;
use super::outside::{Outside, within};
use crate::RunContext;
use crate::runs::ending::Ending;
use crate::runs::take::patience::{patient, until};

/// A statement with its rendered params.
pub(crate) struct Query {
    connection: String,
    sql: String,
    params: String,
    mode: QueryMode,
    timeout: Option<Duration>,
    output_bytes_max: usize,
}

impl Query {
    /// Renders the params of a task's statement. An error names the one that is wrong.
    pub(crate) fn render(
        spec: &QuerySpec,
        task: &PlanTask,
        scope: &Scope,
        templates: &Templates,
    ) -> Result<Self, String> {
        let mut params = Vec::with_capacity(spec.params.len());
        for (index, value) in spec.params.iter().enumerate() {
            let rendered = templates.render_value(value, scope);
            params.push(rendered.map_err(|fault| fault.below(&format!("query/params/{index}")).to_string())?);
        }
        let output_bytes_max = task
            .spec
            .max_output
            .map_or(OUTPUT_BYTES_DEFAULT, |size| size.0 as usize);
        Ok(Self {
            connection: spec.connection.to_string(),
            sql: spec.sql.clone(),
            params: Value::Array(params).to_string(),
            mode: spec.mode,
            timeout: task.timeout,
            output_bytes_max,
        })
    }
}

impl Outside for Query {
    /// If the future is dropped, the statement is cancelled on the server.
    fn carry_out(self: Box<Self>, attempts: Arc<Attempts>, context: Arc<RunContext>) -> BoxFuture<'static, Ending> {
        Box::pin(async move { attempts.carry_out(&context, *self).await })
    }
}

impl Attempts {
    async fn carry_out(&self, context: &RunContext, query: Query) -> Ending {
        let (timeout, connection) = (query.timeout, query.connection.clone());
        let reach = QueryReach::default();
        let late = |millis: u128| reach.late(&connection, millis);
        within(timeout, self.carry_out_untimed(context, query, reach.clone()), late).await
    }

    async fn carry_out_untimed(&self, context: &RunContext, query: Query, reach: QueryReach) -> Ending {
        let revision = &context.revision;
        let category = revision.plan.spec.category.as_ref().map(|category| category.as_str());
        let ask = || {
            self.runs
                .scripts
                .granted_connection("group", &revision.group_name, category, &query.connection)
        };
        let found = patient(&self.node, "read a connection", until(Instant::now(), None), ask).await;
        let target = match found {
            Ok(Ok(target)) => target,
            Ok(Err(refused)) => return Ending::fatal(ErrorKind::Fatal, refused),
            Err(error) => return Ending::ours("read the connection", &error),
        };
        let request = QueryRequest {
            target,
            connection: query.connection,
            sql: query.sql,
            params: query.params,
            rows: query.mode == QueryMode::Rows,
            timeout: query.timeout,
            output_bytes_max: query.output_bytes_max,
            reach,
        };
        match self.runs.scripts.sandbox.query(request).await {
            Ok(output) if output.len() > query.output_bytes_max => Ending::failed(
                ErrorKind::Output,
                format!("the output exceeds its limit of {} bytes", query.output_bytes_max),
            ),
            Ok(output) => match serde_json::from_str::<Value>(&output) {
                Ok(_) => Ending::Succeeded(output),
                // A column of the type json is passed on unchanged, so it may be nested too deep for a reader.
                Err(error) => Ending::fatal(
                    ErrorKind::Output,
                    format!("the rows cannot be converted to JSON: {error}"),
                ),
            },
            Err(failure) => match failure.class {
                QueryClass::Passing => Ending::failed(ErrorKind::Failed, failure.message),
                QueryClass::Timeout => Ending::failed(ErrorKind::Timeout, failure.message),
                QueryClass::TooMuch => Ending::failed(ErrorKind::Output, failure.message),
                QueryClass::Fatal => Ending::fatal(ErrorKind::Fatal, failure.message),
            },
        }
    }
}
