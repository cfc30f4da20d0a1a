//! The time that a top level sees: it belongs to the text, wherever and whenever that is evaluated.

use crate::guests::{Bench, RealClock, config};
use crate::texts::{load, shared};
use bytes::Bytes;
use chrono::TimeDelta;
use heddle_domain::{Clock, Time};
use heddle_sandbox::{Language, Outcome, Sandbox, Script, Uploaded, code_key, digest_of};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

/// A clock that is wrong by this much.
#[derive(Debug)]
struct Wrong(TimeDelta);

impl Clock for Wrong {
    fn now(&self) -> Time {
        RealClock.now() + self.0
    }
}

/// Texts that tell what the clock of their top level showed, in milliseconds, and what Python makes of a wait.
const TEXTS: [(Language, &str); 3] = [
    (
        Language::JavaScript,
        "const at = Date.now(); export default () => [at, new Date().getTime() > at]",
    ),
    (
        Language::TypeScript,
        "const at: number = Date.now(); export default () => [at, Date.now() > at]",
    ),
    (
        Language::Python,
        "import time\nat = time.time_ns()\ntime.sleep(3600)\nwaited = time.time_ns() - at == 3600 * 10**9\n\
         def run():\n    return [at // 10**6, waited and time.time() > at / 10**9]\n",
    ),
];

/// A node with an own clock and own artefacts. Only the interpreters are those of the other tests.
fn node(minutes: i64) -> Bench {
    let bench = Bench::new();
    let mut settings = config(bench.cache.path());
    settings.interpreter_dir = Some(shared().to_owned());
    let clock = Arc::new(Wrong(TimeDelta::minutes(minutes)));
    Bench {
        sandbox: Sandbox::new(settings, clock).unwrap(),
        ..bench
    }
}

fn uploaded(text: &'static str, at: &str) -> Uploaded {
    Uploaded {
        bytes: Bytes::from_static(text.as_bytes()),
        at: at.parse().unwrap(),
    }
}

async fn says(node: &Bench, script: &Script) -> Value {
    match node.run(script).await.outcome {
        Outcome::Succeeded(said) => serde_json::from_str(&said).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Nodes with different clocks evaluate a text at the time that comes with it.
pub async fn the_same_on_all_nodes(_: Bench) {
    let nodes = [node(0), node(90)];
    for (language, text) in TEXTS {
        let key = code_key(&digest_of(text.as_bytes()), language.world(), None);
        for node in &nodes {
            let kept = async { Ok::<_, Infallible>(None) };
            let fetch = async { Ok(uploaded(text, "2013-07-01T00:00:00.123456Z")) };
            let script = node.sandbox.load_kept(&key, kept, fetch).await.unwrap();
            assert_eq!(
                says(node, &script).await,
                json!([1_372_636_800_123_u64, true]),
                "{language:?}"
            );
        }
    }
}

/// What an upload left behind that was not stored is not used if the text's time is another one; without such a time, any
/// evaluation is good.
pub async fn evaluated_again_at_another_time(_: Bench) {
    let node = node(0);
    for (language, text) in TEXTS {
        for (at, millis) in [
            ("2013-07-01T00:00:00.123456Z", 1_372_636_800_123_u64),
            ("2013-07-01T00:00:01.5Z", 1_372_636_801_500),
        ] {
            let compiled = node.sandbox.compile_uploaded(language, uploaded(text, at)).await;
            let script = load(&node.sandbox, &compiled.unwrap()).await;
            assert_eq!(says(&node, &script).await, json!([millis, true]), "{language:?}");
        }
        let compiled = node
            .sandbox
            .compile_source(language, Bytes::from_static(text.as_bytes()));
        let script = load(&node.sandbox, &compiled.await.unwrap()).await;
        assert_eq!(
            says(&node, &script).await,
            json!([1_372_636_801_500_u64, true]),
            "{language:?}"
        );
    }
}
