//! A worker that does what each task run's params say: `sleep_ms`, then `fail` or an echo of `value`.
//!
//! ```text
//! cargo run -p heddle-client --example worker -- http://127.0.0.1:8080 approvals 4
//! ```
//!
//! If a token is needed, it is in `HEDDLE_TOKEN`. Ctrl-C and SIGTERM stop it gracefully. `kill -9` does not: then the
//! server gives its task runs to others when the leases have expired.

use std::time::Duration;

use heddle_client::{Claim, Client, Outcome, Worker};
use serde_json::json;

async fn work(claim: Claim) -> Outcome {
    let item = claim.item.map(|item| format!("/{item}")).unwrap_or_default();
    println!(
        "{} {}{item} attempt {}: {}",
        claim.group, claim.task, claim.attempt, claim.params
    );
    tokio::time::sleep(Duration::from_millis(claim.params["sleep_ms"].as_u64().unwrap_or(0))).await;
    match claim.params["fail"].as_str() {
        Some(why) => Outcome::Failed(why.to_owned()),
        None => Outcome::Done(json!({"value": claim.params["value"], "by": std::process::id()})),
    }
}

/// Ctrl-C; or SIGTERM, which is what service managers send.
async fn told_to_stop() {
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

#[tokio::main]
async fn main() -> Result<(), heddle_client::Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    let queue = arguments.next().unwrap_or_else(|| "approvals".to_owned());
    let concurrency = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let token = std::env::var("HEDDLE_TOKEN").ok();
    let client = Client::new(&url, token.as_deref())?;
    let name = format!("example-{}", std::process::id());
    let worker = Worker::new(client, queue, name)
        .concurrency(concurrency)
        .lease(Duration::from_secs(3));
    let report = worker.run(told_to_stop(), work).await?;
    println!("stopped: {report:?}");
    Ok(())
}
