//! Offers, what users are given of them, and the groups that users are in. An offer is put as an [`crate::OfferSpec`].

use std::collections::BTreeMap;

use heddle_domain::Span;
use heddle_domain::dispatch::{AssignmentState, Mode, OfferKind, Why, stock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// Work offered to an audience that polls for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offer {
    /// Its name.
    pub id: String,
    /// What is offered, with all defaults.
    #[serde(flatten)]
    pub terms: OfferTerms,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
    /// The run whose task made it, and with which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Uuid>,
}

/// What an offer offers, with all defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OfferTerms {
    /// How it comes to be due.
    pub kind: OfferKind,
    /// `uid_x`: a user; `gid_x`: a user group.
    pub audience: String,
    /// A named template that the params satisfy.
    pub template: Option<String>,
    /// What the user is given: an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// Stock of each occurrence, from 1; `each`: every member once.
    #[schemars(schema_with = "stock")]
    pub dispatch_times: Value,
    /// Whether a user may take an occurrence more than once.
    pub mode: Mode,
    /// Of those due at the same instant, the higher goes first.
    pub priority: i16,
    /// How long a user may hold it; null: for ever.
    pub max_hold: Option<Span>,
    /// Whether a failed assignment gives its stock back.
    #[serde(default)]
    pub return_failed: bool,
    /// Whether it is given out.
    pub enabled: bool,
    /// Nothing is due from here on.
    pub ends_at: Option<Moment>,
    /// `once`: the instant. `daily`: the first day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Moment>,
    /// `interval`: the first instant, from which the others are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Moment>,
    /// `interval`: the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// `daily`: 1 is every day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_days: Option<u32>,
    /// `daily`: a time of day, `HH:MM` or `HH:MM:SS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// `daily`: an IANA zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
}

/// One due instant of an offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// The offer's name.
    pub offer: String,
    /// How the offer comes to be due.
    pub kind: OfferKind,
    /// `uid_x`: a user; `gid_x`: a user group.
    pub audience: String,
    /// The instant.
    pub occurrence: Moment,
    /// Stock, as in the offer: a number, or `each`.
    #[schemars(schema_with = "stock")]
    pub dispatch_times: Value,
    /// How much of the stock is given out, what was finished included.
    pub taken: i32,
    /// How many assignments were completed.
    pub completed: i32,
    /// How many assignments failed.
    pub failed: i32,
    /// How much stock is left; null for `each`.
    pub left: Option<i32>,
    /// Whether the offer is given out.
    pub enabled: bool,
}

/// A user group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Audience {
    /// `gid_x`.
    pub audience: String,
    /// How many members it has.
    pub count: i64,
    /// When it was made.
    pub created_at: Moment,
    /// When its members last changed.
    pub updated_at: Moment,
}

/// The members that a user group is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MembersSpec {
    /// Users, `x` or `uid_x`, up to 200,000; all others are members no more.
    pub members: Vec<String>,
}

/// What changes of a user group's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MembersPatch {
    /// Users, `x` or `uid_x`, up to 200,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Users, `x` or `uid_x`, up to 200,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// An audience's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Members {
    /// `uid_x`: a user; `gid_x`: a user group.
    pub audience: String,
    /// Bare user ids, at most `limit` of them.
    pub members: Vec<String>,
    /// How many there are in all.
    pub count: i64,
    /// What `cursor` has to be for the next page; null on the last one.
    pub next_cursor: Option<String>,
}

/// How a user asks what is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Poll {
    /// How long the answer is held back until there is something, at most 60s; default not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
}

/// What a user says of an assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// The id of the assignment that the user holds.
    #[schemars(extend("format" = "uuid"))]
    pub assignment_id: String,
    /// What has become of it.
    pub status: CompletionStatus,
    /// What is worth keeping, up to 256 KiB of JSON.
    #[serde(default)]
    pub result: Value,
}

/// What has become of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionStatus {
    /// It is done.
    Completed,
    /// The user gives up.
    Failed,
}

/// One user's hold on one occurrence of an offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// UUIDv7.
    pub assignment_id: Uuid,
    /// The offer's name.
    pub offer: String,
    /// The bare id of the user.
    pub uid: String,
    /// The audience by which it came to the user: `uid_x` or `gid_x`.
    pub audience: String,
    /// The due instant.
    pub occurrence: Moment,
    /// What to do: an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// How it stands.
    pub state: AssignmentState,
    /// Whether it had been given to the user before.
    pub redo: bool,
    /// When it was given first.
    pub assigned_at: Moment,
    /// When it ended.
    pub finished_at: Option<Moment>,
    /// What the user said of it: any JSON.
    pub result: Option<Value>,
}

/// Something that has happened: one line of the feed. What else it says depends on its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// What `after` continues behind.
    pub cursor: String,
    /// `assignment.dispatched`, `assignment.completed`, `assignment.failed`, `run.started`, `run.succeeded`, ...
    pub kind: String,
    /// When it happened.
    pub at: Moment,
    /// The rest.
    #[serde(flatten)]
    pub data: BTreeMap<String, Value>,
}

/// What a poll of a user would give now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peek {
    /// The user, the bare id.
    pub uid: String,
    /// What they would be given; null: nothing.
    pub gives: Option<Given>,
    /// If nothing: when something comes due next.
    pub next_at: Option<Moment>,
    /// What is due in it may be given.
    pub window: PollWindow,
    /// The user, and the groups that they are in.
    pub audiences: Vec<String>,
    /// The offers to these, at most 200: first what is due, then by when it is due next.
    pub offers: Vec<OfferToUser>,
    /// There are more offers than are told of.
    pub more: bool,
}

/// What a poll would give.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Given {
    /// The offer's name.
    pub offer: String,
    /// By which audience it is the user's.
    pub audience: String,
    /// Its due instant.
    pub occurrence: Moment,
    /// What the user is given: an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// The user holds it already.
    pub redo: bool,
    /// If so: the assignment.
    pub assignment_id: Option<Uuid>,
    /// If so: since when.
    pub assigned_at: Option<Moment>,
}

/// From when to when what is due may be given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PollWindow {
    /// The later of the user's last finished occurrence and the horizon.
    pub from: Moment,
    /// Now.
    pub to: Moment,
}

/// What an offer comes to for a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OfferToUser {
    /// Its name.
    pub offer: String,
    /// By which audience it is the user's.
    pub audience: String,
    /// What it comes to now.
    pub why: Why,
    /// The occurrence that is meant: what is given or behind, or the first of those had or used up.
    pub occurrence: Option<Moment>,
    /// When it is due next after now.
    pub next_at: Option<Moment>,
}
