//! Params that are constant, against the JSON Schemas of scripts and templates.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::catalog::{Catalog, ScriptFacts, ScriptLookup};
use super::task::script_reference;
use crate::fault::pointer_token;
use crate::params::{Layer, Layers};
use crate::schema::Schema;
use crate::spec::{GroupSpec, TaskSpec};
use crate::{Fault, Faults, Name};

/// Scripts and templates that several tasks name are looked up and compiled once.
struct Schemas<'a> {
    catalog: &'a dyn Catalog,
    scripts: HashMap<String, Option<Rc<Known>>>,
    templates: HashMap<Name, Option<Rc<Schema>>>,
}

#[derive(Default)]
struct Known {
    defaults: Map<String, Value>,
    schema: Option<Rc<Schema>>,
}

impl<'a> Schemas<'a> {
    fn new(catalog: &'a dyn Catalog) -> Self {
        Self {
            catalog,
            scripts: HashMap::new(),
            templates: HashMap::new(),
        }
    }

    fn script(&mut self, reference: &str) -> Option<Rc<Known>> {
        if let Some(known) = self.scripts.get(reference) {
            return known.clone();
        }
        let known = script_reference(reference).ok().and_then(|(name, version)| {
            let ScriptLookup::Found(facts) = self.catalog.script(&name, version) else {
                return None;
            };
            let ScriptFacts {
                params_schema,
                defaults,
            } = facts;
            let schema = params_schema
                .map(|schema| Schema::of_kept(&schema, &format!("script `{reference}`")))
                .map(Rc::new);
            Some(Rc::new(Known { defaults, schema }))
        });
        self.scripts.insert(reference.to_owned(), known.clone());
        known
    }

    fn template(&mut self, name: &Name) -> Option<Rc<Schema>> {
        if let Some(known) = self.templates.get(name) {
            return known.clone();
        }
        let schema = self
            .catalog
            .template(name)
            .map(|schema| Schema::of_kept(&schema, &format!("template `{name}`")))
            .map(Rc::new);
        self.templates.insert(name.clone(), schema.clone());
        schema
    }

    /// A task's default params, and the schema that they must satisfy.
    fn of(&mut self, task: &TaskSpec) -> Option<Rc<Known>> {
        if let Some(script) = &task.script {
            return self.script(script);
        }
        let template = task.audience.as_ref()?.template.as_ref()?;
        Some(Rc::new(Known {
            defaults: Map::new(),
            schema: self.template(template),
        }))
    }
}

pub(super) fn check_group(spec: &GroupSpec, catalog: &dyn Catalog, faults: &mut Faults) {
    let mut schemas = Schemas::new(catalog);
    let none = Map::new();
    for (name, task) in &spec.tasks {
        let Some(known) = schemas.of(task) else { continue };
        let layers = Layers {
            defaults: &known.defaults,
            group: &spec.params,
            task: &task.params,
            run: &none,
            task_run: &none,
        };
        check_task(layers, &known, faults, |layer| match layer {
            Some(Layer::Group) => "/params".into(),
            _ => format!("/tasks/{}/params", pointer_token(name)),
        });
    }
}

/// `pointer_to` gives the pointer of a layer's params in the document. A missing param may still come with a run.
fn check_task(layers: Layers<'_>, known: &Known, faults: &mut Faults, pointer_to: impl Fn(Option<Layer>) -> String) {
    let Some(schema) = &known.schema else { return };
    let (merged, unknown) = layers.constant();
    for fault in schema.check_begun(&Value::Object(merged), &unknown).0 {
        let key = fault
            .pointer
            .split('/')
            .nth(1)
            .map(|token| token.replace("~1", "/").replace("~0", "~"));
        let layer = key.and_then(|key| layers.origin(&key));
        push_new(faults, fault.below(&pointer_to(layer)));
    }
}

/// A param that all tasks share is wrong for each of them; it is reported once.
fn push_new(faults: &mut Faults, fault: Fault) {
    if !faults.0.contains(&fault) {
        faults.push(fault);
    }
}
