//! What a script imports, and what a task has to grant for it.

use maud::{Markup, html};

use crate::Ctx;
use crate::elements::{empty, prose};
use crate::pages::script_text::is_text;
use crate::words::t;

/// What an import means for the users of a script: a part of its name, and the key of a sentence.
const NEEDS: [(&str, &str); 6] = [
    ("heddle:task/sql", "needs-sql"),
    ("heddle:task/secret", "needs-secret"),
    ("wasi:http/outgoing-handler", "needs-http"),
    ("heddle:task/enqueue", "needs-enqueue"),
    ("heddle:task/notify", "needs-notify"),
    ("heddle:task/state", "needs-state"),
];

/// What the active version imports from Heddle, and what a task has to grant for it.
pub(super) fn imports(ctx: &Ctx, names: &[String]) -> Markup {
    let needs: Vec<&str> = NEEDS
        .iter()
        .filter(|(part, _)| names.iter().any(|name| name.starts_with(part)))
        .map(|(_, sentence)| *sentence)
        .collect();
    html! {
        section.panel {
            h2 { (t!(ctx, "needs")) }
            @if needs.is_empty() { (empty(&t!(ctx, "needs-nothing"))) }
            ul.sentences { @for sentence in &needs { li { (prose(&t!(ctx, sentence))) } } }
            details #imports { summary { (t!(ctx, "imports-count", n = names.len())) } ul.mono { @for name in names { li { (name) } } } }
        }
    }
}

/// Whether a script may call what only a task of a group grants, and an attempt without a run has not. A text does not say
/// what it calls.
pub(super) fn lacks_grants(world: &str, imports: Option<&[String]>) -> bool {
    let granted = |name: &String| {
        NEEDS
            .iter()
            .any(|(part, by)| name.starts_with(part) && *by != "needs-http")
    };
    is_text(world) || imports.is_some_and(|names| names.iter().any(granted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_says_what_it_cannot_grant() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let task = "heddle:task/task";
        assert!(lacks_grants("source/typescript", None));
        assert!(lacks_grants(
            task,
            Some(&names(&["heddle:task/log@1.0.0", "heddle:task/sql@1.0.0"]))
        ));
        assert!(!lacks_grants(
            task,
            Some(&names(&["heddle:task/log@1.0.0", "wasi:http/outgoing-handler@0.2.0"]))
        ));
        assert!(!lacks_grants(task, None));
    }
}
