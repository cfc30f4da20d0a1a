//! The key of a form that starts runs. The page makes it, and the form carries it. So whoever sends the form twice, with a
//! second press or because an answer was lost, starts its runs once: the API refuses the key of a run that is there.

use heddle_api::Run;
use heddle_domain::Chance;
use maud::{Markup, html};

use crate::ctx::segment;
use crate::form::field as field_of;
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

/// The name of the field.
pub(crate) const FIELD: &str = "once";

/// A form that was not sent yet.
pub(crate) const NEW: &[(String, String)] = &[];

/// What the keys of forms begin with. Such a key says nothing to people, and is not shown.
const PREFIX: &str = "page/";

/// How many hexadecimal digits follow: 128 bits.
const DIGITS: usize = 32;

/// Whether a run has its key from a form.
pub(crate) fn is_ours(key: &str) -> bool {
    let digits = key.strip_prefix(PREFIX).and_then(|rest| rest.get(..DIGITS));
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The key that a form carries.
pub(crate) fn of(form: &[(String, String)]) -> Option<&str> {
    field_of(form, FIELD).filter(|key| is_ours(key))
}

/// The field with the key. A form that was refused keeps its key; one that is [`NEW`] gets another. A browser does not
/// keep the field when the page is loaded again. A page to which somebody comes back has the key that it had: perhaps the
/// answer to its form was lost on the way.
pub(crate) fn field(ctx: &Ctx, form: &[(String, String)]) -> Markup {
    let key = match of(form) {
        Some(kept) => kept.to_owned(),
        None => format!("{PREFIX}{:032x}", ctx.ui.engine.chance().bits()),
    };
    html! { input type="hidden" name=(FIELD) value=(key) autocomplete="off"; }
}

/// Leads to the run that a form has started: with this answer of the API, or when it was sent before.
pub(crate) async fn started(
    ctx: &Ctx,
    form: &[(String, String)],
    answer: Result<Run, Trouble>,
) -> Result<Answer, Trouble> {
    let (run, said) = match answer {
        Ok(run) => (run, t!(ctx, "said-started")),
        Err(trouble) => match before(ctx, form, &trouble).await {
            Some(run) => (run, t!(ctx, "said-started-before")),
            None => return Err(trouble),
        },
    };
    Ok(Answer::Go {
        to: format!("/runs/{}", run.id),
        said: Some(said),
    })
}

/// The run that the form has started before, if that is why the API refused it.
async fn before(ctx: &Ctx, form: &[(String, String)], trouble: &Trouble) -> Option<Run> {
    let (key, existing) = (of(form)?, trouble.existing.as_deref()?);
    let run: Run = ctx.get(&format!("/v1/runs/{}", segment(existing))).await.ok()?;
    (run.key.as_deref() == Some(key)).then_some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_form_is_told_from_those_that_people_write() {
        let own = format!("{PREFIX}{:032x}", 7);
        assert!(is_ours(&own) && is_ours(&format!("{own}/01a212fe-2a81-7000-8002-1154d649980d")));
        let wide = "页".repeat(40);
        for other in ["", "page/", "page/4711", "orders/1", &own[1..], wide.as_str()] {
            assert!(!is_ours(other), "{other}");
        }
        let form = [(FIELD.to_owned(), own.clone())];
        assert_eq!(of(&form), Some(own.as_str()));
        assert_eq!(of(&[(FIELD.to_owned(), "mine".to_owned())]), None);
        assert_eq!(of(&[]), None);
    }
}
