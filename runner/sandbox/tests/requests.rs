//! `wasi:http` and the policy. (Requests of real guests are in the end-to-end tests; here is the client that they use.)

use crate::guests::Bench;
use heddle_sandbox::outbound::{read_bounded, refusal};
use heddle_sandbox::{OutboundPolicy, Outcome, Refused};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn serve(response: &'static str) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1_024];
                let _ = socket.read(&mut buffer).await;
                let _ = socket.write_all(response.as_bytes()).await;
            });
        }
    });
    address
}

pub async fn policy(_: Bench) {
    let address = serve("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").await;
    let listed = OutboundPolicy::new(&["127.0.0.1".into()]).unwrap();
    let client = listed.client().unwrap();
    let get = async |url: String| client.get(url).send().await.unwrap();
    let body = read_bounded(get(format!("http://{address}/")).await, 5).await.unwrap();
    assert_eq!(body.as_deref(), Some(&b"hello"[..]));
    assert_eq!(
        read_bounded(get(format!("http://{address}/")).await, 4).await.unwrap(),
        None
    );
    // For a name, its address decides.
    let by_name = format!("http://localhost:{}/", address.port());
    let error = OutboundPolicy::default()
        .client()
        .unwrap()
        .get(&by_name)
        .send()
        .await
        .unwrap_err();
    assert!(matches!(refusal(&error), Some(Refused::Private { .. })));
    // A redirect to a forbidden address.
    let redirect = serve("HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n").await;
    let error = listed
        .redirecting_client()
        .unwrap()
        .get(format!("http://{redirect}/"))
        .send()
        .await
        .unwrap_err();
    assert!(matches!(refusal(&error), Some(Refused::Private { .. })), "{error:?}");
    assert_eq!(get(format!("http://{redirect}/")).await.status(), 302);
}

/// Guests that were built elsewhere, if `HEDDLE_GUESTS` names their directory: all are accepted, and `fetch` obeys the
/// policy.
pub async fn built_guests(_: Bench) {
    let Ok(directory) = std::env::var("HEDDLE_GUESTS") else {
        println!("    skipped: HEDDLE_GUESTS names no directory");
        return;
    };
    let mut bench = Bench::with(|config| config.private_hosts = vec!["127.0.0.1".into()]);
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "wasm") {
            let compiled = bench.sandbox.compile(std::fs::read(&path).unwrap().into()).await;
            let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            println!("    {} {} {:?}", path.display(), compiled.world, compiled.description);
        }
    }
    let fetch = bench
        .script(std::fs::read(format!("{directory}/fetch.wasm")).unwrap())
        .await;
    let address = serve("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").await;
    bench.params = format!(r#"{{"url": "http://{address}/x"}}"#);
    let denied = bench.run(&fetch).await;
    assert!(
        crate::outcomes::failure(&denied).1.contains("allow_hosts"),
        "{denied:?}"
    );
    bench.grants.allow_hosts = vec!["127.0.0.1".parse().unwrap(), "localhost".parse().unwrap()];
    let fetched = bench.run(&fetch).await;
    let Outcome::Succeeded(output) = &fetched.outcome else {
        panic!("{fetched:?}")
    };
    assert!(output.contains("\"hello\""), "{output}");
    bench.params = format!(r#"{{"url": "http://{address}/x", "send": {{"a": 1}}}}"#);
    let posted = bench.run(&fetch).await;
    assert!(matches!(posted.outcome, Outcome::Succeeded(_)), "{posted:?}");
    let strict = Bench {
        limits: bench.limits,
        grants: bench.grants.clone(),
        params: bench.params.clone(),
        ..Bench::new()
    };
    let fetch = strict
        .script(std::fs::read(format!("{directory}/fetch.wasm")).unwrap())
        .await;
    let refused = strict.run(&fetch).await;
    assert!(
        crate::outcomes::failure(&refused).1.to_lowercase().contains("private"),
        "{refused:?}"
    );
}
