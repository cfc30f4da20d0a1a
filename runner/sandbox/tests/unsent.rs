//! What a component lets the host keep for requests that it never sends.

use crate::guests::{Bench, component};
use heddle_sandbox::Outcome;

const IMPORTS: &str = r#"
  (import "wasi:http/types@0.2.0" (instance $http
    (export "fields" (type $fields (sub resource)))
    (export "outgoing-request" (type $request (sub resource)))
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
      (func (param "self" (borrow $request)) (param "path-with-query" (option string)) (result (result))))))"#;

const LOWER: &str = r#"
  (core func $fields (canon lower (func $http "[constructor]fields")))
  (core func $request (canon lower (func $http "[constructor]outgoing-request")))
  (core func $method (canon lower (func $http "[method]outgoing-request.set-method")
    (memory (core memory $libc "memory"))))
  (core func $authority (canon lower (func $http "[method]outgoing-request.set-authority")
    (memory (core memory $libc "memory"))))
  (core func $path (canon lower (func $http "[method]outgoing-request.set-path-with-query")
    (memory (core memory $libc "memory"))))"#;

const WITH: &str = r#"(with "h" (instance (export "fields" (func $fields)) (export "request" (func $request))
    (export "method" (func $method)) (export "authority" (func $authority)) (export "path" (func $path))))"#;

const FIELDS: &str = r#"
  (import "h" "fields" (func $fields (result i32)))
  (import "h" "request" (func $request (param i32) (result i32)))
  (import "h" "method" (func $method (param i32 i32 i32 i32) (result i32)))
  (import "h" "authority" (func $authority (param i32 i32 i32 i32) (result i32)))
  (import "h" "path" (func $path (param i32 i32 i32 i32) (result i32)))"#;

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
