//! Mapped tasks.

use serde_json::json;

use super::super::*;
use super::world::World;

/// A task `m` over items, and `z` that waits for it.
fn mapped(fields: serde_json::Value) -> World {
    let mut task = json!({"for_each": "{{ params.items }}"});
    task.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    World::start(json!({"tasks": {"m": task, "z": {"depends_on": ["m"]}}}))
}

const RETRY: &str = r#"{"retry": {"strategy": "fixed", "retries": 1, "interval": "1h"}}"#;

fn retried(concurrency: u32) -> World {
    let mut fields: serde_json::Value = serde_json::from_str(RETRY).unwrap();
    fields["concurrency"] = json!(concurrency);
    mapped(fields)
}

#[test]
fn one_task_run_per_item() {
    let mut world = mapped(json!({}));
    world
        .shows("m=ready z=pending run=running")
        .play("expand m 3")
        .shows("m=ready m#0=ready m#1=ready m#2=ready z=pending run=running")
        .stale("m", 1)
        .play("ok m#2; ok m#0; skip m#1")
        .shows("m=succeeded m#0=succeeded m#1=skipped m#2=succeeded z=ready run=running")
        .stale("m#1", 1);
    assert_eq!(world.progress.items(0), Some(3));
    assert_eq!(world.progress.items(1), None);
}

#[test]
fn an_empty_array_succeeds() {
    mapped(json!({}))
        .play("expand m 0")
        .shows("m=succeeded z=ready run=running");
    mapped(json!({}))
        .play("claim m; pause; expand m 0")
        .shows("m=succeeded z=paused run=paused");
}

#[test]
fn too_many_items_fail() {
    mapped(json!({}))
        .play("expand m 10001")
        .shows("m=failed z=upstream_failed run=failed");
}

#[test]
fn the_expansion_may_end_otherwise() {
    mapped(json!({}))
        .play("skip m")
        .shows("m=skipped z=skipped run=succeeded");
    mapped(json!({}))
        .play("fatal m")
        .shows("m=failed z=upstream_failed run=failed");
    mapped(json!({}))
        .play("lose m; expand m 1; ok m#0")
        .shows("m=succeeded m#0=succeeded z=ready run=running");
    retried(9)
        .play("fail m; due m; expand m 1; ok m#0")
        .shows("m=succeeded m#0=succeeded z=ready run=running");
}

#[test]
fn concurrency_at_once() {
    mapped(json!({"concurrency": 2}))
        .play("expand m 4")
        .shows("m=ready m#0=ready m#1=ready m#2=pending m#3=pending z=pending run=running")
        .play("claim *; ok m#1")
        .shows("m=ready m#0=running m#1=succeeded m#2=ready m#3=pending z=pending run=running")
        .play("lose m#0; ok m#0; ok m#2; ok m#3; ok z");
}

#[test]
fn an_item_that_waits_for_its_retry_holds_nobody_up() {
    retried(1)
        .play("expand m 3; fail m#0")
        .shows("m=ready m#0=retrying m#1=ready m#2=pending z=pending run=running")
        // It is due, but there is no free slot: it takes the next one, before items that were never started.
        .play("due m#0")
        .shows("m=ready m#0=pending m#1=ready m#2=pending z=pending run=running")
        .play("ok m#1")
        .shows("m=ready m#0=ready m#1=succeeded m#2=pending z=pending run=running")
        .play("fail m#0; ok m#2")
        .shows("m=failed m#0=failed m#1=succeeded m#2=succeeded z=upstream_failed run=failed");
}

#[test]
fn a_failed_item_fails_the_task_at_the_end() {
    let mut world = mapped(json!({}));
    world
        .play("expand m 3; fail m#1")
        .shows("m=ready m#0=ready m#1=failed m#2=ready z=pending run=running")
        .play("ok m#0; ok m#2")
        .shows("m=failed m#0=succeeded m#1=failed m#2=succeeded z=upstream_failed run=failed");
    assert_eq!(world.progress.error(), Some("task m item 1: failed: broken"));
    assert_eq!(
        world.progress.map_failure(0),
        Some((ErrorKind::Failed, "1 of 3 items failed".into()))
    );
    mapped(json!({"allow_failure": true}))
        .play("expand m 1; fail m#0; ok z")
        .shows("m=failed m#0=failed z=succeeded run=succeeded");
}

#[test]
fn fail_fast_cancels_the_rest() {
    let mut world = mapped(json!({"fail_fast": true, "concurrency": 3}));
    world
        .play("expand m 5; claim m#0; claim m#1; fail m#1")
        .shows(
            "m=failed m#0=cancelled m#1=failed m#2=cancelled m#3=cancelled m#4=cancelled z=upstream_failed run=failed",
        )
        .stale("m#0", 1)
        .stale("m#2", 1);
    assert_eq!(
        world.stopped,
        [AttemptKey {
            key: world.key("m#0"),
            attempt: 1
        }]
    );
    // Outcomes of the same batch count, before and after the failure.
    mapped(json!({"fail_fast": true}))
        .play("expand m 4; claim *; ok m#0 + fail m#1 + ok m#2")
        .shows("m=failed m#0=succeeded m#1=failed m#2=succeeded m#3=cancelled z=upstream_failed run=failed");
}

#[test]
fn the_joined_output_is_bounded() {
    let half = JOINED_OUTPUT_BYTES_MAX / 2;
    // [a,b]: three bytes more than a and b.
    let end = |a: u64, b: u64| {
        let mut world = mapped(json!({}));
        world.play(&format!("expand m 2; ok m#0 {a}; ok m#1 {b}"));
        (
            world.progress.task(0),
            world.progress.map_failure(0).map(|failure| failure.0),
        )
    };
    assert_eq!(end(half, half - 3), (TaskState::Succeeded, None));
    assert_eq!(end(half, half - 2), (TaskState::Failed, Some(ErrorKind::Output)));
    assert_eq!(end(u64::MAX, 7), (TaskState::Failed, Some(ErrorKind::Output)));
    // [a,null]
    let mut world = mapped(json!({}));
    world.play(&format!("expand m 2; ok m#0 {}; skip m#1", JOINED_OUTPUT_BYTES_MAX - 7));
    assert_eq!(world.progress.task(0), TaskState::Succeeded);
    let mut world = mapped(json!({}));
    world.play(&format!("expand m 2; ok m#0 {}; skip m#1", JOINED_OUTPUT_BYTES_MAX - 6));
    assert_eq!(
        world
            .progress
            .error()
            .map(|error| error.starts_with("task m: output: ")),
        Some(true)
    );
}

#[test]
fn a_map_of_a_paused_run_stands_still_when_nothing_of_it_is_under_way() {
    let mut world = retried(2);
    world.play("expand m 4; claim m#0; pause");
    let (m, z) = (world.key("m"), world.key("z"));
    let shown_state = |world: &World, key, under_way| world.progress.shown_state(key, world.state, under_way);
    assert_eq!(shown_state(&world, m, true), Some(TaskState::Running));
    assert_eq!(shown_state(&world, m, false), Some(TaskState::Paused));
    assert_eq!(shown_state(&world, world.key("m#1"), false), Some(TaskState::Paused));
    assert_eq!(shown_state(&world, z, false), Some(TaskState::Pending));
    assert_eq!(shown_state(&world, world.key("m#9"), false), None);
    world.play("resume");
    assert_eq!(shown_state(&world, m, false), Some(TaskState::Running));
    assert_eq!(shown_state(&world, world.key("m#1"), false), Some(TaskState::Ready));
    // What starts with the run's turn is held back by nobody.
    assert_eq!(
        world.progress.shown_state(m, RunState::Waiting, false),
        Some(TaskState::Pending)
    );
    let mut held = mapped(json!({}));
    held.play("claim m; pause; expand m 0");
    assert_eq!(shown_state(&held, z, false), Some(TaskState::Paused));
    assert_eq!(
        held.progress.shown_state(z, RunState::Waiting, false),
        Some(TaskState::Pending)
    );
}

#[test]
fn a_pause_holds_items_back() {
    retried(2)
        .play("expand m 4; claim m#0; pause")
        .shows("m=ready m#0=running m#1=paused m#2=pending m#3=pending z=pending run=paused")
        .play("fail m#0; due m#0")
        .shows("m=ready m#0=paused m#1=paused m#2=pending m#3=pending z=pending run=paused")
        .play("resume")
        .shows("m=ready m#0=ready m#1=ready m#2=pending m#3=pending z=pending run=running")
        .play("ok m#1; ok m#2; pause; resume; ok m#0; ok m#3; ok z");
    // The items become known while the run is paused.
    mapped(json!({}))
        .play("claim m; pause; expand m 2")
        .shows("m=ready m#0=pending m#1=pending z=pending run=paused")
        .play("resume")
        .shows("m=ready m#0=ready m#1=ready z=pending run=running");
}

#[test]
fn a_stop_cancels_items_that_have_not_started() {
    let start = || {
        let m = json!({"for_each": "{{ params.items }}", "concurrency": 2});
        World::start(json!({"on_failure": "stop", "tasks": {"a": {}, "m": m}}))
    };
    start()
        .play("claim a; expand m 4; claim m#1; fail a")
        .shows("a=failed m=ready m#0=cancelled m#1=running m#2=cancelled m#3=cancelled run=running")
        .play("ok m#1")
        .shows("a=failed m=cancelled m#0=cancelled m#1=succeeded m#2=cancelled m#3=cancelled run=failed")
        // Repaired: they continue.
        .play("set a succeeded")
        .shows("a=succeeded m=ready m#0=ready m#1=succeeded m#2=ready m#3=pending run=running");
    // Dealt with while one of them still runs.
    start()
        .play("claim a; expand m 4; claim m#1; fail a; set a succeeded")
        .shows("a=succeeded m=ready m#0=ready m#1=running m#2=pending m#3=pending run=running");
    start()
        .play("claim *; fail a; expand m 3")
        .shows("a=failed m=cancelled m#0=cancelled m#1=cancelled m#2=cancelled run=failed");
}

#[test]
fn restart_runs_only_failed_items_again() {
    let mut world = mapped(json!({}));
    world
        .play("expand m 3; ok m#0; fail m#1; lose m#2; ok m#2; restart")
        .shows("m=ready m#0=succeeded m#1=ready m#2=succeeded z=pending run=running")
        .play("ok m#1; ok z")
        .shows("m=succeeded m#0=succeeded m#1=succeeded m#2=succeeded z=succeeded run=succeeded");
    assert_eq!(world.progress.attempt(world.key("m#1")), 2);
}

#[test]
fn restart_expands_anew_what_came_from_outputs_that_go_again() {
    let start = |items: serde_json::Value| {
        World::start(
            json!({"tasks": {"a": {}, "m": {"for_each": items, "depends_on": ["a"], "trigger_rule": "all_done"}}}),
        )
    };
    let mut world = start(json!("{{ upstream.a }}"));
    world
        .play("fail a; expand m 2; lose m#0; ok m#0; fail m#1; restart")
        .shows("a=ready m=pending run=running")
        .play("ok a; expand m 3; ok m#0; ok m#1; ok m#2")
        .shows("a=succeeded m=succeeded m#0=succeeded m#1=succeeded m#2=succeeded run=succeeded");
    // Constant items stay, with what succeeded; but the task waits for its dependencies again.
    start(json!([1, 2]))
        .play("fail a; expand m 2; ok m#0; fail m#1; restart")
        .shows("a=ready m=pending m#0=succeeded m#1=pending run=running")
        .play("ok a")
        .shows("a=succeeded m=ready m#0=succeeded m#1=ready run=running")
        .play("ok m#1")
        .shows("a=succeeded m=succeeded m#0=succeeded m#1=succeeded run=succeeded");
}

#[test]
fn retry_now_of_items_and_of_the_whole() {
    let failed = || {
        let mut world = mapped(json!({"concurrency": 1}));
        world.play("expand m 3; fail m#0; ok m#1; fail m#2");
        world.shows("m=failed m#0=failed m#1=succeeded m#2=failed z=upstream_failed run=failed");
        world
    };
    failed()
        .refused("retry m#1", "the task run is succeeded")
        .refused("retry m#3", "the task run does not exist")
        .play("retry m#2")
        .shows("m=ready m#0=failed m#1=succeeded m#2=ready z=pending run=running")
        .play("retry m#0")
        .shows("m=ready m#0=pending m#1=succeeded m#2=ready z=pending run=running")
        .play("ok m#2; ok m#0; ok z");
    failed()
        .play("retry m")
        .shows("m=ready m#0=ready m#1=succeeded m#2=pending z=pending run=running")
        .play("ok m#0; fail m#2")
        .shows("m=failed m#0=succeeded m#1=succeeded m#2=failed z=upstream_failed run=failed");
    // While it waits for a retry, and without a free slot.
    retried(1)
        .play("expand m 2; fail m#0; retry m#0")
        .shows("m=ready m#0=pending m#1=ready z=pending run=running")
        .play("ok m#1; ok m#0; ok z");
    // When the last failure is gone, what `fail_fast` cancelled continues.
    mapped(json!({"fail_fast": true}))
        .play("expand m 3; fail m#1; retry m#1")
        .shows("m=ready m#0=ready m#1=ready m#2=ready z=pending run=running");
    // While other items run.
    let running = || {
        let mut world = mapped(json!({}));
        world.play("expand m 3; fail m#0; claim m#1; fail m#2");
        world
    };
    running()
        .play("retry m")
        .shows("m=ready m#0=ready m#1=running m#2=ready z=pending run=running")
        .play("ok m#0; ok m#2; ok m#1; ok z");
    running()
        .play("retry m#0; ok m#0; retry m#2; ok m#2")
        .refused("retry m", "the task run is ready");
    // One that failed before the run was cancelled, when something else goes on. Only it is named.
    World::start(json!({"tasks": {"a": {}, "m": {"for_each": [0, 1, 2]}}}))
        .play("claim a; expand m 3; fail m#0; claim m#1; fail m#2; cancel; clear a; retry m#0")
        .shows("a=ready m=ready m#0=ready m#1=cancelled m#2=failed run=running");
    // An override stays.
    mapped(json!({}))
        .play("expand m 2; claim m#0; fail m#1; set m succeeded; ok z")
        .refused("retry m#1", "the task run is succeeded")
        .refused("retry m#0", "the task run is cancelled")
        .play("set m#1 succeeded")
        .shows("m=succeeded m#0=cancelled m#1=succeeded z=succeeded run=succeeded")
        .play("set m failed; set m#0 skipped")
        .shows("m=failed m#0=skipped m#1=succeeded z=succeeded run=failed")
        .play("retry m")
        .shows("m=ready z=succeeded run=running");
    // One that `fail_fast` cancelled.
    mapped(json!({"fail_fast": true}))
        .play("expand m 2; fail m#1; retry m#0")
        .shows("m=ready m#0=ready m#1=failed z=pending run=running")
        .play("ok m#0")
        .shows("m=failed m#0=succeeded m#1=failed z=upstream_failed run=failed");
    // One that an override cancelled.
    mapped(json!({}))
        .play("expand m 2; claim m#0; ok m#1; set m failed")
        .shows("m=failed m#0=cancelled m#1=succeeded z=upstream_failed run=failed")
        .refused("retry m#0", "the task run is cancelled")
        .play("retry m")
        .shows("m=ready m#0=ready m#1=succeeded z=pending run=running");
}

/// It failed, though none of its items did: all of them run again.
#[test]
fn a_map_that_failed_as_a_whole() {
    let large = JOINED_OUTPUT_BYTES_MAX;
    for again in ["restart", "retry m"] {
        mapped(json!({}))
            .play("expand m 2; ok m#0; ok m#1; ok z; set m failed")
            .play(again)
            .shows("m=ready z=succeeded run=running")
            .play("expand m 3; ok m#0; ok m#1; ok m#2")
            .shows("m=succeeded m#0=succeeded m#1=succeeded m#2=succeeded z=succeeded run=succeeded");
        mapped(json!({}))
            .play(&format!("expand m 2; ok m#0 {large}; ok m#1"))
            .shows("m=failed m#0=succeeded m#1=succeeded z=upstream_failed run=failed")
            .play(again)
            .shows("m=ready z=pending run=running")
            .play("expand m 1; ok m#0; ok z")
            .shows("m=succeeded m#0=succeeded z=succeeded run=succeeded");
    }
}

/// Whoever reads the output of such a task must know its length, whatever state the task has.
#[test]
fn the_length_of_the_joined_output_is_known_after_an_override() {
    let large = JOINED_OUTPUT_BYTES_MAX;
    let mut world = mapped(json!({}));
    assert_eq!(world.progress.joined_bytes(0), None);
    world
        .play(&format!("expand m 2; ok m#0 {large}; skip m#1; set m succeeded"))
        .shows("m=succeeded m#0=succeeded m#1=skipped z=ready run=running");
    // [a,null]
    assert_eq!(world.progress.joined_bytes(0), Some(large + 7));
}

#[test]
fn override_of_items() {
    let mut world = mapped(json!({}));
    world
        .play("expand m 3; claim m#0; set m#0 succeeded; set m#1 failed")
        .shows("m=ready m#0=succeeded m#1=failed m#2=ready z=pending run=running")
        .stale("m#0", 1)
        .play("ok m#2")
        .shows("m=failed m#0=succeeded m#1=failed m#2=succeeded z=upstream_failed run=failed")
        .play("set m#1 skipped")
        .shows("m=succeeded m#0=succeeded m#1=skipped m#2=succeeded z=ready run=running")
        .play("ok z; set m#2 failed")
        .shows("m=failed m#0=succeeded m#1=skipped m#2=failed z=succeeded run=failed")
        .play("retry m#2; ok m#2")
        .shows("m=succeeded m#0=succeeded m#1=skipped m#2=succeeded z=succeeded run=succeeded");
    assert_eq!(world.stopped.len(), 1);
    assert_eq!(world.progress.attempt(world.key("m#2")), 2);
    // What `fail_fast` cancelled because of it continues.
    mapped(json!({"fail_fast": true, "concurrency": 2}))
        .play("expand m 4; claim *; fail m#0; set m#0 succeeded")
        .shows("m=ready m#0=succeeded m#1=ready m#2=ready m#3=pending z=pending run=running");
    mapped(json!({"fail_fast": true}))
        .play("expand m 3; fail m#0; retry m#1; set m#0 skipped")
        .shows("m=ready m#0=skipped m#1=ready m#2=ready z=pending run=running");
    mapped(json!({"fail_fast": true}))
        .play("expand m 2; claim m#0; set m#1 failed")
        .shows("m=failed m#0=cancelled m#1=failed z=upstream_failed run=failed");
}

/// What an operator has cancelled continues by a restart only, not because another item was overridden.
#[test]
fn an_override_of_an_item_leaves_what_was_cancelled_with_the_run() {
    for fail_fast in [false, true] {
        let beside = || {
            let tasks = json!({"a": {}, "m": {"for_each": [0, 1, 2], "fail_fast": fail_fast}});
            let mut world = World::start(json!({"tasks": tasks}));
            world.play("claim a; expand m 3; claim m#0; cancel");
            world
        };
        for state in ["succeeded", "skipped"] {
            beside()
                .play("clear a")
                .shows("a=ready m=cancelled m#0=cancelled m#1=cancelled m#2=cancelled run=running")
                .play(&format!("set m#2 {state}"))
                .shows(&format!(
                    "a=ready m=cancelled m#0=cancelled m#1=cancelled m#2={state} run=running"
                ))
                .play("ok a; restart")
                .shows(&format!(
                    "a=succeeded m=ready m#0=ready m#1=ready m#2={state} run=running"
                ));
            // The state of the run was set by hand.
            let mut world = beside();
            world.state = RunState::Succeeded;
            world.play(&format!("set m#2 {state}")).shows(&format!(
                "a=cancelled m=cancelled m#0=cancelled m#1=cancelled m#2={state} run=cancelled"
            ));
        }
    }
}

/// The order of the overrides does not matter for the state of the task.
#[test]
fn items_of_a_cancelled_map_make_its_state() {
    let m = || mapped(json!({}));
    m().play("expand m 2; set m#0 failed; cancel; set m#1 succeeded")
        .shows("m=failed m#0=failed m#1=succeeded z=cancelled run=cancelled");
    m().play("expand m 2; set m#0 succeeded; cancel; set m#1 failed")
        .shows("m=failed m#0=succeeded m#1=failed z=cancelled run=cancelled");
    m().play("expand m 2; set m#0 succeeded; cancel; set m#1 skipped")
        .shows("m=succeeded m#0=succeeded m#1=skipped z=cancelled run=cancelled");
}

#[test]
fn an_overridden_item_gives_the_output_that_it_has_now() {
    let large = JOINED_OUTPUT_BYTES_MAX;
    let too_large = "m=failed m#0=succeeded m#1=succeeded z=upstream_failed run=failed";
    // What it gave before is gone, whatever it is set to.
    for (state, after) in [("skipped", 0), ("succeeded", 4)] {
        mapped(json!({}))
            .play(&format!("expand m 2; ok m#0 {large}; ok m#1"))
            .shows(too_large)
            .play(&format!("set m#0 {state} {large} {after}"))
            .shows(&format!("m=succeeded m#0={state} m#1=succeeded z=ready run=running"));
    }
    // What is given with the override counts.
    let mut world = mapped(json!({}));
    world
        .play(&format!("expand m 2; fail m#0; ok m#1; set m#0 succeeded 0 {large}"))
        .shows(too_large);
    let error = world.progress.error().expect("a failure");
    assert!(error.starts_with("task m: output: "), "{error}");
    // Nothing adds up.
    let mut world = mapped(json!({}));
    world.play("expand m 2; ok m#0 1000; ok m#1 6");
    let bytes = world.progress.maps[&0].output_bytes;
    for _ in 0..5 {
        world.play("set m#0 failed 1000 0; set m#0 succeeded 0 1000");
    }
    assert_eq!(world.progress.maps[&0].output_bytes, bytes);
}

#[test]
fn override_of_the_whole() {
    let mut world = mapped(json!({}));
    world
        .play("expand m 3; claim m#0; ok m#1; set m skipped")
        .shows("m=skipped m#0=cancelled m#1=succeeded m#2=cancelled z=skipped run=succeeded");
    assert_eq!(world.stopped.len(), 1);
    mapped(json!({}))
        .play("claim m; set m succeeded")
        .stale("m", 1)
        .shows("m=succeeded z=ready run=running");
}
