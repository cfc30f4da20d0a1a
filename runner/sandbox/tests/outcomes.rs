//! The results of well-behaved attempts.

use crate::guests::{Bench, Tables, command_with, component, plain_component};
use heddle_domain::state::{ErrorKind, LogLevel};
use heddle_sandbox::{AttemptResult, Effect, Outcome};
use std::sync::Arc;
use std::time::Duration;

pub fn failure(result: &AttemptResult) -> (ErrorKind, &str) {
    match &result.outcome {
        Outcome::Failed { kind, message, .. } => (*kind, message),
        other => panic!("{other:?}"),
    }
}

/// Copies stdin to stdout.
const ECHO: &str = "(call $write (i32.const 1) (i32.const 1024) (call $read (i32.const 1024) (i32.const 1000)))";

pub async fn a_command(mut bench: Bench) {
    bench.params = r#"{"a": [1, 2]}"#.into();
    let result = bench.run_command(ECHO).await;
    assert_eq!(result.outcome, Outcome::Succeeded(bench.params.clone()));
    assert_eq!(result.memory_bytes, 128 << 10);
    assert!(result.cpu > Duration::ZERO && !result.log_truncated);
    assert_eq!(bench.run_command("").await.outcome, Outcome::Succeeded("null".into()));
    bench.params = "not json".into();
    assert_eq!(failure(&bench.run_command(ECHO).await).0, ErrorKind::Invalid);
    // The whole environment: one variable.
    let environment = "(drop (call $environ_sizes (i32.const 16) (i32.const 20)))
        (drop (call $environ (i32.const 32) (i32.const 1024)))
        (call $write (i32.const 1) (i32.const 1039) (i32.sub (i32.load (i32.const 20)) (i32.const 16)))";
    let Outcome::Succeeded(context) = bench.run_command(environment).await.outcome else {
        panic!()
    };
    let context: serde_json::Value = serde_json::from_str(&context).unwrap();
    assert_eq!(context["task"], "task");
    assert_eq!(context["logical_time"], "2013-07-01T00:00:00.000000Z");
    assert_eq!(context["trigger"], "manual");
}

/// A line that is too long is marked, whoever wrote it.
pub async fn long_lines(bench: Bench) {
    let body = "(memory.fill (i32.const 2000) (i32.const 121) (i32.const 70000))
                (call $write (i32.const 2) (i32.const 2000) (i32.const 70000))
                (call $write (i32.const 2) (i32.const 1024) (i32.const 1))
                (call $write (i32.const 2) (i32.const 2000) (i32.const 65536))";
    let script = bench
        .script(command_with(r#"(data (i32.const 1024) "\0a")"#, body))
        .await;
    let tables = Arc::new(Tables::default());
    bench.run_with(&script, &tables).await;
    let lines = tables.messages();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].ends_with("y … (truncated: the line had 70000 bytes, the maximum is 65536)"),
        "{}",
        &lines[0][65_000..]
    );
    assert_eq!(lines[1], "y".repeat(65_536));
}

pub async fn exit_codes(bench: Bench) {
    assert_eq!(
        bench.run_command("(call $exit (i32.const 0))").await.outcome,
        Outcome::Succeeded("null".into())
    );
    let body = "(call $write (i32.const 2) (i32.const 1024) (i32.const 12)) (call $exit (i32.const 3))";
    let script = bench
        .script(command_with(r#"(data (i32.const 1024) "one\0atwo\0alast")"#, body))
        .await;
    let tables = Arc::new(Tables::default());
    let result = bench.run_with(&script, &tables).await;
    assert_eq!(failure(&result), (ErrorKind::Failed, "exit code 3: last"));
    assert_eq!(tables.messages(), ["one", "two", "last"]);
    assert!(
        tables
            .log
            .lock()
            .unwrap()
            .iter()
            .all(|line| line.level == LogLevel::Info)
    );
}

pub async fn a_component(mut bench: Bench) {
    bench.params = r#"{"x": 1}"#.into();
    let script = bench
        .script(plain_component("(call $ok (local.get 0) (local.get 1))"))
        .await;
    assert_eq!(
        bench.run(&script).await.outcome,
        Outcome::Succeeded(bench.params.clone())
    );
    let fails = async |kind: u32| {
        let body = format!("(call $fail (i32.const {kind}) (local.get 0) (local.get 1))");
        bench.run(&bench.script(plain_component(&body)).await).await
    };
    assert_eq!(failure(&fails(0).await), (ErrorKind::Failed, r#"{"x": 1}"#));
    assert_eq!(failure(&fails(2).await), (ErrorKind::Fatal, r#"{"x": 1}"#));
    assert_eq!(fails(3).await.outcome, Outcome::Skipped(r#"{"x": 1}"#.into()));
    let later = "(i32.store (i32.const 512) (i32.const 1)) (i32.store (i32.const 520) (i32.const 1))
        (i64.store (i32.const 528) (i64.const 1500)) (i32.store (i32.const 536) (local.get 0))
        (i32.store (i32.const 540) (local.get 1)) (i32.const 512)";
    let later = bench.run(&bench.script(plain_component(later)).await).await;
    let Outcome::Failed { retry_after, .. } = later.outcome else {
        panic!()
    };
    assert_eq!(retry_after, Some(Duration::from_millis(1_500)));
    let invalid = bench
        .run(
            &bench
                .script(plain_component("(call $ok (i32.const 1024) (i32.const 1))"))
                .await,
        )
        .await;
    assert_eq!(failure(&invalid).0, ErrorKind::Invalid);
}

const STATE: &str = r#"
  (import "heddle:task/state@1.0.0" (instance $state
    (type $e (record (field "value" string) (field "version" u64)))
    (export "entry" (type $entry (eq $e)))
    (export "get" (func (param "key" string) (result (result (option $entry) (error string)))))
    (export "set" (func (param "key" string) (param "value" string) (result (result (error string)))))))
  (import "heddle:task/log@1.0.0" (instance $log
    (type $l (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $l)))
    (export "write" (func (param "level" $level) (param "message" string) (param "fields" string)))))
  (import "heddle:task/progress@1.0.0" (instance $progress
    (export "report" (func (param "fraction" f64) (param "note" string)))))"#;

const LOWER: &str = r#"
  (core func $get (canon lower (func $state "get") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $set (canon lower (func $state "set") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $write (canon lower (func $log "write") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $report (canon lower (func $progress "report") (memory (core memory $libc "memory"))
    (realloc (core func $libc "realloc"))))"#;

const WITH: &str = r#"(with "h" (instance (export "get" (func $get)) (export "set" (func $set))
    (export "write" (func $write)) (export "report" (func $report))))"#;

const FIELDS: &str = r#"
  (import "h" "get" (func $get (param i32 i32 i32)))
  (import "h" "set" (func $set (param i32 i32 i32 i32 i32)))
  (import "h" "write" (func $write (param i32 i32 i32 i32 i32)))
  (import "h" "report" (func $report (param f64 i32 i32)))
  (data (i32.const 2048) "key42")"#;

pub fn with_host(run: &str) -> String {
    component(STATE, LOWER, WITH, FIELDS, run, "{}")
}

pub async fn host_functions(bench: Bench) {
    // Sets `key` to 42, reads it back, logs it, and returns the version that it saw.
    let run = r#"
      (call $report (f64.const 7) (i32.const 2048) (i32.const 3))
      (call $set (i32.const 2048) (i32.const 3) (i32.const 2051) (i32.const 2) (i32.const 256))
      (call $get (i32.const 2048) (i32.const 3) (i32.const 256))
      (call $write (i32.const 3) (i32.load (i32.const 272)) (i32.load (i32.const 276)) (i32.const 0) (i32.const 0))
      (i32.store8 (i32.const 300) (i32.add (i32.const 48) (i32.wrap_i64 (i64.load (i32.const 280)))))
      (call $ok (i32.const 300) (i32.const 1))"#;
    let script = bench.script(with_host(run)).await;
    let tables = Arc::new(Tables {
        state: [("key".into(), ("1".into(), 6))].into(),
        ..Tables::default()
    });
    let result = bench.run_with(&script, &tables).await;
    assert_eq!(
        result.outcome,
        Outcome::Succeeded("7".into()),
        "one more than what was stored"
    );
    assert_eq!(
        result.effects,
        [Effect::StateSet {
            key: "key".into(),
            value: "42".into()
        }]
    );
    assert_eq!(tables.messages(), ["42"]);
    assert_eq!(tables.log.lock().unwrap()[0].level, LogLevel::Warn);
    assert_eq!(*tables.progress.lock().unwrap(), [(1.0, "key".to_owned())]);
}

pub async fn log_limit(mut bench: Bench) {
    bench.limits.log_bytes = 250;
    let run = "(local $n i32)
      (loop
        (call $write (i32.const 2) (i32.const 2048) (i32.const 5) (i32.const 0) (i32.const 0))
        (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100))))
      (call $ok (local.get 0) (local.get 1))";
    let script = bench.script(with_host(run)).await;
    let tables = Arc::new(Tables::default());
    let result = bench.run_with(&script, &tables).await;
    assert!(matches!(result.outcome, Outcome::Succeeded(_)), "{result:?}");
    assert!(result.log_truncated);
    let messages = tables.messages();
    // Only the text counts.
    assert_eq!(messages.len(), 250 / 5 + 1);
    assert_eq!(messages[50], "log truncated: it reached its limit of 250 bytes");
    // Empty lines are bounded too.
    let run = "(local $n i32)
      (loop
        (call $write (i32.const 2) (i32.const 2048) (i32.const 0) (i32.const 0) (i32.const 0))
        (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 70000))))
      (call $ok (local.get 0) (local.get 1))";
    let script = bench.script(with_host(run)).await;
    let tables = Arc::new(Tables::default());
    let result = bench.run_with(&script, &tables).await;
    assert!(matches!(result.outcome, Outcome::Succeeded(_)), "{result:?}");
    let messages = tables.messages();
    assert_eq!(messages.len(), 65_537);
    assert_eq!(messages[65_536], "log truncated: it reached its limit of 65536 lines");
}

pub async fn effects_only_of_success(bench: Bench) {
    let run = "(call $set (i32.const 2048) (i32.const 3) (i32.const 2051) (i32.const 2) (i32.const 256))
      (call $fail (i32.const 0) (i32.const 2048) (i32.const 3))";
    let script = bench.script(with_host(run)).await;
    let result = bench.run(&script).await;
    assert_eq!(failure(&result), (ErrorKind::Failed, "key"));
    assert!(result.effects.is_empty());
}
