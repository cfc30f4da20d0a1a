//! The error of a statement, and whether another try is useful.

use std::error::Error;

use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, storable_text};

/// How many bytes of an error message are kept for the SQLSTATE, which comes after the server's text.
const CODE_BYTES: usize = 64;

/// An error of the server as one message. A statement can raise a text of any length, so each part is cut before it is
/// copied. What was cut goes through `cut`: later, nobody could see where in the message that was.
pub(super) fn message_of(
    text: &str,
    code: &str,
    more: [Option<&str>; 2],
    cut: &(dyn Fn(String) -> String + Send + Sync),
) -> String {
    let within = |text: &str, bytes_max: usize| {
        let kept = storable_text(text, bytes_max);
        match text.len() > bytes_max {
            true => cut(kept),
            false => kept,
        }
    };
    let text = within(text, ERROR_MESSAGE_BYTES_MAX - CODE_BYTES);
    let mut message = format!("{text} (SQLSTATE {code})");
    for more in more.into_iter().flatten() {
        message.push_str("; ");
        let left = ERROR_MESSAGE_BYTES_MAX.saturating_sub(message.len());
        message.push_str(&within(more, left));
    }
    message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES_MAX));
    message
}

/// An error of connecting, for the log: only its kind. The texts of its causes may name the address: that of a
/// certificate for another host names both hosts, and that of a socket its path.
pub(super) fn without_address(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    for cause in causes.take(heddle_domain::chain::CAUSES_MAX) {
        let Some(io) = cause.downcast_ref::<std::io::Error>() else {
            continue;
        };
        let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(_)) => said.push_str(": the server's certificate is not accepted"),
            _ => said.push_str(&format!(": {}", io.kind())),
        }
    }
    said
}

/// A statement that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For people; with the SQLSTATE, without the address.
    pub message: String,
    /// What can be done about it.
    pub class: Class,
}

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Not caused by the statement: it may well succeed later. It is not always known whether it was executed.
    Passing,
    /// It was stopped because it took too long.
    Timeout,
    /// Its result is larger than allowed.
    TooMuch,
    /// Caused by the statement, its parameters or its rights: the same would fail again.
    Fatal,
}

impl Failure {
    pub(super) fn passing(message: String) -> Self {
        Self {
            message,
            class: Class::Passing,
        }
    }

    pub(super) fn fatal(message: String) -> Self {
        Self {
            message,
            class: Class::Fatal,
        }
    }
}

/// Whether an error says that something prepared or planned in the session does not exist any more, or does not fit the
/// tables any more: another session does not have this problem. The name of the server's routine tells these from other
/// errors with the same code, in any language.
pub(super) fn is_stale(code: &str, routine: Option<&str>) -> bool {
    code == "26000" || code == "0A000" && routine == Some("RevalidateCachedQuery")
}

impl Class {
    /// From a SQLSTATE (PostgreSQL, appendix A): by its class, its first two characters, with a few exceptions.
    pub(super) fn of(code: &str, message: &str, read_only: bool) -> Self {
        match code {
            "57014" if message.contains("statement timeout") => Self::Timeout,
            // Somebody has locked the object, or uses it.
            "55P03" | "55006" => Self::Passing,
            // The server is a standby, as after a failover; not if we asked for read-only.
            "25006" if !read_only => Self::Passing,
            // Connection, rollback (serialization, deadlock), resources, an operator's action, the system, an error of
            // the server.
            _ => match code.get(..2) {
                Some("08" | "40" | "53" | "57" | "58" | "XX") => Self::Passing,
                _ => Self::Fatal,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_bounded_and_keeps_its_code() {
        let message_of = |text: &str, code: &str, more: [Option<&str>; 2]| message_of(text, code, more, &|text| text);
        let said = message_of("no", "P0001", [None, Some("try this")]);
        assert_eq!(said, "no (SQLSTATE P0001); try this");
        let long = "é".repeat(1_000_000);
        let said = message_of(&long, "P0001", [Some(&long), Some(&long)]);
        assert!(said.contains("é (SQLSTATE P0001); "), "{said}");
        assert!(said.len() <= ERROR_MESSAGE_BYTES_MAX, "{}", said.len());
        let said = message_of("no", "P0001", [Some(&long), None]);
        assert!(said.starts_with("no (SQLSTATE P0001); é"), "{said}");
        assert!(said.len() <= ERROR_MESSAGE_BYTES_MAX, "{}", said.len());
    }

    #[test]
    fn no_part_of_a_secret_stays_where_a_message_is_cut() {
        // In each part, the secret begins 4 bytes before the cut.
        let cut = |text: String| match text.strip_suffix("hunt") {
            Some(before) => format!("{before}***"),
            None => text,
        };
        let behind = |bytes: usize| format!("{}hunter2", "x".repeat(bytes - 4));
        let text = behind(ERROR_MESSAGE_BYTES_MAX - CODE_BYTES);
        let said = message_of(&text, "P0001", [None, None], &cut);
        assert!(said.ends_with("x*** (SQLSTATE P0001)"), "{said}");
        let before = "no (SQLSTATE P0001); ";
        let detail = behind(ERROR_MESSAGE_BYTES_MAX - before.len());
        let said = message_of("no", "P0001", [Some(&detail), None], &cut);
        assert!(said.starts_with(before) && said.ends_with("x***"), "{said}");
        // What is whole is masked as a whole, later.
        let said = message_of("hunt", "P0001", [Some("hunt"), None], &cut);
        assert_eq!(said, "hunt (SQLSTATE P0001); hunt");
    }

    /// An error with a text that names no address, and a cause with one that may.
    #[derive(Debug)]
    struct Handshake(std::io::Error);

    impl std::fmt::Display for Handshake {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("error performing TLS handshake")
        }
    }

    impl Error for Handshake {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_failed_connection_names_no_address() {
        use rustls::CertificateError::NotValidForNameContext;
        use std::io::ErrorKind;
        let elsewhere = rustls::Error::InvalidCertificate(NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from("db.internal").unwrap(),
            presented: vec!["DnsName(\"other.internal\")".into()],
        });
        let said = |cause: std::io::Error| without_address(&Handshake(cause));
        let cause = std::io::Error::new(ErrorKind::InvalidData, elsewhere);
        assert!(cause.to_string().contains("db.internal"), "{cause}");
        assert_eq!(
            said(cause),
            "error performing TLS handshake: the server's certificate is not accepted"
        );
        assert_eq!(
            said(std::io::Error::new(ErrorKind::NotFound, "no db.internal")),
            "error performing TLS handshake: entity not found"
        );
    }

    #[test]
    fn what_only_this_session_has() {
        assert!(is_stale("26000", None));
        assert!(is_stale("0A000", Some("RevalidateCachedQuery")));
        assert!(!is_stale("0A000", Some("exec_stmt_raise")));
        assert!(!is_stale("0A000", None));
        assert!(!is_stale("42P01", Some("RevalidateCachedQuery")));
    }

    #[test]
    fn what_is_worth_another_try() {
        for (code, class) in [
            ("40001", Class::Passing),
            ("40P01", Class::Passing),
            ("08006", Class::Passing),
            ("57P01", Class::Passing),
            ("53300", Class::Passing),
            ("55P03", Class::Passing),
            ("25006", Class::Passing),
            ("42601", Class::Fatal),
            ("42501", Class::Fatal),
            ("23505", Class::Fatal),
            ("22012", Class::Fatal),
            ("28P01", Class::Fatal),
            ("P0001", Class::Fatal),
            ("", Class::Fatal),
        ] {
            assert_eq!(Class::of(code, "", false), class, "{code}");
        }
        assert_eq!(Class::of("25006", "", true), Class::Fatal);
        let timeout = "canceling statement due to statement timeout";
        assert_eq!(Class::of("57014", timeout, false), Class::Timeout);
        assert_eq!(
            Class::of("57014", "canceling statement due to user request", false),
            Class::Passing
        );
    }
}
