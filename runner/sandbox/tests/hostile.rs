//! Nothing that a script does may harm the node or the next script.

use crate::guests::{Bench, Tables, command, command_with, plain_component};
use crate::outcomes::{failure, with_host};
use heddle_domain::state::ErrorKind;
use heddle_sandbox::{Load, Outcome};
use std::sync::Arc;
use std::time::Duration;

const FOREVER: &str = "(loop (br 0))";

/// Waits until the load is as expected.
async fn until(bench: &Bench, what: &str, is_so: impl Fn(&Load) -> bool) {
    let looks = async {
        while !is_so(&bench.sandbox.load_now()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::PATIENCE, looks).await.expect(what);
}

pub async fn endless_loop(mut bench: Bench) {
    bench.limits.timeout = Some(Duration::from_secs(1));
    let script = bench.script(command(FOREVER)).await;
    let result = bench.run(&script).await;
    assert_eq!(failure(&result).0, ErrorKind::Timeout);
    assert!(result.duration >= Duration::from_secs(1));
    // Its processor time: on a busy machine, it gets a part of a processor for a second.
    let cpu = result.cpu;
    assert!(
        cpu > Duration::from_millis(50) && cpu < Duration::from_millis(1_300),
        "{cpu:?}"
    );
}

pub async fn loop_in_start(mut bench: Bench) {
    bench.limits.timeout = Some(Duration::from_millis(100));
    let script = bench
        .script(command_with("(func $begin (loop (br 0))) (start $begin)", ""))
        .await;
    assert_eq!(failure(&bench.run(&script).await).0, ErrorKind::Timeout);
}

pub async fn cancel(mut bench: Bench) {
    bench.limits.timeout = None;
    let script = bench.script(command(FOREVER)).await;
    let all: Vec<_> = (0..50).map(|_| bench.start(&script, &Arc::default())).collect();
    until(&bench, "they spin", |load| load.live == 50 && load.long > 0).await;
    let before = crate::processor_time();
    for (handle, _) in &all {
        handle.cancel();
    }
    for (_, result) in all {
        assert_eq!(result.await.unwrap().outcome, Outcome::Cancelled);
    }
    // Their processor time, however long they had to wait for a processor on a busy machine.
    let spun = crate::processor_time() - before;
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    assert!(spun < Duration::from_millis(900) * processors, "{spun:?}");
    // A slot becomes free a moment after the end of its attempt is reported, on the guest's thread.
    until(&bench, "slots are freed", |load| load.live == 0).await;
}

pub async fn memory_bomb(mut bench: Bench) {
    bench.limits.memory_bytes = 16 << 20;
    let bomb = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    let result = bench.run_command(bomb).await;
    assert_eq!(failure(&result).0, ErrorKind::Memory, "{result:?}");
    assert!(result.memory_bytes <= 16 << 20 && result.memory_bytes > 14 << 20);
    // A script that handles the refusal succeeds.
    let modest = "(drop (memory.grow (i32.const 10000)))";
    assert_eq!(
        bench.run_command(modest).await.outcome,
        Outcome::Succeeded("null".into())
    );
}

pub async fn initial_memory(mut bench: Bench) {
    bench.limits.memory_bytes = 1 << 20;
    let script = bench.script(r#"(module (memory 100) (func (export "_start")))"#).await;
    assert_eq!(failure(&bench.run(&script).await).0, ErrorKind::Memory);
}

pub async fn recursion(bench: Bench) {
    let script = bench
        .script(command_with("(func $f (call $f) (call $f))", "(call $f)"))
        .await;
    let result = bench.run(&script).await;
    assert_eq!(failure(&result).0, ErrorKind::Trap);
    let Outcome::Failed {
        trace: Some(trace),
        message,
        ..
    } = result.outcome
    else {
        panic!()
    };
    assert!(message.contains("stack"), "{message}");
    assert!(trace.contains("f"), "{trace}");
}

pub async fn much_output(mut bench: Bench) {
    bench.limits.output_bytes = 100_000;
    let flood = "(loop (call $write (i32.const 1) (i32.const 1024) (i32.const 60000)) (br 0))";
    assert_eq!(failure(&bench.run_command(flood).await).0, ErrorKind::Output);
    let script = bench
        .script(plain_component("(call $ok (i32.const 2048) (i32.const 110000))"))
        .await;
    assert_eq!(failure(&bench.run(&script).await).0, ErrorKind::Output);
    let huge = "(drop (memory.grow (i32.const 900))) (call $ok (i32.const 2048) (i32.const 50000000))";
    let script = bench.script(plain_component(huge)).await;
    assert_eq!(failure(&bench.run(&script).await).0, ErrorKind::Output);
}

pub async fn log_flood(mut bench: Bench) {
    bench.limits.timeout = Some(Duration::from_secs(2));
    let flood =
        "(loop (call $write (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) (br 0)) unreachable";
    let script = bench.script(with_host(flood)).await;
    let tables = Arc::new(Tables::default());
    let result = bench.run_with(&script, &tables).await;
    assert_eq!(failure(&result).0, ErrorKind::Timeout);
    assert!(result.log_truncated);
    assert!(tables.messages().len() < 66_000);
}

pub async fn nothing_leaks_into_the_next(bench: Bench) {
    // Succeeds if its memory and its global are fresh, then overwrites both.
    let body = "(if (i32.or (i32.load (i32.const 100000)) (global.get $g)) (then unreachable))
        (i32.store (i32.const 100000) (i32.const 1)) (global.set $g (i32.const 1))";
    let script = bench
        .script(command_with("(global $g (mut i32) (i32.const 0))", body))
        .await;
    for _ in 0..50 {
        assert_eq!(bench.run(&script).await.outcome, Outcome::Succeeded("null".into()));
    }
}

async fn median_start(bench: &Bench, script: &heddle_sandbox::Script) -> Duration {
    let mut all = Vec::new();
    for _ in 0..200 {
        let began = crate::now();
        bench.run(script).await;
        all.push(began.elapsed());
    }
    all.sort();
    println!("    p50 {:?}, p90 {:?}, p99 {:?}", all[100], all[180], all[198]);
    all[100]
}

pub async fn spinners_do_not_hold_up_others(mut bench: Bench) {
    let light = bench.script(command("")).await;
    let alone = median_start(&bench, &light).await;
    bench.limits.timeout = None;
    let spin = bench.script(command(FOREVER)).await;
    let spinners: Vec<_> = (0..16).map(|_| bench.start(&spin, &Arc::default())).collect();
    until(&bench, "all are out of others' way", |load| load.long == 16).await;
    let among = median_start(&bench, &light).await;
    for (handle, _) in &spinners {
        handle.cancel();
    }
    println!("    a light attempt alone: {alone:?}, among 16 spinning ones: {among:?}");
    assert!(
        among < alone * 10 + Duration::from_millis(5),
        "{among:?} against {alone:?}"
    );
}

/// The long lane's spare thread rests after each light attempt, and may be the one that a heavy attempt wakes. If it
/// did not pass the task on, nothing would run, there would be no ticks, and the rest would never end.
pub async fn heavy_ones_go_on_beside_light_ones(_: Bench) {
    let mut bench = Bench::with(|config| config.long_threads = 2);
    bench.limits.timeout = None;
    let light = bench.script(command("")).await;
    let spin = "(loop (global.set $n (i32.sub (global.get $n) (i32.const 1))) (br_if 0 (global.get $n)))";
    let heavy = bench
        .script(command_with("(global $n (mut i32) (i32.const 100000000))", spin))
        .await;
    let all = async {
        for _ in 0..20 {
            bench.run(&light).await;
            let result = bench.run(&heavy).await;
            assert_eq!(result.outcome, Outcome::Succeeded("null".into()));
            assert!(result.cpu > Duration::from_millis(8), "{:?}", result.cpu);
        }
    };
    tokio::time::timeout(crate::PATIENCE, all)
        .await
        .expect("every attempt ends");
}

pub async fn more_than_there_are_slots(_: Bench) {
    let mut bench = Bench::with(|config| config.max_instances = 4);
    bench.limits.timeout = Some(Duration::from_millis(50));
    let script = bench.script(command(FOREVER)).await;
    let all: Vec<_> = (0..20).map(|_| bench.start(&script, &Arc::default())).collect();
    let load = bench.sandbox.load_now();
    assert_eq!((load.live, load.slots), (20, 4));
    all[19].0.cancel();
    for (index, (_, result)) in all.into_iter().enumerate() {
        let outcome = result.await.unwrap().outcome;
        if index == 19 {
            assert_eq!(outcome, Outcome::Cancelled);
        } else {
            assert!(
                matches!(
                    outcome,
                    Outcome::Failed {
                        kind: ErrorKind::Timeout,
                        ..
                    }
                ),
                "{outcome:?}"
            );
        }
    }
    until(&bench, "slots are freed", |load| load.live == 0).await;
}

pub async fn sleeping_is_not_running(mut bench: Bench) {
    bench.limits.timeout = Some(Duration::from_millis(400));
    // A subscription to the monotonic clock, an hour from now.
    let sleep = "(i32.store (i32.const 1040) (i32.const 1)) (i64.store (i32.const 1048) (i64.const 3600000000000))
        (drop (call $poll (i32.const 1024) (i32.const 2048) (i32.const 1) (i32.const 16)))";
    let script = bench.script(command(sleep)).await;
    let all: Vec<_> = (0..100).map(|_| bench.start(&script, &Arc::default())).collect();
    until(&bench, "all sleep", |load| {
        (load.live, load.runnable, load.parked) == (100, 0, 100)
    })
    .await;
    for (_, result) in all {
        let result = result.await.unwrap();
        assert_eq!(failure(&result).0, ErrorKind::Timeout);
        assert!(result.cpu < Duration::from_millis(50));
    }
}
