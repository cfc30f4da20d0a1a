//! What happens before an attempt: `when`, items, params. Each may read the outputs of earlier tasks; none holds a
//! transaction open.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use heddle_domain::bounded::or_trouble;
use heddle_domain::executor::Executor;
use heddle_domain::plan::{ITEMS_MAX, PlanTask, TaskIndex};
use heddle_domain::run::{AttemptKey, JOINED_OUTPUT_BYTES_MAX, TaskKey};
use heddle_domain::schema::Schema;
use heddle_domain::spec::{ForEach, HttpSpec, Shards, SubmissionSpec};
use heddle_domain::state::{ErrorKind, TaskState};
use heddle_domain::template::{Given, Scope, UpstreamNames};
use heddle_domain::{Faults, framed, params};
use heddle_sandbox::Script;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Attempts;
use super::http_task::{HttpCall, HttpRequest};
use super::outside::Outside;
use super::query_task::Query;
use crate::node::catalog::ScriptFacts;
use crate::node::templates::{Rendered, templates_of};
use crate::runs::contexts::{context_of, item_of};
use crate::runs::ending::{End, Ending, Step, apart};
use crate::runs::params::given_params;
use crate::{EngineError, RunContext};

/// The result of preparing an attempt.
pub(crate) enum Prepared {
    /// There is nothing to start: the attempt was skipped, has computed the items of its task, or cannot start.
    End(End),
    Script {
        script: Script,
        params: String,
        item: Option<(Box<RawValue>, u32)>,
    },
    /// Runs outside of this node; the attempt waits for it.
    Outside(Box<dyn Outside>),
    Queue {
        params: String,
    },
    Offer {
        offer: Box<heddle_domain::dispatch::Offer>,
        /// Of an item: the SHA-256 of its value as JSON text.
        item_hash: Option<Vec<u8>>,
    },
    SubRun {
        group: String,
        spec: SubmissionSpec,
    },
}

/// How many attempts with a long preparation are prepared at once: each uses a thread, and memory for the values of its
/// templates.
pub(crate) const AT_ONCE_MAX: usize = 64;

fn invalid(message: impl Into<String>) -> Ending {
    Ending::fatal(ErrorKind::Invalid, message)
}

/// Why a value that templates gave cannot be used.
fn too_deep() -> String {
    format!("nested more than {} levels deep", framed::RENDERED_NESTING_MAX)
}

/// The params as JSON text. If they cannot be written as JSON, the attempt ends as `invalid`.
fn written(params: &impl Serialize) -> Result<String, Ending> {
    serde_json::to_string(params).map_err(|error| invalid(format!("params: {error}")))
}

/// The params that a script gets, unless its schema refuses them.
fn checked_params(script: &ScriptFacts, effective: Map<String, Value>) -> Step<String> {
    let mut effective = Value::Object(effective);
    if let Some(schema) = &script.schema {
        let faults = or_trouble(|| {
            let faults = schema.check(&effective);
            if faults.is_empty() {
                schema.write_integers(&mut effective);
            }
            faults
        })?;
        if !faults.is_empty() {
            return Err(invalid(format!("params: {faults}")).into());
        }
    }
    Ok(written(&effective)?)
}

impl Attempts {
    pub(crate) async fn prepare(&self, context: &RunContext, at: AttemptKey) -> Result<Prepared, EngineError> {
        let prepared = apart(self.prepare_steps(context, at).await)?;
        Ok(prepared.unwrap_or_else(|ending| Prepared::End(End::plain(ending))))
    }

    async fn prepare_steps(&self, context: &RunContext, at: AttemptKey) -> Step<Prepared> {
        let index = at.key.task;
        let task = &context.revision.plan.tasks[index as usize];
        let schema = context.resolution.scripts[index as usize].as_ref();
        let heavy = context.revision.is_heavy(at.key)
            || schema
                .and_then(|script| script.schema.as_ref())
                .is_some_and(Schema::is_heavy);
        // The revision's permit comes first: a revision with a thousand such items delays only its own items.
        let permits = match heavy {
            true => (
                context.revision.preparations.acquire().await.ok(),
                self.preparations.acquire().await.ok(),
            ),
            false => (None, None),
        };
        let item = match at.key.item {
            Some(item) => Some(item_of(&self.node, context, at, item).await?),
            None => None,
        };
        let unscoped = self.scope(context, task, at, item.as_ref()).await?;
        let (run, task_run) = given_params(context, index)?;
        let plan = &context.revision.plan;
        let script = context.resolution.scripts[index as usize].clone();
        let none = Map::new();
        let defaults = script.as_ref().map_or(&none, |script| &script.defaults);
        let wrong = |faults: Faults| invalid(format!("params: {faults}"));
        let layers = params::Layers {
            defaults,
            group: &plan.spec.params,
            task: &task.spec.params,
            run: &run,
            task_run: &task_run,
        };
        let visible = or_trouble(|| params::visible(layers, &unscoped, &self.templates))?.map_err(wrong)?;
        let scope = unscoped.with_params(&visible);
        if at.key.item.is_none()
            && let Some(end) = self.prepare_task(task, &scope).await?
        {
            return Ok(Prepared::End(end));
        }
        let effective = or_trouble(|| params::effective(layers, visible, &unscoped, &self.templates))?;
        let effective = effective.map_err(wrong)?;
        if framed::is_deeper(&effective, framed::RENDERED_NESTING_MAX) {
            return Err(invalid(format!("params: {}", too_deep())).into());
        }
        match (&task.executor, script) {
            (Executor::Script(_), Some(script)) => {
                let params = checked_params(&script, effective)?;
                // The script may have to be compiled, which takes long.
                drop(permits);
                let loaded = self.runs.scripts.load(&script).await?;
                let script = loaded.map_err(|why| Ending::failed(ErrorKind::Failed, why))?;
                Ok(Prepared::Script { script, params, item })
            }
            _ => {
                let scope = scope.with_params(&effective);
                self.prepare_executor(context, at, &scope, effective, item).await
            }
        }
    }

    /// Decides what precedes items: whether the task runs at all, and over which items. `None`: it runs, and is not
    /// mapped.
    async fn prepare_task(&self, task: &PlanTask, scope: &Scope) -> Step<Option<End>> {
        if let Some(when) = &task.spec.when {
            match or_trouble(|| self.templates.eval_condition(when, scope))? {
                Ok(true) => {}
                Ok(false) => return Err(Ending::Skipped(format!("when: {when}")).into()),
                Err(error) => return Err(invalid(format!("when: {error}")).into()),
            }
        }
        if !task.mapped {
            return Ok(None);
        }
        let workers = self.workers_of(task).await?;
        Ok(Some(or_trouble(|| self.expand(task, scope, workers))??))
    }

    /// Prepares an attempt of a task that is no script.
    async fn prepare_executor(
        &self,
        context: &RunContext,
        at: AttemptKey,
        scope: &Scope,
        effective: Map<String, Value>,
        item: Option<(Box<RawValue>, u32)>,
    ) -> Step<Prepared> {
        let task = &context.revision.plan.tasks[at.key.task as usize];
        match &task.executor {
            Executor::Script(_) => Err(invalid("the script of the task was deleted").into()),
            Executor::Http(spec) => self.prepare_call(context, at, spec, scope, effective, item),
            Executor::Query(spec) => {
                let query = or_trouble(|| Query::render(spec, task, scope, &self.templates))?.map_err(invalid)?;
                Ok(Prepared::Outside(Box::new(query)))
            }
            Executor::Group(group) => {
                let spec = SubmissionSpec {
                    params: effective,
                    logical_time: Some(context.facts.logical_time),
                    force: true,
                    ..SubmissionSpec::default()
                };
                Ok(Prepared::SubRun {
                    group: group.as_str().to_owned(),
                    spec,
                })
            }
            Executor::Queue(_) => {
                let params = written(&effective)?;
                Ok(Prepared::Queue { params })
            }
            Executor::Audience(asked) => {
                let offer = self.prepare_offer(asked, scope, effective).await?;
                let item_hash = item.map(|(item, _)| Sha256::digest(item.get()).to_vec());
                Ok(Prepared::Offer {
                    offer: Box::new(offer),
                    item_hash,
                })
            }
        }
    }

    /// A request. Unless the task says otherwise, its body is the attempt's context.
    fn prepare_call(
        &self,
        context: &RunContext,
        at: AttemptKey,
        spec: &HttpSpec,
        scope: &Scope,
        effective: Map<String, Value>,
        item: Option<(Box<RawValue>, u32)>,
    ) -> Step<Prepared> {
        let task = &context.revision.plan.tasks[at.key.task as usize];
        let item = item.map(|(item, count)| heddle_sandbox::MapItem {
            item,
            index: at.key.item.unwrap_or(0),
            count,
        });
        let attempt = context_of(self.node.now(), context, at, item);
        let mut body = framed::to_value(&attempt).map_err(|error| invalid(format!("context: {error}")))?;
        body["params"] = Value::Object(effective);
        let run = context.facts.id;
        let wanted = self.runs.traces.want(run);
        let parent = wanted.then(|| crate::runs::trace::traceparent(run, at));
        let key = &attempt.idempotency_key;
        let request = or_trouble(|| HttpRequest::render(spec, task, scope, &self.templates, key, parent))?;
        let request = request.map_err(invalid)?;
        Ok(Prepared::Outside(Box::new(HttpCall { request, context: body })))
    }

    /// How many workers are connected to a task's queue, if it has an item for each.
    async fn workers_of(&self, task: &PlanTask) -> Result<Option<i64>, EngineError> {
        let (Some(Shards::Workers(_)), Executor::Queue(queue)) = (&task.spec.shards, &task.executor) else {
            return Ok(None);
        };
        let connected = self
            .node
            .store
            .connected_workers(queue.as_str(), &task.spec.tags)
            .await?;
        Ok(Some(connected))
    }

    /// The items of a mapped task; `workers` are those connected to its queue.
    fn expand(&self, task: &PlanTask, scope: &Scope, workers: Option<i64>) -> Result<End, Ending> {
        let items = match (&task.spec.for_each, &task.spec.shards) {
            (Some(ForEach::Items(items)), _) => {
                let mut rendered = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let value = self.templates.render_value(item, scope);
                    rendered.push(value.map_err(|fault| invalid(format!("for_each/{index}: {fault}")))?);
                }
                rendered
            }
            (Some(ForEach::Template(template)), _) => {
                match self
                    .templates
                    .render(template, scope)
                    .map_err(|error| invalid(format!("for_each: {error}")))?
                {
                    Value::Array(items) => items,
                    Value::String(text) => match serde_json::from_str(&text) {
                        Ok(Value::Array(items)) => items,
                        _ => return Err(invalid("for_each gave text that is not a JSON array")),
                    },
                    other => return Err(invalid(format!("for_each gave {}, not an array", kind_of(&other)))),
                }
            }
            (None, Some(Shards::Count(count))) => (0..*count).map(Value::from).collect(),
            // No worker is connected: one item waits for the first to come.
            (None, Some(Shards::Workers(_))) => match workers {
                Some(workers) => (0..workers.clamp(1, i64::from(ITEMS_MAX))).map(Value::from).collect(),
                None => return Err(invalid("only a task with a queue can have `shards: workers`")),
            },
            _ => return Err(invalid("the number of shards is not known")),
        };
        if items.len() > ITEMS_MAX as usize {
            return Err(invalid(format!(
                "there are {} items; a mapped task can have at most {ITEMS_MAX}",
                items.len()
            )));
        }
        if let Some(index) = (items.iter()).position(|item| framed::exceeds(item, framed::RENDERED_NESTING_MAX)) {
            return Err(invalid(format!("item {index}: {}", too_deep())));
        }
        let text = serde_json::to_string(&items).map_err(|error| invalid(error.to_string()))?;
        if text.len() as u64 > JOINED_OUTPUT_BYTES_MAX {
            return Err(invalid(format!(
                "the items have {} bytes together; the maximum is {JOINED_OUTPUT_BYTES_MAX}",
                text.len()
            )));
        }
        Ok(End::Expanded {
            items: text,
            count: items.len() as u32,
        })
    }

    /// What templates of a task can see.
    async fn scope(
        &self,
        context: &RunContext,
        task: &PlanTask,
        at: AttemptKey,
        item: Option<&(Box<RawValue>, u32)>,
    ) -> Step<Scope> {
        let plan = &context.revision.plan;
        let mut wanted = UpstreamNames::default();
        {
            let wanted = std::cell::RefCell::new(&mut wanted);
            let rendered = match at.key.item {
                None => Rendered::Whole,
                Some(_) => Rendered::Item,
            };
            templates_of(
                plan,
                task,
                rendered,
                &mut |text| wanted.borrow_mut().add(text),
                &mut |value| wanted.borrow_mut().add_value(value),
            );
        }
        let named: Vec<TaskIndex> = if wanted.all {
            (0..plan.tasks.len() as TaskIndex)
                .filter(|&other| plan.is_ancestor(other, at.key.task))
                .collect()
        } else {
            wanted
                .names
                .iter()
                .filter_map(|name| plan.index(name.as_str()))
                .filter(|&other| plan.is_ancestor(other, at.key.task))
                .collect()
        };
        let mut upstream = BTreeMap::new();
        for (task, output) in self.outputs(context, &named).await? {
            let name = &plan.tasks[task as usize].name;
            let output = output.map_err(invalid)?;
            let value: Value = framed::read(&output).map_err(|error| invalid(format!("output of {name}: {error}")))?;
            upstream.insert(name.clone(), Arc::new(value));
        }
        let facts = &context.facts;
        Ok(Scope::new(Given {
            logical_time: facts.logical_time,
            data_interval: facts.interval,
            zone: Some(plan.zone),
            run: json!({
                "id": facts.id, "group": context.revision.group_name, "revision": context.revision.number,
                "trigger": facts.trigger, "key": facts.key, "task": task.name, "attempt": at.attempt,
            }),
            upstream,
            item: match (item, at.key.item) {
                (Some((raw, count)), Some(index)) => {
                    let value = framed::read(raw.get()).map_err(|error| invalid(format!("item {index}: {error}")))?;
                    Some((value, index, *count))
                }
                _ => None,
            },
        }))
    }

    /// Outputs of settled tasks as JSON texts: `null` without one, an array for a mapped task. Or why it cannot be given:
    /// an array that is too large makes its task fail, but this one may run in spite of that, or after an override.
    pub(crate) async fn outputs(
        &self,
        context: &RunContext,
        tasks: &[TaskIndex],
    ) -> Result<Vec<(TaskIndex, Result<String, String>)>, EngineError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let run = context.facts.id;
        let plan = &context.revision.plan;
        let numbers: Vec<i16> = tasks.iter().map(|&task| task as i16).collect();
        let progress = match tasks.iter().any(|&task| plan.tasks[task as usize].mapped) {
            true => match self.node.store.progress(run).await? {
                Some(bytes) => Some(crate::runs::change::transition::progress_of(run, &bytes)?),
                None => None,
            },
            false => None,
        };
        let bytes_of = |task: TaskIndex| progress.as_ref().and_then(|progress| progress.joined_bytes(task));
        let is_large = |task: TaskIndex| bytes_of(task) > Some(JOINED_OUTPUT_BYTES_MAX);
        let large: Vec<i16> = (tasks.iter().copied())
            .filter(|&task| is_large(task))
            .map(|task| task as i16)
            .collect();
        let rows = self.node.store.outputs(run, &numbers, &large).await?;
        let mut whole: HashMap<TaskIndex, (heddle_domain::Time, Option<String>)> = HashMap::new();
        let mut items: HashMap<TaskIndex, Vec<(u32, Option<String>)>> = HashMap::new();
        for (key, at, output) in rows {
            match key.item {
                None => drop(whole.insert(key.task, (at, output))),
                Some(item) => {
                    // An override of a mapped task is valid until one of its items ends after it.
                    if whole.get(&key.task).is_some_and(|(since, _)| *since < at) {
                        whole.remove(&key.task);
                    }
                    items.entry(key.task).or_default().push((item, output));
                }
            }
        }
        let mut outputs = Vec::with_capacity(tasks.len());
        for &task in tasks {
            let output = match progress.as_ref().and_then(|progress| progress.items(task)) {
                Some(count) => {
                    // An item that was overridden to another state has no output any more.
                    let succeeded = |item| {
                        let key = TaskKey { task, item: Some(item) };
                        progress.as_ref().and_then(|progress| progress.state(key)) == Some(TaskState::Succeeded)
                    };
                    let outputs = items.remove(&task).unwrap_or_default();
                    let name = plan.tasks[task as usize].name.as_str();
                    match (whole.remove(&task), bytes_of(task)) {
                        (Some((_, Some(overridden))), _) => Ok(overridden),
                        (_, Some(bytes)) if is_large(task) => Err(too_large(name, bytes)),
                        _ => bounded(
                            name,
                            join(
                                outputs.into_iter().filter(|(item, _)| succeeded(*item)).collect(),
                                count,
                            ),
                        ),
                    }
                }
                None => {
                    let output = whole.remove(&task).and_then(|(_, output)| output);
                    Ok(output.unwrap_or_else(|| "null".into()))
                }
            };
            outputs.push((task, output));
        }
        Ok(outputs)
    }
}

/// The joined output of a mapped task, unless it is too large: an item may have changed since its length was read.
fn bounded(task: &str, joined: String) -> Result<String, String> {
    match joined.len() as u64 {
        bytes if bytes > JOINED_OUTPUT_BYTES_MAX => Err(too_large(task, bytes)),
        _ => Ok(joined),
    }
}

/// Why other tasks cannot read the output of a mapped task.
fn too_large(task: &str, bytes: u64) -> String {
    format!(
        "the outputs of the items of `{task}` have {bytes} bytes together; the maximum is {JOINED_OUTPUT_BYTES_MAX}. An \
        override of `{task}` with an `output` replaces them"
    )
}

/// The output of a mapped task: the outputs of its items in order, `null` for an item without one.
pub fn join(items: Vec<(u32, Option<String>)>, count: u32) -> String {
    let mut by_index: Vec<Option<String>> = vec![None; count as usize];
    for (index, output) in items {
        if let Some(entry) = by_index.get_mut(index as usize) {
            *entry = output;
        }
    }
    let mut joined = String::from("[");
    for (index, output) in by_index.iter().enumerate() {
        if index > 0 {
            joined.push(',');
        }
        joined.push_str(output.as_deref().unwrap_or("null"));
    }
    joined.push(']');
    joined
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
