//! States, and all that may follow what. `docs/state-machine.md` draws them; the schema CHECKs the same values.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

macro_rules! states {
    ($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $vdoc:literal])* $variant:ident = $number:literal $text:literal),+ $(,)?
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(i16)]
        pub enum $name { $($(#[doc = $vdoc])* $variant = $number),+ }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word that API and docs use.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The number that the database keeps.
            pub fn number(self) -> i16 {
                self as i16
            }

            /// The state of a number that the database kept.
            pub fn from_number(number: i16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                // As the derived schema of an enum would be: each word with what it means.
                let words = [$(json_schema!({"const": $text, "description": concat!($($vdoc),+).trim()})),+];
                json_schema!({"description": concat!($($doc),+).trim(), "oneOf": words})
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("`{text}` is not one of {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}

states! {
    /// The state of a run.
    RunState {
        /// It waits for upstream groups or for its turn.
        Waiting = 0 "waiting",
        /// Its tasks are running or can run.
        Running = 1 "running",
        /// No new task run starts until it is resumed.
        Paused = 2 "paused",
        /// It has ended, and no task run failed without `allow_failure`.
        Succeeded = 3 "succeeded",
        /// It has ended, and at least one task run failed without `allow_failure`.
        Failed = 4 "failed",
        /// It was cancelled by a person, a deadline or `overlap`.
        Cancelled = 5 "cancelled",
    }
}

impl RunState {
    /// The states to which an operator can set a run.
    pub const OVERRIDES: [Self; 2] = [Self::Succeeded, Self::Failed];

    /// Whether the run has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

states! {
    /// The state of a task run.
    TaskState {
        /// It waits for its dependencies.
        Pending = 0 "pending",
        /// It can start. (A claimed task run is shown as `running`, although its stored state is `ready`.)
        Ready = 1 "ready",
        /// An attempt is running.
        Running = 2 "running",
        /// The last attempt failed, and the next one starts later.
        Retrying = 3 "retrying",
        /// It would be ready, but the run is paused.
        Paused = 4 "paused",
        /// It has returned an output.
        Succeeded = 5 "succeeded",
        /// It failed, and no retries are left.
        Failed = 6 "failed",
        /// It was not needed: a condition, a trigger rule or the script skipped it.
        Skipped = 7 "skipped",
        /// It did not run, because a dependency failed.
        UpstreamFailed = 8 "upstream_failed",
        /// It was interrupted or did not start, because the run was cancelled.
        Cancelled = 9 "cancelled",
    }
}

impl TaskState {
    /// The states to which an operator can set a task run.
    pub const OVERRIDES: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Skipped];

    /// Whether dependants can rely on it.
    pub fn is_settled(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Skipped | Self::UpstreamFailed | Self::Cancelled
        )
    }
}

states! {
    /// Why a run that was due was skipped. Its state is `cancelled`.
    Skip {
        /// An earlier run was active, or a later run replaced it.
        Overlap = 1 "overlap",
        /// More runs waited than `max_waiting` of the group allows.
        MaxWaiting = 2 "max_waiting",
    }
}

states! {
    /// The state of an attempt.
    AttemptState {
        /// A node or worker is working on it.
        Running = 0 "running",
        /// It returned an output.
        Succeeded = 1 "succeeded",
        /// It returned a failure, trapped, or exceeded a limit.
        Failed = 2 "failed",
        /// It exceeded its timeout.
        TimedOut = 3 "timed_out",
        /// Its node or worker stopped or lost its lease.
        Lost = 4 "lost",
        /// It was interrupted by a cancel or an override.
        Cancelled = 5 "cancelled",
    }
}

states! {
    /// The trigger: why a run was created.
    Trigger {
        /// By a person or a program, with the API, the CLI or the UI.
        Manual = 0 "manual",
        /// By a schedule of the group.
        Schedule = 1 "schedule",
        /// By a backfill of the group.
        Backfill = 2 "backfill",
        /// By the success of upstream groups.
        Upstream = 3 "upstream",
        /// By a task: a sub-run, or a script's `enqueue`.
        Task = 4 "task",
        /// By a rerun of another run.
        Rerun = 5 "rerun",
    }
}

states! {
    /// The kind of failure of an attempt.
    ErrorKind {
        /// The script returned a retryable failure.
        Failed = 0 "failed",
        /// The script returned a fatal failure; it is not retried.
        Fatal = 1 "fatal",
        /// The wasm code trapped.
        Trap = 2 "trap",
        /// The attempt exceeded its timeout.
        Timeout = 3 "timeout",
        /// The attempt exceeded its memory limit.
        Memory = 4 "memory",
        /// The output exceeded its limit.
        Output = 5 "output",
        /// The node or worker was lost.
        Lost = 6 "lost",
        /// An HTTP request failed or was refused.
        Http = 7 "http",
        /// Params, a template or an output are not valid; it is not retried.
        Invalid = 8 "invalid",
    }
}

states! {
    /// The level of a log line.
    LogLevel {
        /// The most detailed level, for each step.
        Trace = 0 "trace",
        /// Information for the search for an error.
        Debug = 1 "debug",
        /// The normal level, for everyone.
        Info = 2 "info",
        /// Something may be wrong.
        Warn = 3 "warn",
        /// Something is wrong, and somebody has to look at it.
        Error = 4 "error",
    }
}

states! {
    /// The state of a notification.
    NotificationState {
        /// It waits to be sent, or for a retry.
        Pending = 0 "pending",
        /// The receiver has accepted it.
        Sent = 1 "sent",
        /// It failed and is not retried.
        Failed = 2 "failed",
    }
}

states! {
    /// The state that a node reports of itself.
    ReportedState {
        /// It works, and takes up further work.
        Active = 0 "active",
        /// It finishes its work and takes no more.
        Draining = 1 "draining",
        /// It has given its lease back.
        Stopped = 2 "stopped",
    }
}

/// The beginning of every message about something that exists, or may exist, and was not granted: a host, a secret, a
/// connection. Such a failure is [`ErrorKind::Fatal`] whatever a script makes of it: without a grant, another try is
/// useless.
pub const NOT_GRANTED: &str = "not granted: ";

/// Whether a script's message reports a missing grant. A script gets the refusal as text, and fails with a text: so only the
/// text can tell. (Its own words, such as those about a lock that was not granted, do not count.)
pub fn tells_of_no_grant(message: &str) -> bool {
    let of_ours = ["host ", "secret `", "connection `"];
    message.match_indices(NOT_GRANTED).any(|(start, _)| {
        of_ours
            .iter()
            .any(|what| message[start + NOT_GRANTED.len()..].starts_with(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_numbered_and_ordered_as_they_are_stored() {
        let words: Vec<&str> = LogLevel::ALL.iter().map(|level| level.as_str()).collect();
        assert_eq!(words, ["trace", "debug", "info", "warn", "error"]);
        assert!(LogLevel::ALL.is_sorted());
        for (number, level) in LogLevel::ALL.iter().enumerate() {
            assert_eq!(level.number(), number as i16);
            assert_eq!(LogLevel::from_number(number as i16), Some(*level));
            assert_eq!(level.as_str().parse::<LogLevel>(), Ok(*level));
            assert_eq!(serde_json::to_value(level).unwrap(), level.as_str());
        }
        assert_eq!((LogLevel::from_number(-1), LogLevel::from_number(5)), (None, None));
        assert!("loud".parse::<LogLevel>().is_err());
    }

    #[test]
    fn a_grant_that_is_missing_is_distinguished_from_other_words() {
        for (message, expect) in [
            (
                "secret: not granted: secret `key`: it is not in the task's `secrets`",
                true,
            ),
            ("TypeError: not granted: host example.com:443: it is not among", true),
            (
                "the lock is not granted: not granted: connection `shop`: it does not exist",
                true,
            ),
            ("the lock was not granted: somebody has it", false),
            ("granted", false),
        ] {
            assert_eq!(tells_of_no_grant(message), expect, "{message}");
        }
    }
}
