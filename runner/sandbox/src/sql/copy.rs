//! `COPY`, whose rows are not those of a result: nobody would read or send them.

/// The error for such a statement.
pub(super) const REFUSED: &str = "`copy ... from stdin` and `copy ... to stdout` do not work here: their rows are no \
                                  result of a statement; use `select` to read and `insert` to write";

/// Whether a statement is a `COPY`: by its first word, after white space and comments.
pub(super) fn is_copy(statement: &str) -> bool {
    let mut rest = statement.trim_start();
    loop {
        rest = match (rest.strip_prefix("--"), rest.strip_prefix("/*")) {
            (Some(comment), _) => comment.split_once('\n').map_or("", |(_, rest)| rest),
            (None, Some(comment)) => behind_comment(comment),
            (None, None) => break,
        }
        .trim_start();
    }
    let word = rest
        .split(|c: char| !c.is_ascii_alphabetic())
        .next()
        .unwrap_or_default();
    word.eq_ignore_ascii_case("copy")
}

/// The text after a comment that has begun. Comments nest.
fn behind_comment(mut text: &str) -> &str {
    let mut open = 1;
    while open > 0 {
        let (end, begin) = (text.find("*/"), text.find("/*"));
        let (step, at) = match (end, begin) {
            (Some(end), Some(begin)) if begin < end => (1, begin),
            (Some(end), _) => (-1, end),
            (None, _) => return "",
        };
        open += step;
        text = &text[at + 2..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_counts() {
        for statement in [
            "copy a to stdout",
            "  COPY(select 1) TO STDOUT",
            "-- why\n/* a /* b */ c */ Copy a from stdin",
        ] {
            assert!(is_copy(statement), "{statement}");
        }
        for statement in [
            "",
            "select 1 as copy",
            "copying",
            "-- copy",
            "/* copy",
            "/* */ select 'copy a to stdout'",
        ] {
            assert!(!is_copy(statement), "{statement}");
        }
    }
}
