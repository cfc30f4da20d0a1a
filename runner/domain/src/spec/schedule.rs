//! The schedule of a group, as people write it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Span;

/// A schedule. It has exactly one of `cron`, `every`, `after`, `once` and `daily`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Schedule")]
pub struct ScheduleSpec {
    /// A cron expression with 5 fields, 6 fields (seconds first) or 7 fields (year last), at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// How the cron expression is read. Default: `unix`.
    #[serde(skip_serializing_if = "CronDialect::is_default")]
    pub cron_dialect: CronDialect,
    /// A fixed rate: the duration between two instants, at least 100ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// For `every`: the instant to count from, written like `starts_at`. Default: the creation of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
    /// A fixed delay: the duration between the end of the previous run and the next instant, longer than zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// A single instant: `{at}` or `{delay}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once: Option<OnceSpec>,
    /// Every n days at a time of day: `{every_days, at}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daily: Option<DailySpec>,
    /// The IANA time zone. Default: the group's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Nothing is due until this duration after the creation. For `every` and `after`, the first instant is due then.
    /// Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_delay: Option<Span>,
    /// The start of the window, included: a date (midnight in the time zone), a local date and time, or an RFC 3339
    /// time. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<String>,
    /// The end of the window, not included. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// What happens with missed instants. Default: `once`.
    pub misfire: Misfire,
    /// How late an instant may be before it counts as missed. Default: 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<Span>,
    /// Whether the schedule creates runs. Default: true.
    #[serde(skip_serializing_if = "is_true")]
    pub enabled: Enabled,
}

/// How a cron expression is read where schedulers differ in its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CronDialect {
    /// Weekdays are 0 to 7, where 0 and 7 are Sunday; `?` means `*`.
    #[default]
    Unix,
    /// Weekdays are 1 to 7, where 1 is Sunday. Seconds are required, and exactly one of the two day fields is `?`.
    Quartz,
}

impl CronDialect {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A switch that is true unless it is set to false.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Enabled(pub bool);

impl Default for Enabled {
    fn default() -> Self {
        Self(true)
    }
}

fn is_true(enabled: &Enabled) -> bool {
    enabled.0
}

/// A single instant: `at`, or `delay` after the creation of the schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnceSpec {
    /// The instant: a date (midnight in the time zone), a local date and time, or an RFC 3339 time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The duration between the creation of the schedule and the instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
}

/// Every n days at a local time of day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DailySpec {
    /// The number of days between two instants, 1 to 3,660. Default: 1, every day.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 3_660))]
    pub every_days: u32,
    /// The time of day, `HH:MM` or `HH:MM:SS`.
    pub at: String,
}

fn one() -> u32 {
    1
}

/// What happens with missed instants, which are more than `grace` late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// One run for all of them, with the latest instant as its logical time.
    #[default]
    Once,
    /// No runs for them.
    Skip,
    /// One run for each of them.
    All,
}
