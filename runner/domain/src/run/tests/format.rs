//! Bytes of progress: those of other builds can be read, and other builds can read what is written.

use super::super::format::FormatError;
use super::super::*;
use super::dag;
use super::world::World;

const FORM_1: &str = include_str!("../golden/form1.txt");
const FORM_2: &str = include_str!("../golden/form2.txt");

/// The format of the first build, as it declared it. It read bytes by `postcard::from_bytes`, and nothing else.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FirstBuild {
    states: Vec<u8>,
    details: BTreeMap<TaskIndex, Detail>,
    maps: BTreeMap<TaskIndex, MapProgress>,
    stopping: bool,
    error: Option<String>,
}

/// What must be true of all bytes, whatever their content.
pub(super) fn check_bytes(progress: &Progress) {
    let bytes = progress.to_bytes().unwrap();
    assert_eq!(&Progress::from_bytes(&bytes).unwrap(), progress);
    // A node of the first build reads the same, and what it writes anew is read here.
    let first: FirstBuild = postcard::from_bytes(&bytes).unwrap();
    assert_eq!((&first.states, &first.details), (&progress.states, &progress.details));
    assert_eq!((&first.maps, first.stopping), (&progress.maps, progress.stopping));
    assert_eq!(first.error, progress.error);
    let anew = postcard::to_stdvec(&first).unwrap();
    let read = Progress::from_bytes(&anew).unwrap();
    let known = Progress {
        failure: None,
        ..progress.clone()
    };
    assert_eq!(read, known);
    // Nothing that either of them writes looks like a form with a number.
    assert!(!bytes.starts_with(&[0x80, 0x00]) && !anew.starts_with(&[0x80, 0x00]));
}

fn golden(text: &'static str) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (what, hex) = line.split_once(" | ").unwrap();
        let digits = hex.as_bytes().chunks(2);
        let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        (what, bytes.collect())
    })
}

fn read(text: &'static str, what: &str) -> Progress {
    let (_, bytes) = golden(text).find(|line| line.0 == what).unwrap();
    Progress::from_bytes(&bytes).unwrap()
}

fn failure_of(progress: &Progress, tasks: &str) -> Option<(TaskIndex, Option<u32>, ErrorKind)> {
    let plan = super::plan(dag(tasks));
    let failure = progress.failure(&plan)?;
    Some((failure.task, failure.item, failure.kind))
}

#[test]
fn golden_bytes_of_form_1_are_read() {
    assert_eq!(golden(FORM_1).count(), 5);
    for (what, bytes) in golden(FORM_1) {
        let progress = Progress::from_bytes(&bytes).unwrap();
        // None of it needs a section, so it is written as it was.
        assert_eq!(progress.to_bytes().unwrap(), bytes, "{what}");
        check_bytes(&progress);
    }
    let retried = read(FORM_1, "a, b after a: a failed and is retried");
    assert_eq!(
        (retried.task(0), retried.task(1)),
        (TaskState::Retrying, TaskState::Pending)
    );
    assert_eq!(retried.attempt(TaskKey::whole(0)), 2);
    let mapped = read(
        FORM_1,
        "m of five items, z after m, stop: item 0 failed for good, item 1 runs",
    );
    assert_eq!((mapped.items(0), mapped.is_stopping()), (Some(5), false));
    assert_eq!(mapped.in_state(TaskState::Failed).len(), 1);
    // What the text tells has to do.
    assert_eq!(failure_of(&mapped, "m; z"), Some((0, None, ErrorKind::Fatal)));
    let failed = read(FORM_1, "one task: failed for good");
    assert_eq!(failed.error(), Some("task a: fatal: broken"));
    assert_eq!(failure_of(&failed, "a"), Some((0, None, ErrorKind::Fatal)));
}

#[test]
fn golden_bytes_of_form_2_are_read() {
    assert_eq!(golden(FORM_2).count(), 2);
    for (what, bytes) in golden(FORM_2) {
        let progress = Progress::from_bytes(&bytes).unwrap();
        assert_eq!(progress.to_bytes().unwrap(), bytes, "{what}");
        check_bytes(&progress);
    }
    let failed = read(FORM_2, "a and b, b trapped");
    assert_eq!(failure_of(&failed, "a; b"), Some((1, None, ErrorKind::Trap)));
    let item = read(FORM_2, "m of two items, item 1 failed");
    assert_eq!(failure_of(&item, "m"), Some((0, Some(1), ErrorKind::Failed)));
}

#[test]
fn sections_of_newer_builds_are_passed_over() {
    let mut world = World::start(dag("a; b: a"));
    world.play("fail a");
    let mut bytes = world.progress.to_bytes().unwrap();
    bytes.extend([200, 3, 1, 2, 3]);
    assert_eq!(Progress::from_bytes(&bytes).unwrap(), world.progress);
}

#[test]
fn other_forms_are_refused_by_name() {
    assert_eq!(
        Progress::from_bytes(&[0x80, 0x00, 7, 1, 2]),
        Err(FormatError::Unknown(7))
    );
    assert!(matches!(Progress::from_bytes(&[]), Err(FormatError::Broken(_))));
    assert!(matches!(Progress::from_bytes(&[9]), Err(FormatError::Broken(_))));
    // Half a section.
    let mut bytes = World::start(dag("a")).progress.to_bytes().unwrap();
    bytes.push(1);
    assert!(matches!(Progress::from_bytes(&bytes), Err(FormatError::Broken(_))));
}

/// A state of a newer build is not taken for `pending`: that would run its task again.
#[test]
fn unknown_states_are_refused() {
    let of_item = "m of five items, z after m, stop: item 0 failed for good, item 1 runs";
    for (what, offset, known) in [("a, b after a: a failed and is retried", 1, 3), (of_item, 7, 6)] {
        let (_, mut bytes) = golden(FORM_1).find(|line| line.0 == what).unwrap();
        assert_eq!(bytes[offset], known, "{what}");
        bytes[offset] = 10;
        let refused = Progress::from_bytes(&bytes).unwrap_err();
        assert_eq!(refused, FormatError::UnknownState(10));
        assert!(refused.is_newer(), "a newer node may know it");
    }
}

/// A kind of a newer build is not taken for another: the next write would keep that.
#[test]
fn unknown_error_kinds_are_refused() {
    for (what, known) in [("a and b, b trapped", 4), ("m of two items, item 1 failed", 0)] {
        let (_, mut bytes) = golden(FORM_2).find(|line| line.0 == what).unwrap();
        // The section ends with it, as twice its number.
        assert_eq!(bytes.pop(), Some(known), "{what}");
        bytes.push(120);
        let refused = Progress::from_bytes(&bytes).unwrap_err();
        assert_eq!(refused, FormatError::UnknownKind(60));
        assert!(refused.is_newer(), "a newer node may know it");
    }
}

/// Of an error without a section, only what the first build wrote is read.
#[test]
fn errors_without_a_failure_are_of_the_first_build() {
    let with = |error: &str| {
        let mut progress = World::start(dag("a; m")).progress.clone();
        progress.error = Some(error.into());
        Progress::from_bytes(&progress.to_bytes().unwrap())
    };
    for (error, expect) in [
        ("task a: fatal: broken", (0, None, ErrorKind::Fatal)),
        ("task m item 3: timeout: slow: very", (1, None, ErrorKind::Timeout)),
        ("task m: failed", (1, None, ErrorKind::Failed)),
        // The message itself began with the kind.
        ("task a: trap:unreachable", (0, None, ErrorKind::Trap)),
        ("task a: set to failed by hand", (0, None, ErrorKind::Failed)),
    ] {
        assert_eq!(failure_of(&with(error).unwrap(), "a; m"), Some(expect), "{error}");
    }
    for error in [
        "broken",
        "task a",
        "task a: unheard: of",
        "task a: set to failed by handing",
    ] {
        let refused = with(error).unwrap_err();
        assert_eq!(refused, FormatError::NoFailure(error.into()));
        assert!(!refused.is_newer(), "no node knows it");
    }
}

#[test]
fn a_length_is_never_written_as_the_mark() {
    // All lengths that the first field can have, and more.
    for length in 0..=20_000 {
        let progress = Progress {
            states: vec![0; length],
            ..Progress::default()
        };
        assert!(!progress.to_bytes().unwrap().starts_with(&[0x80, 0x00]), "{length}");
    }
}

#[test]
fn the_failure_is_not_read_out_of_the_text() {
    // A message may say what it likes.
    let mut world = World::start(dag("a; b"));
    world.progress.error = Some("task a: trap: nothing of this is true".into());
    world.progress.failure = Some(Failure {
        task: 1,
        item: None,
        kind: ErrorKind::Memory,
    });
    let read = Progress::from_bytes(&world.progress.to_bytes().unwrap()).unwrap();
    assert_eq!(failure_of(&read, "a; b"), Some((1, None, ErrorKind::Memory)));
}
