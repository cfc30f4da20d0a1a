//! Clear: a task run, and what depends on it, once more within a run that has ended.

use serde_json::json;

use super::world::World;
use super::{dag, stopping};
use crate::state::RunState;

#[test]
fn a_task_and_what_depends_on_it_run_again() {
    let mut world = World::start(dag("a; b: a; c: b; x: a; y"));
    world
        .refused("clear b", "the run is running")
        .play("ok a; ok b; ok c; ok x; ok y")
        .play("clear b")
        .shows("a=succeeded b=ready c=pending x=succeeded y=succeeded run=running")
        .stale("b", 1)
        .refused("clear b", "the run is running")
        .play("claim b; ok b; claim c; ok c")
        .shows("a=succeeded b=succeeded c=succeeded x=succeeded y=succeeded run=succeeded");
    // Numbers continue, and a second clear continues from there.
    world.play("clear a");
    assert_eq!(world.ready.values().copied().collect::<Vec<_>>(), [2]);
    world.play("ok a");
    let numbers: Vec<u32> = world.ready.values().copied().collect();
    assert_eq!(numbers, [3, 2], "b and x");
    world.drain(0);
}

#[test]
fn alone_it_leaves_what_has_run_and_asks_what_has_not() {
    World::start(dag("a; b: a; c: a"))
        .play("ok a; ok b; skip c; clear a alone")
        .shows("a=ready b=succeeded c=skipped run=running")
        .play("ok a")
        .shows("a=succeeded b=succeeded c=skipped run=succeeded");
    World::start(dag("a; b: a; c: b; d: a all_done"))
        .play("fail a; ok d")
        .shows("a=failed b=upstream_failed c=upstream_failed d=succeeded run=failed")
        .play("clear a alone")
        .shows("a=ready b=pending c=pending d=succeeded run=running")
        .play("ok a; ok b; ok c")
        .shows("a=succeeded b=succeeded c=succeeded d=succeeded run=succeeded");
    // All that depends on it is cleared too, even if it was overridden, or skipped by its own decision.
    World::start(dag("a; b: a; c: a; d: a all_done"))
        .play("ok a; skip b; ok d; set c skipped; clear a")
        .shows("a=ready b=pending c=pending d=pending run=running")
        .play("ok a; claim *")
        .shows("a=succeeded b=running c=running d=running run=running");
}

#[test]
fn failures_that_stand_and_those_that_are_dealt_with() {
    // Another failure remains: the run ends as before.
    let mut world = World::start(dag("a; b; c: b"));
    world.play("fail a; ok b; ok c; clear b; ok b; ok c");
    world.shows("a=failed b=succeeded c=succeeded run=failed");
    // The failure in the run's error is downstream of what runs again.
    let mut world = World::start(dag("a; b: a"));
    world.play("ok a; fail b; clear a");
    assert_eq!(world.progress.error(), None);
    world.play("ok a; ok b").shows("a=succeeded b=succeeded run=succeeded");
    // What a stop cancelled continues together with the failure that caused it.
    World::start(stopping(dag("a; b: a; c")))
        .play("claim a; claim c; fail a; ok c")
        .shows("a=failed b=cancelled c=succeeded run=failed")
        .play("clear c")
        .shows("a=failed b=cancelled c=ready run=running")
        .play("ok c")
        .shows("a=failed b=cancelled c=succeeded run=failed")
        .play("clear a alone")
        .shows("a=ready b=pending c=succeeded run=running");
    // If nothing can run after all, the run ends again at once.
    World::start(dag("a; b: a"))
        .play("ok a; ok b; set a failed")
        .shows("a=failed b=succeeded run=failed")
        .play("clear b")
        .shows("a=failed b=upstream_failed run=failed");
    // Retries and losses count from the start.
    World::start(dag("a: retry"))
        .play("fail a; due a; fail a; due a; fail a")
        .shows("a=failed run=failed")
        .play("clear a; fail a")
        .shows("a=retrying run=running");
}

#[test]
fn of_a_cancelled_run_only_what_is_named_goes_on() {
    World::start(dag("a; b: a; c"))
        .play("ok a; cancel")
        .shows("a=succeeded b=cancelled c=cancelled run=cancelled")
        .play("clear b")
        .shows("a=succeeded b=ready c=cancelled run=running")
        .play("ok b")
        .shows("a=succeeded b=succeeded c=cancelled run=cancelled")
        .play("restart")
        .shows("a=succeeded b=succeeded c=ready run=running");
    // A dependency that was cancelled counts as failed.
    World::start(dag("a; b: a; c: a none_failed; d: a all_failed"))
        .play("cancel; clear b")
        .shows("a=cancelled b=upstream_failed c=cancelled d=cancelled run=cancelled")
        .play("clear c")
        .shows("a=cancelled b=upstream_failed c=upstream_failed d=cancelled run=cancelled")
        .play("clear d")
        .shows("a=cancelled b=upstream_failed c=upstream_failed d=ready run=running");
    // Nor does the rest come back with what is repaired later.
    World::start(dag("a; b: a; c; d"))
        .play("ok a; ok d; cancel; clear b; claim b; set d failed")
        .shows("a=succeeded b=running c=cancelled d=failed run=running")
        .play("fail b; retry b")
        .shows("a=succeeded b=ready c=cancelled d=failed run=running")
        .play("ok b; set d succeeded")
        .shows("a=succeeded b=succeeded c=cancelled d=succeeded run=cancelled")
        .play("restart")
        .shows("a=succeeded b=succeeded c=ready d=succeeded run=running");
}

/// A run that was ended by an override of its state was not stopped: what that cancelled is for restart.
#[test]
fn of_an_overridden_run_only_what_is_named_goes_on() {
    let group = json!({"on_failure": "stop", "tasks": {"a": {}, "b": {}, "m": {"for_each": [1, 2]}}});
    let mut world = World::start(group);
    world.play("expand m 2; set m#0 failed; cancel").state = RunState::Succeeded;
    world
        .play("clear a")
        .shows("a=ready b=cancelled m=cancelled m#0=failed m#1=cancelled run=running")
        .play("set a succeeded")
        .shows("a=succeeded b=cancelled m=cancelled m#0=failed m#1=cancelled run=cancelled");
}

#[test]
fn mapped_tasks() {
    let group = || json!({"tasks": {"m": {"shards": 3}, "z": {"depends_on": ["m"]}}});
    let mut world = World::start(group());
    world
        .play("expand m 3; ok m#0; ok m#1; ok m#2; ok z; clear m")
        .shows("m=ready z=pending run=running")
        // It is expanded anew, to its current items.
        .play("expand m 2; claim *")
        .shows("m=ready m#0=running m#1=running z=pending run=running");
    assert!(world.running.values().all(|&attempt| attempt > 1));
    world.drain(2);
    // One item.
    let mut world = World::start(group());
    world
        .play("expand m 3; ok m#0; fail m#1; ok m#2")
        .shows("m=failed m#0=succeeded m#1=failed m#2=succeeded z=upstream_failed run=failed")
        .play("clear m#0")
        .shows("m=ready m#0=ready m#1=failed m#2=succeeded z=pending run=running")
        .play("ok m#0")
        .shows("m=failed m#0=succeeded m#1=failed m#2=succeeded z=upstream_failed run=failed")
        .play("clear m#1; ok m#1; ok z")
        .shows("m=succeeded m#0=succeeded m#1=succeeded m#2=succeeded z=succeeded run=succeeded")
        .play("clear m#2 alone; ok m#2")
        .shows("m=succeeded m#0=succeeded m#1=succeeded m#2=succeeded z=succeeded run=succeeded")
        .refused("clear m#3", "the task run does not exist");
    // An item's part of the joined output is taken back with it: repeated clears do not make it grow.
    let bytes = world.progress.maps[&0].output_bytes;
    for _ in 0..5 {
        world.play("clear m#2; ok m#2; ok z");
    }
    assert_eq!(world.progress.maps[&0].output_bytes, bytes);
    // A mapped task that was overridden as a whole is not determined by its items.
    World::start(group())
        .play("expand m 3; ok m#0; ok m#1; fail m#2; set m succeeded; ok z")
        .refused(
            "clear m#2",
            "the mapped task run is succeeded as a whole, not because of its items: clear the task run instead of an item",
        )
        .play("clear m")
        .shows("m=ready z=pending run=running");
}

#[test]
fn a_cleared_run_waits_for_its_turn() {
    World::start(dag("a; b: a"))
        .play("ok a; ok b; turn + clear a")
        .shows("a=paused b=pending run=waiting")
        .play("start")
        .shows("a=ready b=pending run=running");
}
