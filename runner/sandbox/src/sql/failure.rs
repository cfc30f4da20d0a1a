//! What went wrong with a statement, and whether it is worth another try.

/// A statement that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What people read; with the SQLSTATE, without the address.
    pub message: String,
    /// What may be done about it.
    pub class: Class,
}

/// What may be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing to do with the statement: it may well succeed later. Whether it was carried out is not always known.
    Passing,
    /// It was stopped because it took too long.
    Timeout,
    /// It gives more than is allowed.
    TooMuch,
    /// The statement, its parameters or what it may do: the same again would fail again.
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

impl Class {
    /// Of a SQLSTATE (PostgreSQL, appendix A): by its class, which is its first two characters, but for a few.
    pub(super) fn of(code: &str, message: &str, read_only: bool) -> Self {
        match code {
            "57014" if message.contains("statement timeout") => Self::Timeout,
            // Somebody locks what is asked for, or uses it.
            "55P03" | "55006" => Self::Passing,
            // The server is a standby, as after a failover; not if we asked for it.
            "25006" if !read_only => Self::Passing,
            // Connection, rolled back (serialization, deadlock), resources, an operator's hand, the system, a bug of the
            // server's.
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
