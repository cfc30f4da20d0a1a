//! Finds the templates of a task.

use heddle_domain::plan::{Plan, PlanTask};
use heddle_domain::spec::ForEach;
use heddle_domain::template;
use serde_json::Value;

/// For whom templates are rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rendered {
    /// For a task run as a whole: its condition, and its items if it is mapped, too.
    Whole,
    /// For one item of a mapped task run. What the condition and `for_each` need, only the task run as a whole reads: the
    /// output that has the items would otherwise be read once for each item.
    Item,
}

/// Calls `text` with each string of a task that is a template, and `value` with each value that may contain some.
pub(crate) fn templates_of<'p>(
    plan: &'p Plan,
    task: &'p PlanTask,
    rendered: Rendered,
    text: &mut dyn FnMut(&'p str),
    value: &mut dyn FnMut(&'p Value),
) {
    plan.spec
        .params
        .values()
        .chain(task.spec.params.values())
        .for_each(&mut *value);
    if rendered == Rendered::Whole {
        task.spec.when.iter().for_each(|when| text(when));
        match &task.spec.for_each {
            Some(ForEach::Template(template)) => text(template),
            Some(ForEach::Items(items)) => items.iter().for_each(&mut *value),
            None => {}
        }
    }
    task.executor.templates(text, value);
}

/// Whether a task's templates may have to be rendered in a child process, with bounds.
pub(super) fn is_heavy(plan: &Plan, task: &PlanTask, rendered: Rendered) -> bool {
    let condition = task.spec.when.as_deref().filter(|_| rendered == Rendered::Whole);
    let heavy = std::cell::Cell::new(condition.is_some_and(template::may_be_heavy));
    templates_of(
        plan,
        task,
        rendered,
        &mut |text| heavy.set(heavy.get() || (template::is_template(text) && template::may_be_heavy(text))),
        &mut |value| heavy.set(heavy.get() || template::holds_heavy(value)),
    );
    heavy.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_domain::spec::parse_group;
    use serde_json::json;

    fn plan(task: Value) -> Plan {
        let group = json!({"tasks": {"s": {"queue": "q"}, "m": task}});
        Plan::compile(parse_group(&group).expect("a group")).expect("a plan")
    }

    /// The templates that are rendered, and whether one may be heavy.
    fn of(plan: &Plan, rendered: Rendered) -> (Vec<String>, bool) {
        let task = &plan.tasks[plan.index("m").expect("a task") as usize];
        let found = std::cell::RefCell::new(Vec::new());
        templates_of(
            plan,
            task,
            rendered,
            &mut |text| found.borrow_mut().push(text.to_owned()),
            &mut |value| found.borrow_mut().push(value.to_string()),
        );
        (found.into_inner(), is_heavy(plan, task, rendered))
    }

    #[test]
    fn an_item_reads_neither_the_list_nor_the_condition() {
        let plan = plan(json!({
            "queue": "q", "depends_on": ["s"], "params": {"n": "{{ item }}"},
            "when": "upstream.s | length > 1", "for_each": "{{ upstream.s }}",
        }));
        let (whole, _) = of(&plan, Rendered::Whole);
        assert!(whole.iter().any(|text| text == "{{ upstream.s }}"), "{whole:?}");
        assert!(whole.iter().any(|text| text.contains("length")), "{whole:?}");
        let (item, _) = of(&plan, Rendered::Item);
        assert_eq!(item, [r#""{{ item }}""#]);
    }

    #[test]
    fn a_heavy_list_does_not_make_the_items_heavy() {
        let heavy = "{% for a in range(1000) %}{% for b in range(1000) %}x{% endfor %}{% endfor %}";
        let list = plan(json!({"queue": "q", "depends_on": ["s"], "for_each": heavy}));
        assert!(of(&list, Rendered::Whole).1);
        assert!(!of(&list, Rendered::Item).1);
        let params = plan(json!({"queue": "q", "for_each": [1], "params": {"n": heavy}}));
        assert!(of(&params, Rendered::Item).1);
    }
}
