//! The input and the output of a run: params with the origin of each, values from upstream tasks, outputs.

use std::collections::BTreeMap;

use heddle_api::{Run, Trigger};
use heddle_domain::plan::{Plan, PlanTask};
use heddle_domain::shortened;
use heddle_engine::Resolution;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::view::Whole;
use crate::elements::{empty, script_link, time_exact};
use crate::words::t;
use crate::{Ctx, Trouble, yaml};

/// For how many tasks params are listed.
const TASKS_MAX: usize = 100;
/// Up to this number of tasks, params are shown unfolded.
const TASKS_OPEN: usize = 4;
/// How many characters of a value are shown in a line.
const VALUE_CHARS: usize = 200;

/// Longer outputs are folded until they are wanted.
const OPEN_BYTES_MAX: usize = 2_000;
const OPEN_LINES_MAX: usize = 30;
/// Bytes of an output that are shown.
const SHOWN_BYTES_MAX: usize = 20_000;

pub(super) async fn inside(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let revision = whole.revision(ctx).await?;
    // A script version that cannot be read costs the defaults of the scripts, and nothing else of the page.
    let resolution = whole.resolution(ctx).await.ok().flatten();
    let outputs = outputs(run);
    let omitted = run.wholes().filter(|task| task.output_omitted == Some(true));
    let omitted: Vec<&str> = omitted.map(|task| task.task.as_str()).collect();
    let ended = run.finished_at.is_some();
    let inside = html! {
        div.two {
            div.stack {
                section.panel {
                    h2 { (t!(ctx, "outputs")) }
                    @if outputs.is_empty() && omitted.is_empty() { (empty(&t!(ctx, if ended { "no-outputs-ended" } else { "no-outputs" }))) }
                    @for (task, output) in &outputs {
                        @let shown = pretty(output);
                        details open[is_short(&shown)] { summary { bdi { (task) } @if !is_short(&shown) { " · " (crate::span::bytes(shown.len() as i64)) } } (value(ctx, output)) }
                    }
                    @for task in &omitted { p.muted { bdi { (task) } " · " (t!(ctx, "output-omitted")) } }
                }
                (by_task(ctx, run, &revision.plan, resolution.as_deref(), &outputs))
            }
            div.stack {
                section.panel {
                    h2 { (t!(ctx, "params")) }
                    @if let Some(why) = &run.params_error { p.why { (t!(ctx, "params-unread", why = why)) } } @else { (value(ctx, &run.params)) }
                    @if run.task_params.as_object().is_some_and(|params| !params.is_empty()) { h3 { (t!(ctx, "task-params-json")) } (value(ctx, &run.task_params)) }
                }
                section.panel {
                    h2 { (t!(ctx, "facts")) }
                    dl.facts {
                        dt { (t!(ctx, "id")) } dd { code { (run.id) } }
                        dt { (t!(ctx, "logical-time")) } dd { (time_exact(ctx, run.logical_time)) }
                        dt { (t!(ctx, "data-interval")) } dd { (time_exact(ctx, run.data_interval.start)) " – " (time_exact(ctx, run.data_interval.end)) }
                        dt { (t!(ctx, "priority")) } dd { (run.priority) }
                        dt { (t!(ctx, "created")) } dd { (time_exact(ctx, run.created_at)) }
                        @if let Some(source) = &run.source { dt { (t!(ctx, "source")) } dd { @if run.trigger == Trigger::Backfill { a href={ "/backfills/" (source) } title=(source) { (t!(ctx, "backfill-of", group = &run.group)) } } @else { code { (source) } } } }
                    }
                }
                @if !run.scripts.is_empty() {
                    section.panel {
                        h2 { (t!(ctx, "scripts-by-task")) }
                        dl.facts { @for (task, script) in &run.scripts { dt.as-written { bdi { (task) } } dd { (script_link(script)) } } }
                    }
                }
            }
        }
    };
    Ok(ctx.live("data", inside))
}

/// The output of each task; for a mapped task, what its items did.
pub(in crate::pages) fn outputs(run: &Run) -> Vec<(&str, Value)> {
    run.wholes()
        .filter_map(|task| Some((task.task.as_str(), task.output.as_ref()?.value())))
        .collect()
}

/// The params of a task after merging all layers, each with the layer from which its value comes.
fn layered<'a>(layers: &[(&'static str, &'a Map<String, Value>)]) -> BTreeMap<&'a str, (&'static str, &'a Value)> {
    let mut merged = BTreeMap::new();
    for (from, layer) in layers {
        merged.extend(layer.iter().map(|(key, value)| (key.as_str(), (*from, value))));
    }
    merged
}

fn by_task(ctx: &Ctx, run: &Run, plan: &Plan, resolution: Option<&Resolution>, outputs: &[(&str, Value)]) -> Markup {
    let none = Map::new();
    let of_run = run.params.as_object().unwrap_or(&none);
    let open = plan.tasks.len() <= TASKS_OPEN;
    // Without the versions of the scripts, nothing is known about their defaults.
    let script = |index: usize| resolution.and_then(|found| found.scripts.get(index)?.as_ref());
    html! {
        section.panel {
            h2 { (t!(ctx, "params-by-task")) }
            @for (index, task) in plan.tasks.iter().take(TASKS_MAX).enumerate() {
                @let name = task.name.as_str();
                @let of_script = script(index).map_or(&none, |script| &script.defaults);
                @let of_task_run = run.task_params.get(name).and_then(Value::as_object).unwrap_or(&none);
                @let layers = [("param-script", of_script), ("param-group", &plan.spec.params), ("param-task", &task.spec.params), ("param-run", of_run), ("param-task-run", of_task_run)];
                details open[open] {
                    summary { bdi { (name) } }
                    (one(ctx, &layered(&layers)))
                    (upstream(ctx, run, plan, task, outputs))
                }
            }
            @if plan.tasks.len() > TASKS_MAX { p.muted { (t!(ctx, "and-more", n = plan.tasks.len() - TASKS_MAX)) } }
        }
    }
}

fn one(ctx: &Ctx, params: &BTreeMap<&str, (&'static str, &Value)>) -> Markup {
    html! {
        @if params.is_empty() { p.empty { (t!(ctx, "no-params-task")) } }
        @else {
            table.cards.params { tbody { @for (key, (from, value)) in params {
                tr {
                    td.tight { code { bdi { (key) } } }
                    td.wide { code { (cut(&value.to_string())) } }
                    td.tight.muted.side { (t!(ctx, from)) }
                }
            } } }
        }
    }
}

/// The outputs of the tasks before it, which its templates read as `upstream`.
fn upstream(ctx: &Ctx, run: &Run, plan: &Plan, task: &PlanTask, outputs: &[(&str, Value)]) -> Markup {
    let missing = |name: &str| match run.wholes().find(|task| task.task == name) {
        Some(task) if task.output_omitted == Some(true) => "output-omitted",
        _ if run.finished_at.is_some() => "no-output",
        _ => "no-output-yet",
    };
    let needs = task
        .depends_on
        .iter()
        .map(|needed| plan.tasks[*needed as usize].name.as_str());
    let found: Vec<(&str, Option<&Value>)> = needs
        .map(|name| (name, outputs.iter().find(|(of, _)| *of == name).map(|(_, value)| value)))
        .collect();
    html! {
        @if !found.is_empty() {
            table.cards.params { tbody { @for (name, output) in &found {
                tr {
                    td.tight { code { "upstream." bdi { (name) } } }
                    td.wide { @match output { Some(output) => code { (cut(&output.to_string())) }, None => span.muted { (t!(ctx, missing(name))) } } }
                    td.tight.muted.side { (t!(ctx, "param-upstream")) }
                }
            } } }
        }
    }
}

fn cut(text: &str) -> String {
    shortened(text, VALUE_CHARS)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Whether a text may stand open among others.
fn is_short(text: &str) -> bool {
    text.len() <= OPEN_BYTES_MAX && text.lines().count() <= OPEN_LINES_MAX
}

fn value(ctx: &Ctx, value: &Value) -> Markup {
    if value.as_object().is_some_and(serde_json::Map::is_empty) {
        return empty(&t!(ctx, "none"));
    }
    let mut text = pretty(value);
    let whole = text.len();
    if whole > SHOWN_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SHOWN_BYTES_MAX));
    }
    html! {
        (yaml::highlighted(&text))
        @if whole > SHOWN_BYTES_MAX { p.muted { (t!(ctx, "cut-of", bytes = crate::span::bytes(whole as i64))) } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_layer_that_has_a_param_gives_it() {
        let map = |value: Value| value.as_object().cloned().unwrap_or_default();
        let (script, task, run) = (
            map(json!({"a": 1, "b": 1})),
            map(json!({"b": 2, "c": 2})),
            map(json!({"c": 3})),
        );
        let found = layered(&[("script", &script), ("task", &task), ("run", &run)]);
        let shown: Vec<(&str, &str, String)> = found
            .iter()
            .map(|(key, (from, value))| (*key, *from, value.to_string()))
            .collect();
        let written = |key, from, value: &str| (key, from, value.to_owned());
        assert_eq!(
            shown,
            [
                written("a", "script", "1"),
                written("b", "task", "2"),
                written("c", "run", "3")
            ]
        );
    }

    #[test]
    fn a_long_output_is_folded() {
        assert!(is_short(&pretty(&json!({"a": [1, 2, 3]}))));
        let rows: Vec<u32> = (0..100).collect();
        assert!(!is_short(&pretty(&json!(rows))));
        assert!(!is_short(&pretty(&json!("x".repeat(3_000)))));
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(300)).chars().count(), VALUE_CHARS + 1);
    }
}
