//! Problems (RFC 9457): the body of every answer that reports an error.

use std::fmt;

use heddle_domain::{Fault, Faults};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A problem body (RFC 9457): why a request failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Always `about:blank`: `status` is the kind of problem.
    pub r#type: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status, a number.
    pub status: u16,
    /// The cause, in one sentence, with what to do.
    pub detail: String,
    /// Each error in the request, at most 100. Empty where no place in the request is at fault.
    #[serde(default)]
    pub errors: Vec<ProblemFault>,
    /// With 409: the id of the object that already exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
}

/// One error in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemFault {
    /// The place: a JSON pointer (RFC 6901) into the request body. Empty: the whole body.
    #[schemars(extend("format" = "json-pointer"))]
    pub pointer: String,
    /// What is wrong at this place, and what is allowed.
    pub detail: String,
    /// If a JSON Schema requires a property that the object at `pointer` lacks: the name of the property.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// For source text: the line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// For source text: the character in the line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// For source text: the text of the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl fmt::Display for ProblemFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Fault::at(&self.pointer, &self.detail), f)
    }
}

impl Problem {
    /// Whether the detail only repeats the errors: a server that has one thing to say says it in both places; of several,
    /// the first, and how many there are.
    fn is_repeated(&self) -> bool {
        let first = self.errors.first();
        first.is_some_and(|first| self.detail.starts_with(&first.to_string()))
    }

    /// Each thing that it says, once: the detail, unless it only repeats the errors, then each error.
    pub fn lines(&self) -> Vec<String> {
        let detail = Some(&self.detail).filter(|detail| !detail.is_empty() && !self.is_repeated());
        let errors = self.errors.iter().map(ToString::to_string);
        detail.cloned().into_iter().chain(errors).collect()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repeated = self.is_repeated();
        match self.errors.as_slice() {
            [_] if repeated => return f.write_str(&self.detail),
            errors if repeated && errors.len() >= Faults::MAX => write!(f, "the first {} errors:", errors.len())?,
            errors if repeated => write!(f, "{} errors:", errors.len())?,
            _ if self.detail.is_empty() => write!(f, "{} {}", self.status, self.title)?,
            _ => f.write_str(&self.detail)?,
        }
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once() {
        let check = |detail: &str, errors: &[(&str, &str)], expect: &str, lines: &[&str]| {
            let problem = Problem {
                status: 422,
                title: "Unprocessable Entity".into(),
                detail: detail.into(),
                errors: errors
                    .iter()
                    .map(|(pointer, detail)| ProblemFault {
                        pointer: (*pointer).into(),
                        detail: (*detail).into(),
                        ..ProblemFault::default()
                    })
                    .collect(),
                ..Problem::default()
            };
            assert_eq!(problem.to_string(), expect);
            assert_eq!(problem.lines(), lines);
        };
        check("no such thing", &[], "no such thing", &["no such thing"]);
        check("", &[], "422 Unprocessable Entity", &[]);
        check("/a: bad", &[("/a", "bad")], "/a: bad", &["/a: bad"]);
        check("bad", &[("", "bad")], "bad", &["bad"]);
        check(
            "/a: bad (and 1 more)",
            &[("/a", "bad"), ("/b", "worse")],
            "2 errors:\n  /a: bad\n  /b: worse",
            &["/a: bad", "/b: worse"],
        );
        let errors = [("/a", "bad"); Faults::MAX];
        let lines = ["/a: bad"; Faults::MAX];
        let expect = format!("the first 100 errors:{}", "\n  /a: bad".repeat(Faults::MAX));
        check("/a: bad (and more)", &errors, &expect, &lines);
        check(
            "it is bad",
            &[("/a", "bad")],
            "it is bad\n  /a: bad",
            &["it is bad", "/a: bad"],
        );
    }
}
