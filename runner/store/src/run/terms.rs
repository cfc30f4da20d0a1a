//! The terms of a run: what is decided when it is created, and stored as it is.

use heddle_domain::Time;
use heddle_domain::state::Trigger;
use serde_json::Value;
use uuid::Uuid;

/// What a run that is to be created and its row have in common. To a run that was submitted in SQL, its interval and its
/// group's labels are added later.
#[derive(Clone, Debug)]
pub struct RunTerms {
    /// Why it is created.
    pub trigger: Trigger,
    /// A higher number goes first.
    pub priority: i16,
    /// What time it is about.
    pub logical_time: Time,
    /// Its data interval: from the previous instant to this one.
    pub interval: (Time, Time),
    /// A JSON object as text.
    pub params: String,
    /// JSON object of objects.
    pub task_params: Option<String>,
    /// Labels that the submitter chose, a JSON object.
    pub labels: Option<Value>,
    /// The key that the caller gave: unique among the runs of the group.
    pub key: Option<String>,
    /// The URL or the channel that is called at the end.
    pub callback: Option<String>,
    /// The backfill or run that creates it.
    pub source: Option<Uuid>,
    /// Who submitted or repeated it, as the audit names people.
    pub created_by: Option<String>,
}

impl RunTerms {
    /// Of a run for which nothing is given but its time.
    pub fn of_time(trigger: Trigger, logical_time: Time, interval: (Time, Time)) -> Self {
        Self {
            trigger,
            priority: 0,
            logical_time,
            interval,
            params: "{}".to_owned(),
            task_params: None,
            labels: None,
            key: None,
            callback: None,
            source: None,
            created_by: None,
        }
    }
}
