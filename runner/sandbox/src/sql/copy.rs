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

/// The text after a comment that has begun.
fn behind_comment(text: &str) -> &str {
    end_of_comment(text.bytes()).map_or("", |end| &text[end..])
}

/// Where a comment ends that begins with these bytes. Comments nest, and half a million of them fit into a statement: so
/// each byte is read once.
fn end_of_comment(bytes: impl Iterator<Item = u8>) -> Option<usize> {
    let mut open = 1_usize;
    let mut before = None;
    for (at, byte) in bytes.enumerate() {
        // The bytes of one mark belong to no other: `*/*` ends a comment, and begins none.
        before = match (before, byte) {
            (Some(b'*'), b'/') => {
                open -= 1;
                if open == 0 {
                    return Some(at + 1);
                }
                None
            }
            (Some(b'/'), b'*') => {
                open += 1;
                None
            }
            _ => Some(byte),
        };
    }
    None
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
            "/* a /*/ b */*/copy a to stdout",
            "/***/copy a to stdout",
        ] {
            assert!(is_copy(statement), "{statement}");
        }
        for statement in [
            "",
            "select 1 as copy",
            "copying",
            "-- copy",
            "/* copy",
            "/* a /* b */ copy a to stdout",
            "/*/copy a to stdout",
            "/* */ select 'copy a to stdout'",
        ] {
            assert!(!is_copy(statement), "{statement}");
        }
    }

    /// A statement of the largest size, of nothing but comments in comments.
    #[test]
    fn each_byte_of_nested_comments_is_read_once() {
        let comments = (1 << 20) / 4;
        let text = format!("{}{}", "/*".repeat(comments), "*/".repeat(comments));
        let mut read = 0;
        let inner = text[2..].bytes().inspect(|_| read += 1);
        assert_eq!(end_of_comment(inner), Some(text.len() - 2));
        assert_eq!(read, text.len() - 2);
        // Never closed.
        let mut read = 0;
        let endless = text[..text.len() - 2].bytes().skip(2).inspect(|_| read += 1);
        assert_eq!(end_of_comment(endless), None);
        assert_eq!(read, text.len() - 4);
        assert!(is_copy(&format!("{text} copy a to stdout")));
    }
}
