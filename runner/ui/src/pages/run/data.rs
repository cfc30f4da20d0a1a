//! What went into a run and what came out: params, outputs.

use maud::{Markup, html};
use serde_json::Value;

use super::view::Run;
use crate::Ctx;
use crate::elements::{empty, script_link, time_exact};
use crate::words::t;
use crate::yaml;

/// Bytes of an output that are shown.
const SHOWN_BYTES_MAX: usize = 20_000;

pub(super) fn inside(ctx: &Ctx, run: &Run) -> Markup {
    let interval = &run.raw["data_interval"];
    let at = |value: &Value| value.as_str().and_then(crate::elements::parse);
    let outputs: Vec<(&str, &Value)> = run.raw["tasks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|task| task["item"].is_null() && !task["output"].is_null())
        .filter_map(|task| Some((task["task"].as_str()?, &task["output"])))
        .collect();
    let inside = html! {
        div.two {
            section.panel {
                h2 { (t!(ctx, "outputs")) }
                @if outputs.is_empty() { (empty(&t!(ctx, "no-outputs"))) }
                @for (task, output) in outputs { details open { summary { bdi { (task) } } (value(ctx, output)) } }
            }
            div.stack {
                section.panel {
                    h2 { (t!(ctx, "params")) }
                    (value(ctx, &run.raw["params"]))
                    @if run.raw["task_params"].as_object().is_some_and(|params| !params.is_empty()) { h3 { (t!(ctx, "task-params-json")) } (value(ctx, &run.raw["task_params"])) }
                }
                section.panel {
                    h2 { (t!(ctx, "facts")) }
                    dl.facts {
                        dt { (t!(ctx, "id")) } dd { code { (run.id) } }
                        dt { (t!(ctx, "logical-time")) } dd { (time_exact(ctx, run.logical_time)) }
                        @if let (Some(from), Some(to)) = (at(&interval["start"]), at(&interval["end"])) { dt { (t!(ctx, "data-interval")) } dd { (time_exact(ctx, from)) " – " (time_exact(ctx, to)) } }
                        dt { (t!(ctx, "priority")) } dd { (run.raw["priority"]) }
                        dt { (t!(ctx, "created")) } dd { (time_exact(ctx, run.created_at)) }
                        @if let Some(source) = run.raw["source"].as_str() { dt { (t!(ctx, "source")) } dd { @if run.trigger == "backfill" { a href={ "/backfills/" (source) } { (source) } } @else { code { (source) } } } }
                        @for (task, script) in run.raw["scripts"].as_object().into_iter().flatten() { dt { bdi { (task) } } dd { (script_link(script.as_str().unwrap_or_default())) } }
                    }
                }
            }
        }
    };
    ctx.live("data", inside)
}

fn value(ctx: &Ctx, value: &Value) -> Markup {
    if value.as_object().is_some_and(serde_json::Map::is_empty) {
        return empty(&t!(ctx, "none"));
    }
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    let whole = text.len();
    if whole > SHOWN_BYTES_MAX {
        let mut end = SHOWN_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    html! {
        (yaml::highlighted(&text))
        @if whole > SHOWN_BYTES_MAX { p.muted { (t!(ctx, "cut-of", bytes = crate::span::bytes(whole as i64))) } }
    }
}
