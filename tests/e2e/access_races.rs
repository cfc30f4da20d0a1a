//! Tokens that many connections show, remember, forget and revoke at once: nobody ever gets another's answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use heddle_tests::{Api, World, eventually};
use serde_json::json;

const UIDS: [&str; 3] = ["ann", "bob", "uid_cid"];
const CONNECTIONS: usize = 3;
const ROUNDS: usize = 4;

/// How far tokens have come: in force, being revoked, revoked.
const IN_FORCE: u8 = 0;
const REVOKING: u8 = 1;
const REVOKED: u8 = 2;

/// Polls for one user with the token of another, or of the same, until the token is revoked.
async fn poll(api: Api, own: &'static str, uid: &'static str, polls: Arc<AtomicUsize>, stage: Arc<AtomicU8>) {
    let bare = |uid: &'static str| uid.trim_start_matches("uid_");
    loop {
        let before = stage.load(Ordering::SeqCst);
        let reply = api.post(&format!("/v1/dispatch/{uid}/next"), json!({})).await;
        let after = stage.load(Ordering::SeqCst);
        let right = match reply.status {
            204 => bare(own) == bare(uid) && before != REVOKED,
            403 => bare(own) != bare(uid) && before != REVOKED,
            // Of one that is not known any more; or so many of these are shown that nobody looks.
            401 | 429 => after != IN_FORCE,
            _ => false,
        };
        assert!(
            right,
            "{own} asks for {uid}, {before} to {after}: {} {:#}",
            reply.status, reply.body
        );
        if before == REVOKED {
            return;
        }
        polls.fetch_add(1, Ordering::SeqCst);
    }
}

/// Tokens of users, each polled with for each user over many connections: cold at first, then believed; forgotten again
/// and again, since other tokens are made and revoked meanwhile; and revoked themselves.
#[tokio::test]
async fn nobody_polls_for_others() {
    let (_world, node) = World::with_node().await;
    for round in 0..ROUNDS {
        let (polls, stage) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU8::new(IN_FORCE)));
        let mut pollers = Vec::new();
        for own in UIDS {
            let spec = json!({"name": format!("{own}-{round}"), "role": "worker", "uids": [own]});
            let made = node.post("/v1/tokens", spec).await.expect_status(201);
            for uid in ["ann", "bob", "cid", "uid_cid"] {
                for _ in 0..CONNECTIONS {
                    let api = node.with_token(made["token"].as_str());
                    pollers.push(tokio::spawn(poll(api, own, uid, polls.clone(), stage.clone())));
                }
            }
        }
        let others = tokio::spawn({
            let (api, stage) = (node.api().clone(), stage.clone());
            async move {
                for number in 0.. {
                    if stage.load(Ordering::SeqCst) != IN_FORCE {
                        return;
                    }
                    let name = format!("other-{round}-{number}");
                    api.post("/v1/tokens", json!({"name": name, "role": "viewer"}))
                        .await
                        .expect_status(201);
                    api.delete(&format!("/v1/tokens/{name}")).await.expect_status(204);
                }
            }
        });
        let enough = pollers.len() * 5;
        eventually("enough polls", async || {
            (polls.load(Ordering::SeqCst) >= enough || pollers.iter().any(|poller| poller.is_finished())).then_some(())
        })
        .await;
        stage.store(REVOKING, Ordering::SeqCst);
        for own in UIDS {
            node.delete(&format!("/v1/tokens/{own}-{round}"))
                .await
                .expect_status(204);
        }
        stage.store(REVOKED, Ordering::SeqCst);
        for poller in pollers {
            poller.await.expect("no answer that is none of theirs");
        }
        others.await.expect("tokens are made and revoked");
    }
}

/// What was shown as a token is no cookie, and the other way round, whichever of them is remembered.
#[tokio::test]
async fn a_token_is_no_cookie() {
    let (_world, node) = World::with_node().await;
    let made = node
        .post("/v1/tokens", json!({"name": "v", "role": "viewer"}))
        .await
        .expect_status(201);
    let token = made["token"].as_str().expect("a token").to_owned();
    node.with_token(Some(&token)).get("/v1/groups").await.expect_status(200);
    let signed_in = node.with_token(None).post("/v1/session", json!({"token": token})).await;
    let cookie = signed_in.headers["set-cookie"].to_str().expect("text").to_owned();
    let (name, value) = cookie
        .split(';')
        .next()
        .and_then(|pair| pair.split_once('='))
        .expect("a pair");
    let by_cookie = async |value: &str| {
        let request = node
            .with_token(None)
            .request(reqwest::Method::GET, "/v1/groups")
            .header("cookie", format!("{name}={value}"));
        node.send(request).await.status
    };
    assert_eq!(by_cookie(value).await, 200);
    assert_eq!(by_cookie(&token).await, 401, "a token as a cookie");
    assert_eq!(
        node.with_token(Some(value)).get("/v1/groups").await.status,
        401,
        "a cookie as a token"
    );
    assert_eq!(by_cookie(value).await, 200);
    node.with_token(Some(&token)).get("/v1/groups").await.expect_status(200);
}
