//! Mails: what a server refuses or does not offer, and how that is said. `channels.rs` tests other ways to send.

use heddle_tests::{Manners, Smtp, World};
use serde_json::json;

use crate::notifications::{becomes, mail};
use crate::{fails, one, with};

/// A recipient who was refused for good is asked for no more while another one is put off; the notification says so when
/// it ends.
#[tokio::test]
async fn who_was_refused_is_not_asked_for_again() {
    let (_world, node) = World::with_node().await;
    let server = Smtp::start(false).await;
    server.behaves(Manners::RefusesAndPutsOff("gone@example.com", "late@example.com"));
    let to = json!({"to": ["gone@example.com", "late@example.com"]});
    mail(&node, "ops", &server, "none", to).await;
    let rules = json!({"on": ["failed"], "channels": ["ops"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let waiting = becomes(&node, "channel=ops", |item| item["attempts"] != 0).await;
    assert_eq!(waiting["state"], "pending", "{waiting:#}");
    server.behaves(Manners::Good);
    let ended = becomes(&node, "channel=ops", |item| item["state"] != "pending").await;
    assert_eq!(ended["state"], "failed", "{ended:#}");
    let error = ended["last_error"].as_str().unwrap();
    assert!(
        error.contains("gone@example.com: ") && error.contains("550"),
        "{ended:#}"
    );
    let mails = server.mails();
    let to: Vec<&str> = mails.iter().flat_map(|mail| &mail.to).map(String::as_str).collect();
    assert_eq!(to, ["late@example.com"], "the server takes both now");
}

/// What a server does not offer is said in words of ours, not in those of a library.
#[tokio::test]
async fn what_a_server_does_not_offer_is_said() {
    let (_world, node) = World::with_node().await;
    // Without encryption, it offers neither of them.
    let server = Smtp::start(false).await;
    let smtp =
        json!({"host": "localhost", "port": server.port, "tls": "none", "username": "heddle", "password": "right"});
    mail(&node, "login", &server, "none", json!({"smtp": smtp})).await;
    mail(&node, "letters", &server, "none", json!({"to": ["ü@example.com"]})).await;
    for (name, said) in [("login", "AUTH PLAIN"), ("letters", "SMTPUTF8")] {
        let path = format!("/v1/channels/{name}/test");
        let told = node.post(&path, json!({})).await.expect_status(200);
        let error = told["last_error"].as_str().unwrap();
        assert!(error.contains("the mail server") && error.contains(said), "{told:#}");
        assert!(!error.contains("client error"), "{told:#}");
    }
    assert_eq!(server.mails().len(), 0);
}
