//! What overlap leaves out, and what is no longer left out.

use heddle_domain::backfill::BackfillSpec;
use heddle_domain::spec::SubmissionSpec;

use super::*;
use crate::runs::control::BulkAction;
use crate::runs::create::submit::Submission;
use crate::runs::inbox::Inbox;
use crate::runs::take::claimer::Claimer;
use crate::schedules::{Backfiller, Started};

/// The run of group `g` for an instant of the first of March, given by its hour.
async fn run_of(world: &World, hour: u32) -> RunId {
    let id = format!(
        "SELECT id::text FROM (SELECT id, logical_time FROM heddle.runs_live
                               UNION ALL SELECT id, logical_time FROM heddle.runs_done) AS runs
          WHERE logical_time = '2026-03-01T{hour:02}:00:00Z'"
    );
    RunId(world.one::<String>(&id).await.parse().expect("an id"))
}

/// Whether the instant of a run is left out.
async fn is_left_out(world: &World, run: RunId) -> bool {
    let skipped = format!("SELECT skipped FROM heddle.run_instants WHERE run = '{}'", run.0);
    world.one(&skipped).await
}

/// A world in which a group `g` has had two runs, of one and of two o'clock, and checked its gate after each.
async fn with_two_runs(overlap: &str) -> (World, Simulated) {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let schedules = json!({"s": {"cron": "0 * * * *"}});
    let spec = json!({"history": true, "overlap": overlap, "schedules": schedules});
    world.group("g", spec).await;
    let node = world.node(1).await;
    let mut scheduler = Scheduler(node.schedules());
    let mut inbox = Inbox(node.runs.clone());
    // A run with the time of its creation as logical time is not one of a schedule.
    world.pass_for(&node, MOMENT).await;
    for _ in 0..2 {
        world.pass_for(&node, TimeDelta::hours(1)).await;
        node.tick(&mut scheduler).await;
        node.tick(&mut inbox).await;
    }
    (world, node)
}

/// A skipped run that somebody restarts has its instant: no backfill creates another beside it, and followers wait.
#[tokio::test]
async fn a_skipped_run_that_is_restarted_has_its_instant() {
    let (world, node) = with_two_runs("skip").await;
    let (one, two) = (at("2026-03-01T01:00:00Z"), at("2026-03-01T02:00:00Z"));
    assert_eq!(world.runs("running").await, [one]);
    assert_eq!(world.runs("cancelled").await, [two]);
    let skipped = run_of(&world, 2).await;
    assert!(is_left_out(&world, skipped).await);
    let restarted = node.runs.control(skipped, &BulkAction::Restart(false), "test").await;
    restarted.expect("a restart");
    assert!(!is_left_out(&world, skipped).await);
    node.tick(&mut Inbox(node.runs.clone())).await;
    assert_eq!(world.runs("running").await, [one, two]);

    let schedules = node.schedules();
    let asked = json!({"from": "2026-03-01T02:00:00Z", "to": "2026-03-01T02:00:00Z"});
    let spec: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
    let started = schedules.start_backfill("g", spec, &asked, "test").await;
    assert!(matches!(started, Ok(Started::Made(_))));
    let (mut backfiller, mut claimer) = (Backfiller::of(schedules), Claimer::of(node.runs.clone()));
    for _ in 0..2 {
        node.tick(&mut backfiller).await;
        node.tick(&mut claimer).await;
    }
    assert_eq!(world.runs("running").await, [one, two], "no second run for two o'clock");
}

/// A run that was submitted for an instant of a schedule has it, also if the schedule's own run comes later and is skipped.
#[tokio::test]
async fn a_run_has_the_instant_of_a_later_one_that_was_skipped() {
    let (world, mut node) = with_two_runs("skip").await;
    let (one, two) = (at("2026-03-01T01:00:00Z"), at("2026-03-01T02:00:00Z"));
    let three = at("2026-03-01T03:00:00Z");
    drop(node.records());
    let spec = SubmissionSpec {
        logical_time: Some(three),
        ..SubmissionSpec::default()
    };
    let submitted = node.runs.submit(Submission::manual("g", spec, None)).await;
    submitted.expect("a run");
    let mut inbox = Inbox(node.runs.clone());
    node.tick(&mut inbox).await;
    world.pass_for(&node, TimeDelta::hours(1)).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    node.tick(&mut inbox).await;
    assert_eq!(world.runs("running").await, [one, three]);
    assert_eq!(world.runs("cancelled").await, [two, three]);

    let schedules = node.schedules();
    let start = async |dry_run: bool| {
        let asked = json!({"from": "2026-03-01T03:00:00Z", "to": "2026-03-01T03:00:00Z", "dry_run": dry_run});
        let spec: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
        let started = schedules.start_backfill("g", spec, &asked, "test").await;
        started.expect("a backfill of one instant")
    };
    assert!(matches!(start(true).await, Started::Planned(instants) if instants.is_empty()));
    assert!(matches!(start(false).await, Started::Made(_)));
    let (mut backfiller, mut claimer) = (Backfiller::of(schedules.clone()), Claimer::of(node.runs.clone()));
    for _ in 0..2 {
        node.tick(&mut backfiller).await;
        node.tick(&mut claimer).await;
    }
    assert_eq!(
        world.runs("running").await,
        [one, three],
        "no second run for three o'clock"
    );
}

/// A skipped run that somebody sets to another state is not left out either. A control that leaves it as it was changes
/// nothing.
#[tokio::test]
async fn a_skipped_run_whose_state_is_set_counts() {
    let (world, node) = with_two_runs("skip").await;
    let skipped = run_of(&world, 2).await;
    let refused = node.runs.control(skipped, &BulkAction::Cancel, "test").await;
    assert!(refused.is_err(), "it has ended");
    assert!(is_left_out(&world, skipped).await);
    let set = BulkAction::Override(RunState::Succeeded, "by a test".into());
    node.runs.control(skipped, &set, "test").await.expect("an override");
    assert!(!is_left_out(&world, skipped).await);
}

/// A run that a later one cancels is left out in the moment in which it ends, and only then. If it is restarted, it counts,
/// and so it does if it has ended by itself before.
#[tokio::test]
async fn a_run_is_left_out_when_a_later_one_has_cancelled_it() {
    let (world, node) = with_two_runs("cancel_previous").await;
    let (first, second) = (run_of(&world, 1).await, run_of(&world, 2).await);
    assert_eq!(world.runs("cancelled").await, [at("2026-03-01T01:00:00Z")]);
    assert!(is_left_out(&world, first).await);
    let restarted = node.runs.control(first, &BulkAction::Restart(false), "test").await;
    restarted.expect("a restart");
    assert!(!is_left_out(&world, first).await);

    let set = BulkAction::Override(RunState::Succeeded, "by a test".into());
    node.runs.control(second, &set, "test").await.expect("an override");
    let late = node.runs.control(second, &BulkAction::CancelPrevious, "overlap").await;
    assert!(late.is_err(), "it has succeeded");
    assert!(!is_left_out(&world, second).await);
}
