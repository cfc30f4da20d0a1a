//! Runs that are given up, and what a restart makes of them.

use super::super::*;
use super::dag;
use super::world::World;

fn past(task: TaskIndex, item: Option<u32>, attempt: u32, left: Option<TaskState>) -> Past {
    let key = TaskKey { task, item };
    Past {
        at: AttemptKey { key, attempt },
        left,
    }
}

fn abandoned(tasks: &str, history: &[Past], failed: AttemptKey) -> World {
    let mut world = World::of(super::world::plan(dag(tasks)));
    world.progress = Progress::abandoned(&world.plan, history, failed, "nothing can be recorded");
    world.state = RunState::Failed;
    world
}

#[test]
fn what_is_known_stays_and_the_rest_is_done_again() {
    let history = [
        past(1, None, 1, None),
        past(0, None, 1, Some(TaskState::Succeeded)),
        past(1, None, 3, None),
    ];
    let failed = AttemptKey {
        key: TaskKey::whole(1),
        attempt: 4,
    };
    let mut world = abandoned("a; b: a; c: b; d", &history, failed);
    world.shows("a=succeeded b=failed c=cancelled d=cancelled run=failed");
    assert_eq!(world.progress.error(), Some("task b: invalid: nothing can be recorded"));
    let failure = world.progress.failure(&world.plan).unwrap();
    assert_eq!((failure.task, failure.kind), (1, ErrorKind::Invalid));
    world
        .play("restart")
        .shows("a=succeeded b=ready c=pending d=ready run=running");
    // Under a number that no attempt has carried.
    assert_eq!(world.progress.attempt(TaskKey::whole(1)), 5);
    world
        .play("ok b; ok c; ok d")
        .shows("a=succeeded b=succeeded c=succeeded d=succeeded run=succeeded");
}

#[test]
fn a_map_is_expanded_anew() {
    let history = [
        past(0, None, 1, None),
        past(0, Some(0), 2, None),
        past(0, Some(1), 7, None),
    ];
    let failed = AttemptKey {
        key: TaskKey { task: 0, item: Some(0) },
        attempt: 3,
    };
    let group = serde_json::json!({"tasks": {"m": {"for_each": [1, 2]}}});
    let mut world = World::of(super::world::plan(group));
    world.progress = Progress::abandoned(&world.plan, &history, failed, "nothing can be recorded");
    world.state = RunState::Failed;
    assert_eq!(
        world.progress.error(),
        Some("task m item 0: invalid: nothing can be recorded")
    );
    super::format::check_bytes(&world.progress);
    world.play("restart");
    // Its own attempt, and after it those of its items.
    assert_eq!(world.progress.attempt(TaskKey::whole(0)), 8);
}
