//! Effective params: script defaults <- group <- task <- run <- run's `task_params`, merged by top-level key.
//!
//! Strings in group and task params are templates; defaults and the params of a run are data and are never rendered. A
//! value that a higher layer replaces is not rendered at all. In a template of a task, `params` means its effective
//! params without those of its own that are templates themselves: so `"{{ params.table }}_old"` may be the value of the
//! key `table`. In a template of the group, it means the run's params over the group's constants.

use serde_json::{Map, Value};

use crate::fault::pointer_token;
use crate::template::{Scope, Templates, contains_template, template_pointers};
use crate::{Fault, Faults};

/// The sources of params, lowest first.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    pub defaults: &'a Map<String, Value>,
    /// `params` of the group's spec, which may be templates.
    pub group: &'a Map<String, Value>,
    /// `params` of the task's spec, which may be templates.
    pub task: &'a Map<String, Value>,
    pub run: &'a Map<String, Value>,
    /// The run's `task_params` for the task.
    pub task_run: &'a Map<String, Value>,
}

/// Which layer a param comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    Defaults,
    Group,
    Task,
    Run,
    /// The run's `task_params` for the task.
    TaskRun,
}

impl Layers<'_> {
    /// The layer whose value of a key counts; `None` if no layer has it.
    pub fn origin(&self, key: &str) -> Option<Layer> {
        [
            (self.task_run, Layer::TaskRun),
            (self.run, Layer::Run),
            (self.task, Layer::Task),
            (self.group, Layer::Group),
            (self.defaults, Layer::Defaults),
        ]
        .into_iter()
        .find_map(|(map, layer)| map.contains_key(key).then_some(layer))
    }

    /// The params as far as they are known before anything is rendered: template strings stay as they are, and their
    /// pointers are returned.
    pub fn constant(&self) -> (Map<String, Value>, Vec<String>) {
        let mut merged = self.defaults.clone();
        for layer in [self.group, self.task, self.run, self.task_run] {
            merged.extend(layer.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let mut unknown = Vec::new();
        for (key, value) in &merged {
            if matches!(self.origin(key), Some(Layer::Group | Layer::Task)) {
                template_pointers(value, &format!("/{}", pointer_token(key)), &mut unknown);
            }
        }
        (merged, unknown)
    }
}

/// The group's params, rendered, with the run's over them. A fault's pointer leads into the params.
fn shared(
    group: &Map<String, Value>,
    run: &Map<String, Value>,
    scope: &Scope,
    templates: &Templates,
) -> Result<Map<String, Value>, Faults> {
    let mut common: Map<String, Value> = group
        .iter()
        .filter(|(_, value)| !contains_template(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    common.extend(run.iter().map(|(key, value)| (key.clone(), value.clone())));
    let rendered_in = scope.with_params(&common);
    let wanted = group
        .iter()
        .filter(|(key, value)| !run.contains_key(*key) && contains_template(value));
    let rendered = render(wanted, &rendered_in, templates)?;
    common.extend(rendered);
    Ok(common)
}

/// The value of `params` in a task's templates, its `when` and its `for_each`: its params, of its own only the
/// constants. A fault's pointer is relative to the params.
pub fn visible(layers: Layers<'_>, scope: &Scope, templates: &Templates) -> Result<Map<String, Value>, Faults> {
    let mut merged = layers.defaults.clone();
    merged.extend(shared(layers.group, layers.run, scope, templates)?);
    let constants = layers
        .task
        .iter()
        .filter(|(key, value)| !layers.run.contains_key(*key) && !contains_template(value))
        .chain(layers.task_run);
    merged.extend(constants.map(|(key, value)| (key.clone(), value.clone())));
    Ok(merged)
}

/// The params that a task gets. `visible` is the result of [`visible`] for the same layers. A fault's pointer leads
/// into them.
pub fn effective(
    layers: Layers<'_>,
    visible: Map<String, Value>,
    scope: &Scope,
    templates: &Templates,
) -> Result<Map<String, Value>, Faults> {
    let replaced = |key: &String| layers.run.contains_key(key) || layers.task_run.contains_key(key);
    let wanted = layers
        .task
        .iter()
        .filter(|(key, value)| !replaced(key) && contains_template(value));
    let rendered = render(wanted, &scope.with_params(&visible), templates)?;
    let mut merged = visible;
    merged.extend(rendered);
    Ok(merged)
}

fn render<'a>(
    params: impl Iterator<Item = (&'a String, &'a Value)>,
    scope: &Scope,
    templates: &Templates,
) -> Result<Map<String, Value>, Faults> {
    let mut faults = Faults::default();
    let mut rendered = Map::new();
    for (key, value) in params {
        match templates.render_value(value, scope) {
            Ok(value) => {
                rendered.insert(key.clone(), value);
            }
            Err(Fault { pointer, detail, .. }) => faults.add(format!("/{}{pointer}", pointer_token(key)), detail),
        }
    }
    faults.or(rendered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Given;
    use serde_json::json;

    /// Layers in order: defaults, group, task, run, task_run.
    fn check(layers: [Value; 5], expect: Result<Value, &str>) {
        let maps = layers.clone().map(|layer| layer.as_object().unwrap().clone());
        let [defaults, group, task, run, task_run] = &maps;
        let layers_ = Layers {
            defaults,
            group,
            task,
            run,
            task_run,
        };
        let (scope, templates) = (Scope::new(Given::default()), Templates::new());
        let got =
            visible(layers_, &scope, &templates).and_then(|visible| effective(layers_, visible, &scope, &templates));
        let got = got.map(Value::Object).map_err(|faults| faults.to_string());
        assert_eq!(got, expect.map_err(str::to_owned), "{layers:?}");
    }

    #[test]
    fn higher_layers_replace_whole_keys() {
        let none = || json!({});
        check([none(), none(), none(), none(), none()], Ok(none()));
        check(
            [
                json!({"a": 0, "z": {"x": 1}}),
                json!({"a": 1, "b": 1}),
                json!({"b": 2, "c": 2}),
                json!({"c": 3, "z": 3}),
                json!({"d": 4}),
            ],
            Ok(json!({"a": 1, "b": 2, "c": 3, "d": 4, "z": 3})),
        );
        check(
            [json!({"a": {"x": 1}}), none(), json!({"a": {"y": 2}}), none(), none()],
            Ok(json!({"a": {"y": 2}})),
        );
        check(
            [none(), none(), json!({"a": 1}), json!({"a": 2}), json!({"a": 3})],
            Ok(json!({"a": 3})),
        );
    }

    #[test]
    fn only_group_and_task_params_are_templates() {
        let none = || json!({});
        check(
            [
                json!({"d": "{{ 1 }}"}),
                json!({"g": "{{ 1 }}"}),
                json!({"t": "{{ 2 }}"}),
                json!({"r": "{{ 3 }}"}),
                json!({"s": "{{ 4 }}"}),
            ],
            Ok(json!({"d": "{{ 1 }}", "g": 1, "t": 2, "r": "{{ 3 }}", "s": "{{ 4 }}"})),
        );
        // Templates see the group's params and the run's over them.
        check(
            [
                none(),
                json!({"n": 2, "m": "{{ params.n * 10 }}"}),
                json!({"t": "{{ params.m + 1 }}"}),
                none(),
                none(),
            ],
            Ok(json!({"n": 2, "m": 20, "t": 21})),
        );
        check(
            [
                none(),
                json!({"n": 2, "m": "{{ params.n * 10 }}"}),
                json!({"t": "{{ params.m }}"}),
                json!({"n": 5}),
                none(),
            ],
            Ok(json!({"n": 5, "m": 50, "t": 50})),
        );
        // They see the other layers of the task too, and of its own the constants.
        check(
            [
                json!({"d": 1, "t": 7}),
                json!({"g": 2, "c": 0}),
                json!({"c": 3, "t": "{{ params.t }}{{ params.d }}{{ params.g }}{{ params.c }}{{ params.r }}{{ params.s }}"}),
                json!({"r": 4}),
                json!({"s": 5}),
            ],
            Ok(json!({"d": 1, "g": 2, "c": 3, "r": 4, "s": 5, "t": "712345"})),
        );
        check(
            [
                none(),
                none(),
                json!({"a": "{{ params.b }}", "b": "{{ 1 }}"}),
                none(),
                none(),
            ],
            Err("/a: `params.b` is not defined"),
        );
        // A replaced value is not rendered.
        check(
            [
                none(),
                json!({"a": "{{ no }}"}),
                json!({"b": "{{ no }}"}),
                json!({"a": 1, "b": 1}),
                none(),
            ],
            Ok(json!({"a": 1, "b": 1})),
        );
        check(
            [none(), none(), json!({"a": {"x/y": ["{{ no }}"]}}), none(), none()],
            Err("/a/x~1y/0: `no` is not defined"),
        );
    }

    #[test]
    fn constants_and_origins() {
        let [defaults, group, task, run, task_run] = [
            json!({"a": 1}),
            json!({"b": "{{ x }}"}),
            json!({"c": ["{{ y }}", 1]}),
            json!({"b": "{{ data }}"}),
            json!({}),
        ]
        .map(|layer| layer.as_object().unwrap().clone());
        let layers = Layers {
            defaults: &defaults,
            group: &group,
            task: &task,
            run: &run,
            task_run: &task_run,
        };
        let (merged, unknown) = layers.constant();
        assert_eq!(
            Value::Object(merged),
            json!({"a": 1, "b": "{{ data }}", "c": ["{{ y }}", 1]})
        );
        assert_eq!(unknown, ["/c/0"]);
        assert_eq!(layers.origin("b"), Some(Layer::Run));
        assert_eq!(layers.origin("a"), Some(Layer::Defaults));
        assert_eq!(layers.origin("z"), None);
    }
}
