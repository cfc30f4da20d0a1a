//! Starting a run: fields made of the schemas of the group's scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::Method;
use heddle_api::{Run, Submission};
use heddle_domain::params::Layers;
use heddle_domain::plan::Plan;
use heddle_domain::template::{add_params, add_params_of_condition, is_template};
use heddle_engine::ScriptFacts;
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::here::{Here, framed};
use crate::elements::{named, prose};
use crate::form::{self, Asked, field, fields, marks, object, object_field, said_under, whole, with_typed};
use crate::pages::answer::Answer;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble, once};

/// Different values of a param that a field names.
const PRESETS_NAMED: usize = 3;

/// A param that a run may be given.
#[derive(Default)]
struct Param {
    /// What the first script says that has it.
    schema: Option<Value>,
    /// The tasks that are known to read it.
    tasks: Vec<String>,
    /// What tasks get if the run is given nothing, as far as that is known before templates are rendered.
    presets: Vec<Value>,
    /// Whether the script of a task requires it and the task gets no value otherwise.
    required: bool,
}

impl Param {
    fn preset(&mut self, value: Option<&Value>) {
        if let Some(value) = value.filter(|value| !self.presets.contains(value)) {
            self.presets.push(value.clone());
        }
    }

    /// As a field shows it, which stands for all tasks.
    fn shown(&self) -> Option<Value> {
        match self.presets.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            several => {
                let few: Vec<String> = several.iter().take(PRESETS_NAMED).map(form::shown).collect();
                let more = if several.len() > PRESETS_NAMED { " · …" } else { "" };
                Some(Value::String(format!("{}{more}", few.join(" · "))))
            }
        }
    }
}

/// The params that a run may be given: those that scripts say they take, those that the spec gives, and those that its
/// templates name.
fn takes(plan: &Plan, scripts: &[Option<Arc<ScriptFacts>>]) -> BTreeMap<String, Param> {
    let none = Map::new();
    let group = &plan.spec.params;
    let mut found: BTreeMap<String, Param> = BTreeMap::new();
    let mut of_group: BTreeSet<String> = group.keys().cloned().collect();
    group.values().for_each(|value| add_params(value, &mut of_group));
    for name in of_group {
        let value = group.get(&name);
        found.entry(name).or_default().preset(value);
    }
    for (index, task) in plan.tasks.iter().enumerate() {
        let script = scripts.get(index).and_then(Option::as_ref);
        let whole = script.and_then(|script| Some(script.schema.as_ref()?.source()));
        let schema = whole.map(form::properties).unwrap_or_default();
        let required: BTreeSet<&str> = whole.into_iter().flat_map(form::required).collect();
        let layers = Layers {
            defaults: script.map_or(&none, |script| &script.defaults),
            group,
            task: &task.spec.params,
            run: &none,
            task_run: &none,
        };
        let (presets, _) = layers.constant();
        let mut names: BTreeSet<String> = schema.keys().chain(task.spec.params.keys()).cloned().collect();
        add_params(&serde_json::to_value(&task.spec).unwrap_or_default(), &mut names);
        if let Some(when) = &task.spec.when {
            add_params_of_condition(when, &mut names);
        }
        for name in names {
            let preset = presets.get(&name);
            let own = schema.get(&name).cloned();
            let lacks = preset.is_none() && required.contains(name.as_str());
            let param = found.entry(name).or_default();
            param.preset(preset);
            param.required |= lacks;
            param.schema = param.schema.take().or(own);
            param.tasks.push(task.name.to_string());
        }
    }
    found
}

/// What a param without a schema takes: the like of what it is without a run's.
fn typed_as(value: Option<&Value>) -> Value {
    match value {
        Some(Value::String(text)) if !is_template(text) => json!({"type": "string"}),
        Some(Value::Number(_)) => json!({"type": "number"}),
        Some(Value::Bool(_)) => json!({"type": "boolean"}),
        Some(Value::Array(_) | Value::Object(_)) => json!({}),
        _ => json!({"type": ["string", "number", "boolean"]}),
    }
}

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    let plan = &here.group.revision.plan;
    let (mut properties, mut values) = (Map::new(), Map::new());
    let (mut required, mut notes) = (BTreeSet::new(), BTreeMap::new());
    for (name, param) in takes(plan, &here.group.resolution.scripts) {
        values.extend(param.shown().map(|value| (name.clone(), value)));
        if plan.tasks.len() > 1 && !param.tasks.is_empty() {
            let tasks: Vec<&str> = param.tasks.iter().map(String::as_str).collect();
            notes.insert(name.clone(), t!(ctx, "param-of-tasks", tasks = named(&tasks)));
        }
        required.extend(param.required.then(|| name.clone()));
        properties.insert(name, param.schema.unwrap_or_else(|| typed_as(param.presets.first())));
    }
    let asked = Asked {
        properties: &properties,
        values: &values,
        required: &required,
        notes: &notes,
    };
    let form = ctx.form();
    let mut wrong = None;
    if ctx.posts() {
        match submit(ctx, here, &asked, &form).await {
            Ok(started) => return Ok(started),
            Err(trouble) => wrong = Some(asked.placed(trouble)),
        }
    }
    let inside = html! {
        section.panel {
            h2 { (t!(ctx, "run-title")) }
            @if let Some(trouble) = &wrong {
                div.said.wrong role="alert" { p { (prose(&trouble.said(ctx.lang))) @if let Some(id) = &trouble.existing { " " a href={ "/runs/" (id) } { (t!(ctx, "open-run")) } } } }
            }
            form.fields method="post" action=(here.address("run")) {
                (once::field(ctx, &form))
                @if properties.is_empty() { p.muted { (t!(ctx, "no-params")) } }
                (fields(ctx, &asked, &form, wrong.as_ref()))
                (options(ctx, &asked, &form, plan.zone.name(), wrong.as_ref()))
                @if !here.group.enabled {
                    p.why { (t!(ctx, "group-disabled")) }
                    label { input type="checkbox" name="force" value="true" required checked[field(&form, "force").is_some()]; (t!(ctx, "force-disabled")) }
                }
                div { button.primary type="submit" { (t!(ctx, "start-run")) } " " a.button href=(here.address("")) { (t!(ctx, "cancel-form")) } }
            }
        }
    };
    let mut page = framed(ctx, here, "run", inside);
    if let Some(trouble) = wrong {
        page.status = trouble.status;
    }
    ctx.beats_with(crate::ctx::Beat::Still);
    Answer::page(page)
}

/// The fields that most runs leave empty; dates are those of `zone`, the group's. They are folded unless one of them has a text or an error.
fn options(ctx: &Ctx, asked: &Asked<'_>, form: &[(String, String)], zone: &str, trouble: Option<&Trouble>) -> Markup {
    let written = |name: &str| field(form, name).map(str::to_owned);
    let wrong = |name: &str| trouble.and_then(|trouble| trouble.of_field(&format!("/{name}")));
    let faults = [
        trouble.and_then(|trouble| asked.wrong_elsewhere(trouble)),
        wrong("task_params"),
        wrong("logical_time"),
        wrong("key"),
        wrong("priority"),
    ];
    let [params, task_params, logical_time, key, priority] = faults.each_ref().map(Option::as_deref);
    let opens = |names: &[&str], faults: &[Option<&str>]| {
        names.iter().any(|name| written(name).is_some()) || faults.iter().any(Option::is_some)
    };
    let one = |name: &str,
               label: String,
               placeholder: Option<&str>,
               wrong: Option<&str>,
               hint: Option<String>|
     -> Markup {
        let told = format!("told-{name}");
        let (invalid, described) = marks(&told, wrong);
        let is_number = name == "priority";
        html! {
            label.field {
                span { (label) }
                input type=(if is_number { "number" } else { "text" }) min=[is_number.then_some("-1000")] max=[is_number.then_some("1000")] name=(name) value=[written(name)] placeholder=[placeholder] autocomplete="off" aria-invalid=[invalid] aria-describedby=[described];
                (said_under(&told, wrong))
                @if let Some(hint) = hint { small { (hint) } }
            }
        }
    };
    html! {
        details open[opens(&["params", "task_params"], &[params, task_params])] {
            summary { (t!(ctx, "more-params")) }
            div.fields {
                (object_field(form, "params", &t!(ctx, "params-json"), params, Some(&t!(ctx, "params-json-hint"))))
                (object_field(form, "task_params", &t!(ctx, "task-params-json"), task_params, None))
            }
        }
        details open[opens(&["logical_time", "key", "priority"], &[logical_time, key, priority])] {
            summary { (t!(ctx, "more-options")) }
            div.fields {
                (one("logical_time", t!(ctx, "logical-time"), Some("2026-01-31T00:00:00Z"), logical_time, Some(t!(ctx, "logical-time-hint", zone = zone))))
                (one("key", t!(ctx, "key"), None, key, Some(t!(ctx, "key-hint"))))
                (one("priority", t!(ctx, "priority"), None, priority, None))
            }
        }
    }
}

/// What the API is asked for. It says itself what is wrong with the names of tasks, the time and the priority.
fn submission(lang: Lang, asked: &Asked<'_>, form: &[(String, String)]) -> Result<Value, Trouble> {
    let mut faults = Vec::new();
    let submission = Submission {
        params: asked.read(form, &mut faults),
        key: field(form, "key").map(str::trim).or(once::of(form)).map(str::to_owned),
        force: field(form, "force").is_some(),
        ..Submission::default()
    };
    let mut body = with_typed(&submission, form, &["logical_time"])?;
    match object(form, "task_params") {
        Ok(given) if given.is_empty() => {}
        Ok(given) => body["task_params"] = Value::Object(given),
        Err(trouble) => faults.extend(trouble.errors.iter().cloned()),
    }
    match whole(lang, form, "priority") {
        Ok(Some(priority)) => body["priority"] = json!(priority),
        Ok(None) => {}
        Err(trouble) => faults.extend(trouble.errors.iter().cloned()),
    }
    match faults.is_empty() {
        true => Ok(body),
        false => Err(Trouble::of_faults(faults)),
    }
}

async fn submit(ctx: &Ctx, here: &Here, asked: &Asked<'_>, form: &[(String, String)]) -> Result<Answer, Trouble> {
    let body = submission(ctx.lang, asked, form)?;
    let answer: Result<Run, Trouble> = ctx.ask(Method::POST, &here.api("/runs"), &body).await;
    once::started(ctx, form, answer).await
}

#[cfg(test)]
mod tests {
    use heddle_domain::schema::Schema;
    use heddle_domain::spec::parse_group;

    use super::*;

    #[test]
    fn a_filled_form_is_a_submission() {
        let asked = Asked {
            properties: &Map::new(),
            values: &Map::new(),
            required: &BTreeSet::new(),
            notes: &BTreeMap::new(),
        };
        let form = [
            ("params", r#"{"a": 1}"#),
            ("task_params", r#"{"t": {"b": 2}}"#),
            ("logical_time", " 2026-01-31T00:00:00Z "),
            ("key", " k "),
            ("priority", "7"),
            ("force", "true"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
        let body = submission(Lang::En, &asked, &form).unwrap();
        let read: Submission = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(read.params, *json!({"a": 1}).as_object().unwrap());
        let task_params = read.task_params.values().next();
        assert_eq!(task_params, json!({"b": 2}).as_object());
        assert_eq!(read.logical_time.map(|at| at.timestamp()), Some(1_769_817_600));
        assert_eq!(
            (read.key.as_deref(), read.priority, read.force),
            (Some("k"), Some(7), true)
        );
        assert_eq!(body["logical_time"], "2026-01-31T00:00:00Z", "as it was typed");
        assert_eq!(submission(Lang::En, &asked, &[]).unwrap(), json!({}));
        // The key that somebody has typed, or else that of the form.
        let carried = (once::FIELD.to_owned(), format!("page/{:032x}", 7));
        let body = submission(Lang::En, &asked, std::slice::from_ref(&carried)).unwrap();
        assert_eq!(body, json!({"key": carried.1}));
        let typed = [carried, ("key".to_owned(), " k ".to_owned())];
        assert_eq!(submission(Lang::En, &asked, &typed).unwrap(), json!({"key": "k"}));
    }

    #[test]
    fn fields_say_what_each_task_gets_and_what_templates_want() {
        let spec = json!({
            "params": {"region": "north", "label": "{{ params.day }} {{ params.region }}"},
            "tasks": {
                "greet": {"script": "hello", "params": {"name": "{{ params.who }}"}},
                "load": {"script": "hello", "params": {"name": "load"}, "when": "params.load", "depends_on": ["greet"]},
                "ask": {"queue": "people", "params": {"order": 7}},
            },
        });
        let plan = Plan::compile(parse_group(&spec).unwrap()).unwrap();
        let schema = json!({"properties": {"name": {"type": "string"}, "times": {"type": "integer"}, "speed": {}}, "required": ["name", "speed"]});
        let hello = Arc::new(ScriptFacts {
            name: "hello".into(),
            version: 1,
            digest: String::new(),
            code: String::new(),
            runtime: None,
            runs: true,
            file: None,
            schema: Some(Schema::compile(&schema).unwrap()),
            defaults: json!({"name": "world", "times": 1}).as_object().unwrap().clone(),
        });
        // By the names of the tasks: ask, greet, load.
        let found = takes(&plan, &[None, Some(hello.clone()), Some(hello)]);
        let shown: Vec<(&str, String, Value)> = found
            .iter()
            .map(|(name, param)| (name.as_str(), param.tasks.join(" "), param.shown().unwrap_or_default()))
            .collect();
        let one = |name, tasks: &str, preset: Value| (name, tasks.to_owned(), preset);
        assert_eq!(
            shown,
            [
                one("day", "", Value::Null),
                one("label", "", json!("{{ params.day }} {{ params.region }}")),
                one("load", "load", Value::Null),
                one("name", "greet load", json!("{{ params.who }} · load")),
                one("order", "ask", json!(7)),
                one("region", "", json!("north")),
                one("speed", "greet load", Value::Null),
                one("times", "greet load", json!(1)),
                one("who", "greet", Value::Null),
            ]
        );
        assert!(found["speed"].required && !found["name"].required);
        assert_eq!(found["times"].schema, Some(json!({"type": "integer"})));
        assert_eq!(typed_as(found["order"].presets.first()), json!({"type": "number"}));
    }
}
