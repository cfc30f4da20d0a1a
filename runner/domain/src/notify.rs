//! Notifications: rules, channels, messages, and the limits that keep a storm of failures from becoming a storm of
//! mails.
//!
//! # From an event to a message
//!
//! 1. A run changes. [`rules::notices`] finds the changes for which there are rules. Most groups have no rules;
//!    [`rules::Subscriptions`] detects that without a further check. A [`rules::Notice`] only names the change; it is
//!    written in the same transaction.
//! 2. Later, outside of that transaction, a notice is turned into notifications: [`rules::targets`] merges the
//!    recipients of the group's rule and the tasks', so that each address gets one notification of an event, and
//!    [`storm`] decides for each channel whether it is sent by itself or in the next digest.
//! 3. The facts are a [`message::Facts`]; [`message`], or a channel's own templates, make subject and text of them.
//!
//! # Invariants
//!
//! * Nothing here depends on how a message is sent. No secret part of a channel gets into facts or messages.
//! * A subject is one line, a text has at most [`message::TEXT_MAX_BYTES`].
//! * A digest counts all its events, however many of them it lists.

pub mod channel;
pub mod message;
pub mod rules;
pub mod storm;

use crate::spec::NotifyEvent;

/// The subject of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// An event that a rule names.
    Rule(NotifyEvent),
    /// The end of a run, sent to its submitter.
    Callback,
    /// A message of a script, by `notify`.
    Script,
    /// A channel is tried out.
    Test,
}

impl Event {
    pub const ALL: [Self; 12] = [
        Self::Rule(NotifyEvent::Started),
        Self::Rule(NotifyEvent::Succeeded),
        Self::Rule(NotifyEvent::Failed),
        Self::Rule(NotifyEvent::Retrying),
        Self::Rule(NotifyEvent::Recovered),
        Self::Rule(NotifyEvent::DeadlineMissed),
        Self::Rule(NotifyEvent::ScheduleMissed),
        Self::Rule(NotifyEvent::QueueStalled),
        Self::Rule(NotifyEvent::Skipped),
        Self::Callback,
        Self::Script,
        Self::Test,
    ];

    /// The name in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rule(NotifyEvent::Started) => "started",
            Self::Rule(NotifyEvent::Succeeded) => "succeeded",
            Self::Rule(NotifyEvent::Failed) => "failed",
            Self::Rule(NotifyEvent::Retrying) => "retrying",
            Self::Rule(NotifyEvent::Recovered) => "recovered",
            Self::Rule(NotifyEvent::DeadlineMissed) => "deadline_missed",
            Self::Rule(NotifyEvent::ScheduleMissed) => "schedule_missed",
            Self::Rule(NotifyEvent::QueueStalled) => "queue_stalled",
            Self::Rule(NotifyEvent::Skipped) => "skipped",
            Self::Callback => "callback",
            Self::Script => "script",
            Self::Test => "test",
        }
    }

    /// The event with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == word)
    }
}

/// How long to wait after the *n*th failed try, in seconds; after the last there is none.
///
/// The first pauses are short, for problems that pass soon; the later ones spread over a day, as the Standard Webhooks
/// specification recommends.
const RETRY_AFTER_SECONDS: [u64; 11] = [2, 5, 15, 60, 300, 900, 3_600, 7_200, 14_400, 21_600, 28_800];

/// How long to wait before a message is tried again that has been tried `attempts` times (from 1), by up to a fifth
/// longer (random, from `bits`), so that messages that failed together are not tried together again. `None`: no more
/// tries.
pub fn retry_after(attempts: u32, bits: u128) -> Option<std::time::Duration> {
    let seconds = *RETRY_AFTER_SECONDS.get(attempts.checked_sub(1)? as usize)?;
    let millis = seconds * 1_000;
    Some(std::time::Duration::from_millis(
        millis + (bits % u128::from(millis / 5)) as u64,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for event in Event::ALL {
            assert_eq!(Event::from_word(event.as_str()), Some(event));
        }
        assert_eq!(Event::from_word("exploded"), None);
    }

    #[test]
    fn retries_wait_longer_and_end() {
        let waits: Vec<u64> = (1..)
            .map_while(|attempts| retry_after(attempts, 0))
            .map(|wait| wait.as_secs())
            .collect();
        assert_eq!(waits, RETRY_AFTER_SECONDS);
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]));
        let longest = retry_after(1, u128::MAX).unwrap().as_millis();
        assert!((2_000..2_400).contains(&longest), "{longest}");
        assert_eq!(retry_after(0, 0), None);
    }
}
