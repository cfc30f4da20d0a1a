//! What the tests of text scripts have in common.

use crate::guests::{Bench, Tables};
use bytes::Bytes;
use heddle_domain::state::LogLevel;
use heddle_sandbox::{AttemptResult, CompileError, Compiled, Effect, Language, Outcome, Sandbox, Script, SourceFault};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The directory of these tests' artefacts.
pub fn shared() -> &'static Path {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    CACHE.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// A bench whose interpreters are compiled once for all of these tests.
pub fn bench() -> Bench {
    Bench::with(|own| {
        own.cache_dir = shared().to_owned();
        own.private_hosts = vec!["127.0.0.1".into()];
    })
}

pub async fn compiled(bench: &Bench, language: Language, text: &str) -> Result<Compiled, CompileError> {
    let text = Bytes::from(text.to_owned());
    bench.sandbox.compile_source(language, text).await
}

/// A script that must be accepted.
pub async fn script(bench: &Bench, language: Language, text: &str) -> Script {
    let compiled = compiled(bench, language, text).await;
    let compiled = compiled.unwrap_or_else(|error| panic!("{text:.2000}: {error}"));
    load(&bench.sandbox, &compiled).await
}

/// A script that was compiled just now.
pub async fn load(sandbox: &Sandbox, compiled: &Compiled) -> Script {
    let key = compiled.key();
    let never = async { unreachable!() as Result<Bytes, Infallible> };
    sandbox.load(&key, never).await.unwrap()
}

/// The error of a text that must not be accepted.
pub async fn fault(bench: &Bench, language: Language, text: &str) -> SourceFault {
    match compiled(bench, language, text).await {
        Err(CompileError::Source(fault)) => fault,
        other => panic!("{text:.2000}: {other:?}"),
    }
}

pub async fn run(bench: &Bench, language: Language, text: &str) -> AttemptResult {
    bench.run(&script(bench, language, text).await).await
}

/// The output of a run that must succeed.
pub fn succeeded(text: &str, result: &AttemptResult) -> Value {
    match &result.outcome {
        Outcome::Succeeded(output) => serde_json::from_str(output).unwrap(),
        other => panic!("{text:.2000}: {other:?}"),
    }
}

/// Answers each request with a description of it, or with a redirect.
pub async fn serve() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut buffer = [0; 4_096];
                while let Ok(read) = socket.read(&mut buffer).await {
                    request.extend_from_slice(&buffer[..read]);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else {
                        continue;
                    };
                    let length = head
                        .lines()
                        .find_map(|line| {
                            line.to_ascii_lowercase()
                                .strip_prefix("content-length:")
                                .map(str::to_owned)
                        })
                        .map_or(0, |length| length.trim().parse().unwrap());
                    if head.contains("/silent") {
                        // Until the other side has had enough.
                        while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
                        return;
                    }
                    if read == 0 || body.len() >= length {
                        let (kind, status, more) = if head.contains("/moved") {
                            ("text/plain", "302 Found", "location: /there\r\n")
                        } else if head.contains("/away") {
                            ("text/plain", "302 Found", "location: http://169.254.169.254/\r\n")
                        } else {
                            ("application/json", "200 OK", "x-own: yes\r\n")
                        };
                        let first = head.lines().next().unwrap_or_default();
                        let echo = json!({"request": first, "body": body, "kind": head.to_ascii_lowercase().contains("content-type: application/json")});
                        let answer = format!(
                            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{more}connection: close\r\ncontent-length: {}\r\n\r\n{echo}",
                            echo.to_string().len()
                        );
                        let _ = socket.write_all(answer.as_bytes()).await;
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The host side for the scripts that call every host function once.
pub fn everything() -> Arc<Tables> {
    Arc::new(Tables {
        upstream: [("before".into(), "[1,2]".into())].into(),
        state: [("n".into(), ("40".into(), 6))].into(),
        secrets: [("key".into(), "hidden".into())].into(),
        ..Tables::default()
    })
}

/// Checks what these scripts have told Heddle. `object` is `{"a":1}` as their language writes it.
pub fn check_reports(result: &AttemptResult, tables: &Tables, object: &str) {
    assert_eq!(
        result.effects,
        [
            Effect::StateSet {
                key: "n".into(),
                value: "42".into()
            },
            // A comparison with the own write, which nobody can lose.
            Effect::StateSet {
                key: "n".into(),
                value: object.into()
            },
            Effect::StateDelete { key: "gone".into() },
            Effect::Enqueue {
                group: "other".into(),
                params: object.into(),
                key: Some("key".into())
            },
            Effect::Notify {
                channel: "ops".into(),
                subject: "subject".into(),
                body: "body".into()
            },
        ]
    );
    assert_eq!(*tables.progress.lock().unwrap(), [(0.5, "half".to_owned())]);
    let log = tables.log.lock().unwrap();
    let line = log
        .iter()
        .find(|line| line.message == "odd")
        .expect("a line with fields");
    assert_eq!((line.level, line.fields.as_deref()), (LogLevel::Warn, Some(object)));
}
