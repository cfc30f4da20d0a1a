//! What a component lets the host keep for requests that it never sends.

use crate::guests::{Bench, component};
use heddle_sandbox::Outcome;

const IMPORTS: &str = r#"
  (import "wasi:io/error@0.2.0" (instance $errors (export "error" (type (sub resource)))))
  (alias export $errors "error" (type $error))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "output-stream" (type $output (sub resource)))
    (alias outer 1 $error (type $e))
    (export "error" (type $failed (eq $e)))
    (type $s (variant (case "last-operation-failed" (own $failed)) (case "closed")))
    (export "stream-error" (type $stream_error (eq $s)))
    (export "[method]output-stream.blocking-write-and-flush"
      (func (param "self" (borrow $output)) (param "contents" (list u8)) (result (result (error $stream_error)))))))
  (alias export $streams "output-stream" (type $stream))
  (import "wasi:http/types@0.2.0" (instance $http
    (export "fields" (type $fields (sub resource)))
    (export "outgoing-request" (type $request (sub resource)))
    (export "outgoing-body" (type $body (sub resource)))
    (alias outer 1 $stream (type $o))
    (export "output-stream" (type $output (eq $o)))
    (type $m (variant (case "get") (case "head") (case "post") (case "put") (case "delete") (case "connect")
                      (case "options") (case "trace") (case "patch") (case "other" string)))
    (export "method" (type $method (eq $m)))
    (export "[constructor]fields" (func (result (own $fields))))
    (export "[constructor]outgoing-request" (func (param "headers" (own $fields)) (result (own $request))))
    (export "[method]outgoing-request.set-method"
      (func (param "self" (borrow $request)) (param "method" $method) (result (result))))
    (export "[method]outgoing-request.set-authority"
      (func (param "self" (borrow $request)) (param "authority" (option string)) (result (result))))
    (export "[method]outgoing-request.set-path-with-query"
      (func (param "self" (borrow $request)) (param "path-with-query" (option string)) (result (result))))
    (export "[method]outgoing-request.body" (func (param "self" (borrow $request)) (result (result (own $body)))))
    (export "[method]outgoing-body.write" (func (param "self" (borrow $body)) (result (result (own $output)))))))
  (alias export $http "outgoing-request" (type $request))
  (alias export $http "outgoing-body" (type $body))"#;

const LOWER: &str = r#"
  (core func $fields (canon lower (func $http "[constructor]fields")))
  (core func $request (canon lower (func $http "[constructor]outgoing-request")))
  (core func $method (canon lower (func $http "[method]outgoing-request.set-method")
    (memory (core memory $libc "memory"))))
  (core func $authority (canon lower (func $http "[method]outgoing-request.set-authority")
    (memory (core memory $libc "memory"))))
  (core func $path (canon lower (func $http "[method]outgoing-request.set-path-with-query")
    (memory (core memory $libc "memory"))))
  (core func $body (canon lower (func $http "[method]outgoing-request.body") (memory (core memory $libc "memory"))))
  (core func $write (canon lower (func $http "[method]outgoing-body.write") (memory (core memory $libc "memory"))))
  (core func $put (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
    (memory (core memory $libc "memory"))))
  (core func $drop_request (canon resource.drop $request))
  (core func $drop_body (canon resource.drop $body))
  (core func $drop_stream (canon resource.drop $stream))"#;

const WITH: &str = r#"(with "h" (instance (export "fields" (func $fields)) (export "request" (func $request))
    (export "method" (func $method)) (export "authority" (func $authority)) (export "path" (func $path))
    (export "body" (func $body)) (export "write" (func $write)) (export "put" (func $put))
    (export "drop_request" (func $drop_request)) (export "drop_body" (func $drop_body))
    (export "drop_stream" (func $drop_stream))))"#;

const FIELDS: &str = r#"
  (import "h" "fields" (func $fields (result i32)))
  (import "h" "request" (func $request (param i32) (result i32)))
  (import "h" "method" (func $method (param i32 i32 i32 i32) (result i32)))
  (import "h" "authority" (func $authority (param i32 i32 i32 i32) (result i32)))
  (import "h" "path" (func $path (param i32 i32 i32 i32) (result i32)))
  (import "h" "body" (func $body (param i32 i32)))
  (import "h" "write" (func $write (param i32 i32)))
  (import "h" "put" (func $put (param i32 i32 i32 i32)))
  (import "h" "drop_request" (func $drop_request (param i32)))
  (import "h" "drop_body" (func $drop_body (param i32)))
  (import "h" "drop_stream" (func $drop_stream (param i32)))
  (global $r (mut i32) (i32.const 0))
  (global $b (mut i32) (i32.const 0))
  (global $s (mut i32) (i32.const 0))
  ;; A request with a body that may be written.
  (func $begin
    (global.set $r (call $request (call $fields)))
    (call $body (global.get $r) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then unreachable))
    (global.set $b (i32.load (i32.const 260)))
    (call $write (global.get $b) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then unreachable))
    (global.set $s (i32.load (i32.const 260))))
  ;; Writes 4 KiB so many times; 0: not all of it was accepted.
  (func $fill (param $times i32) (result i32)
    (loop $again
      (call $put (global.get $s) (i32.const 8192) (i32.const 4096) (i32.const 256))
      (if (i32.load8_u (i32.const 256)) (then (return (i32.const 0))))
      (br_if $again (local.tee $times (i32.sub (local.get $times) (i32.const 1)))))
    (i32.const 1))
  (func $end
    (call $drop_request (global.get $r))
    (call $drop_stream (global.get $s))
    (call $drop_body (global.get $b)))"#;

/// The texts of a request are bounded, whatever a component may send: each of a thousand requests would keep them.
pub async fn texts_of_requests(bench: Bench) {
    // From 128 KiB on, there is a slash, and 30 MiB of `x`.
    let mut run = "(local $request i32)
        (if (i32.eq (memory.grow (i32.const 490)) (i32.const -1)) (then unreachable))
        (memory.fill (i32.const 131073) (i32.const 120) (i32.const 31457280))
        (i32.store8 (i32.const 131072) (i32.const 47))
        (local.set $request (call $request (call $fields)))"
        .to_owned();
    for (function, case, start, most) in [
        ("$method", 9, 131_073, 64),
        ("$authority", 1, 131_073, 1 << 10),
        ("$path", 1, 131_072, 8 << 10),
    ] {
        for (bytes, refused) in [(most, 0), (most + 1, 1), (30 << 20, 1)] {
            run.push_str(&format!(
                "(if (i32.ne (i32.const {refused})
                   (call {function} (local.get $request) (i32.const {case}) (i32.const {start}) (i32.const {bytes})))
                 (then unreachable))"
            ));
        }
    }
    run.push_str("(call $ok (local.get 0) (local.get 1))");
    let script = bench.script(component(IMPORTS, LOWER, WITH, FIELDS, &run, "{}")).await;
    assert_eq!(bench.run(&script).await.outcome, Outcome::Succeeded("{}".into()));
}

/// A guest may write 1 MiB before it sends the request; what it never sends counts, until it drops it.
pub async fn bodies_of_requests(mut bench: Bench) {
    bench.limits.memory_bytes = 16 << 20;
    let run = "(local $n i32)
        (call $begin)
        (if (i32.eqz (call $fill (i32.const 256))) (then unreachable))
        (call $end)
        (loop $again
          (call $begin)
          (if (i32.eqz (call $fill (i32.const 200))) (then unreachable))
          (call $end)
          (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100))))
        (local.set $n (i32.const 0))
        (loop $again
          (call $begin)
          (if (call $fill (i32.const 200))
            (then (local.set $n (i32.add (local.get $n) (i32.const 1))) (br $again))))
        (i32.store8 (i32.const 300) (i32.add (i32.const 48) (i32.div_u (local.get $n) (i32.const 10))))
        (i32.store8 (i32.const 301) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
        (call $ok (i32.const 300) (i32.const 2))";
    let script = bench.script(component(IMPORTS, LOWER, WITH, FIELDS, run, "{}")).await;
    // Each write counts 64 bytes more than it has.
    let full = (16 << 20) / (200 * (4_096 + 64));
    assert_eq!(bench.run(&script).await.outcome, Outcome::Succeeded(full.to_string()));
}
