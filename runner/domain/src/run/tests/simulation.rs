//! Random operations on random DAGs. [`World`] checks after each step what must always hold; in the end everything is
//! delivered, and the run ends.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::world::World;

const TASKS_MAX: usize = 7;
const STEPS_MAX: usize = 60;

/// A task: what it waits for (bits for earlier tasks), its rule, and how it is mapped and retried.
fn task() -> impl Strategy<Value = Value> {
    let rule = prop_oneof![
        3 => Just("all_success"),
        1 => Just("all_done"),
        1 => Just("any_success"),
        1 => Just("any_failed"),
        1 => Just("none_failed"),
        1 => Just("all_failed"),
        1 => Just("none_failed_min_one_success"),
        1 => Just("all_skipped"),
        1 => Just("always"),
    ];
    let items = prop_oneof![
        3 => Just(json!({})),
        1 => Just(json!({"for_each": "{{ params.items }}"})),
        1 => Just(json!({"for_each": [1, 2, 3]})),
    ];
    let retry = prop_oneof![
        2 => Just(json!({})),
        1 => Just(json!({"retry": {"strategy": "fixed", "retries": 2, "interval": "10s"}})),
        1 => Just(json!({"retry": {"strategy": "fixed", "retries": 2, "interval": "0s"}})),
    ];
    let flags = (prop::bool::weighted(0.2), any::<bool>(), 1u32..4, 0u32..3);
    (any::<u8>(), rule, items, retry, flags).prop_map(|(above, rule, items, retry, flags)| {
        let (allow_failure, fail_fast, concurrency, max_lost) = flags;
        let mut task = json!({
            "depends_on": above, "trigger_rule": rule, "allow_failure": allow_failure, "max_lost": max_lost,
        });
        for (field, value) in items.as_object().unwrap().iter().chain(retry.as_object().unwrap()) {
            task[field] = value.clone();
        }
        if task.get("for_each").is_some() {
            task["fail_fast"] = json!(fail_fast);
            task["concurrency"] = json!(concurrency);
        }
        task
    })
}

fn group() -> impl Strategy<Value = Value> {
    (prop::collection::vec(task(), 1..=TASKS_MAX), any::<bool>()).prop_map(|(tasks, stop)| {
        let mut named = serde_json::Map::new();
        for (index, mut task) in tasks.into_iter().enumerate() {
            let above = task["depends_on"].as_u64().unwrap_or(0);
            let names: Vec<String> = (0..index)
                .filter(|bit| above & (1 << bit) != 0)
                .map(|bit| format!("t{bit}"))
                .collect();
            task["depends_on"] = json!(names);
            named.insert(format!("t{index}"), task);
        }
        json!({"tasks": named, "on_failure": if stop { "stop" } else { "continue" }})
    })
}

/// A step in words, made of three numbers and of what is possible just now; `None` if nothing is.
fn step(world: &World, (kind, pick, argument): (u8, u16, u8)) -> Option<String> {
    let choose = |keys: Vec<TaskKey>| (!keys.is_empty()).then(|| world.word(keys[pick as usize % keys.len()]));
    let open = || choose(world.ready.keys().chain(world.running.keys()).copied().collect());
    let any = || {
        let mut keys = Vec::new();
        for task in 0..world.plan.tasks.len() as TaskIndex {
            keys.push(TaskKey::whole(task));
            keys.extend((0..world.progress.items(task).unwrap_or(0)).map(|item| TaskKey { task, item: Some(item) }));
        }
        choose(keys)
    };
    // A run that these reopen waits for its turn, or does not.
    let maybe_gated = |control: String| match pick % 2 {
        0 => control,
        _ => format!("turn + {control}"),
    };
    Some(match kind % 34 {
        0..=3 => format!("claim {}", choose(world.ready.keys().copied().collect())?),
        4..=20 => {
            let word = open()?;
            let key = world.key(&word);
            let expands = key.item.is_none() && world.plan.tasks[key.task as usize].mapped;
            match kind % 34 {
                4..=11 if expands => format!("expand {word} {}", argument % 5),
                4..=11 => format!("ok {word}"),
                12..=16 => format!("fail {word}"),
                17 => format!("fatal {word}"),
                18 => format!("skip {word}"),
                19 => format!("release {word}"),
                _ => format!("lose {word}"),
            }
        }
        21..=23 => format!("due {}", choose(world.timers.keys().copied().collect())?),
        24 => "pause".into(),
        25 => "resume".into(),
        26 if argument % 3 == 0 => "cancel".into(),
        26 | 27 => maybe_gated("restart".into()),
        28 | 29 => maybe_gated(format!(
            "set {} {}",
            any()?,
            ["succeeded", "failed", "skipped"][argument as usize % 3]
        )),
        30 | 31 => maybe_gated(format!("clear {}{}", any()?, [" alone", ""][argument as usize % 2])),
        _ if world.state == RunState::Waiting => "start".into(),
        _ => maybe_gated(format!("retry {}", any()?)),
    })
}

/// Whether the run may be given this event: what would be refused is checked to be refused, and left.
fn tell(world: &mut World, words: &str) {
    let before = (world.state, world.progress.clone(), world.ready.clone());
    if world.step(words).is_err() {
        assert!(
            ["pause", "resume", "cancel", "restart", "set", "retry", "clear", "turn"]
                .contains(&words.split(' ').next().unwrap_or(""))
        );
        // The transaction is rolled back.
        assert_eq!((before.0, &before.1), (world.state, &world.progress));
        world.ready = before.2;
        world.log.pop();
    }
}

/// Two outcomes of one batch.
fn pair(world: &World, pick: u16) -> Option<String> {
    let keys: Vec<TaskKey> = world.running.keys().copied().collect();
    let [first, second] = [pick as usize, pick as usize / 7 + 1].map(|pick| keys.get(pick % keys.len().max(1)));
    let (first, second) = (*first?, *second?);
    let whole = |key: TaskKey| key.item.is_none() && world.plan.tasks[key.task as usize].mapped;
    if first == second || whole(first) || whole(second) {
        return None;
    }
    let verbs = ["ok", "fail", "lose", "fatal"];
    let verb = |shift: u16| verbs[(pick >> shift) as usize % verbs.len()];
    Some(format!(
        "{} {} + {} {}",
        verb(3),
        world.word(first),
        verb(5),
        world.word(second)
    ))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens(
        group in group(),
        steps in prop::collection::vec((any::<u8>(), any::<u16>(), any::<u8>()), 0..STEPS_MAX),
    ) {
        let mut world = World::start(group);
        for numbers in steps {
            let words = match numbers.2 % 8 {
                0 => pair(&world, numbers.1),
                _ => step(&world, numbers),
            };
            if let Some(words) = words {
                tell(&mut world, &words);
            }
        }
        if world.state == RunState::Waiting {
            world.play("start");
        }
        if !world.state.is_final() {
            world.drain(2);
        }
        // A restart of what failed ends well: everything succeeds now.
        if matches!(world.state, RunState::Failed | RunState::Cancelled) {
            world.play("restart");
            if !world.state.is_final() {
                world.drain(2);
            }
        }
        let overridden = world.log.iter().any(|step| step.starts_with("set "));
        prop_assert!(overridden || world.state == RunState::Succeeded, "{}", world.show());
    }
}
