//! Offers, what users are given of them, and the groups that users are in. An offer is put as an [`crate::OfferSpec`].

use std::collections::BTreeMap;

use heddle_domain::Span;
use heddle_domain::dispatch::{AssignmentState, Mode, OfferKind, Why, stock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// An offer: work for an audience that polls for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offer {
    /// The id of the offer, a name.
    pub id: String,
    /// The spec of the offer, with all defaults.
    #[serde(flatten)]
    pub terms: OfferTerms,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
    /// The run whose task created the offer. The offer ends with the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Uuid>,
}

/// The spec of an offer, with all defaults.
// The fields of an `OfferSpec` except its id. A spec may leave most of them out, and its instants are texts that the offer's
// time zone completes; here, each is what the offer has. A test below compares the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OfferTerms {
    /// When the offer is due: `once`, `interval` or `daily`.
    pub kind: OfferKind,
    /// The audience: `uid_x` is a user, `gid_x` is a user group.
    pub audience: String,
    /// The name of a template that the params must match.
    pub template: Option<String>,
    /// The params that the user gets, an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// The stock of each occurrence, at least 1; `each`: every member once.
    #[schemars(schema_with = "stock")]
    pub dispatch_times: Value,
    /// Whether a user may take an occurrence more than once.
    pub mode: Mode,
    /// The priority, -1000 to 1000: of offers that are due at the same instant, the higher one goes first.
    pub priority: i16,
    /// How long a user may hold an assignment of the offer. null: no limit.
    pub max_hold: Option<Span>,
    /// Whether the stock of a failed assignment becomes free again.
    #[serde(default)]
    pub return_failed: bool,
    /// Whether polls return the offer.
    pub enabled: bool,
    /// The end: no occurrence is due at or after this time. null: no end.
    pub ends_at: Option<Moment>,
    /// For `once`: the instant. For `daily`: the first day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Moment>,
    /// For `interval`: the first instant, from which the others are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Moment>,
    /// For `interval`: the duration between two instants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// For `daily`: the number of days between two occurrences; 1 is every day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_days: Option<u32>,
    /// For `daily`: the time of day, `HH:MM` or `HH:MM:SS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// For `daily`: the IANA time zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
}

/// An occurrence: one instant at which an offer is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// The id of the offer.
    pub offer: String,
    /// When the offer is due: `once`, `interval` or `daily`.
    pub kind: OfferKind,
    /// The audience: `uid_x` is a user, `gid_x` is a user group.
    pub audience: String,
    /// The instant at which the offer is due.
    pub occurrence: Moment,
    /// The stock of the occurrence: a number, or `each`.
    #[schemars(schema_with = "stock")]
    pub dispatch_times: Value,
    /// How much of the stock is taken, including assignments that have ended.
    pub taken: i32,
    /// The number of assignments that were completed.
    pub completed: i32,
    /// The number of assignments that failed.
    pub failed: i32,
    /// The stock that is left; null for `each`.
    pub left: Option<i32>,
    /// Whether polls return the offer.
    pub enabled: bool,
}

/// A user group, to which offers can be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Audience {
    /// The audience of this user group, `gid_x`.
    pub audience: String,
    /// The number of its members.
    pub count: i64,
    /// When it was created.
    pub created_at: Moment,
    /// When its members were last changed.
    pub updated_at: Moment,
}

/// How many members the command line and the pages read before they change them, so that people hear for whom a change
/// changes nothing.
pub const MEMBERS_KNOWN_MAX: usize = 10_000;

/// The complete list of members of a user group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MembersSpec {
    /// The users, `x` or `uid_x`, at most 200,000. All other users are removed.
    pub members: Vec<String>,
}

/// A change of the members of a user group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MembersPatch {
    /// The users, `x` or `uid_x`, at most 200,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// The users, `x` or `uid_x`, at most 200,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// The members of an audience.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Members {
    /// The audience: `uid_x` is a user, `gid_x` is a user group.
    pub audience: String,
    /// The ids of users without `uid_`: one page of them, in the order of the ids.
    pub members: Vec<String>,
    /// The number of all members.
    pub count: i64,
    /// The `cursor` of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The request of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Poll {
    /// How long to wait until there is an assignment, at most 60s. Default: do not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
}

/// The report of a user about an assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// The id of the assignment that the user holds.
    #[schemars(extend("format" = "uuid"))]
    pub assignment_id: String,
    /// The result of the assignment.
    pub status: CompletionStatus,
    /// A result to store: any JSON, at most 256 KiB. Default: null.
    #[serde(default)]
    pub result: Value,
}

/// The result of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionStatus {
    /// The user has done the work.
    Completed,
    /// The user could not do the work.
    Failed,
}

/// An assignment: a user holds, or has held, an occurrence of an offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// The id, a UUIDv7.
    pub assignment_id: Uuid,
    /// The id of the offer.
    pub offer: String,
    /// The id of the user, without `uid_`.
    pub uid: String,
    /// The audience of the offer, through which the user got it: `uid_x` or `gid_x`.
    pub audience: String,
    /// The instant at which the offer was due.
    pub occurrence: Moment,
    /// The params of the work, an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// The state of the assignment.
    pub state: AssignmentState,
    /// Whether an earlier poll already returned it to the user.
    pub redo: bool,
    /// When a poll first returned it.
    pub assigned_at: Moment,
    /// When it ended. null: it has not ended.
    pub finished_at: Option<Moment>,
    /// The result that the user reported, any JSON.
    pub result: Option<Value>,
}

/// An event: one line of the event stream. Its other fields depend on its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The position of the event. Send it as `after` to continue after this event.
    pub cursor: String,
    /// The kind: `assignment.dispatched`, `assignment.completed`, `assignment.failed`, `run.started`, `run.succeeded`,
    /// ...
    pub kind: String,
    /// When the event happened.
    pub at: Moment,
    /// The other fields, which depend on the kind.
    #[serde(flatten)]
    pub data: BTreeMap<String, Value>,
}

/// What a poll of a user would return now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peek {
    /// The id of the user, without `uid_`.
    pub uid: String,
    /// What the poll would return. null: nothing.
    pub gives: Option<Given>,
    /// If nothing: when the next offer is due.
    pub next_at: Option<Moment>,
    /// The window: the poll can return occurrences that are due in it.
    pub window: PollWindow,
    /// The audiences of the user: the user and the user groups that the user is a member of.
    pub audiences: Vec<String>,
    /// The offers to these audiences, at most 200: first the ones that are due, then in the order in which they are due
    /// next.
    pub offers: Vec<OfferToUser>,
    /// Whether there are more offers than `offers` contains.
    pub more: bool,
}

/// An occurrence that a poll would return.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Given {
    /// The id of the offer.
    pub offer: String,
    /// The audience of the offer.
    pub audience: String,
    /// The instant at which the offer is due.
    pub occurrence: Moment,
    /// The params that the user gets, an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// Whether the user already holds it.
    pub redo: bool,
    /// If the user already holds it: the id of the assignment.
    pub assignment_id: Option<Uuid>,
    /// If the user already holds it: since when.
    pub assigned_at: Option<Moment>,
}

/// The window of a poll: occurrences that are due in it can be returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PollWindow {
    /// The start: the last occurrence that the user has finished, or now minus the dispatch horizon, whichever is
    /// later.
    pub from: Moment,
    /// The end: the current time.
    pub to: Moment,
}

/// The result of an offer for a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OfferToUser {
    /// The id of the offer, a name.
    pub offer: String,
    /// The audience of the offer.
    pub audience: String,
    /// The result: whether a poll would return it, and if not, why.
    pub why: Why,
    /// The occurrence that `why` is about.
    pub occurrence: Option<Moment>,
    /// When the offer is due next.
    pub next_at: Option<Moment>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use heddle_domain::dispatch::OfferSpec;
    use heddle_domain::spec::bounds::PRIORITY;
    use schemars::{Schema, schema_for};

    use super::*;

    #[test]
    fn an_offer_is_shown_with_the_fields_of_its_spec() {
        let fields = |schema: &Schema| -> BTreeSet<String> {
            let fields = schema.get("properties").and_then(Value::as_object);
            fields.expect("an object").keys().cloned().collect()
        };
        let (spec, terms) = (schema_for!(OfferSpec), schema_for!(OfferTerms));
        let mut written = fields(&spec);
        assert!(written.remove("id"), "the offer has it");
        assert_eq!(fields(&terms), written);
        let priority = |schema: &Schema| -> Value { schema.get("properties").expect("fields")["priority"].clone() };
        let said = |schema: &Schema| priority(schema)["description"].as_str().expect("a text").to_owned();
        assert!(
            said(&spec).starts_with(&said(&terms)),
            "{} {}",
            said(&spec),
            said(&terms)
        );
        let bound = |word: &str| priority(&spec)[word].as_i64();
        let bounds = (Some(i64::from(*PRIORITY.start())), Some(i64::from(*PRIORITY.end())));
        assert_eq!((bound("minimum"), bound("maximum")), bounds);
    }
}
