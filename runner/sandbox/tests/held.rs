//! What the node keeps for a script outside of its memory is bounded like its memory.

use crate::guests::Bench;
use crate::texts::{bench, script};
use heddle_domain::state::ErrorKind;
use heddle_sandbox::{Language, Outcome};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server whose every answer has a body of so many bytes.
async fn serve(body_bytes: usize) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1_024];
                let _ = socket.read(&mut buffer).await;
                let body = "x".repeat(body_bytes);
                let answer =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {body_bytes}\r\nconnection: close\r\n\r\n{body}");
                let _ = socket.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

/// The output of a `run` with this body.
async fn output(bench: &Bench, body: &str) -> Value {
    let text = format!("export default async function run(params, ctx) {{ {body} }}");
    let script = script(bench, Language::JavaScript, &text).await;
    match bench.run(&script).await.outcome {
        Outcome::Succeeded(output) => serde_json::from_str(&output).unwrap(),
        other => panic!("{body}: {other:?}"),
    }
}

/// A script that begins much and never waits for it is refused at its limit, and can go on.
pub async fn calls_that_have_begun(_: Bench) {
    let mut bench = bench();
    bench.limits.memory_bytes = 64 << 20;
    // At first, it makes room in its own memory for what it does later.
    let begins = "new Uint8Array(16 << 20).fill(1);
        const body = 'x'.repeat(2 << 20), all = [];
        for (let i = 0; i < 100; i++)
            all.push(fetch('http://127.0.0.1:1/', { method: 'POST', body }).catch((e) => e.message));
        const said = await Promise.all(all);
        const count = (part) => said.filter((text) => text.includes(part)).length;
        return [count('the memory limit of 67108864 bytes is reached'), count('allow_hosts')];";
    let counts = output(&bench, begins).await;
    let (refused, sent) = (counts[0].as_u64().unwrap(), counts[1].as_u64().unwrap());
    assert!(refused > 65 && sent > 5 && refused + sent == 100, "{counts}");
    // What was begun and given up is given back.
    let gives_up = "const body = 'x'.repeat(2 << 20);
        let refused = 0;
        for (let i = 0; i < 100; i++) {
            const control = new AbortController();
            fetch('http://127.0.0.1:1/', { method: 'POST', body, signal: control.signal })
                .catch((e) => { refused += e.message.includes('memory limit') });
            control.abort();
        }
        await null;
        return refused;";
    assert_eq!(output(&bench, gives_up).await, json!(0));
    // If the script does not go on, its attempt fails because of its memory.
    let fails = "export default async () => {
        const body = 'x'.repeat(2 << 20);
        const sent = () => fetch('http://127.0.0.1:1/', { method: 'POST', body }).catch((e) => {
            if (e.message.includes('memory limit')) throw e;
        });
        await Promise.all(Array.from({ length: 100 }, sent));
    }";
    let fails = script(&bench, Language::JavaScript, fails).await;
    let result = bench.run(&fails).await;
    let (kind, message) = crate::outcomes::failure(&result);
    assert_eq!(kind, ErrorKind::Memory, "{result:?}");
    assert!(message.contains("67108864 bytes"), "{message}");
    // A refusal that it has handled is not the reason of what fails later.
    let goes_on = "export default async () => {
        const body = 'x'.repeat(2 << 20);
        let refused = 0;
        const sent = () => fetch('http://127.0.0.1:1/', { method: 'POST', body }).catch((e) => {
            refused += e.message.includes('memory limit');
        });
        await Promise.all(Array.from({ length: 100 }, sent));
        throw new Error(`no invoice, ${refused > 0}`);
    }";
    let goes_on = script(&bench, Language::JavaScript, goes_on).await;
    let result = bench.run(&goes_on).await;
    let (kind, message) = crate::outcomes::failure(&result);
    assert!(message.contains("no invoice, true"), "{message}");
    assert_eq!(kind, ErrorKind::Failed, "{result:?}");
}

/// What is too large in itself is refused before any of it is kept.
pub async fn calls_that_are_too_large(_: Bench) {
    let mut bench = bench();
    bench.grants.sql = vec!["db".into()];
    for (call, said) in [
        (
            "ctx.state.compareAndSet('k' + i, null, 'x'.repeat(1 << 20))",
            "a state value must have at most 65536 bytes",
        ),
        (
            "ctx.sql('db').query('select ' + ' '.repeat(1 << 20))",
            "a statement must have at most 1048576 bytes",
        ),
        (
            "ctx.sql('db').query('select $1', 'x'.repeat(8 << 20))",
            "params must have at most 8388608 bytes",
        ),
    ] {
        let body = format!(
            "const all = [];
            for (let i = 0; i < 20; i++) all.push({call}.catch((e) => e.message));
            return [...new Set(await Promise.all(all))].join()"
        );
        let answer = output(&bench, &body).await;
        assert!(answer.as_str().unwrap().contains(said), "{call}: {answer}");
    }
}

/// An answer counts before the script has it.
pub async fn answers_that_arrive(_: Bench) {
    let mut bench = bench();
    bench.limits.memory_bytes = 12 << 20;
    bench.grants.allow_hosts = vec!["127.0.0.1".parse().unwrap()];
    let address = serve(13 << 20).await;
    let body = format!("return await fetch('http://{address}/').then(() => 'all of it', (e) => e.message)");
    let said = output(&bench, &body).await;
    let said = said.as_str().unwrap();
    assert!(said.contains("the memory limit of 12582912 bytes is reached"), "{said}");
}

/// A linear memory never shrinks. What a script once needed takes nothing from what it may receive.
pub async fn answers_after_much_memory(_: Bench) {
    let mut bench = bench();
    bench.limits.memory_bytes = 64 << 20;
    bench.grants.allow_hosts = vec!["127.0.0.1".parse().unwrap()];
    let address = serve(6 << 20).await;
    let body = format!(
        "let room = new Uint8Array(58 << 20).fill(1);
        room = null;
        const sizes = [];
        for (let i = 0; i < 3; i++) sizes.push((await (await fetch('http://{address}/')).text()).length);
        return sizes;"
    );
    assert_eq!(output(&bench, &body).await, json!([6 << 20, 6 << 20, 6 << 20]));
}

/// Pairs are many times as large as the text that they are read from.
pub async fn search_params_of_a_large_text(_: Bench) {
    let bench = bench();
    let body = "const said = [];
        for (const work of [
            () => new URLSearchParams('a&'.repeat(100_000)).size,
            () => new URLSearchParams('a&'.repeat(8 << 20)),
            () => new URLSearchParams(Array.from({ length: 100_001 }, () => ['a', 'b'])).toString(),
        ]) {
            try { said.push(work()); } catch (error) { said.push(error.message); }
        }
        return said;";
    let refused = "a URLSearchParams may have at most 100000 pairs of a name and a value";
    assert_eq!(output(&bench, body).await, json!([100_000, refused, refused]));
}
