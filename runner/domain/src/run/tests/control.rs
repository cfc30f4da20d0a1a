//! Pause, cancel, restart, override, retry-now.

use serde_json::json;

use super::super::*;
use super::world::{World, plan};
use super::{check, dag, stopping};

/// The rule that all ask and the decision of the state machine are the same.
#[test]
fn what_is_allowed_is_accepted() {
    let (plan, now) = (plan(dag("a")), "2026-11-20T10:00:00Z".parse().unwrap());
    let (withdrawn, key) = (Vec::new(), TaskKey::whole(0));
    let clear = Event::Clear {
        key,
        downstream: false,
        output_bytes: 0,
    };
    let events = [
        (
            Control::Cancel,
            Event::Cancel {
                withdrawn: withdrawn.clone(),
            },
        ),
        (Control::Pause, Event::Pause { withdrawn }),
        (Control::Resume, Event::Resume { waits: false }),
        (Control::Restart, Event::Restart),
        (Control::Clear, clear),
    ];
    for (control, event) in events {
        for &state in RunState::ALL {
            let (mut after, mut progress) = (state, Progress::new(&plan));
            let decided = decide(
                &plan,
                &mut after,
                &mut progress,
                std::slice::from_ref(&event),
                now,
                &mut || 0,
            );
            let refused = decided.err();
            let expect = (!control.is_allowed(state)).then_some(Refused::RunState(state));
            assert_eq!(refused, expect, "{control:?} of a run that is {state}");
            assert_eq!(
                control.check(state).err(),
                expect,
                "{control:?} of a run that is {state}"
            );
        }
    }
}

#[test]
fn pause_and_resume() {
    World::start(dag("a; b; c: a; r: retry"))
        .play("fail r; claim a; pause")
        .shows("a=running b=paused c=pending r=retrying run=paused")
        .refused("pause", "the run is paused")
        .refused("retry r", "the run is paused")
        .play("ok a; due r")
        .shows("a=succeeded b=paused c=paused r=paused run=paused")
        .play("resume")
        .shows("a=succeeded b=ready c=ready r=ready run=running")
        .refused("resume", "the run is running")
        .play("ok b; ok c; ok r")
        .shows("a=succeeded b=succeeded c=succeeded r=succeeded run=succeeded")
        .refused("pause", "the run is succeeded");
    // Nothing is left to resume for.
    check("a", "claim a; pause; ok a", "a=succeeded run=succeeded");
    // Lost while paused, failed while paused.
    check(
        "a; b: at_once",
        "claim *; pause; lose a; fail b",
        "a=paused b=paused run=paused",
    );
    World::start(stopping(dag("a; b; c: a")))
        .play("claim a; pause; fail a")
        .shows("a=failed b=cancelled c=cancelled run=failed");
}

#[test]
fn cancel() {
    let mut world = World::start(dag("a; b; c: a; r: retry; d"));
    world
        .play("ok d; fail r; claim a; cancel")
        .shows("a=cancelled b=cancelled c=cancelled d=succeeded r=cancelled run=cancelled")
        .stale("a", 1)
        .refused("cancel", "the run is cancelled")
        .refused("resume", "the run is cancelled")
        .refused("retry a", "the run is cancelled");
    assert_eq!(
        world.stopped,
        [AttemptKey {
            key: TaskKey::whole(0),
            attempt: 1
        }]
    );
    // `b` never started: its first attempt is the first; `a` had, and `r` had failed.
    world
        .play("restart")
        .shows("a=ready b=ready c=pending d=succeeded r=ready run=running");
    let numbers: Vec<u32> = world.ready.values().copied().collect();
    assert_eq!(numbers, [2, 1, 2]);
    world.stale("a", 1).drain(0);
    World::of(plan(dag("a; b: a")))
        .play("cancel")
        .shows("a=cancelled b=cancelled run=cancelled");
    check("a; b: a", "pause; cancel", "a=cancelled b=cancelled run=cancelled");
    // A failure before it does not make it failed, and the words for it are kept.
    check("a; b", "fail a; cancel", "a=failed b=cancelled run=cancelled");
}

#[test]
fn cancel_interrupts_all_that_may_run() {
    let group = json!({"tasks": {"a": {}, "m": {"shards": 4, "concurrency": 3}, "n": {"shards": 2}}});
    let mut world = World::start(group);
    world.play("claim *; expand m 4; claim m#0; claim m#1; cancel");
    world.shows(
        "a=cancelled m=cancelled m#0=cancelled m#1=cancelled m#2=cancelled m#3=cancelled n=cancelled run=cancelled",
    );
    let stopped: Vec<String> = world.stopped.iter().map(|at| world.word(at.key)).collect();
    assert_eq!(stopped, ["a", "m#0", "m#1", "n"]);
    world
        .play("restart")
        .shows("a=ready m=ready m#0=ready m#1=ready m#2=ready m#3=pending n=ready run=running");
    world.drain(2);
}

#[test]
fn restart_keeps_what_succeeded() {
    World::start(dag("a; b: a; c; d: b c all_done; e: c any_failed; s"))
        .play("skip s; ok a; fail b; fail c; ok d; ok e")
        .shows("a=succeeded b=failed c=failed d=succeeded e=succeeded s=skipped run=failed")
        .play("restart")
        .shows("a=succeeded b=ready c=ready d=succeeded e=succeeded s=skipped run=running")
        .refused("restart", "the run is running")
        .play("ok b; ok c")
        .shows("a=succeeded b=succeeded c=succeeded d=succeeded e=succeeded s=skipped run=succeeded")
        .refused("restart", "the run is succeeded");
}

#[test]
fn restart_asks_again_below_what_goes_again() {
    World::start(dag(
        "a; b: a; e: a any_success; f: a all_done; h: a all_done; x; y: x any_failed",
    ))
    .play("ok x; fail a; skip f; set h skipped")
    .shows("a=failed b=upstream_failed e=skipped f=skipped h=skipped x=succeeded y=skipped run=failed")
    .play("restart")
    .shows("a=ready b=pending e=pending f=pending h=skipped x=succeeded y=skipped run=running")
    .play("ok a; claim *")
    .shows("a=succeeded b=running e=running f=running h=skipped x=succeeded y=skipped run=running")
    .play("ok b; ok e; skip f");
    // Retries and losses are counted from the start.
    let twice = "fail a; due a; fail a; due a; fail a";
    let lost = ["lose a"; 5].join(";");
    check(
        "a: retry",
        &format!("{lost};{twice}; restart; {lost}; {twice}"),
        "a=failed run=failed",
    );
}

#[test]
fn override_of_what_runs_cancels_its_attempt() {
    let mut world = World::start(dag("a; b: a; c: a any_failed"));
    world
        .play("claim a; set a succeeded")
        .shows("a=succeeded b=ready c=skipped run=running")
        .stale("a", 1);
    assert_eq!(
        world.stopped,
        [AttemptKey {
            key: TaskKey::whole(0),
            attempt: 1
        }]
    );
    check(
        "a; b: a",
        "claim a; set a failed",
        "a=failed b=upstream_failed run=failed",
    );
    check("a; b: a", "set a skipped", "a=skipped b=skipped run=succeeded");
    check(
        "a: retry; b: a",
        "fail a; set a succeeded",
        "a=succeeded b=ready run=running",
    );
    // Not begun, and never will.
    check(
        "a; b: a",
        "set b succeeded; ok a",
        "a=succeeded b=succeeded run=succeeded",
    );
    check("a; b: a", "pause; set a succeeded", "a=succeeded b=paused run=paused");
}

#[test]
fn override_revives_and_reopens() {
    World::start(dag("a; b: a; c: b; d: c all_done; e: a any_success; f: e"))
        .play("fail a; ok d")
        .shows("a=failed b=upstream_failed c=upstream_failed d=succeeded e=skipped f=skipped run=failed")
        .play("set a succeeded")
        .shows("a=succeeded b=ready c=pending d=succeeded e=ready f=pending run=running")
        .play("ok b; ok c; ok e; ok f")
        .shows("a=succeeded b=succeeded c=succeeded d=succeeded e=succeeded f=succeeded run=succeeded");
    World::start(dag("a; b: a; c: b"))
        .play("fail a; set a skipped")
        .shows("a=skipped b=skipped c=skipped run=succeeded")
        // And back.
        .play("set a failed")
        .shows("a=failed b=upstream_failed c=upstream_failed run=failed")
        .play("set b succeeded")
        .shows("a=failed b=succeeded c=ready run=running")
        .play("ok c")
        .shows("a=failed b=succeeded c=succeeded run=failed");
    // What was skipped by its own decision, or by an override, stays.
    check(
        "a; b: a all_done; c: a",
        "fail a; skip b; set c skipped; set a succeeded",
        "a=succeeded b=skipped c=skipped run=succeeded",
    );
    check(
        "a; b: a any_failed",
        "ok a; set b skipped; set a failed",
        "a=failed b=skipped run=failed",
    );
    check(
        "a; b: a any_failed",
        "ok a; set a failed",
        "a=failed b=ready run=running",
    );
}

#[test]
fn override_is_bounded() {
    World::start(dag("a"))
        .refused("set a running", "the task run is running")
        .refused("set a#0 succeeded", "the task run does not exist")
        .play("set a failed; set a failed")
        .shows("a=failed run=failed");
    // A cancelled run comes back by restart only, which finds what was set.
    World::start(dag("a; b; c: a b"))
        .play("fail b; cancel; set b succeeded; set a skipped; set a skipped")
        .shows("a=skipped b=succeeded c=skipped run=cancelled")
        .play("set a succeeded; restart")
        .shows("a=succeeded b=succeeded c=ready run=running");
    // What the rules have decided follows, but starts nothing: a restart does, and a clear only what it names.
    let mut world = World::start(dag("a; b: a; c: b; z"));
    world
        .play("skip a; claim z; cancel; set a succeeded")
        .shows("a=succeeded b=cancelled c=upstream_failed z=cancelled run=cancelled");
    assert!(world.ready.is_empty());
    world
        .play("clear z alone")
        .shows("a=succeeded b=cancelled c=upstream_failed z=ready run=running");
    world
        .play("ok z; restart")
        .shows("a=succeeded b=ready c=pending z=succeeded run=running");
    // So does the state of a mapped task whose item was set.
    let group = json!({"tasks": {"m": {"for_each": [1, 2]}, "z": {"depends_on": ["m"]}}});
    World::start(group)
        .play("expand m 2; ok m#0; ok m#1; cancel; set m#0 failed")
        .shows("m=failed m#0=failed m#1=succeeded z=cancelled run=cancelled")
        .play("set m#0 skipped")
        .shows("m=succeeded m#0=skipped m#1=succeeded z=cancelled run=cancelled")
        .play("set m#0 failed; restart")
        .shows("m=ready m#0=ready m#1=succeeded z=pending run=running")
        .drain(0);
}

#[test]
fn attempt_numbers_go_on_after_an_override() {
    let mut world = World::start(dag("a"));
    world
        .play("ok a; set a failed; retry a")
        .shows("a=ready run=running")
        .stale("a", 1);
    assert_eq!(world.ready[&TaskKey::whole(0)], 2);
    let mut world = World::start(dag("a"));
    world.play("skip a; set a failed; restart");
    assert_eq!(world.ready[&TaskKey::whole(0)], 2);
}

#[test]
fn retry_now() {
    World::start(dag("a: retry; b: a; c: a all_done"))
        .refused("retry a", "the task run is ready")
        .refused("retry b", "the task run is pending")
        .play("fail a; retry a")
        .shows("a=ready b=pending c=pending run=running")
        .play("fatal a; skip c")
        .shows("a=failed b=upstream_failed c=skipped run=failed")
        .refused("retry b", "the task run is upstream_failed")
        .play("retry a")
        .shows("a=ready b=pending c=pending run=running")
        .play("ok a; ok b; ok c")
        .refused("retry a", "the task run is succeeded");
    // A failure that was allowed, in a run that succeeded.
    check(
        "a: allow; b: a",
        "fail a; ok b; retry a; ok a",
        "a=succeeded b=succeeded run=succeeded",
    );
    World::of(plan(dag("a"))).refused("retry a", "the run is waiting");
}

#[test]
fn a_stop_is_lifted_when_no_failure_is_left() {
    let group = || stopping(dag("a; b; c: a; d; e: d"));
    let mut world = World::start(group());
    world
        .play("claim a; claim b; fail a + fail b")
        .shows("a=failed b=failed c=cancelled d=cancelled e=cancelled run=failed");
    assert_eq!(world.progress.error(), Some("task a: failed: broken"));
    // The other failure remains.
    world
        .play("set a succeeded")
        .shows("a=succeeded b=failed c=cancelled d=cancelled e=cancelled run=failed");
    assert_eq!(world.progress.error(), Some("task b: failed"));
    world
        .play("retry b")
        .shows("a=succeeded b=ready c=ready d=ready e=pending run=running")
        .play("claim *; fail b")
        .shows("a=succeeded b=failed c=running d=running e=cancelled run=running")
        .play("ok c; ok d")
        .play("restart")
        .shows("a=succeeded b=ready c=succeeded d=succeeded e=ready run=running")
        .play("ok b; ok e");
    assert_eq!(world.progress.error(), None);
    // An override to failed is a failure like any other.
    World::start(group())
        .play("claim b; set a failed")
        .shows("a=failed b=running c=cancelled d=cancelled e=cancelled run=running");
}

/// The mark of that override goes with any override of a task run, so the state that it had set may not stay.
#[test]
fn a_state_set_by_hand_ends_with_an_override_that_changes_nothing() {
    let mut world = World::start(dag("a"));
    world.play("ok a").state = RunState::Failed;
    world.play("set a succeeded").shows("a=succeeded run=succeeded");
    let mut world = World::start(dag("a; b: a"));
    world.play("fail a").state = RunState::Succeeded;
    world
        .play("set a failed")
        .shows("a=failed b=upstream_failed run=failed");
}

/// A task that a clear had decided by a cancelled dependency is decided again when that dependency goes on.
#[test]
fn what_waits_for_what_a_stop_had_cancelled_goes_on_with_it() {
    World::start(stopping(dag("a; f; g; d: a f")))
        .play("claim f; claim g; fail f + fail g")
        .shows("a=cancelled d=cancelled f=failed g=failed run=failed")
        .play("clear f")
        .shows("a=cancelled d=upstream_failed f=ready g=failed run=running")
        .play("ok f; clear g")
        .shows("a=ready d=pending f=succeeded g=ready run=running")
        .play("ok g; ok a; ok d")
        .shows("a=succeeded d=succeeded f=succeeded g=succeeded run=succeeded");
    for (rule, end) in [
        ("any_success", "d=ready f=succeeded run=running"),
        ("none_failed", "d=ready f=succeeded run=running"),
        ("all_skipped", "d=skipped f=succeeded run=succeeded"),
    ] {
        World::start(stopping(dag(&format!("a; d: a {rule}; f"))))
            .play("claim f; fail f; clear d; retry f; ok f; ok a")
            .shows(&format!("a=succeeded {end}"));
    }
}

/// While the failure stands that caused the stop, an override of another task starts nothing and lets nothing be retried.
#[test]
fn a_stop_stays_in_force_after_an_override() {
    World::start(stopping(dag("a; c: retry; d: c; e; f: e all_done")))
        .play("claim a; claim c; fail a; set e skipped; fail c")
        .shows("a=failed c=failed d=cancelled e=skipped f=cancelled run=failed")
        .play("set a succeeded; retry c")
        .shows("a=succeeded c=ready d=pending e=skipped f=ready run=running");
    World::start(stopping(dag("a; s; t: s; z")))
        .play("skip s; claim a; fail a; set s succeeded")
        .shows("a=failed s=succeeded t=cancelled z=cancelled run=failed")
        .play("set a succeeded")
        .shows("a=succeeded s=succeeded t=ready z=ready run=running");
}

#[test]
fn a_reopened_run_waits_for_its_turn() {
    // Nothing starts before the run's turn; what is kept stays, and numbers continue.
    let mut world = World::start(dag("a; b: a; c"));
    world
        .play("ok c; fatal a")
        .shows("a=failed b=upstream_failed c=succeeded run=failed")
        .play("turn + restart")
        .shows("a=paused b=pending c=succeeded run=waiting")
        .refused("restart", "the run is waiting")
        .play("pause")
        .shows("a=paused b=pending c=succeeded run=paused")
        .play("resume")
        .shows("a=paused b=pending c=succeeded run=waiting")
        .play("start")
        .shows("a=ready b=pending c=succeeded run=running");
    assert_eq!(world.ready.values().copied().collect::<Vec<_>>(), [2]);
    // An override reopens in the same way, another one finds the run waiting, and a run with nothing to do ends at
    // once.
    World::start(dag("a; b: a; c: b"))
        .play("fatal a; turn + set a succeeded")
        .shows("a=succeeded b=paused c=pending run=waiting")
        .play("set b skipped")
        .shows("a=succeeded b=skipped c=skipped run=succeeded");
    World::start(dag("a; b"))
        .play("fatal a; ok b; turn + set a skipped")
        .shows("a=skipped b=succeeded run=succeeded");
    World::start(dag("a; b: a"))
        .play("fatal a; turn + retry a")
        .shows("a=paused b=pending run=waiting")
        .play("cancel")
        .shows("a=cancelled b=cancelled run=cancelled");
    World::start(dag("a"))
        .play("cancel; turn + restart")
        .shows("a=paused run=waiting")
        .play("start")
        .shows("a=ready run=running");
}

#[test]
fn a_run_that_waits_to_begin() {
    // Paused and resumed it waits still.
    World::of(plan(dag("a; b: a")))
        .play("pause")
        .shows("a=pending b=pending run=paused")
        .refused("pause", "the run is paused")
        .play("resume")
        .shows("a=pending b=pending run=waiting")
        .refused("resume", "the run is waiting")
        .play("start")
        .shows("a=ready b=pending run=running");
    // An override stays until the run begins; nothing starts before that.
    World::of(plan(dag("a; b: a; c")))
        .play("set a succeeded")
        .shows("a=succeeded b=paused c=pending run=waiting")
        .play("pause; set c skipped; resume; start")
        .shows("a=succeeded b=ready c=skipped run=running");
    World::of(plan(dag("a; b: a")))
        .play("set a failed")
        .shows("a=failed b=upstream_failed run=failed");
    World::of(plan(dag("a")))
        .play("pause; cancel")
        .shows("a=cancelled run=cancelled");
}
