//! What `decide` does: by tables here, by simulation in [`simulation`].

mod abandoned;
mod clear;
mod control;
mod format;
mod map;
mod rules;
mod simulation;
mod world;

use serde_json::{Value, json};

use super::*;
use crate::spec::TriggerRule;
use world::{World, plan};

/// Tasks by name: what each waits for and its rule, as in `c: a b any_failed`.
fn dag(tasks: &str) -> Value {
    let mut made = serde_json::Map::new();
    for task in tasks.split(';') {
        let (name, rest) = task.split_once(':').unwrap_or((task, ""));
        let mut spec = json!({"depends_on": []});
        for word in rest.split_whitespace() {
            match word {
                rule if serde_json::from_value::<TriggerRule>(json!(rule)).is_ok() => {
                    spec["trigger_rule"] = json!(rule)
                }
                "allow" => spec["allow_failure"] = json!(true),
                "retry" => spec["retry"] = json!({"strategy": "fixed", "retries": 2, "interval": "10s"}),
                "at_once" => spec["retry"] = json!({"strategy": "fixed", "retries": 2, "interval": "0s"}),
                name => spec["depends_on"].as_array_mut().unwrap().push(json!(name)),
            }
        }
        made.insert(name.trim().into(), spec);
    }
    json!({"tasks": made})
}

fn stopping(mut group: Value) -> Value {
    group["on_failure"] = json!("stop");
    group
}

/// Starts a run of a DAG, goes through the steps, and expects these states.
fn check(tasks: &str, steps: &str, expect: &str) {
    World::start(dag(tasks)).play(steps).shows(expect);
}

#[test]
fn a_diamond() {
    World::start(dag("a; b: a; c: a; d: b c"))
        .shows("a=ready b=pending c=pending d=pending run=running")
        .play("ok a")
        .shows("a=succeeded b=ready c=ready d=pending run=running")
        .play("ok b")
        .shows("a=succeeded b=succeeded c=ready d=pending run=running")
        .play("ok c; claim d")
        .shows("a=succeeded b=succeeded c=succeeded d=running run=running")
        .play("ok d")
        .shows("a=succeeded b=succeeded c=succeeded d=succeeded run=succeeded");
}

#[test]
fn no_level_holds_anyone_up() {
    // One arm is long and one is short; the short one's end does not wait for the long one's level.
    let group = "a; b: a; c: b; d: c; x; y: x; z: y";
    check(
        group,
        "ok x; ok y",
        "a=ready b=pending c=pending d=pending x=succeeded y=succeeded z=ready run=running",
    );
    check(
        group,
        "ok x; ok y; ok z; ok a; ok b; ok c; ok d",
        "a=succeeded b=succeeded c=succeeded d=succeeded x=succeeded y=succeeded z=succeeded run=succeeded",
    );
}

#[test]
fn what_is_ready_together_is_made_ready_together() {
    let mut world = World::start(dag("a; b: a; c: a; d: a"));
    world.play("claim a");
    let at = AttemptKey {
        key: TaskKey::whole(0),
        attempt: 1,
    };
    world.running.clear();
    let ended = Event::Ended {
        at,
        outcome: Outcome::Succeeded { output_bytes: 2 },
    };
    let actions = world.deliver(&[ended]).unwrap();
    assert_eq!(
        actions.ready.iter().map(|at| at.key.task).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(actions.settled, [(0, TaskState::Succeeded)]);
}

#[test]
fn rules_without_dependencies_wait_for_nothing() {
    check(
        "a: any_failed; b: any_success; c: all_done",
        "claim *",
        "a=running b=running c=running run=running",
    );
}

#[test]
fn what_failed_goes_down_and_stops_at_rules_that_take_it() {
    check(
        "a; b: a; c: b; d: c all_done; e: b any_failed; f: e; g: b any_success; h: g",
        "fail a",
        "a=failed b=upstream_failed c=upstream_failed d=ready e=ready f=pending g=skipped h=skipped run=running",
    );
    check(
        "a; b: a; c: b all_done",
        "skip a; ok c",
        "a=skipped b=skipped c=succeeded run=succeeded",
    );
    check("a; b: a all_done", "fail a; ok b", "a=failed b=succeeded run=failed");
    // A skipped root, by `when` for one.
    check("a; b: a", "skip a", "a=skipped b=skipped run=succeeded");
}

#[test]
fn allowed_failures_count_as_success() {
    check("a: allow; b: a", "fail a; ok b", "a=failed b=succeeded run=succeeded");
    check(
        "a: allow; b: a any_failed",
        "fail a",
        "a=failed b=skipped run=succeeded",
    );
    check("a: allow; b: a any_success", "fail a", "a=failed b=ready run=running");
    let mut world = World::start(dag("a: allow; b"));
    world.play("fail a; fail b").shows("a=failed b=failed run=failed");
    assert_eq!(world.progress.error(), Some("task b: failed: broken"));
}

/// Some messages begin with the word of their kind.
#[test]
fn an_error_says_its_kind_once() {
    for (message, error) in [
        ("trap: unreachable", "task a: trap: unreachable"),
        ("unreachable", "task a: trap: unreachable"),
        ("trapped", "task a: trap: trapped"),
    ] {
        let plan = plan(dag("a"));
        let (mut state, mut progress) = (RunState::Waiting, Progress::new(&plan));
        let at = AttemptKey {
            key: TaskKey::whole(0),
            attempt: 1,
        };
        let outcome = Outcome::Failed {
            kind: ErrorKind::Trap,
            message: message.into(),
            retry_after: None,
            fatal: false,
        };
        for event in [Event::Start, Event::Ended { at, outcome }] {
            decide(&plan, &mut state, &mut progress, &[event], Time::UNIX_EPOCH, &mut || 0).unwrap();
        }
        assert_eq!((state, progress.error()), (RunState::Failed, Some(error)));
    }
}

#[test]
fn a_stop_cancels_what_has_not_started() {
    let mut world = World::start(stopping(dag("a; b; c: b; d; e: a any_failed; r: retry")));
    world
        .play("fail r; claim b; claim a; fail a")
        .shows("a=failed b=running c=cancelled d=cancelled e=cancelled r=cancelled run=running")
        .stale("d", 1)
        .play("ok b")
        .shows("a=failed b=succeeded c=cancelled d=cancelled e=cancelled r=cancelled run=failed");
    // What is lost or failed in the meantime does not return.
    World::start(stopping(dag("a; b: retry; c: retry")))
        .play("claim *; fail a; lose b; fail c")
        .shows("a=failed b=cancelled c=failed run=failed");
    // An allowed failure stops nothing.
    World::start(stopping(dag("a: allow; b; c: a b")))
        .play("fail a; ok b; ok c")
        .shows("a=failed b=succeeded c=succeeded run=succeeded");
    // Nothing else is running: the same decision ends the run.
    let mut world = World::start(stopping(dag("a; b: a")));
    world.play("claim a");
    let at = AttemptKey {
        key: TaskKey::whole(0),
        attempt: 1,
    };
    world.running.clear();
    let actions = world
        .deliver(&[Event::Ended {
            at,
            outcome: world::failure(false),
        }])
        .unwrap();
    assert!(!actions.withdraw);
    assert_eq!(actions.finished, Some(RunState::Failed));
}

#[test]
fn a_stop_takes_in_all_outcomes_of_its_batch() {
    World::start(stopping(dag("a; b; c: b")))
        .play("claim *; fail a + ok b")
        .shows("a=failed b=succeeded c=cancelled run=failed");
    World::start(stopping(dag("a; b; c: b")))
        .play("claim *; ok b + fail a")
        .shows("a=failed b=succeeded c=cancelled run=failed");
}

#[test]
fn retries() {
    let mut world = World::start(dag("a: retry; b: a"));
    world.play("fail a").shows("a=retrying b=pending run=running");
    let (due, attempt) = world.timers[&TaskKey::whole(0)];
    assert_eq!(((due - world.now).num_seconds(), attempt), (10, 2));
    world
        .stale("a", 1)
        .stale("a", 2)
        .play("due a; fail a; due a")
        .shows("a=ready b=pending run=running")
        .play("fail a")
        .shows("a=failed b=upstream_failed run=failed");
    assert_eq!(world.begun.len(), 3);
    check("a: retry", "fatal a", "a=failed run=failed");
    check("a: at_once", "fail a; fail a; ok a", "a=succeeded run=succeeded");
    let mut world = World::start(dag("a: retry"));
    let at = AttemptKey {
        key: TaskKey::whole(0),
        attempt: 1,
    };
    world.play("claim a").running.clear();
    let outcome = Outcome::Failed {
        kind: ErrorKind::Invalid,
        message: String::new(),
        retry_after: None,
        fatal: false,
    };
    assert_eq!(
        world.deliver(&[Event::Ended { at, outcome }]).unwrap().finished,
        Some(RunState::Failed)
    );
}

#[test]
fn a_timer_of_an_earlier_attempt_does_nothing() {
    let mut world = World::start(dag("a: retry"));
    world.play("fail a");
    let timer = |attempt| {
        Event::Due(AttemptKey {
            key: TaskKey::whole(0),
            attempt,
        })
    };
    assert_eq!(world.deliver(&[timer(1), timer(3)]).unwrap(), Actions::default());
    world.play("due a; lose a").shows("a=ready run=running");
    assert_eq!(world.deliver(&[timer(2), timer(3)]).unwrap(), Actions::default());
}

#[test]
fn lost_attempts_use_up_no_retry_and_are_bounded() {
    let mut world = World::start(dag("a: retry"));
    world.play("lose a; lose a; lose a; fail a; due a; fail a; due a; lose a; lose a");
    world
        .shows("a=ready run=running")
        .play("lose a")
        .shows("a=failed run=failed");
    let error = world.progress.error().unwrap();
    assert_eq!(
        error,
        "task a: lost: lost with its node or worker 6 times; `max_lost` is 5"
    );
    let mut group = dag("a: retry");
    group["tasks"]["a"]["max_lost"] = json!(0);
    World::start(group).play("lose a").shows("a=failed run=failed");
    // An attempt that is given back is not counted.
    let many = ["release a"; 20].join(";");
    check("a", &format!("{many}; ok a"), "a=succeeded run=succeeded");
}

#[test]
fn stale_outcomes_are_refused() {
    World::start(dag("a; b: a"))
        .stale("a", 2)
        .stale("b", 1)
        .play("claim a; lose a; claim a")
        .stale("a", 1)
        .play("ok a")
        .stale("a", 2)
        .play("ok b")
        .stale("b", 1);
    // Twice in one batch: the first counts.
    let mut world = World::start(dag("a; b"));
    let ended = |outcome| Event::Ended {
        at: AttemptKey {
            key: TaskKey::whole(0),
            attempt: 1,
        },
        outcome,
    };
    world.play("claim a").running.clear();
    let events = [ended(Outcome::Lost), ended(Outcome::Succeeded { output_bytes: 1 })];
    assert_eq!(world.deliver(&events).unwrap().accepted, [true, false]);
    world.shows("a=ready b=ready run=running");
    // Of task runs that do not exist.
    let nowhere = TaskKey { task: 9, item: None };
    let at = AttemptKey {
        key: nowhere,
        attempt: 1,
    };
    let events = [
        Event::Expanded { at, count: 1 },
        Event::Ended {
            at,
            outcome: Outcome::Lost,
        },
        Event::Due(at),
    ];
    assert_eq!(world.deliver(&events).unwrap().accepted, [false, false]);
    // A task that is not mapped has no items.
    let at = AttemptKey {
        key: TaskKey::whole(1),
        attempt: 1,
    };
    assert_eq!(
        world.deliver(&[Event::Expanded { at, count: 3 }]).unwrap().accepted,
        [false]
    );
}

#[test]
fn what_one_batch_takes_back_is_not_carried_out() {
    let key = TaskKey::whole(0);
    let at = |attempt| AttemptKey { key, attempt };
    let succeeded = Event::Override {
        key,
        state: TaskState::Succeeded,
        bytes_before: 0,
        bytes_after: 0,
    };
    // Ready, and then overridden.
    let mut world = World::start(dag("a: retry"));
    world.play("fail a").timers.clear();
    let actions = world.deliver(&[Event::Due(at(2)), succeeded.clone()]).unwrap();
    assert_eq!((actions.ready, actions.finished), (vec![], Some(RunState::Succeeded)));
    // To be retried, and then at once.
    let mut world = World::start(dag("a: retry"));
    world.play("claim a").running.clear();
    let ended = Event::Ended {
        at: at(1),
        outcome: world::failure(false),
    };
    let actions = world.deliver(&[ended.clone(), Event::RetryNow(key)]).unwrap();
    assert_eq!((actions.ready, actions.timers), (vec![at(2)], vec![]));
    // Failed, and then overridden: the consequences of its failure are found, and taken back.
    let mut world = World::start(stopping(dag("a; b: a; c: b")));
    world.play("claim a").running.clear();
    let actions = world.deliver(&[ended, succeeded]).unwrap();
    assert_eq!(actions.settled, [(0, TaskState::Succeeded)]);
    world.shows("a=succeeded b=ready c=pending run=running");
}

#[test]
fn attempts_end_before_their_numbers_do() {
    let mut world = World::start(dag("a"));
    let key = TaskKey::whole(0);
    world.progress.details.entry(0).or_default().used = ATTEMPTS_MAX - 2;
    world.ready.insert(key, ATTEMPTS_MAX - 1);
    world.play("release a").shows("a=failed run=failed");
}

#[test]
fn progress_is_small() {
    let mut world = World::start(dag("a"));
    assert!(
        world.progress.to_bytes().unwrap().len() <= 6,
        "{:?}",
        world.progress.to_bytes().unwrap()
    );
    world.play("ok a");
    assert!(
        world.progress.to_bytes().unwrap().len() <= 6,
        "{:?}",
        world.progress.to_bytes().unwrap()
    );
    let mut world = World::start(dag("a"));
    world.play("skip a");
    assert!(
        world.progress.to_bytes().unwrap().len() <= 16,
        "{:?}",
        world.progress.to_bytes().unwrap()
    );
    let mut world = World::start(dag("a"));
    world.play("lose a");
    assert!(
        world.progress.to_bytes().unwrap().len() <= 16,
        "{:?}",
        world.progress.to_bytes().unwrap()
    );
}

#[test]
fn begins_from_what_sql_writes() {
    // heddle.submit() writes these bytes.
    let progress = Progress::from_bytes(&[0; 5]).unwrap();
    assert_eq!(progress, Progress::default());
    assert_eq!(progress.to_bytes().unwrap(), [0; 5]);
    for steps in ["start; ok a; ok b", "cancel"] {
        let mut world = World::of(plan(dag("a; b: a")));
        world.progress = progress.clone();
        world.play(steps);
        assert!(world.state.is_final());
    }
    assert!(Progress::from_bytes(&[9]).is_err());
    assert_eq!(progress.state(TaskKey::whole(1)), Some(TaskState::Pending));
}

/// A run that is paused before a node has begun it begins when it is resumed.
#[test]
fn begins_when_it_is_resumed() {
    let plan = plan(dag("a; b: a"));
    let (mut state, mut progress) = (RunState::Waiting, Progress::default());
    let now = "2026-11-20T10:00:00Z".parse().unwrap();
    let a = TaskKey::whole(0);
    let pause = |withdrawn| Event::Pause { withdrawn };
    let resume = Event::Resume { waits: false };
    for (event, ready) in [
        (pause(vec![]), 0),
        (resume.clone(), 1),
        (pause(vec![a]), 0),
        (resume, 1),
    ] {
        let actions = decide(&plan, &mut state, &mut progress, &[event], now, &mut || 0).unwrap();
        assert_eq!(actions.ready.len(), ready);
    }
    assert_eq!(state, RunState::Running);
}

/// Delivers outcomes in batches of 200 and counts the batches.
fn by_batches(world: &mut World, items: u32) -> usize {
    let mut batches = 0;
    let (mut bits, now) = (|| 0, world.now);
    let mut events = vec![Event::Start];
    let mut ready = std::collections::VecDeque::new();
    while !world.state.is_final() {
        batches += 1;
        let actions = decide(
            &world.plan,
            &mut world.state,
            &mut world.progress,
            &events,
            now,
            &mut bits,
        )
        .unwrap();
        assert!(actions.accepted.iter().all(|accepted| *accepted));
        ready.extend(actions.ready);
        let bytes = world.progress.to_bytes().unwrap();
        world.progress = Progress::from_bytes(&bytes).unwrap();
        let count = ready.len().min(200);
        let outcome = |at: AttemptKey| match at.key.item.is_none() && world.plan.tasks[at.key.task as usize].mapped {
            true => Event::Expanded { at, count: items },
            false => Event::Ended {
                at,
                outcome: Outcome::Succeeded { output_bytes: 4 },
            },
        };
        events = ready.drain(..count).map(outcome).collect();
    }
    batches
}

#[test]
fn ten_thousand_tasks() {
    let mut tasks = serde_json::Map::new();
    let middle: Vec<String> = (0..9_998).map(|index| format!("m{index}")).collect();
    tasks.insert("a".into(), json!({}));
    for name in &middle {
        tasks.insert(name.clone(), json!({"depends_on": ["a"]}));
    }
    tasks.insert("z".into(), json!({"depends_on": middle}));
    let mut world = World::of(plan(json!({"tasks": tasks})));
    assert_eq!(by_batches(&mut world, 0), 1 + 1 + 50 + 1);
    assert_eq!(world.state, RunState::Succeeded);
}

#[test]
fn a_chain_of_ten_thousand() {
    let mut tasks = serde_json::Map::new();
    for index in 0..10_000 {
        let before: Vec<String> = (index > 0).then(|| format!("t{}", index - 1)).into_iter().collect();
        tasks.insert(format!("t{index}"), json!({"depends_on": before}));
    }
    let mut world = World::of(plan(json!({"tasks": tasks})));
    // All of it fails at the same time, and is retried at the same time.
    let mut bits = || 0;
    let first = AttemptKey {
        key: world.key("t0"),
        attempt: 1,
    };
    let mut decide = |events: &[Event]| {
        decide(
            &world.plan,
            &mut world.state,
            &mut world.progress,
            events,
            world.now,
            &mut bits,
        )
        .unwrap()
    };
    decide(&[Event::Start]);
    let actions = decide(&[Event::Ended {
        at: first,
        outcome: world::failure(false),
    }]);
    assert_eq!(
        (actions.settled.len(), actions.finished),
        (10_000, Some(RunState::Failed))
    );
    let actions = decide(&[Event::Override {
        key: first.key,
        state: TaskState::Succeeded,
        bytes_before: 0,
        bytes_after: 0,
    }]);
    assert_eq!((actions.ready.len(), actions.finished), (1, None));
    let actions = decide(&[Event::Cancel {
        withdrawn: vec![actions.ready[0].key],
    }]);
    assert_eq!((actions.settled.len(), actions.interrupt.len()), (9_999, 0));
}

#[test]
fn ten_thousand_items() {
    for concurrency in [10_000, 64] {
        let group = json!({"tasks": {"m": {"for_each": "{{ params.items }}", "concurrency": concurrency}}});
        let mut world = World::of(plan(group));
        by_batches(&mut world, 10_000);
        assert_eq!(world.state, RunState::Succeeded);
        assert!(world.progress.to_bytes().unwrap().len() < 10_100);
    }
    // All of them are stopped at once; and none of them starts after a stop.
    let tasks = json!({"a": {}, "m": {"for_each": "{{ params.items }}", "fail_fast": true}});
    World::start(json!({"tasks": tasks})).play("expand m 10000; claim *; fail m#9999; ok a");
    World::start(json!({"tasks": tasks, "on_failure": "stop"})).play("claim *; fail a; expand m 10000");
}

#[test]
fn the_page_about_it_names_every_state() {
    let page = include_str!("../../../../docs/state-machine.md");
    let words = RunState::ALL.iter().map(|state| state.as_str());
    let words = words.chain(TaskState::ALL.iter().map(|state| state.as_str()));
    for word in words.chain(crate::state::AttemptState::ALL.iter().map(|state| state.as_str())) {
        assert!(page.contains(&format!("{word} -->")), "{word}");
        assert!(page.contains(&format!("--> {word}")), "{word}");
    }
}

/// The consequences of two decisions of one transaction are carried out together: nothing of either is lost.
#[test]
fn a_second_decision_adds_to_the_first() {
    let key = |task| TaskKey { task, item: None };
    let at = |task| AttemptKey {
        key: key(task),
        attempt: 1,
    };
    let now = Time::default();
    let of = |task| Actions {
        ready: vec![at(task)],
        timers: vec![(now, at(task))],
        drop_timers: vec![key(task)],
        interrupt: vec![key(task)],
        withdraw: task == 1,
        settled: vec![(task, TaskState::Cancelled)],
        accepted: vec![task == 1],
        finished: (task == 2).then_some(RunState::Failed),
    };
    let mut both = of(1);
    both.and_then(of(2));
    let expect = Actions {
        ready: vec![at(1), at(2)],
        timers: vec![(now, at(1)), (now, at(2))],
        drop_timers: vec![key(1), key(2)],
        interrupt: vec![key(1), key(2)],
        withdraw: false,
        settled: vec![(1, TaskState::Cancelled), (2, TaskState::Cancelled)],
        accepted: vec![true, false],
        finished: Some(RunState::Failed),
    };
    assert_eq!(both, expect);
}
