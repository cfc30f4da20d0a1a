use serde_json::{Value, json};

use super::*;
use crate::run::{Event, Outcome, TaskKey, decide};
use crate::state::ErrorKind;

fn spec(value: Value) -> GroupSpec {
    serde_json::from_value(value).unwrap()
}

fn channels() -> BTreeMap<String, Reach> {
    BTreeMap::from([
        (
            "ops-mail".into(),
            Reach::Mail(vec!["ops@example.com".into(), "a@example.com".into()]),
        ),
        ("hook".into(), Reach::Channel),
        ("s-mail".into(), Reach::Mail(Vec::new())),
    ])
}

fn recipients_of(spec: &GroupSpec, notice: &Notice) -> Vec<String> {
    targets(spec, notice, &channels())
        .by_channel()
        .into_iter()
        .map(|(channel, to)| format!("{channel} {}", to.join(" ")).trim().to_owned())
        .collect()
}

#[test]
fn who_is_not_named_is_not_forgotten() {
    let of_group = |rules: serde_json::Value| {
        let spec = spec(json!({"notify": rules, "tasks": {"t": {"queue": "q"}}}));
        recipients_of(&spec, &Notice::of_task(NotifyEvent::Retrying, 0))
    };
    assert_eq!(
        of_group(json!({"on": ["retrying"], "channels": ["s-mail"]})),
        ["s-mail"]
    );
    assert_eq!(
        of_group(json!({"on": ["retrying"], "channels": ["s-mail"], "to": ["a@example.com"]})),
        ["s-mail a@example.com"]
    );
}

#[test]
fn addresses_of_group_and_task_are_merged() {
    let spec = spec(json!({
        "notify": {"on": ["retrying"], "channels": ["ops-mail", "hook"]},
        "tasks": {"t": {"queue": "q", "notify": {"on": ["retrying"], "channels": ["hook"],
            "to": ["A@Example.com", "etl@example.com"]}}},
    }));
    let notice = Notice::of_task(NotifyEvent::Retrying, 0);
    assert_eq!(
        recipients_of(&spec, &notice),
        ["hook", "ops-mail a@example.com etl@example.com ops@example.com"]
    );
}

#[test]
fn who_is_told_of_the_run_is_not_told_of_its_task() {
    let spec = spec(json!({
        "notify": {"on": ["failed"], "channels": ["ops-mail"]},
        "tasks": {"t": {"queue": "q", "notify": {"on": ["failed"], "channels": ["hook"], "to": ["a@example.com"]}}},
    }));
    let at_once = Notice {
        with_run: true,
        ..Notice::of_task(NotifyEvent::Failed, 0)
    };
    assert_eq!(recipients_of(&spec, &at_once), ["hook"]);
    let earlier = Notice::of_task(NotifyEvent::Failed, 0);
    assert_eq!(recipients_of(&spec, &earlier), ["hook", "ops-mail a@example.com"]);
    let later = Notice {
        covers: vec![0],
        ..Notice::of_run(NotifyEvent::Failed)
    };
    assert_eq!(recipients_of(&spec, &later), ["ops-mail ops@example.com"]);
}

#[test]
fn addresses_go_through_the_default_channel() {
    let spec = spec(json!({"tasks": {"t": {"queue": "q", "notify": {"on": ["failed"], "to": ["x@example.com"]}}}}));
    let notice = Notice::of_task(NotifyEvent::Failed, 0);
    assert_eq!(recipients_of(&spec, &notice), ["ops-mail x@example.com"]);
    let none = targets(&spec, &notice, &BTreeMap::new()).by_channel();
    assert_eq!(none.keys().collect::<Vec<_>>(), ["email"]);
}

fn moves(spec: GroupSpec, events: &[Event]) -> (Announcements, Option<RunState>) {
    let plan = Plan::compile(spec).unwrap();
    let subscriptions = Subscriptions::of(&plan);
    let mut state = RunState::Waiting;
    let mut progress = Progress::new(&plan);
    let now = Time::UNIX_EPOCH;
    decide(&plan, &mut state, &mut progress, &[Event::Start], now, &mut || 0).unwrap();
    let actions = decide(&plan, &mut state, &mut progress, events, now, &mut || 0).unwrap();
    let moves = Moves {
        started: false,
        settled: &actions.settled,
        retries: &actions.timers,
        finished: actions.finished,
        progress: &progress,
        callback: true,
    };
    (notices(&plan, &subscriptions, &moves), actions.finished)
}

/// Who is told of what by a decision, as `event task channel`.
fn all_told(spec: &GroupSpec, announcements: &Announcements) -> Vec<String> {
    let about = |notice: &Notice| {
        format!(
            "{} {:?}",
            crate::notify::Event::Rule(notice.event.unwrap()).as_str(),
            notice.task
        )
    };
    let of = |notice: &Notice| {
        recipients_of(spec, notice)
            .into_iter()
            .map(|to| format!("{} {to}", about(notice)))
            .collect()
    };
    announcements
        .notices
        .iter()
        .filter(|notice| notice.event.is_some())
        .flat_map(|notice| -> Vec<String> { of(notice) })
        .collect()
}

fn ended(task: u16, outcome: Outcome) -> Event {
    let key = TaskKey { task, item: None };
    Event::Ended {
        at: AttemptKey { key, attempt: 1 },
        outcome,
    }
}

fn failed() -> Outcome {
    Outcome::Failed {
        kind: ErrorKind::Failed,
        message: "no".into(),
        retry_after: None,
        fatal: false,
    }
}

#[test]
fn a_failure_is_told_after_its_retries() {
    let rules = json!({"on": ["failed", "retrying", "recovered"], "channels": ["hook"]});
    let once = json!({"notify": rules, "tasks": {"t": {"queue": "q"}}});
    let (announcements, finished) = moves(spec(once.clone()), &[ended(0, failed())]);
    assert_eq!(finished, Some(RunState::Failed));
    let events: Vec<_> = announcements.notices.iter().map(|notice| notice.event).collect();
    assert_eq!(events, [Some(NotifyEvent::Failed), None], "and the callback");
    assert_eq!(announcements.troubled, [None]);

    let mut retried = once;
    retried["tasks"]["t"]["retry"] = json!({"strategy": "fixed", "retries": 1, "interval": "10s"});
    let (announcements, finished) = moves(spec(retried), &[ended(0, failed())]);
    assert_eq!(finished, None);
    assert_eq!(announcements.notices.len(), 1);
    assert_eq!(announcements.notices[0].event, Some(NotifyEvent::Retrying));
    assert_eq!(
        (announcements.notices[0].task, announcements.notices[0].attempt),
        (Some(0), Some(2))
    );
}

/// Decisions of one run, one after the other, and who is told of what by each.
fn told_by(spec: &GroupSpec, steps: &[&[Event]]) -> Vec<Vec<String>> {
    let plan = Plan::compile(spec.clone()).unwrap();
    let (mut state, mut progress) = (RunState::Waiting, Progress::new(&plan));
    let now = Time::UNIX_EPOCH;
    decide(&plan, &mut state, &mut progress, &[Event::Start], now, &mut || 0).unwrap();
    let mut step = |events: &&[Event]| {
        let actions = decide(&plan, &mut state, &mut progress, events, now, &mut || 0).unwrap();
        let moves = Moves {
            started: false,
            settled: &actions.settled,
            retries: &actions.timers,
            finished: actions.finished,
            progress: &progress,
            callback: false,
        };
        all_told(spec, &notices(&plan, &Subscriptions::of(&plan), &moves))
    };
    steps.iter().map(&mut step).collect()
}

/// However failures fall together, none is left to a message that is not sent, or that does not name it.
#[test]
fn each_failure_is_told() {
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    let task = json!({"queue": "q", "notify": rules});
    let both = spec(json!({"notify": rules, "tasks": {"t1": task, "t2": task}}));
    let fails = |task| ended(task, failed());
    assert_eq!(
        told_by(&both, &[&[fails(0)], &[fails(1)]]),
        [["failed Some(0) hook"], ["failed Some(1) hook"]],
        "one after the other: the run failed of what was told"
    );
    assert_eq!(
        told_by(&both, &[&[fails(0), fails(1)]]),
        [["failed Some(1) hook", "failed None hook"]],
        "at once: the run's message names the first only"
    );
    let other = json!({"queue": "q", "notify": {"on": ["failed"], "to": ["ops@example.com"]}});
    let two = spec(
        json!({"notify": {"on": ["failed"], "channels": ["hook", "ops-mail"]}, "tasks": {"t1": other, "t2": task}}),
    );
    assert_eq!(
        told_by(&two, &[&[fails(0)], &[fails(1)]]),
        [
            vec!["failed Some(0) ops-mail ops@example.com"],
            vec![
                "failed Some(1) hook",
                "failed None hook",
                "failed None ops-mail a@example.com"
            ]
        ]
    );
}

/// The success of a run says nothing of its tasks, whichever came last; unless there is only one.
#[test]
fn each_success_is_told() {
    let rules = json!({"on": ["succeeded"], "channels": ["hook"]});
    let task = json!({"queue": "q", "notify": rules});
    let both = spec(json!({"notify": rules, "tasks": {"t1": task, "t2": task}}));
    let succeeds = |task| ended(task, Outcome::Succeeded { output_bytes: 2 });
    assert_eq!(
        told_by(&both, &[&[succeeds(1)], &[succeeds(0)]]),
        [
            vec!["succeeded Some(1) hook"],
            vec!["succeeded Some(0) hook", "succeeded None hook"]
        ]
    );
    let one = spec(json!({"notify": rules, "tasks": {"t": task}}));
    assert_eq!(told_by(&one, &[&[succeeds(0)]]), [["succeeded None hook"]]);
}

#[test]
fn nothing_is_told_of_groups_without_rules() {
    let plan = Plan::compile(spec(json!({"tasks": {"t": {"queue": "q"}}}))).unwrap();
    assert_eq!(Subscriptions::of(&plan), Subscriptions::default());
    assert!(!Subscriptions::of(&plan).any());
}
