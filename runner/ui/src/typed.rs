//! What was typed into a form that cannot be shown again: each text with the label of its field, to be copied.

use maud::{Markup, html};

use crate::Ctx;
use crate::form::PREFIX;
use crate::trouble::field_label;
use crate::words::{Lang, t};

/// Fields of forms that nobody types: buttons, boxes, what the page itself has put into the form. And the field for a
/// token, whose text is never shown.
const NOT_TYPED: [&str; 13] = [
    "do",
    "downstream",
    "enable",
    "force",
    "group",
    "include_downstream",
    "keep",
    "lang",
    "once",
    "opened",
    "scripts",
    "token",
    "until",
];

/// Fields that no error names, and the keys of their labels.
const LABELS: [(&str, &str); 3] = [
    ("spec", "tab-spec"),
    ("text", "script-source"),
    ("output", "override-output-json"),
];

/// The most lines of a text that are shown without scrolling.
const ROWS_MAX: usize = 30;

/// The most fields that are shown: no form has as many.
const FIELDS_MAX: usize = 100;

/// The ends of the paths of buttons whose fields have names that other forms let people type.
const BUTTONS: [&str; 2] = ["/activate", "/cancel"];

/// The fields with a text of a person.
fn fields(ctx: &Ctx) -> Vec<(String, String)> {
    let is_button = BUTTONS.iter().any(|end| ctx.path.ends_with(end));
    if is_button || !ctx.posts() {
        return Vec::new();
    }
    let is_typed = |name: &str, text: &str| !NOT_TYPED.contains(&name) && !text.trim().is_empty();
    let form = ctx.form().into_iter();
    form.filter(|(name, text)| is_typed(name, text))
        .take(FIELDS_MAX)
        .collect()
}

/// What the form calls a field. A param has its own name.
fn label(lang: Lang, name: &str) -> String {
    if let Some(param) = name.strip_prefix(PREFIX) {
        return param.to_owned();
    }
    let own = LABELS.iter().find(|(field, _)| *field == name);
    own.map(|(_, key)| lang.t(key, &[]))
        .or_else(|| field_label(lang, name))
        .unwrap_or_else(|| name.to_owned())
}

/// Whether anything was typed into the form.
pub(crate) fn is_any(ctx: &Ctx) -> bool {
    !fields(ctx).is_empty()
}

/// The texts, each in a field that cannot be changed.
pub(crate) fn shown(ctx: &Ctx) -> Markup {
    let fields = fields(ctx);
    html! {
        @if !fields.is_empty() {
            section.panel {
                h2 { (t!(ctx, "typed-kept")) }
                div.stack {
                    @for (name, text) in &fields {
                        label.field {
                            span { (label(ctx.lang, name)) }
                            // HTML drops a line end right after the tag.
                            textarea readonly rows=(text.lines().count().clamp(1, ROWS_MAX)) spellcheck="false" { "\n" (text) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_called_what_its_form_calls_it() {
        for (name, said) in [
            ("spec", "Spec"),
            ("text", "Source"),
            ("logical_time", "Logical time"),
            ("p.spec", "spec"),
            ("other", "other"),
        ] {
            assert_eq!(label(Lang::En, name), said);
        }
        for (_, key) in LABELS {
            assert_ne!(Lang::Zh.t(key, &[]), key);
        }
    }
}
