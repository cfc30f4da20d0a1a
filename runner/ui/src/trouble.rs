//! Why a page cannot be shown, or a form was refused.

use std::ops::Deref;

use heddle_api::{Problem, ProblemFault};
use heddle_domain::Chain;
use heddle_engine::EngineError;
use heddle_store::StoreError;

use crate::words::Lang;
use crate::yaml;

/// A problem: the API's, or one of the pages. Boxed, because each answer of a page has room for it.
#[derive(Clone, Debug)]
pub(crate) struct Trouble(Box<Problem>);

impl Deref for Trouble {
    type Target = Problem;
    fn deref(&self) -> &Problem {
        &self.0
    }
}

impl Trouble {
    pub(crate) fn new(status: u16, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem {
            status,
            detail: detail.into(),
            ..Problem::default()
        }))
    }

    /// Something that was written in a form is not valid: where, and why.
    pub(crate) fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::of_faults(vec![fault(pointer, detail)])
    }

    /// The same with several errors.
    pub(crate) fn of_faults(errors: Vec<ProblemFault>) -> Self {
        Self(Box::new(Problem {
            status: 422,
            errors,
            ..Problem::default()
        }))
    }

    /// The same problem with its errors in other words.
    pub(crate) fn retold(mut self, tell: impl Fn(&mut ProblemFault)) -> Self {
        // A detail that only repeats the errors would still repeat their old texts.
        if self.lines().len() == self.errors.len() {
            self.0.detail.clear();
        }
        self.0.errors.iter_mut().for_each(tell);
        self
    }

    /// What is wrong with a field, if anything is: the errors at its pointer or below.
    pub(crate) fn of_field(&self, pointer: &str) -> Option<String> {
        let own = self.errors.iter().filter(|one| is_within(one, pointer));
        let details: Vec<&str> = own.map(|one| one.detail.as_str()).collect();
        (!details.is_empty()).then(|| details.join("\n"))
    }

    pub(crate) fn not_found() -> Self {
        Self::new(404, "")
    }

    /// The problem that the API answered.
    pub(crate) fn of_problem(status: u16, problem: Problem) -> Self {
        Self(Box::new(Problem { status, ..problem }))
    }

    /// The whole problem as text, in the words of the API.
    pub(crate) fn sentence(&self) -> String {
        self.lines().join("\n")
    }

    /// The same for people: a field is named by its label, not by its pointer.
    pub(crate) fn said(&self, lang: Lang) -> String {
        self.in_words(lang, None)
    }

    /// The same for a text that somebody wrote, with the numbers of the lines.
    pub(crate) fn said_of(&self, lang: Lang, text: &str) -> String {
        // A page has no body: what it sends as one is a spec.
        self.in_words(lang, Some(text))
            .replacen("the body is not YAML", "the spec is not YAML", 1)
    }

    fn in_words(&self, lang: Lang, text: Option<&str>) -> String {
        // If no error names a field or a line, the detail is shown once, and no list of errors.
        let is_located = |fault: &ProblemFault| !fault.pointer.is_empty() || fault.line.is_some();
        if !self.errors.iter().any(is_located) {
            return self.sentence();
        }
        let mut lines = self.lines();
        lines.truncate(lines.len() - self.errors.len());
        lines.extend(self.errors.iter().map(|fault| {
            let found = || text.and_then(|text| yaml::line_of(text, &fault.pointer));
            let line = fault.line.map(i64::from).or_else(found);
            let line = line.map(|n| lang.t("line-n", &[("n", n.into())]));
            let label = label(lang, &fault.pointer, text.is_some());
            let location: Vec<String> = line.into_iter().chain(label).collect();
            // In a spec, a field has no other name than the API's.
            let detail = if text.is_some() {
                fault.detail.as_str()
            } else {
                at_label(fault)
            };
            match location.is_empty() {
                true => fault.detail.clone(),
                false => format!("{}: {detail}", location.join(", ")),
            }
        }));
        lines.join("\n")
    }
}

/// An error at a place of a form.
pub(crate) fn fault(pointer: impl Into<String>, detail: impl Into<String>) -> ProblemFault {
    ProblemFault {
        pointer: pointer.into(),
        detail: detail.into(),
        ..ProblemFault::default()
    }
}

/// The words of an error where the label of its field stands: they need not begin with the name that the field has in the
/// API.
pub(crate) fn at_label(one: &ProblemFault) -> &str {
    let name = one.pointer.rsplit('/').next().unwrap_or_default();
    let rest = one.detail.strip_prefix('`').and_then(|rest| rest.strip_prefix(name));
    match rest.and_then(|rest| rest.strip_prefix("` ")) {
        Some(rest) if !name.is_empty() => rest,
        _ => &one.detail,
    }
}

/// Whether an error is at this pointer or below.
pub(crate) fn is_within(one: &ProblemFault, pointer: &str) -> bool {
    let rest = one.pointer.strip_prefix(pointer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Fields of forms, and the keys of their labels.
const LABELS: [(&str, &str); 29] = [
    ("from", "from"),
    ("to", "to"),
    ("step", "step"),
    ("order", "order"),
    ("max_active", "max-active"),
    ("on_existing", "existing-runs"),
    ("params", "params-json"),
    ("task_params", "task-params-json"),
    ("logical_time", "logical-time"),
    ("key", "key"),
    ("priority", "priority"),
    ("name", "name"),
    ("file", "files"),
    ("role", "role"),
    ("slots", "slots"),
    ("state", "state"),
    ("trigger", "trigger"),
    ("reason", "reason"),
    ("day", "day"),
    ("sender", "sender"),
    ("receiver", "receiver"),
    ("timeout", "timeout"),
    ("version", "version"),
    ("queues", "nav-queues"),
    ("uids", "user"),
    ("expires_at", "expires"),
    ("zone", "time-zone"),
    ("add", "add"),
    ("remove", "remove"),
];

/// The label of a form's field.
pub(crate) fn field_label(lang: Lang, name: &str) -> Option<String> {
    let (_, key) = LABELS.iter().find(|(field, _)| *field == name)?;
    Some(lang.t(key, &[]))
}

/// What a pointer points to: the label of a form's field, what it is called in the params, or its path in a text.
fn label(lang: Lang, pointer: &str, in_text: bool) -> Option<String> {
    let parts: Vec<String> = pointer
        .split('/')
        .skip(1)
        .map(|part| part.replace("~1", "/").replace("~0", "~"))
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let of_field = |name: &str| field_label(lang, name);
    match parts.as_slice() {
        [] => None,
        path if in_text => Some(path.join(".")),
        // An error about the form as a whole needs no label.
        ["filter"] => None,
        [one] | ["filter", one] => of_field(one).or_else(|| Some((*one).to_owned())),
        ["params" | "task_params", rest @ ..] => Some(rest.join(".")),
        // One of several values in one field. The detail says which.
        [one, index] if index.parse::<usize>().is_ok() => of_field(one).or_else(|| Some(parts.join("."))),
        path => Some(path.join(".")),
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::new(503, ""),
            error => {
                tracing::error!(error = %Chain(&error), "cannot read the data of a page");
                Self::new(500, "")
            }
        }
    }
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => error.into(),
            EngineError::Unavailable | EngineError::Overloaded | EngineError::NotComputed(_) => Self::new(503, ""),
            error => {
                tracing::error!(error = %Chain(&error), "cannot read the data of a page");
                Self::new(500, "")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(detail: &str, errors: &[(&str, &str)]) -> Trouble {
        let errors = errors.iter().map(|(pointer, detail)| fault(*pointer, *detail));
        Trouble(Box::new(Problem {
            status: 422,
            detail: detail.into(),
            errors: errors.collect(),
            ..Problem::default()
        }))
    }

    #[test]
    fn a_field_is_called_what_its_form_calls_it() {
        for (trouble, said) in [
            (of("a name must", &[("", "a name must")]), "a name must"),
            (of("/from: too late", &[("/from", "too late")]), "From: too late"),
            (of("/params/n: no", &[("/params/n", "no")]), "n: no"),
            (of("/filter: empty", &[("/filter", "empty")]), "empty"),
            (of("/uids/0: no", &[("/uids/0", "no")]), "User: no"),
            (
                of("", &[("/expires_at", "`expires_at` must be in the future")]),
                "Expires: must be in the future",
            ),
            (
                of("", &[("/to", "`from` must be before it")]),
                "To: `from` must be before it",
            ),
            (of("/x/0: no", &[("/x/0", "no")]), "x.0: no"),
            (
                of("/a~1b: no (and 1 more)", &[("/a~1b", "no"), ("/tasks/x", "no")]),
                "a/b: no\ntasks.x: no",
            ),
            (of("it is bad", &[("/to", "no")]), "it is bad\nTo: no"),
            (of("it is bad", &[]), "it is bad"),
        ] {
            assert_eq!(trouble.in_words(Lang::En, None), said);
        }
        assert_eq!(of("/from: x", &[("/from", "x")]).in_words(Lang::Zh, None), "从: x");
    }

    #[test]
    fn an_error_is_told_at_its_field() {
        let trouble = of("/params: no (and 1 more)", &[("/params", "no"), ("/params/n/0", "bad")]);
        assert_eq!(trouble.of_field("/params/n").as_deref(), Some("bad"));
        assert_eq!(trouble.of_field("/params").as_deref(), Some("no\nbad"));
        assert_eq!(trouble.of_field("/params/nn"), None);
        let trouble = trouble.retold(|one| one.detail.push('!'));
        assert_eq!(trouble.in_words(Lang::En, None), "Params (JSON): no!\nn.0: bad!");
    }

    #[test]
    fn a_text_has_lines() {
        let trouble = of("/tasks/b/script: no", &[("/tasks/b/script", "no")]);
        let text = "tasks:\n  a:\n    script: x\n  b:\n    script: y\n";
        assert_eq!(trouble.in_words(Lang::En, Some(text)), "line 5, tasks.b.script: no");
        let trouble = of("", &[("/tasks/b/script", "`script` is no")]);
        assert_eq!(
            trouble.in_words(Lang::En, Some(text)),
            "line 5, tasks.b.script: `script` is no"
        );
        let trouble = of("the body is not YAML: line 1", &[]);
        assert_eq!(trouble.said_of(Lang::En, text), "the spec is not YAML: line 1");
    }
}
