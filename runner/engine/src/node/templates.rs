//! Finds the templates of a task.

use heddle_domain::plan::{Plan, PlanTask};
use heddle_domain::spec::ForEach;
use heddle_domain::template;
use serde_json::Value;

/// Calls `seen` with each string of a task that is a template, and with each value that may contain some.
pub(crate) fn templates_of<'p>(
    plan: &'p Plan,
    task: &'p PlanTask,
    text: &mut dyn FnMut(&'p str),
    value: &mut dyn FnMut(&'p Value),
) {
    plan.spec
        .params
        .values()
        .chain(task.spec.params.values())
        .for_each(&mut *value);
    task.spec.when.iter().for_each(|when| text(when));
    match &task.spec.for_each {
        Some(ForEach::Template(template)) => text(template),
        Some(ForEach::Items(items)) => items.iter().for_each(&mut *value),
        None => {}
    }
    task.executor.templates(text, value);
}

/// Whether a task's templates may have to be rendered in a child process, with bounds.
pub(super) fn is_heavy(plan: &Plan, task: &PlanTask) -> bool {
    let heavy = std::cell::Cell::new(task.spec.when.as_deref().is_some_and(template::may_be_heavy));
    templates_of(
        plan,
        task,
        &mut |text| heavy.set(heavy.get() || (template::is_template(text) && template::may_be_heavy(text))),
        &mut |value| heavy.set(heavy.get() || template::holds_heavy(value)),
    );
    heavy.get()
}
