//! Templates that are rendered where time and memory are bounded.

use serde_json::Value;

use super::seen::Seen;
use super::{Scope, Source, TemplateError};
use crate::bounded::{Answer, Stopped, Work, key_of, perform};

/// Lets a template, or a condition, be rendered with bounds.
pub(super) fn render(template: &str, condition: bool, scope: &Scope) -> Result<Value, TemplateError> {
    let run = match &*scope.source {
        Source::Task(given) => given.run["id"].to_string(),
        Source::Names(_) => String::new(),
    };
    let key = key_of(format!("{run} {template}").as_bytes());
    let work = Work::Render {
        template: template.to_owned(),
        condition,
        seen: Box::new(Seen::of(scope, template)),
    };
    let owner = key_of(run.as_bytes());
    match perform(work, key, owner) {
        Ok(Answer::Rendered(rendered)) => rendered.map(Value::from).map_err(TemplateError),
        Ok(_) => Err(given_up(&Stopped::Trouble("the template was not rendered".into()))),
        Err(stopped) => Err(given_up(&stopped)),
    }
}

fn given_up(stopped: &Stopped) -> TemplateError {
    TemplateError(format!("rendering the template was stopped: {stopped}"))
}
