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
    /// A run's state.
    RunState {
        /// Created; waits for upstream groups or for its turn.
        Waiting = 0 "waiting",
        /// Its tasks are being worked on.
        Running = 1 "running",
        /// Starts nothing new until it is resumed.
        Paused = 2 "paused",
        /// Ended; no task run failed for good.
        Succeeded = 3 "succeeded",
        /// Ended; at least one task run failed without `allow_failure`.
        Failed = 4 "failed",
        /// Ended by people, a deadline or `overlap`.
        Cancelled = 5 "cancelled",
    }
}

impl RunState {
    /// Whether the run has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

states! {
    /// A task run's state.
    TaskState {
        /// Waits for its dependencies.
        Pending = 0 "pending",
        /// May be claimed. (What is claimed shows as `running`; only the table of running attempts knows.)
        Ready = 1 "ready",
        /// An attempt is under way.
        Running = 2 "running",
        /// The last attempt failed, the next is due later.
        Retrying = 3 "retrying",
        /// Would be ready, but the run is paused.
        Paused = 4 "paused",
        /// Done.
        Succeeded = 5 "succeeded",
        /// Failed, with no retries left.
        Failed = 6 "failed",
        /// Not done, on purpose.
        Skipped = 7 "skipped",
        /// Not done, because what it needs failed.
        UpstreamFailed = 8 "upstream_failed",
        /// Stopped, or never started, because the run was cancelled.
        Cancelled = 9 "cancelled",
    }
}

impl TaskState {
    /// Whether dependants can rely on it.
    pub fn is_settled(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Skipped | Self::UpstreamFailed | Self::Cancelled
        )
    }
}

states! {
    /// Why a run that was due was never begun; it stands as `cancelled`.
    Skip {
        /// An earlier run was active, or a later one took its place.
        Overlap = 1 "overlap",
        /// More runs waited than its group lets wait.
        MaxWaiting = 2 "max_waiting",
    }
}

states! {
    /// An attempt's state.
    AttemptState {
        /// Under way.
        Running = 0 "running",
        /// Returned an output.
        Succeeded = 1 "succeeded",
        /// Returned a failure, trapped, or broke a limit.
        Failed = 2 "failed",
        /// Ran longer than its timeout.
        TimedOut = 3 "timed_out",
        /// Its node or worker died or lost its lease.
        Lost = 4 "lost",
        /// Interrupted by a cancel or an override.
        Cancelled = 5 "cancelled",
    }
}

states! {
    /// Why a run was made.
    Trigger {
        /// By API, CLI or UI.
        Manual = 0 "manual",
        /// By a schedule.
        Schedule = 1 "schedule",
        /// By a backfill.
        Backfill = 2 "backfill",
        /// By the success of upstream groups.
        Upstream = 3 "upstream",
        /// By a task: a sub-run, or a script's `enqueue`.
        Task = 4 "task",
        /// A new run of an ended one.
        Rerun = 5 "rerun",
    }
}

states! {
    /// What kind of failure ended an attempt.
    ErrorKind {
        /// The script said so, retryably.
        Failed = 0 "failed",
        /// The script said so, for good.
        Fatal = 1 "fatal",
        /// The wasm trapped.
        Trap = 2 "trap",
        /// Longer than its timeout.
        Timeout = 3 "timeout",
        /// More memory than its limit.
        Memory = 4 "memory",
        /// More output than its limit.
        Output = 5 "output",
        /// Its node or worker was lost.
        Lost = 6 "lost",
        /// An HTTP call failed or was refused.
        Http = 7 "http",
        /// Params, a template or a result that cannot be used.
        Invalid = 8 "invalid",
    }
}

/// What begins every word of something that is there, or may be, and was not granted: a host, a secret, a connection. Such
/// a failure is [`ErrorKind::Fatal`] whatever a script makes of it: until somebody grants it, to try again gives nothing.
pub const NOT_GRANTED: &str = "not granted: ";

/// Whether a script passes on that something was not granted. (What it says in words of its own, of a lock that it was not
/// granted, is none of that.)
pub fn tells_of_no_grant(message: &str) -> bool {
    let of_ours = ["host ", "secret `", "connection `"];
    message.match_indices(NOT_GRANTED).any(|(place, _)| {
        of_ours
            .iter()
            .any(|what| message[place + NOT_GRANTED.len()..].starts_with(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_is_missing_is_told_from_other_words() {
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
