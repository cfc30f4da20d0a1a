//! Checks of a template before there are values: its syntax, its bounds, and whether what it names exists.

use serde_json::Value;

use super::uses::{self, Use, UsedField};
use super::{Templates, condition_expression, explain, guard, is_template, rewrite, scan};
use crate::{Faults, Name};

/// Returns the reason if a template may not use the output of a task.
pub type Tasks<'a> = &'a dyn Fn(&Name) -> Result<(), String>;

/// Lets templates take the output of any task.
pub fn any_task(_: &Name) -> Result<(), String> {
    Ok(())
}

impl Templates {
    /// Whether a string could be rendered; an error says what is wrong, and where.
    pub fn check(&self, template: &str, tasks: Tasks<'_>) -> Result<(), String> {
        if !is_template(template) {
            return Ok(());
        }
        let codes = guard::check(template)?;
        let compile = |text: &str| self.env.template_from_str(text).map(drop);
        let defused = rewrite::defused(template, &codes);
        compile(&defused).map_err(|error| explain(&error, template, None).0)?;
        if let Some(rewritten) = rewrite::rewrite(&defused, &codes) {
            compile(&rewritten.text).map_err(|error| explain(&error, template, Some(&rewritten)).0)?;
        }
        self.check_names(template, &codes, tasks)
    }

    /// The same of a `when`.
    pub fn check_condition(&self, condition: &str, tasks: Tasks<'_>) -> Result<(), String> {
        let expression = condition_expression(condition);
        let code = guard::check_expression(expression)?;
        let codes = std::slice::from_ref(&code);
        let compile = |text: &str| self.env.compile_expression(text).map(drop);
        let defused = rewrite::defused(expression, codes);
        compile(&defused).map_err(|error| explain(&error, expression, None).0)?;
        if let Some(rewritten) = rewrite::rewrite(&defused, codes) {
            compile(&rewritten.text).map_err(|error| explain(&error, expression, Some(&rewritten)).0)?;
        }
        self.check_names(expression, codes, tasks)
    }

    /// Checks all strings in a value.
    pub fn check_value(&self, value: &Value, pointer: &str, tasks: Tasks<'_>, faults: &mut Faults) {
        match value {
            Value::String(text) => {
                if let Err(detail) = self.check(text, tasks) {
                    faults.add(pointer, format!("invalid template: {detail}"));
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.check_value(item, &format!("{pointer}/{index}"), tasks, faults);
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    let pointer = format!("{pointer}/{}", crate::fault::pointer_token(key));
                    self.check_value(field, &pointer, tasks, faults);
                }
            }
            _ => {}
        }
    }

    fn check_names(&self, source: &str, codes: &[scan::Code<'_>], tasks: Tasks<'_>) -> Result<(), String> {
        uses::check(source, codes, |named| self.check_use(named))?;
        let mut result = Ok(());
        uses::used_fields(codes, "upstream", |offset, field| {
            if let UsedField::Field(name) = field
                && result.is_ok()
            {
                let judged = match Name::new(name) {
                    Ok(name) => tasks(&name),
                    Err(_) => Err(format!("there is no task `{}`", super::shown(name))),
                };
                result = judged.map_err(|detail| scan::wrong(source, offset, &detail));
            }
        });
        result
    }

    fn check_use(&self, named: Use<'_>) -> Result<(), String> {
        let (kind, name) = match named {
            Use::Filter(name) => ("filter", name),
            Use::Test(name) => ("test", name),
            Use::Function(name) => ("function", name),
        };
        let there = match named {
            Use::Function(name) => self.env.globals().any(|(known, _)| known == name),
            _ => !name.starts_with('_') && self.has(kind, name),
        };
        if there {
            Ok(())
        } else {
            Err(format!("there is no {kind} `{}`", super::shown(name)))
        }
    }

    /// Whether there is a filter, or a test, of a name; only minijinja's own tests for that know.
    fn has(&self, kind: &str, name: &str) -> bool {
        let asked = if kind == "filter" {
            "name is filter"
        } else {
            "name is test"
        };
        self.env
            .compile_expression(asked)
            .and_then(|expression| expression.eval(minijinja::context! { name }))
            .is_ok_and(|there| there.is_true())
    }
}
