//! How long things are kept, once it has ended.

mod pruned;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::state::RunState;
use crate::{Faults, Span};

pub use pruned::Pruned;

/// The minimum of each duration: callers must still be able to see what has just ended.
pub const RETENTION_MIN: Span = Span::from_secs(3_600);

const DAY_SECONDS: u64 = 86_400;

/// A state in which runs end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndState {
    /// The run succeeded: no task run failed without `allow_failure`.
    Succeeded,
    /// The run failed: at least one task run failed without `allow_failure`.
    Failed,
    /// The run was cancelled by a person, a deadline or `overlap`.
    Cancelled,
}

impl EndState {
    /// All three states in which a run ends.
    pub const ALL: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Cancelled];

    pub fn state(self) -> RunState {
        match self {
            Self::Succeeded => RunState::Succeeded,
            Self::Failed => RunState::Failed,
            Self::Cancelled => RunState::Cancelled,
        }
    }

    /// The one of this state; `None`: no run ends in it.
    pub fn of(state: RunState) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.state() == state)
    }

    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        self.state().as_str()
    }
}

/// The words of [`EndState::ALL`].
const END_STATES: &[&str] = &["succeeded", "failed", "cancelled"];

/// A duration for each of some states. An unknown state is reported as an error of its value, so that the pointer names the
/// key.
fn by_state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<EndState, Span>, D::Error> {
    struct ByState;
    impl<'de> Visitor<'de> for ByState {
        type Value = BTreeMap<EndState, Span>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut states = BTreeMap::new();
            while let Some(word) = map.next_key::<String>()? {
                let (state, span) = map.next_value_seed(OfState(&word))?;
                states.insert(state, span);
            }
            Ok(states)
        }
    }
    /// The state with this word, and its duration.
    struct OfState<'a>(&'a str);
    impl<'de> DeserializeSeed<'de> for OfState<'_> {
        type Value = (EndState, Span);
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            let found = EndState::ALL.into_iter().find(|state| state.as_str() == self.0);
            let state = found.ok_or_else(|| D::Error::unknown_variant(self.0, END_STATES))?;
            Ok((state, Span::deserialize(deserializer)?))
        }
    }
    deserializer.deserialize_map(ByState)
}

/// How long the ended runs of a group are kept: `retention` in its spec. Omitted fields have the values of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GroupRetention {
    /// How long ended runs are kept with their attempts, at least 1h, counted from their end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<Span>,
    /// How long runs that ended in this state are kept, if different from `runs`: `{"failed": "180d"}`. Each at least
    /// 1h.
    #[serde(deserialize_with = "by_state", skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<EndState, Span>,
    /// How long logs are kept, at least 1h, if they should be removed before the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Span>,
}

impl GroupRetention {
    /// What is wrong with it, below a pointer.
    pub fn check(&self, pointer: &str, faults: &mut Faults) {
        let spans = [("runs".to_owned(), self.runs), ("logs".to_owned(), self.logs)];
        let states = self
            .states
            .iter()
            .map(|(state, span)| (format!("states/{}", state.as_str()), Some(*span)));
        check_spans(pointer, spans.into_iter().chain(states), faults);
    }
}

fn check_spans(pointer: &str, spans: impl Iterator<Item = (String, Option<Span>)>, faults: &mut Faults) {
    for (field, span) in spans {
        if span.is_some_and(|span| span < RETENTION_MIN) {
            faults.add(
                format!("{pointer}/{field}"),
                format!("must be at least {RETENTION_MIN}"),
            );
        }
    }
}

/// How long the cluster keeps data: `GET/PUT /v1/retention`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// How long ended runs are in lists that do not ask for older runs. At least 1h. Default: 3d.
    pub hot: Span,
    /// How long ended runs are kept with their attempts, at least 1h, counted from their end.
    pub runs: Span,
    /// How long runs that ended in this state are kept, if different from `runs`: `{"failed": "180d"}`. Each at least
    /// 1h.
    #[serde(deserialize_with = "by_state")]
    pub states: BTreeMap<EndState, Span>,
    /// How long logs of runs are kept, at least 1h, if they should be removed before the runs. Default: null, together
    /// with the runs.
    pub logs: Option<Span>,
    /// How long entries of the audit and revoked or expired tokens are kept. At least 1h. Default: 365d.
    pub audit: Span,
    /// How long events are kept. At least 1h. Default: 7d.
    pub events: Span,
    /// How long ended assignments are kept, counted from their start. At least 1h. Default: 30d.
    pub assignments: Span,
    /// How long sent and failed notifications are kept. At least 1h. Default: 30d.
    pub notifications: Span,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days| Span::from_secs(days * DAY_SECONDS);
        Self {
            hot: days(3),
            runs: days(90),
            states: BTreeMap::new(),
            logs: None,
            audit: days(365),
            events: days(7),
            assignments: days(30),
            notifications: days(30),
        }
    }
}

/// How long runs that ended in one state are kept, and their logs, which never outlive them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The runs, from their ends.
    pub runs: Span,
    /// Their logs, from the runs' ends.
    pub logs: Span,
}

impl Retention {
    /// What is wrong with it.
    pub fn check(&self) -> Faults {
        let mut faults = Faults::default();
        let spans = [
            ("hot", Some(self.hot)),
            ("runs", Some(self.runs)),
            ("logs", self.logs),
            ("audit", Some(self.audit)),
            ("events", Some(self.events)),
            ("assignments", Some(self.assignments)),
            ("notifications", Some(self.notifications)),
        ];
        let states = self
            .states
            .iter()
            .map(|(state, span)| (format!("states/{}", state.as_str()), Some(*span)));
        let spans = spans.into_iter().map(|(field, span)| (field.to_owned(), span));
        check_spans("", spans.chain(states), &mut faults);
        faults
    }

    /// How long runs of a group are kept. The first of these that is set counts: the group's value for the state, the
    /// group's value for all states, the cluster's value for the state, the cluster's value for all states.
    pub fn kept(&self, group: Option<&GroupRetention>, state: EndState) -> Kept {
        let own = group.and_then(|group| group.states.get(&state).copied().or(group.runs));
        let runs = own.or(self.states.get(&state).copied()).unwrap_or(self.runs);
        let logs = group.and_then(|group| group.logs).or(self.logs).unwrap_or(runs);
        Kept {
            runs,
            logs: logs.min(runs),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn days(days: u64) -> Span {
        Span::from_secs(days * DAY_SECONDS)
    }

    #[test]
    fn the_nearest_word_counts() {
        let cluster: Retention =
            serde_json::from_value(json!({"runs": "90d", "states": {"failed": "180d"}, "logs": "30d"})).unwrap();
        let group: GroupRetention =
            serde_json::from_value(json!({"runs": "7d", "states": {"cancelled": "1d"}, "logs": "60d"})).unwrap();
        let check = |group: Option<&GroupRetention>, state, runs, logs| {
            let kept = cluster.kept(group, state);
            assert_eq!((kept.runs, kept.logs), (days(runs), days(logs)), "{group:?} {state:?}");
        };
        check(None, EndState::Succeeded, 90, 30);
        check(None, EndState::Failed, 180, 30);
        check(Some(&group), EndState::Succeeded, 7, 7);
        check(Some(&group), EndState::Failed, 7, 7);
        check(Some(&group), EndState::Cancelled, 1, 1);
        check(Some(&GroupRetention::default()), EndState::Failed, 180, 30);
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let default: Retention = serde_json::from_value(json!({})).unwrap();
        assert_eq!((default.hot, default.runs), (days(3), days(90)));
        assert_eq!(default.kept(None, EndState::Failed).logs, days(90));
        assert!(default.check().is_empty());
        let written = serde_json::to_value(&default).unwrap();
        assert_eq!(serde_json::from_value::<Retention>(written).unwrap(), default);
    }

    #[test]
    fn what_is_too_short_is_named() {
        let wrong: Retention =
            serde_json::from_value(json!({"runs": "59m", "logs": "0", "states": {"failed": "1m"}})).unwrap();
        let pointers: Vec<String> = wrong.check().0.into_iter().map(|fault| fault.pointer).collect();
        assert_eq!(pointers, ["/runs", "/logs", "/states/failed"]);
        let mut faults = Faults::default();
        let group: GroupRetention = serde_json::from_value(json!({"states": {"succeeded": "1s"}})).unwrap();
        group.check("/retention", &mut faults);
        assert_eq!(faults.0[0].pointer, "/retention/states/succeeded");
        assert!(serde_json::from_value::<GroupRetention>(json!({"states": {"running": "1d"}})).is_err());
    }

    #[test]
    fn an_unknown_state_is_named_by_its_key() {
        assert_eq!(EndState::ALL.map(EndState::as_str), END_STATES);
        let wrong = json!({"states": {"running": "1d", "failed": "2d", "a/b": "3d", "cancelled": 5}});
        let faults = crate::spec::read::<Retention>(&wrong).unwrap_err();
        let mut pointers: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        pointers.sort_unstable();
        assert_eq!(pointers, ["/states/a~1b", "/states/cancelled", "/states/running"]);
        let said = &faults
            .0
            .iter()
            .find(|fault| fault.pointer == "/states/running")
            .unwrap()
            .detail;
        assert_eq!(
            said,
            "unknown value `running`, expected one of `succeeded`, `failed`, `cancelled`"
        );
    }
}
