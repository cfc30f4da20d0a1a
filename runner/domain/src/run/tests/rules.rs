//! Trigger rules for all possible ends of two and three dependencies.
//!
//! The table is written from Airflow's documentation, "Trigger Rules"
//! (<https://airflow.apache.org/docs/apache-airflow/stable/core-concepts/dags.html#trigger-rules>), and, for the state
//! that a task gets whose rule cannot be met, from `TriggerRuleDep._evaluate_direct_relatives` in
//! `airflow/ti_deps/deps/trigger_rule_dep.py` of apache-airflow-core 3.3.2 (Apache-2.0). That function, run over the 80
//! ends of two and three upstreams (success, failed, skipped, upstream_failed) with `flag_upstream_failed`, gives each cell
//! of it but those of `any_success` (Airflow's `one_success`) without a success and with a failure: Airflow says
//! `upstream_failed` there, Heddle's contract says skipped. While dependencies are still open the two differ in one thing:
//! Airflow skips an `all_success` task at the first skipped dependency, so what it becomes hangs on which dependency ended
//! first; Heddle waits for the last one, and a failure among them goes first.

use super::world::World;
use super::*;

/// The possible ends of a dependency: the name, the kind for the rules, and how a DAG causes it.
const ENDS: [(&str, char); 5] = [
    ("succeeded", 's'),
    ("failed", 'f'),
    ("upstream_failed", 'f'),
    ("skipped", 'k'),
    // `allow_failure` counts as success.
    ("allowed", 's'),
];

/// Per rule, by the kinds that are among the dependencies: only s, only f, only k, then sf, sk, fk, sfk.
/// `r`: it runs, `u`: upstream_failed, `-`: skipped.
const TABLE: [(&str, &str); 9] = [
    // "all upstream tasks have succeeded"
    ("all_success", "r u - u - u u"),
    // "all upstream tasks are done with their execution"
    ("all_done", "r r r r r r r"),
    // "at least one upstream task has succeeded (does not wait for all upstream tasks to be done)"
    ("any_success", "r - - r r - r"),
    // "at least one upstream task has failed (does not wait for all upstream tasks to be done)"
    ("any_failed", "- r - r - r r"),
    // "all upstream tasks have not failed or upstream_failed - that is, all upstream tasks have succeeded or been skipped"
    ("none_failed", "r u r u r u u"),
    // "all upstream tasks are in a failed or upstream_failed state"
    ("all_failed", "- r - - - - -"),
    // "all upstream tasks have not failed or upstream_failed, and at least one upstream task has succeeded"
    ("none_failed_min_one_success", "r u - u r u u"),
    // "all upstream tasks are in a skipped state"
    ("all_skipped", "- - r - - - -"),
    // "no dependencies at all, run this task at any time"
    ("always", "r r r r r r r"),
];

const COLUMNS: [&str; 7] = ["s", "f", "k", "fs", "ks", "fk", "fks"];

fn expected(rule_row: &str, ends: &[usize]) -> TaskState {
    let mut kinds: Vec<char> = ends.iter().map(|&end| ENDS[end].1).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kinds = String::from_iter(kinds);
    let column = COLUMNS.iter().position(|column| *column == kinds).unwrap();
    match rule_row.split(' ').nth(column).unwrap() {
        "r" => TaskState::Ready,
        "u" => TaskState::UpstreamFailed,
        "-" => TaskState::Skipped,
        other => panic!("{other}"),
    }
}

/// A world with dependencies `d0`, `d1`, ... that can have these ends, and a task `z` that waits for them.
fn world(rule: &str, ends: &[usize]) -> World {
    let mut tasks = Vec::new();
    let mut names = Vec::new();
    for (index, &end) in ends.iter().enumerate() {
        names.push(format!("d{index}"));
        tasks.push(match ENDS[end].0 {
            "upstream_failed" => format!("p{index}; d{index}: p{index}"),
            "allowed" => format!("d{index}: allow"),
            _ => format!("d{index}"),
        });
    }
    tasks.push(format!("z: {} {rule}", names.join(" ")));
    World::start(dag(&tasks.join(";")))
}

fn end(world: &mut World, index: usize, end: usize) {
    world.play(&match ENDS[end].0 {
        "succeeded" => format!("ok d{index}"),
        "skipped" => format!("skip d{index}"),
        "upstream_failed" => format!("fail p{index}"),
        _ => format!("fail d{index}"),
    });
}

fn of_z(world: &World) -> TaskState {
    let z = world.plan.index("z").unwrap();
    world.progress.task(z)
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    match count {
        2 => vec![vec![0, 1], vec![1, 0]],
        _ => vec![
            vec![0, 1, 2],
            vec![0, 2, 1],
            vec![1, 0, 2],
            vec![1, 2, 0],
            vec![2, 0, 1],
            vec![2, 1, 0],
        ],
    }
}

#[test]
fn every_rule_over_all_ends_of_two_and_three_dependencies() {
    let mut checked = 0;
    for (rule, row) in TABLE {
        for count in [2u32, 3] {
            for number in 0..ENDS.len().pow(count) {
                let ends: Vec<usize> = (0..count)
                    .map(|index| number / ENDS.len().pow(index) % ENDS.len())
                    .collect();
                let expect = expected(row, &ends);
                for order in orders(ends.len()) {
                    let mut world = world(rule, &ends);
                    for index in order {
                        end(&mut world, index, ends[index]);
                    }
                    let words: Vec<&str> = ends.iter().map(|&end| ENDS[end].0).collect();
                    assert_eq!(of_z(&world), expect, "{rule} after {}: {words:?}", world.log.join("; "));
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 9 * (25 * 2 + 125 * 6));
}

#[test]
fn what_is_certain_is_said_at_once() {
    for (rule, first, expect) in [
        ("all_success", "succeeded", "pending"),
        ("all_success", "skipped", "pending"),
        ("all_success", "failed", "upstream_failed"),
        ("all_done", "succeeded", "pending"),
        ("all_done", "failed", "pending"),
        ("any_success", "succeeded", "ready"),
        ("any_success", "allowed", "ready"),
        ("any_success", "failed", "pending"),
        ("any_failed", "upstream_failed", "ready"),
        ("any_failed", "succeeded", "pending"),
        ("any_failed", "skipped", "pending"),
        ("none_failed", "succeeded", "pending"),
        ("none_failed", "skipped", "pending"),
        ("none_failed", "failed", "upstream_failed"),
        ("none_failed", "upstream_failed", "upstream_failed"),
        ("none_failed", "allowed", "pending"),
        ("all_failed", "failed", "pending"),
        ("all_failed", "allowed", "skipped"),
        ("all_failed", "succeeded", "skipped"),
        ("all_failed", "skipped", "skipped"),
        ("none_failed_min_one_success", "succeeded", "pending"),
        ("none_failed_min_one_success", "skipped", "pending"),
        ("none_failed_min_one_success", "upstream_failed", "upstream_failed"),
        ("all_skipped", "skipped", "pending"),
        ("all_skipped", "succeeded", "skipped"),
        ("all_skipped", "failed", "skipped"),
    ] {
        let first = ENDS.iter().position(|(word, _)| *word == first).unwrap();
        let mut world = world(rule, &[first, 0]);
        end(&mut world, 0, first);
        assert_eq!(of_z(&world).as_str(), expect, "{rule} after {}", world.log.join("; "));
    }
    // It waits for nothing, not even for its dependencies to begin.
    World::start(dag("a; z: a always")).shows("a=ready z=ready run=running");
}

#[test]
fn a_rule_that_took_a_failure_asks_again_when_the_failure_is_dealt_with() {
    World::start(dag("a; b; n: a b none_failed; x: a b all_failed; k: a b all_skipped"))
        .play("fail a; ok b")
        .shows("a=failed b=succeeded k=skipped n=upstream_failed x=skipped run=failed")
        .play("set a skipped")
        .shows("a=skipped b=succeeded k=skipped n=ready x=skipped run=running")
        .play("ok n")
        .shows("a=skipped b=succeeded k=skipped n=succeeded x=skipped run=succeeded")
        .play("set b skipped")
        .shows("a=skipped b=skipped k=ready n=succeeded x=skipped run=running");
}
