//! Each example is what it is an example of: the schema says so, and the type that is read or answered.

use std::fmt::Display;

use heddle_api as api;
use heddle_api::List;
use heddle_domain::Name;
use heddle_domain::Time;
use heddle_domain::dispatch::Offer;
use heddle_domain::schema::Schema;
use heddle_domain::spec::validate::{Catalog, Grant, GroupLinks, ScriptFacts, ScriptLookup, validate};
use heddle_domain::spec::{parse_group, parse_submission, read};
use heddle_domain::topic::Topic;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::openapi::document;

const JSON: &str = "application/json";

fn known() -> BTreeMap<String, Value> {
    let mut known = BTreeMap::new();
    for text in FILES {
        for (name, example) in serde_json::from_str::<Map<String, Value>>(text).expect("a file of examples") {
            assert!(known.insert(name.clone(), example).is_none(), "{name} twice");
        }
    }
    known
}

/// What is said of each body that goes in, and of each that comes out when all is well: its name, the media type, and
/// the body's content.
fn bodies(document: &Value) -> Vec<(String, &str, &Value)> {
    let mut bodies = Vec::new();
    let paths = document["paths"].as_object().unwrap().values();
    for operation in paths.flat_map(|methods| methods.as_object().unwrap().values()) {
        let id = operation["operationId"].as_str().unwrap();
        let answers = operation["responses"].as_object().unwrap().iter();
        let accepted = ("body".to_owned(), &operation["requestBody"]);
        let answered = answers
            .filter(|(status, _)| status.starts_with('2') || *status == "default")
            .map(|(status, answer)| (status.clone(), answer));
        for (part, body) in std::iter::once(accepted).chain(answered) {
            for (media_type, content) in body["content"].as_object().into_iter().flatten() {
                bodies.push((format!("{id}.{part}"), media_type.as_str(), content));
            }
        }
    }
    bodies
}

/// The examples of a body, by name.
fn examples<'a>(document: &'a Value, content: &'a Value) -> Vec<(&'a str, &'a Value)> {
    let named = content["examples"].as_object().into_iter().flatten();
    named
        .map(|(name, example)| {
            let target = example["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
            (name.as_str(), &document.pointer(target).unwrap()["value"])
        })
        .collect()
}

/// A schema with those that it refers to, and no others, so that it is compiled fast.
fn alone(document: &Value, schema: &Value) -> Value {
    fn reach(document: &Value, schema: &Value, reached: &mut Map<String, Value>) {
        match schema {
            Value::Object(entries) => {
                for (key, value) in entries {
                    match value.as_str().and_then(|target| target.rsplit('/').next()) {
                        Some(name) if key == "$ref" && !reached.contains_key(name) => {
                            let schema = &document["components"]["schemas"][name];
                            reached.insert(name.to_owned(), schema.clone());
                            reach(document, schema, reached);
                        }
                        _ => reach(document, value, reached),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| reach(document, item, reached)),
            _ => {}
        }
    }
    let mut reached = Map::new();
    reach(document, schema, &mut reached);
    let mut alone = schema.clone();
    alone["components"] = json!({"schemas": reached});
    alone
}

#[test]
fn every_json_body_has_an_example_and_every_example_a_body() {
    let document = document(&crate::routes::table());
    let mut shown = BTreeSet::new();
    let mut counted = 0;
    for (body_name, media_type, content) in bodies(&document) {
        let of_this = examples(&document, content);
        let expected = SHOWN.contains(&media_type) || media_type == PROBLEM_JSON;
        assert_eq!(!of_this.is_empty(), expected, "{body_name}, {media_type}");
        counted += usize::from(media_type == JSON);
        shown.extend(of_this.into_iter().map(|(name, _)| name));
    }
    assert!(counted > 150, "{counted} are not all there are");
    let known = known();
    let is_unused = |name: &&String| !shown.contains(name.as_str()) && !shown.contains(format!("{name}List").as_str());
    let unused: Vec<_> = known.keys().filter(is_unused).collect();
    assert!(unused.is_empty(), "no operation shows {unused:?}");
    let components = document["components"]["examples"].as_object().unwrap();
    assert_eq!(components.len(), shown.len());
}

#[test]
fn every_example_is_valid_against_its_schema() {
    let document = document(&crate::routes::table());
    let mut checked = BTreeSet::new();
    for (body_name, _, content) in bodies(&document) {
        for (name, example) in examples(&document, content) {
            if !checked.insert((name, content["schema"].to_string())) {
                continue;
            }
            let schema = Schema::compile(&alone(&document, &content["schema"])).expect("a schema");
            let faults = schema.check(example);
            assert!(faults.is_empty(), "{body_name}, {name}: {faults}\n{example:#}");
        }
    }
    // The schemas can tell what is wrong.
    let run = json!({"$ref": "#/components/schemas/Run"});
    let schema = Schema::compile(&alone(&document, &run)).expect("a schema");
    let mut wrong = known()["Run"].clone();
    assert!(schema.check(&wrong).is_empty());
    wrong["state"] = json!("runs");
    assert!(!schema.check(&wrong).is_empty());
}

/// What is wrong with an example.
type Verdict = Result<(), String>;
type Judge = fn(&Value) -> Verdict;

/// The example is what the type would be answered as: no field is missing or invented.
fn answered<T: Serialize + DeserializeOwned>(example: &Value) -> Verdict {
    let typed: T = well(serde_json::from_value(example.clone()))?;
    let again = well(serde_json::to_value(typed))?;
    (again == *example)
        .then_some(())
        .ok_or(format!("it would be answered as {again:#}"))
}

/// The type reads the example.
fn reads<T: DeserializeOwned>(example: &Value) -> Verdict {
    well(serde_json::from_value::<T>(example.clone())).map(drop)
}

/// What judges the examples of a schema; none: no type stands for it.
fn judge(schema: &str) -> Option<Judge> {
    if let Some(item) = schema.strip_suffix("List") {
        return list(item);
    }
    let judge: Judge = match schema {
        "ActivateRequest" => reads::<api::ActivateRequest>,
        "BackfillRequest" => reads::<api::BackfillRequest>,
        "Batch" => reads::<api::Batch>,
        "Bulk" => reads::<api::Bulk>,
        "CategorySpec" => reads::<api::CategorySpec>,
        "ChannelSpec" => channel,
        "ClaimError" => reads::<api::ClaimFailure>,
        "ClaimErrorOfClaimItems" => reads::<api::Items<api::OfClaim<api::ClaimFailure>>>,
        "ClaimOutput" => reads::<api::ClaimOutput>,
        "ClaimOutputOfClaimItems" => reads::<api::Items<api::OfClaim<api::ClaimOutput>>>,
        "ClaimRequest" => reads::<api::ClaimRequest>,
        "ClaimToken" => reads::<api::ClaimToken>,
        "ClaimTokenOfClaimItems" => reads::<api::Items<api::OfClaim<api::ClaimToken>>>,
        "ClearTask" => reads::<api::ClearTask>,
        "Completion" => reads::<api::Completion>,
        "ConnectionSpec" => reads::<api::ConnectionSpec>,
        "DisableRequest" => reads::<api::DisableRequest>,
        "FetchRequest" => reads::<api::FetchRequest>,
        "GroupPatch" => reads::<api::GroupPatch>,
        "GroupPut" => group,
        "Heartbeat" => reads::<api::Heartbeat>,
        "HeartbeatOfClaimItems" => reads::<api::Items<api::OfClaim<api::Heartbeat>>>,
        "InvokeRequest" => reads::<api::InvokeRequest>,
        "JsonSchema" => template,
        "MembersPatch" => reads::<api::MembersPatch>,
        "MembersSpec" => reads::<api::MembersSpec>,
        "Message" => reads::<api::Message>,
        "MessageFilter" => reads::<api::MessageFilter>,
        "Messages" => reads::<api::Messages>,
        "OfferSpec" => offer,
        "Poll" => reads::<api::Poll>,
        "PoolSpec" => reads::<api::PoolSpec>,
        "Prune" => reads::<api::Prune>,
        "QueueSpec" => reads::<api::QueueSpec>,
        "RetentionInput" => reads::<api::Retention>,
        "RerunOptions" => reads::<api::RerunOptions>,
        "ScriptsChoice" => reads::<api::ScriptsChoice>,
        "SecretSpec" => reads::<api::SecretSpec>,
        "SignIn" => reads::<api::SignIn>,
        "StateOverride" => reads::<api::StateOverride>,
        "Submission" => submission,
        "TaskOverride" => reads::<api::TaskOverride>,
        "TimerTaskId" => reads::<api::TimerTaskId>,
        "TimerTaskSubmission" => timer_tasks,
        "TokenSpec" => reads::<api::NewToken>,
        "TopicSpec" => topic,
        "Assignment" => answered::<api::Assignment>,
        "Backfill" => answered::<api::Backfill>,
        "BackfillPlan" => answered::<api::BackfillPlan>,
        "BatchResults" => answered::<api::BatchResults>,
        "BulkReport" => answered::<api::BulkReport>,
        "Cancelled" => answered::<api::Cancelled>,
        "Category" => answered::<api::Category>,
        "Channel" => answered::<api::Channel>,
        "ClaimAnswer" => answered::<api::ClaimAnswer>,
        "ClaimAnswers" => answered::<api::ClaimAnswers>,
        "Claims" => answered::<api::Claims>,
        "CompatibilityAnswer" => answered::<api::CompatibilityAnswer>,
        "Connection" => answered::<api::Connection>,
        "Detached" => answered::<api::Detached>,
        "Event" => answered::<api::Event>,
        "Graph" => answered::<api::Graph>,
        "Group" => answered::<api::Group>,
        "Health" => answered::<api::Health>,
        "Invocation" => answered::<api::Invocation>,
        "Members" => answered::<api::Members>,
        "MessageDay" => answered::<api::Day>,
        "MessageView" => answered::<api::MessageView>,
        "MessagesAccepted" => answered::<api::MessagesAccepted>,
        "NewToken" => answered::<api::MadeToken>,
        "NextInstants" => answered::<api::NextInstants>,
        "Notification" => answered::<api::Notification>,
        "Offer" => answered::<api::Offer>,
        "Peek" => answered::<api::Peek>,
        "Pool" => answered::<api::Pool>,
        "Problem" => answered::<api::Problem>,
        "Pruned" => answered::<api::Pruned>,
        "Queue" => answered::<api::Queue>,
        "RotatedKeys" => answered::<api::RotatedKeys>,
        "Retention" => answered::<api::Retention>,
        "RetentionOrPruned" => answered::<api::RetentionOrPruned>,
        "RetiredRuntime" => answered::<api::RetiredRuntime>,
        "Revision" => answered::<api::Revision>,
        "Run" => answered::<api::Run>,
        "Script" => answered::<api::Script>,
        "ScriptVersion" => answered::<api::ScriptVersion>,
        "Secret" => answered::<api::Secret>,
        "Stats" => answered::<api::Stats>,
        "Session" => answered::<api::Session>,
        "SessionsEnded" => answered::<api::SessionsEnded>,
        "TaskDetail" => answered::<api::TaskDetail>,
        "Template" => answered::<api::Template>,
        "Token" => answered::<api::Token>,
        "Topic" => answered::<api::Topic>,
        "Validation" => answered::<api::Validation>,
        _ => return None,
    };
    Some(judge)
}

/// The judge of a page of a list, by the name of its items.
fn list(item: &str) -> Option<Judge> {
    let judge: Judge = match item {
        "Assignment" => answered::<List<api::Assignment>>,
        "Audience" => answered::<List<api::Audience>>,
        "Audit" => answered::<List<api::AuditEntry>>,
        "Backfill" => answered::<List<api::Backfill>>,
        "Category" => answered::<List<api::Category>>,
        "Channel" => answered::<List<api::Channel>>,
        "Connection" => answered::<List<api::Connection>>,
        "Group" => answered::<List<api::Group>>,
        "LogLine" => answered::<List<api::LogLine>>,
        "MessageDay" => answered::<List<api::Day>>,
        "MessageView" => answered::<List<api::MessageView>>,
        "Node" => answered::<List<api::Node>>,
        "Notification" => answered::<List<api::Notification>>,
        "Occurrence" => answered::<List<api::Occurrence>>,
        "Offer" => answered::<List<api::Offer>>,
        "Pool" => answered::<List<api::Pool>>,
        "Queue" => answered::<List<api::Queue>>,
        "QueueMinute" => answered::<List<api::QueueMinute>>,
        "QueueTask" => answered::<List<api::QueueTask>>,
        "Revision" => answered::<List<api::Revision>>,
        "Run" => answered::<List<api::Run>>,
        "Runtime" => answered::<List<api::Runtime>>,
        "Script" => answered::<List<api::Script>>,
        "ScriptVersion" => answered::<List<api::ScriptVersion>>,
        "Secret" => answered::<List<api::Secret>>,
        "SignedIn" => answered::<List<api::SignedIn>>,
        "Template" => answered::<List<api::Template>>,
        "Token" => answered::<List<api::Token>>,
        "Topic" => answered::<List<api::Topic>>,
        _ => return None,
    };
    Some(judge)
}

#[test]
fn every_example_is_read_and_written_by_its_type() {
    /// Those that no type stands for: see [`crate::schemas`].
    const UNTYPED: [&str; 2] = ["Any", "TimerTaskNumber"];
    let document = document(&crate::routes::table());
    let mut wrong = BTreeMap::new();
    for (body_name, _, content) in bodies(&document) {
        let schema = content["schema"]["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        for (name, example) in examples(&document, content) {
            match judge(schema).map(|judge| judge(example)) {
                Some(Ok(())) => {}
                Some(Err(why)) => drop(wrong.insert(name, why)),
                None => assert!(UNTYPED.contains(&schema), "{body_name}: nothing judges {schema}"),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn well<T, E: Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn submission(example: &Value) -> Verdict {
    well(parse_submission(example)).map(drop)
}

fn channel(example: &Value) -> Verdict {
    let spec: api::ChannelSpec = well(read(example))?;
    well(spec.check())
}

fn offer(example: &Value) -> Verdict {
    let spec: api::OfferSpec = well(read(example))?;
    well(Offer::compile(spec, Time::UNIX_EPOCH)).map(drop)
}

fn topic(example: &Value) -> Verdict {
    let spec: api::TopicSpec = well(read(example))?;
    well(Topic::compile(spec)).map(drop)
}

/// The type writes it again as it was, and the server reads it.
fn timer_tasks(example: &Value) -> Verdict {
    answered::<api::TimerTaskSubmission>(example)?;
    let read = crate::timer_task::read_tree(&example.to_string());
    read.map(drop).map_err(|problem| problem.detail)
}

fn template(example: &Value) -> Verdict {
    well(Schema::compile(example)).map(drop)
}

fn group(example: &Value) -> Verdict {
    let spec = well(parse_group(example))?;
    // A name that no example refers to, so that none depends on itself.
    let name: Name = well("of-the-path".parse())?;
    well(validate(&name, &spec, &Shop, Time::UNIX_EPOCH))
}

/// All that the examples name, for everyone.
struct Shop;

impl Catalog for Shop {
    fn script(&self, _: &Name, _: Option<u32>) -> ScriptLookup {
        ScriptLookup::Found(ScriptFacts::default())
    }
    fn group(&self, _: &Name) -> Option<GroupLinks> {
        Some(GroupLinks::default())
    }
    fn template(&self, _: &Name) -> Option<Value> {
        None
    }
    fn category(&self, name: &Name) -> bool {
        name == "shop"
    }
    fn channel(&self, name: &Name) -> bool {
        name == "ops-mail"
    }
    fn connection(&self, _: &Name, _: &Name, _: Option<&Name>) -> Grant {
        Grant::Unknown
    }
    fn secret(&self, _: &Name, _: &Name, _: Option<&Name>) -> Grant {
        Grant::Unknown
    }
    fn pool(&self, name: &Name) -> Option<u32> {
        (name == "warehouse").then_some(4)
    }
}
