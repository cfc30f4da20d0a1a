//! Params of a task without templates: those of all layers, merged; params of a run that a script makes.

use std::collections::BTreeMap;

use heddle_domain::bounded::or_trouble;
use heddle_domain::plan::TaskIndex;
use heddle_domain::{Faults, framed, params};
use serde_json::{Map, Value};

use crate::RunContext;
use crate::runs::ending::{Ending, Step};

/// Params of a task without templates: a merge.
pub(crate) fn constant_params(context: &RunContext, task: TaskIndex) -> Step<String> {
    Ok(or_trouble(|| merged_params(context, task))??)
}

fn merged_params(context: &RunContext, task: TaskIndex) -> Result<String, Ending> {
    let revision = &context.revision;
    let plan = &revision.plan;
    let own = &plan.tasks[task as usize].spec.params;
    let script = context.resolution.scripts[task as usize].as_ref();
    let defaults = script.map(|script| &script.defaults);
    let given = context.facts.params != "{}" || context.facts.task_params.is_some();
    let fits = context.resolution.fits.get(task as usize).copied().unwrap_or(true);
    let schema = script.and_then(|script| script.schema.as_ref());
    let (run, task_run) = given_params(context, task)?;
    let none = Map::new();
    let layers = params::Layers {
        defaults: defaults.unwrap_or(&none),
        group: &plan.spec.params,
        task: own,
        run: &run,
        task_run: &task_run,
    };
    let mut merged = Value::Object(layers.constant().0);
    if let Some(schema) = schema {
        // Params that came over HTTP have been checked. Params from SQL or a schedule, or for another version of the
        // script, have not.
        let faults = if given || !fits {
            schema.check(&merged)
        } else {
            Faults::default()
        };
        if !faults.is_empty() {
            return Err(Ending::invalid(format!("params: {faults}")));
        }
        schema.write_integers(&mut merged);
    }
    serde_json::to_string(&merged).map_err(|error| Ending::invalid(error.to_string()))
}

/// `params`, and `task_params` of one task.
type GivenParams = (Map<String, Value>, Map<String, Value>);

/// The params that the run was given for all tasks, and for this one.
pub(crate) fn given_params(context: &RunContext, task: TaskIndex) -> Result<GivenParams, Ending> {
    let facts = &context.facts;
    let run =
        framed::read_params(&facts.params).map_err(|error| Ending::invalid(format!("the run's params: {error}")))?;
    let task_run = match &facts.task_params {
        Some(text) => {
            let mut all: BTreeMap<String, Map<String, Value>> =
                framed::read(text).map_err(|error| Ending::invalid(format!("the run's task_params: {error}")))?;
            all.remove(context.revision.plan.tasks[task as usize].name.as_str())
                .unwrap_or_default()
        }
        None => Map::new(),
    };
    Ok((run, task_run))
}

/// The params that a script gives to a run of a group.
pub(crate) fn enqueued(group: &str, params: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(params).map_err(|error| format!("enqueue of `{group}`: {error}"))
}
