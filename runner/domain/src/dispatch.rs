//! Offers: when their occurrences are due, which of them a user may still be given, and in which order.
//!
//! An offer's occurrences are never written ahead; they are computed. A user's *window* is `[max(last finished
//! occurrence, now - horizon), now]`, both ends inclusive: what is due in it is given earliest first. The start is
//! included so that two offers due at the same instant are both served; what the user has held is excluded by (offer,
//! occurrence).

use chrono_tz::Tz;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::schedule::Schedule;
use crate::schedule::local::{parse_far_moment, parse_moment, parse_zone};
use crate::spec::bounds::PARAMS_BYTES_MAX;
use crate::spec::{DailySpec, STOCK_MAX, ScheduleSpec, whole_number};
use crate::{Fault, Faults, Name, Span, Time};

pub use crate::spec::stock;

/// The longest horizon, not included.
pub const HORIZON_MAX: Span = Span::from_secs(24 * 3_600);
/// The horizon unless it is configured.
pub const HORIZON_DEFAULT: Span = Span::from_secs(12 * 3_600);
/// Repeating offers per audience unless it is configured.
pub const OFFERS_MAX_DEFAULT: u32 = 100;
const EVERY_MIN: Span = Span::from_secs(1);
/// The longest audience, in characters.
const AUDIENCE_CHARS_MAX: usize = 255;
/// The longest user id, in characters.
const UID_CHARS_MAX: usize = 250;

/// Why there is no offer of that stock and mode.
pub(crate) const EACH_ONCE: &str = "`each` cannot be combined with `repeat`: `each` gives every member the offer once";

/// When an offer is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OfferKind {
    /// Once, at one instant.
    Once,
    /// At a fixed interval, counted from an anchor.
    Interval,
    /// Every n days at a time of day.
    Daily,
}

impl OfferKind {
    /// The number in the table.
    pub fn number(self) -> i16 {
        match self {
            Self::Once => 0,
            Self::Interval => 1,
            Self::Daily => 2,
        }
    }
}

/// The result of an offer for a user, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OfferStanding")]
pub enum Why {
    /// A poll returns it.
    Given,
    /// It is due, but another offer goes first.
    Behind,
    /// The user has already had all of its occurrences that are due and have stock.
    Had,
    /// Its due occurrences have no stock left.
    #[serde(rename = "used_up")]
    Exhausted,
    /// It is not due yet in the user's window.
    NotDue,
    /// It was due before the user's window, and it will not be due again.
    Passed,
    /// The offer is disabled.
    Disabled,
}

/// Whether a user can take an occurrence more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OfferMode")]
pub enum Mode {
    /// Each user can take an occurrence once.
    #[default]
    Single,
    /// A user gets the same occurrence again and again while stock lasts, before any later one.
    Repeat,
}

/// The state of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AssignmentState {
    /// The user holds it.
    Assigned,
    /// The user has completed it.
    Completed,
    /// The user has reported a failure.
    Failed,
    /// An operator has revoked it, or its task has ended.
    Revoked,
    /// The user held it longer than `max_hold`.
    Expired,
}

impl AssignmentState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Assigned,
        Self::Completed,
        Self::Failed,
        Self::Revoked,
        Self::Expired,
    ];

    /// The number in the table; 0 means a hold.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// From the number in the table.
    pub fn from_number(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
        }
    }

    /// Whether a hold may end like this. A hold ends once.
    pub fn follows(self, before: Self) -> bool {
        match (before, self) {
            (Self::Assigned, Self::Completed | Self::Failed | Self::Revoked | Self::Expired) => true,
            (Self::Assigned, Self::Assigned) => false,
            (Self::Completed | Self::Failed | Self::Revoked | Self::Expired, _) => false,
        }
    }
}

impl std::str::FromStr for AssignmentState {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| format!("`{word}` is not one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

/// The spec of an offer: the body of `PUT /v1/offers/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfferSpec {
    /// The id, the same as in the path.
    #[serde(default)]
    pub id: Option<Name>,
    /// When the offer is due. Default: determined by the other fields.
    #[serde(default)]
    pub kind: Option<OfferKind>,
    /// The audience: `uid_x` for a user, `gid_x` for a user group, at most 255 characters.
    pub audience: String,
    /// For `once`: the instant. For `daily`: the first day. Default: the creation.
    #[serde(default)]
    pub starts_at: Option<String>,
    /// For `interval`: the instant to count from. Default: the creation.
    #[serde(default)]
    pub anchor: Option<String>,
    /// For `interval`: the duration between two instants, at least 1s.
    #[serde(default)]
    pub every: Option<Span>,
    /// For `daily`: the number of days between two occurrences. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 3_660))]
    pub every_days: Option<u32>,
    /// For `daily`: the time of day, `HH:MM` or `HH:MM:SS`.
    #[serde(default)]
    pub at: Option<String>,
    /// The IANA time zone. Default: UTC.
    #[serde(default)]
    pub timezone: Option<String>,
    /// The end: no occurrence is due at or after this time. Default: no end.
    #[serde(default)]
    pub ends_at: Option<String>,
    /// The name of a template that the params must match.
    #[serde(default)]
    pub template: Option<Name>,
    /// The params that the user gets, at most 256 KiB as JSON.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// The stock of each occurrence: a number of at least 1, or `each` (every member once). Default: 1.
    #[serde(default)]
    #[schemars(schema_with = "stock")]
    pub dispatch_times: Option<Value>,
    /// Whether a user can take an occurrence more than once. Default: `single`.
    #[serde(default)]
    pub mode: Mode,
    /// The priority, -1000 to 1000: of offers that are due at the same instant, the higher one goes first. Default: 0.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i16,
    /// How long a user may hold an assignment. Default: no limit.
    #[serde(default)]
    pub max_hold: Option<Span>,
    /// Whether the stock of a failed assignment becomes free again. Default: false.
    #[serde(default)]
    pub return_failed: bool,
    /// Whether polls return the offer. Default: true.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

/// When occurrences are due.
#[derive(Clone, Debug)]
pub enum Rhythm {
    /// At a single instant.
    Once(Time),
    /// `anchor + k * every`, k from 0.
    Interval { anchor: Time, every: Span },
    /// At a time of day.
    Daily(Box<Schedule>),
}

/// An offer that has been checked, with every default filled in.
#[derive(Clone, Debug)]
pub struct Offer {
    /// How it comes to be due.
    pub kind: OfferKind,
    /// Whom it is for.
    pub audience: String,
    /// When it is due.
    pub rhythm: Rhythm,
    /// `once`: the instant; else the anchor, or the start.
    pub starts_at: Time,
    /// The end of the window, not included.
    pub ends_at: Option<Time>,
    /// `None`: each member once.
    pub stock: Option<i32>,
    /// Whether a user may take it again.
    pub mode: Mode,
    /// Of occurrences that are due at the same instant, the higher goes first.
    pub priority: i16,
    /// How long it may be held.
    pub max_hold: Option<Span>,
    /// Whether failures give stock back.
    pub return_failed: bool,
    /// Whether it is given out.
    pub enabled: bool,
    /// What its params satisfy.
    pub template: Option<Name>,
    /// The params that the user gets.
    pub params: Map<String, Value>,
    pub every_days: Option<u32>,
    pub at: Option<String>,
    pub timezone: Option<String>,
}

pub fn check_audience(audience: &str) -> Result<(), String> {
    let id = audience.strip_prefix("uid_").or_else(|| audience.strip_prefix("gid_"));
    match id {
        None | Some("") => Err("an audience must be `uid_` or `gid_` followed by an id".into()),
        Some(_) if audience.chars().count() > AUDIENCE_CHARS_MAX => {
            Err(format!("an audience must have at most {AUDIENCE_CHARS_MAX} characters"))
        }
        Some(id) if id.chars().any(char::is_control) => Err("an audience must not contain control characters".into()),
        Some(_) => Ok(()),
    }
}

/// Refuses an audience that is a user who can never poll. Only what is new is checked for this: stored offers may have such
/// audiences.
pub fn check_user(audience: &str) -> Result<(), String> {
    match audience.strip_prefix("uid_") {
        Some(id) => match id.strip_prefix("uid_") {
            Some(user) => Err(format!(
                "the id of a user must not begin with `uid_`: `{id}` polls as the user `{user}`"
            )),
            None => bare_uid(id).map(drop),
        },
        None => Ok(()),
    }
}

/// Refuses params that are too large: each user is given them, and each event about that repeats them. Only what is new is checked for this: stored offers may have such params.
pub fn check_params(params: &Map<String, Value>) -> Result<(), String> {
    let bytes = serde_json::to_string(params).map_or(0, |text| text.len());
    match bytes <= PARAMS_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("`params` must have at most {PARAMS_BYTES_MAX} bytes as JSON")),
    }
}

/// A user's bare id; `uid_x` is taken for `x`. `gid_x` names a group of users, which polls for nothing, holds nothing and is
/// no member of a group; somebody who writes it has mistaken one for the other.
pub fn bare_uid(text: &str) -> Result<&str, String> {
    let uid = text.strip_prefix("uid_").unwrap_or(text);
    if uid.starts_with("gid_") {
        return Err(format!(
            "`{uid}` is a user group; the id of a user must not begin with `gid_`"
        ));
    }
    if !is_uid(uid) {
        return Err(format!(
            "the id of a user must have 1 to {UID_CHARS_MAX} characters and no control characters"
        ));
    }
    Ok(uid)
}

/// Whether a text can be the bare id of a user: it has 1 to 250 characters, none of them a control character.
pub fn is_uid(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= UID_CHARS_MAX && !text.chars().any(char::is_control)
}

pub fn parse_stock(given: Option<&Value>) -> Result<Option<i32>, String> {
    let wrong = || format!("`dispatch_times` must be a whole number from 1 to {STOCK_MAX}, or `each`");
    match given {
        None => Ok(Some(1)),
        Some(Value::String(word)) if word == "each" => Ok(None),
        Some(Value::Number(number)) => whole_number(number)
            .and_then(|times| i32::try_from(times).ok())
            .filter(|times| (1..=STOCK_MAX).contains(times))
            .map(Some)
            .ok_or_else(wrong),
        Some(_) => Err(wrong()),
    }
}

/// The kind of an offer. If it is left out, it follows from the other fields. Fields that an offer of this kind cannot
/// have are added to `faults`.
fn kind_of(spec: &OfferSpec, faults: &mut Faults) -> OfferKind {
    use OfferKind::{Daily, Interval, Once};
    let kind = spec.kind.unwrap_or(match (&spec.every, &spec.at, &spec.every_days) {
        (Some(_), ..) => OfferKind::Interval,
        (None, None, None) if spec.anchor.is_none() => OfferKind::Once,
        (None, None, None) => OfferKind::Interval,
        _ => OfferKind::Daily,
    });
    for (field, there, kinds) in [
        ("starts_at", spec.starts_at.is_some(), &[Once, Daily][..]),
        ("anchor", spec.anchor.is_some(), &[Interval][..]),
        ("every", spec.every.is_some(), &[Interval][..]),
        ("every_days", spec.every_days.is_some(), &[Daily][..]),
        ("at", spec.at.is_some(), &[Daily][..]),
    ] {
        if there && !kinds.contains(&kind) {
            faults.add(
                format!("/{field}"),
                format!("an offer of this kind cannot have `{field}`"),
            );
        }
    }
    kind
}

/// When an offer is due; `None`: its fields are wrong, as `faults` says.
fn rhythm_of(kind: OfferKind, spec: &OfferSpec, zone: Tz, starts_at: Time, faults: &mut Faults) -> Option<Rhythm> {
    use OfferKind::{Daily, Interval, Once};
    match kind {
        Once => Some(Rhythm::Once(starts_at)),
        Interval => match spec.every {
            Some(every) if every >= EVERY_MIN => Some(Rhythm::Interval {
                anchor: starts_at,
                every,
            }),
            Some(_) => {
                faults.add("/every", format!("`every` must be at least {EVERY_MIN}"));
                None
            }
            None => {
                faults.add("/every", "an offer of kind `interval` needs `every`, for example `5m`");
                None
            }
        },
        Daily => daily(spec, zone, starts_at, faults),
    }
}

impl Offer {
    /// Checks a spec; `created_at` replaces an instant that is left out.
    pub fn compile(spec: OfferSpec, created_at: Time) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        if let Err(detail) = check_audience(&spec.audience) {
            faults.add("/audience", detail);
        }
        let kind = kind_of(&spec, &mut faults);
        let zone = match spec.timezone.as_deref().map(parse_zone) {
            None => Tz::UTC,
            Some(Ok(zone)) => zone,
            Some(Err(detail)) => {
                faults.add("/timezone", detail);
                Tz::UTC
            }
        };
        // Days are computed by the calendar, which ends earlier.
        let parse = if kind == OfferKind::Daily {
            parse_moment
        } else {
            parse_far_moment
        };
        let mut moment = |field: &str, text: Option<&String>| match text.map(|text| parse(text, zone)) {
            None => None,
            Some(Ok(at)) => Some(at),
            Some(Err(detail)) => {
                faults.add(format!("/{field}"), detail);
                None
            }
        };
        let ends_at = moment("ends_at", spec.ends_at.as_ref());
        let starts_at = match kind {
            OfferKind::Once | OfferKind::Daily => moment("starts_at", spec.starts_at.as_ref()),
            OfferKind::Interval => moment("anchor", spec.anchor.as_ref()),
        }
        .unwrap_or(created_at);
        let rhythm = rhythm_of(kind, &spec, zone, starts_at, &mut faults);
        if ends_at.is_some_and(|ends| ends <= starts_at) {
            faults.add("/ends_at", "`ends_at` must be after the start of the offer");
        }
        let stock = parse_stock(spec.dispatch_times.as_ref()).unwrap_or_else(|detail| {
            faults.add("/dispatch_times", detail);
            Some(1)
        });
        if stock.is_none() && spec.mode == Mode::Repeat {
            faults.add("/mode", EACH_ONCE);
        }
        if spec.max_hold.is_some_and(Span::is_zero) {
            faults.add("/max_hold", "`max_hold` must be longer than zero");
        }
        let (true, Some(rhythm)) = (faults.is_empty(), rhythm) else {
            return Err(faults);
        };
        Ok(Self {
            kind,
            audience: spec.audience,
            rhythm,
            starts_at,
            ends_at,
            stock,
            mode: spec.mode,
            priority: spec.priority,
            max_hold: spec.max_hold,
            return_failed: spec.return_failed,
            enabled: spec.enabled,
            template: spec.template,
            params: spec.params,
            every_days: (kind == OfferKind::Daily).then(|| spec.every_days.unwrap_or(1)),
            at: spec.at,
            timezone: (kind == OfferKind::Daily).then(|| zone.name().to_owned()),
        })
    }

    /// The first occurrence at or after `from`.
    pub fn first_from(&self, from: Time) -> Option<Time> {
        let found = match &self.rhythm {
            Rhythm::Once(at) => (*at >= from).then_some(*at),
            Rhythm::Interval { anchor, every } => {
                if from <= *anchor {
                    Some(*anchor)
                } else {
                    let past = from.signed_duration_since(*anchor).num_microseconds()?;
                    let period = i64::try_from(every.micros()).ok()?.max(1);
                    let steps = past / period + i64::from(past % period != 0);
                    anchor.checked_add_signed(chrono::TimeDelta::microseconds(steps.checked_mul(period)?))
                }
            }
            Rhythm::Daily(schedule) => schedule.next_after(from - chrono::TimeDelta::microseconds(1)),
        }?;
        self.ends_at.is_none_or(|ends| found < ends).then_some(found)
    }

    /// The first occurrence after `at`.
    pub fn next_after(&self, at: Time) -> Option<Time> {
        self.first_from(at + chrono::TimeDelta::microseconds(1))
    }
}

fn daily(spec: &OfferSpec, zone: Tz, starts_at: Time, faults: &mut Faults) -> Option<Rhythm> {
    let Some(at) = &spec.at else {
        faults.add(
            "/at",
            "an offer of kind `daily` needs `at`, a time of day such as `08:30`",
        );
        return None;
    };
    let schedule = ScheduleSpec {
        daily: Some(DailySpec {
            every_days: spec.every_days.unwrap_or(1),
            at: at.clone(),
        }),
        timezone: Some(zone.name().to_owned()),
        starts_at: Some(starts_at.to_rfc3339()),
        ..ScheduleSpec::default()
    };
    // The window begins with `starts_at`. Occurrences from before the creation of the offer count too.
    let ever = "1900-01-02T00:00:00Z".parse().unwrap_or(starts_at);
    match Schedule::compile(&schedule, zone, ever) {
        Ok(schedule) => Some(Rhythm::Daily(Box::new(schedule))),
        Err(Fault { pointer, detail, .. }) => {
            let pointer = pointer
                .strip_prefix("/daily")
                .filter(|rest| !rest.is_empty())
                .unwrap_or("/at");
            faults.add(pointer, detail);
            None
        }
    }
}

/// The period whose occurrences may be given to a user now, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: Time,
    pub to: Time,
}

impl Window {
    pub fn new(last_finished: Option<Time>, now: Time, horizon: Span) -> Self {
        let reach = now - horizon.chrono();
        Self {
            from: last_finished.map_or(reach, |last| last.max(reach)),
            to: now,
        }
    }
}

/// The position of an occurrence among those that a user may get: the smallest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    occurrence: Time,
    /// An occurrence that the user is repeating goes before another offer of the same instant.
    fresh: bool,
    priority: std::cmp::Reverse<i16>,
    seq: i64,
}

impl Rank {
    /// `again`: the user has had it before (`repeat`). `seq`: the number of the offer; older offers have smaller ones.
    pub fn new(occurrence: Time, again: bool, priority: i16, seq: i64) -> Self {
        Self {
            occurrence,
            fresh: !again,
            priority: std::cmp::Reverse(priority),
            seq,
        }
    }
}

#[cfg(test)]
mod tests;
