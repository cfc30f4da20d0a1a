//! How errors are logged: with all of their causes, each once.

use std::error::Error;
use std::fmt;

/// An error and its causes as one line: `cannot claim: a statement failed: live/claim.rs:71: SQLSTATE 42P01: ...`.
///
/// An error should show its own text and not its cause's, but some libraries repeat their cause. A cause whose text was
/// already shown is left out.
///
/// ```
/// # use heddle_domain::Chain;
/// # let error = std::io::Error::other("no such file");
/// assert_eq!(Chain(&error).to_string(), "no such file");
/// ```
pub struct Chain<'a>(pub &'a (dyn Error + 'a));

/// How many causes are looked at: an error that is its own cause must not fill the log.
pub const CAUSES_MAX: usize = 16;

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        let mut cause = self.0.source();
        for _ in 0..CAUSES_MAX {
            let Some(error) = cause else { break };
            let text = error.to_string();
            if !said.contains(&text) {
                said.push_str(": ");
                said.push_str(&text);
            }
            cause = error.source();
        }
        f.write_str(&said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    fn chain(texts: &[&'static str]) -> String {
        let mut cause = None;
        for text in texts.iter().rev() {
            cause = Some(Box::new(Link { text, cause }));
        }
        Chain(&*cause.unwrap()).to_string()
    }

    #[test]
    fn every_cause_is_shown_once() {
        assert_eq!(
            chain(&["cannot claim", "an SQL statement failed", "no such table"]),
            "cannot claim: an SQL statement failed: no such table"
        );
        assert_eq!(
            chain(&["wrapped: no such table", "no such table"]),
            "wrapped: no such table"
        );
        assert_eq!(chain(&["alone"]), "alone");
    }
}
