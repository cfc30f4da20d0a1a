//! Templates: strings in params, `when` and `for_each` that are filled in when a task starts.
//!
//! Wraps minijinja, with fuel for its steps, and bounds on a template's length and output. There are expressions, `if`,
//! `for` and plain `set`; no macros, includes or blocks. An undefined name is an error that says so.
//!
//! The cost of a template is not known beforehand. Only short ones with a few harmless words and little to read
//! (`light`) are rendered in this process; all others are rendered with bounds on time and memory from outside
//! ([`crate::bounded`]).

mod apart;
mod check;
mod compare;
mod context;
mod filters;
mod guard;
mod light;
mod rewrite;
mod scan;
pub(crate) mod seen;
mod uses;
mod value;

pub use check::{Tasks, any_task};

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono_tz::Tz;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use crate::{Fault, Name, Time};

pub const TEMPLATE_MAX_BYTES: usize = 64 * 1024;
/// The most that one template may give, roughly, as JSON text.
pub const OUTPUT_MAX_BYTES: usize = 1024 * 1024;
/// Instructions that one template may take.
pub const FUEL: u64 = 100_000;
/// How deeply a template's result may be nested.
pub const DEPTH_MAX: usize = 100;

/// Why a template has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(pub String);

/// The values of the names in a template.
#[derive(Clone, Debug)]
pub struct Scope {
    fixed: Arc<BTreeMap<Cow<'static, str>, minijinja::Value>>,
    params: minijinja::Value,
    /// The same values as they were given, for rendering in another process.
    source: Arc<Source>,
    own: Arc<Map<String, Value>>,
}

#[derive(Debug)]
enum Source {
    Task(Given),
    Names(BTreeMap<Cow<'static, str>, Value>),
}

/// The inputs of a [`Scope`].
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The run's logical time.
    pub logical_time: Time,
    /// From the previous instant to this one.
    pub data_interval: (Time, Time),
    /// The group's zone, in which `date` and `datetime` print.
    pub zone: Option<Tz>,
    /// The run: `id`, `group`, `trigger`, `key` and the like.
    pub run: Value,
    /// Outputs of other tasks, those that [`UpstreamNames`] finds.
    pub upstream: BTreeMap<Name, Arc<Value>>,
    /// An item of a mapped task, its index from 0, and how many there are.
    pub item: Option<(Value, u32, u32)>,
}

impl Scope {
    /// A scope without params; see [`Scope::with_params`].
    pub fn new(given: Given) -> Self {
        use minijinja::Value as In;
        let zone = given.zone.unwrap_or(Tz::UTC);
        let instant = |at| In::from_object(value::Instant { at, zone });
        let (start, end) = given.data_interval;
        let mut fixed = BTreeMap::from([
            (Cow::Borrowed("logical_time"), instant(given.logical_time)),
            (
                "data_interval".into(),
                In::from_pairs([("start", instant(start)), ("end", instant(end))]),
            ),
            ("run".into(), value::from_json(&given.run)),
            (
                "upstream".into(),
                In::from_object(value::Upstream::new(given.upstream.clone())),
            ),
        ]);
        if let Some((item, index, count)) = &given.item {
            fixed.insert("item".into(), value::from_json(item));
            fixed.insert("index".into(), In::from(*index));
            fixed.insert("count".into(), In::from(*count));
        }
        Self::of(fixed, Source::Task(given))
    }

    fn of(fixed: BTreeMap<Cow<'static, str>, minijinja::Value>, source: Source) -> Self {
        Self {
            fixed: Arc::new(fixed),
            params: value::from_json(&Value::Object(Map::new())),
            source: Arc::new(source),
            own: Arc::default(),
        }
    }

    /// A scope of other names altogether, for templates that are no task's.
    pub fn of_names(names: BTreeMap<&'static str, Value>) -> Self {
        Self::named(names.into_iter().map(|(name, one)| (name.into(), one)).collect())
    }

    fn named(names: BTreeMap<Cow<'static, str>, Value>) -> Self {
        let fixed = names
            .iter()
            .map(|(name, one)| (name.clone(), value::from_json(one)))
            .collect();
        Self::of(fixed, Source::Names(names))
    }

    /// The same scope with these as `params`.
    pub fn with_params(&self, params: &Map<String, Value>) -> Self {
        let own = Arc::new(params.clone());
        let params =
            minijinja::Value::from_pairs(params.iter().map(|(key, one)| (key.as_str(), value::from_json(one))));
        Self {
            fixed: self.fixed.clone(),
            params,
            source: self.source.clone(),
            own,
        }
    }

    fn context(&self) -> minijinja::Value {
        minijinja::Value::from_object(context::Context {
            fixed: self.fixed.clone(),
            params: self.params.clone(),
        })
    }
}

/// The engine that renders. Making one costs some microseconds; it holds no state between renderings.
#[derive(Debug)]
pub struct Templates {
    env: Environment<'static>,
}

impl Default for Templates {
    fn default() -> Self {
        Self::new()
    }
}

impl Templates {
    /// An engine with our filters and bounds.
    pub fn new() -> Self {
        let mut env = Environment::new();
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(DEPTH_MAX);
        env.set_debug(true);
        env.remove_global("debug");
        // It could contain itself.
        env.remove_global("namespace");
        filters::install(&mut env);
        compare::install(&mut env);
        Self { env }
    }

    /// Renders one string. One that is no template is given back as it is; one that is a single `{{ expression }}`
    /// keeps the JSON type of its value; any other gives a string.
    pub fn render(&self, template: &str, scope: &Scope) -> Result<Value, TemplateError> {
        if !is_template(template) {
            return Ok(Value::String(template.to_owned()));
        }
        let codes = guard::check(template).map_err(TemplateError)?;
        match light::is_rendered_here(template, &codes, scope) {
            true => self.render_codes(template, &codes, scope),
            false => apart::render(template, false, scope),
        }
    }

    /// Renders a template in this process.
    fn render_here(&self, template: &str, scope: &Scope) -> Result<Value, TemplateError> {
        let codes = guard::check(template).map_err(TemplateError)?;
        self.render_codes(template, &codes, scope)
    }

    fn render_codes(&self, template: &str, codes: &[scan::Code<'_>], scope: &Scope) -> Result<Value, TemplateError> {
        if let Some(expression) = single_expression(template, codes) {
            let result = self.evaluate(expression, scope)?;
            return value::to_json(&result, &mut { OUTPUT_MAX_BYTES }, DEPTH_MAX)
                .map_err(|error| explain(&error, expression, None));
        }
        // Syntax errors are reported for the original source; then it is rewritten.
        let plain = self
            .env
            .template_from_str(template)
            .map_err(|error| explain(&error, template, None))?;
        let rewritten = rewrite::rewrite(template, codes);
        let explain = |error: Error| explain(&error, template, rewritten.as_ref());
        let compiled = match &rewritten {
            None => plain,
            Some(rewritten) => {
                drop(plain);
                self.env.template_from_str(&rewritten.text).map_err(explain)?
            }
        };
        let mut out = Bounded::default();
        match compiled.render_captured_to(scope.context(), &mut out) {
            Ok(_) => String::from_utf8(out.text)
                .map(Value::String)
                .map_err(|error| TemplateError(error.to_string())),
            Err(_) if out.full => Err(explain(value::too_large())),
            Err(error) => Err(explain(error)),
        }
    }

    fn evaluate(&self, expression: &str, scope: &Scope) -> Result<minijinja::Value, TemplateError> {
        let code = guard::check_expression(expression).map_err(TemplateError)?;
        let plain = self
            .env
            .compile_expression(expression)
            .map_err(|error| explain(&error, expression, None))?;
        let rewritten = rewrite::rewrite(expression, std::slice::from_ref(&code));
        let explain = |error: Error| explain(&error, expression, rewritten.as_ref());
        let compiled = match &rewritten {
            None => plain,
            Some(rewritten) => {
                drop(plain);
                self.env.compile_expression(&rewritten.text).map_err(explain)?
            }
        };
        let result = compiled.eval(scope.context()).map_err(explain)?;
        if result.is_undefined() {
            return Err(TemplateError(format!("`{}` is not defined", shown(expression))));
        }
        Ok(result)
    }

    /// Renders all strings in a value. A fault's pointer leads into the value.
    pub fn render_value(&self, value: &Value, scope: &Scope) -> Result<Value, Fault> {
        Ok(match value {
            Value::String(text) => self.render(text, scope).map_err(|error| Fault::at("", error.0))?,
            Value::Array(items) => {
                let items = items.iter().enumerate().map(|(index, item)| {
                    self.render_value(item, scope)
                        .map_err(|fault| fault.below(&format!("/{index}")))
                });
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, field)| {
                    let below = |fault: Fault| fault.below(&format!("/{}", crate::fault::pointer_token(key)));
                    Ok((key.clone(), self.render_value(field, scope).map_err(below)?))
                });
                Value::Object(fields.collect::<Result<_, Fault>>()?)
            }
            plain => plain.clone(),
        })
    }

    /// The result of a `when`: an expression, with or without `{{ }}`. False, null, zero and empty values are false.
    pub fn eval_condition(&self, condition: &str, scope: &Scope) -> Result<bool, TemplateError> {
        let expression = condition_expression(condition);
        let code = guard::check_expression(expression).map_err(TemplateError)?;
        match light::is_rendered_here(expression, std::slice::from_ref(&code), scope) {
            true => self.condition_here(expression, scope),
            false => Ok(apart::render(expression, true, scope)? == Value::Bool(true)),
        }
    }

    /// Evaluates a condition in this process.
    fn condition_here(&self, expression: &str, scope: &Scope) -> Result<bool, TemplateError> {
        Ok(self.evaluate(expression, scope)?.is_true())
    }
}

/// Whether a string is a template at all.
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

/// A value, so written that rendering gives it back as it is: strings that look like templates become templates that
/// consist of one string. For what another program sends as data.
pub fn verbatim(value: Value) -> Value {
    match value {
        // A string in JSON is one in a template too: minijinja reads the same escapes.
        Value::String(text) if is_template(&text) => Value::String(format!("{{{{ {} }}}}", Value::from(text))),
        Value::Array(items) => Value::Array(items.into_iter().map(verbatim).collect()),
        Value::Object(fields) => fields.into_iter().map(|(name, one)| (name, verbatim(one))).collect(),
        other => other,
    }
}

/// Whether any string in a value is a template.
pub fn contains_template(value: &Value) -> bool {
    match value {
        Value::String(text) => is_template(text),
        Value::Array(items) => items.iter().any(contains_template),
        Value::Object(fields) => fields.values().any(contains_template),
        _ => false,
    }
}

/// Whether a template, or a `when`, may have to be rendered with bounds: it is not light, or may have much to read.
pub fn may_be_heavy(template: &str) -> bool {
    let heavy = |text: &str, codes: &[scan::Code<'_>]| {
        !light::is_light(text, codes) || (text.contains("upstream") && !light::is_path(codes))
    };
    let expression = condition_expression(template);
    match is_template(template) {
        true => scan::template(template).map_or(true, |codes| heavy(template, &codes)),
        false => scan::expression(expression).map_or(true, |code| heavy(expression, std::slice::from_ref(&code))),
    }
}

/// Whether any template in a value may have to be.
pub fn holds_heavy(value: &Value) -> bool {
    match value {
        Value::String(text) => is_template(text) && may_be_heavy(text),
        Value::Array(items) => items.iter().any(holds_heavy),
        Value::Object(fields) => fields.values().any(holds_heavy),
        _ => false,
    }
}

/// The pointers of all template strings in a value.
pub fn template_pointers(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if is_template(text) => found.push(pointer.to_owned()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                template_pointers(item, &format!("{pointer}/{index}"), found);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                template_pointers(field, &format!("{pointer}/{}", crate::fault::pointer_token(key)), found);
            }
        }
        _ => {}
    }
}

/// Whose outputs a template needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamNames {
    /// Those that it names.
    pub names: BTreeSet<Name>,
    /// Whether it may need any, since it computes a name or takes `upstream` as a whole.
    pub all: bool,
}

impl UpstreamNames {
    /// Adds what a template, or a `when` expression, needs. One that could not be compiled needs nothing.
    pub fn add(&mut self, template: &str) {
        // A `when` may contain something like a template within a string: both readings count.
        if let Ok(code) = scan::expression(condition_expression(template)) {
            uses::add_upstream(std::slice::from_ref(&code), self);
        }
        if is_template(template)
            && let Ok(codes) = scan::template(template)
        {
            uses::add_upstream(&codes, self);
        }
    }

    /// Adds what all strings in a value need.
    pub fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(text) if is_template(text) => self.add(text),
            Value::Array(items) => items.iter().for_each(|item| self.add_value(item)),
            Value::Object(fields) => fields.values().for_each(|field| self.add_value(field)),
            _ => {}
        }
    }
}

/// Adds the params that the templates in a value name: what a run may have to be given.
pub fn add_params(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if is_template(text) => {
            // One that could not be compiled names nothing.
            if let Ok(codes) = scan::template(text) {
                uses::add_params(&codes, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_params(item, names)),
        Value::Object(fields) => fields.values().for_each(|field| add_params(field, names)),
        _ => {}
    }
}

/// The same of a `when`.
pub fn add_params_of_condition(condition: &str, names: &mut BTreeSet<String>) {
    if let Ok(code) = scan::expression(condition_expression(condition)) {
        uses::add_params(std::slice::from_ref(&code), names);
    }
}

/// The inside of `{{ ... }}`, if that is the whole of the string.
fn single_expression<'t>(template: &'t str, codes: &[scan::Code<'t>]) -> Option<&'t str> {
    let [code] = codes else { return None };
    let after = &template[code.range.end..];
    let whole = template.starts_with("{{") && !code.tokens.is_empty() && matches!(after, "}}" | "-}}" | "+}}");
    whole.then(|| template[code.range.clone()].trim())
}

/// A `when` without its optional `{{ }}`.
fn condition_expression(condition: &str) -> &str {
    let condition = condition.trim();
    if !condition.starts_with("{{") {
        return condition;
    }
    scan::template(condition)
        .ok()
        .and_then(|codes| single_expression(condition, &codes))
        .unwrap_or(condition)
}

fn shown(text: &str) -> String {
    /// How many characters of a template an error repeats.
    const SHOWN_CHARS: usize = 100;
    let mut shown: String = text.trim().chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.trim().len() {
        shown.push_str("...");
    }
    shown
}

/// An error as a text. If the source was rewritten, its position refers to the rewritten source.
fn explain(error: &Error, source: &str, rewritten: Option<&rewrite::Rewritten>) -> TemplateError {
    let snippet = error.range().and_then(|range| {
        let range = rewritten.map_or(range.clone(), |rewritten| rewritten.source_range(range));
        // The range of `a.b.c` may begin at one of the dots.
        let path = |c: char| c.is_alphanumeric() || "_.[]'\"-".contains(c);
        let start = source.get(..range.start)?.trim_end_matches(path).len();
        Some(source.get(start..range.end)?.trim()).filter(|text| !text.is_empty())
    });
    let line = match error.line() {
        Some(line) if source.contains('\n') => format!(" (line {line})"),
        _ => String::new(),
    };
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let snippet = |otherwise: &str| shown(snippet.unwrap_or(otherwise));
    // An operator names the types of its operands.
    let operand = detail.starts_with("tried to use ") && detail.contains(" undefined");
    TemplateError(match error.kind() {
        kind if operand || kind == ErrorKind::UndefinedError => {
            format!("`{}` is not defined{line}", snippet(source))
        }
        ErrorKind::OutOfFuel => format!("the template needs more than the limit of {FUEL} steps"),
        ErrorKind::SyntaxError => format!("{detail}{line}, at `{}`", snippet(source)),
        _ => format!("{}{line}, at `{}`", shown(&detail), snippet(source)),
    })
}

/// The output of a template; full at [`OUTPUT_MAX_BYTES`].
#[derive(Debug, Default)]
struct Bounded {
    text: Vec<u8>,
    full: bool,
}

impl std::io::Write for &mut Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > OUTPUT_MAX_BYTES {
            self.full = true;
            return Err(std::io::Error::other("too large"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "template/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "template/attack_tests.rs"]
mod attack_tests;
