//! Mails: what a server refuses or does not offer, and how that is said. `channels.rs` tests other ways to send.

use heddle_tests::{Answer, Manners, Receiver, Smtp, World, id};
use serde_json::{Value, json};

use crate::notifications::{becomes, mail, webhook};
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

/// A channel becomes one of mails while a notification waits in it, which was created without addresses: it goes to those
/// that the channel has now.
#[tokio::test]
async fn a_channel_becomes_one_of_mails() {
    let (_world, node) = World::with_node().await;
    let (receiver, server) = (Receiver::start(Answer::Status(503)).await, Smtp::start(false).await);
    webhook(&node, "ops", &receiver.url, json!({})).await;
    let rules = json!({"on": ["failed"], "channels": ["ops"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let waiting = becomes(&node, "channel=ops", |item| item["attempts"] != 0).await;
    assert_eq!((&waiting["state"], &waiting["to"]), (&json!("pending"), &json!([])));
    let both = ["a@example.com", "late@example.com"];
    server.behaves(Manners::PutsOff("late@example.com"));
    mail(&node, "ops", &server, "none", json!({"to": both})).await;
    let path = format!("/v1/notifications/{}/resend", id(&waiting));
    node.post(&path, json!({})).await.expect_status(200);
    let put_off = |item: &Value| item["last_error"].as_str().is_some_and(|error| error.contains("late@"));
    becomes(&node, "channel=ops", put_off).await;
    // Who has got it does not get it again.
    server.behaves(Manners::Good);
    node.post(&path, json!({})).await.expect_status(200);
    let sent = becomes(&node, "channel=ops", |item| item["state"] != "pending").await;
    assert_eq!(
        (&sent["state"], &sent["to"]),
        (&json!("sent"), &json!(both)),
        "{sent:#}"
    );
    let mails = server.mails();
    let to: Vec<&str> = mails.iter().flat_map(|mail| &mail.to).map(String::as_str).collect();
    assert_eq!(to, both);
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

/// Certificates with which no mail could be sent are refused when the channel is put, with their place.
#[tokio::test]
async fn certificates_are_read_when_a_channel_is_put() {
    let (_world, node) = World::with_node().await;
    let server = Smtp::start(false).await;
    let spec = |ca: &str| {
        json!({"kind": "email", "from": "h@example.com", "to": ["a@example.com"],
               "smtp": {"host": "localhost", "port": server.port, "ca": ca}})
    };
    let block = |kind: &str, inside: &str| format!("-----BEGIN {kind}-----\n{inside}\n-----END {kind}-----\n");
    let wrong = [
        "no certificate".to_owned(),
        "see -----BEGIN CERTIFICATE-----".to_owned(),
        block("PUBLIC KEY", "AAAA"),
        block("CERTIFICATE", ""),
        block("CERTIFICATE", "aGVkZGxl"),
        block("CERTIFICATE", "not base64!"),
        // Cut off, and one of several.
        server.ca[..server.ca.len() / 2].to_owned(),
        format!("{}{}", server.ca, block("CERTIFICATE", "AAAA")),
    ];
    for ca in &wrong {
        node.put("/v1/channels/c", spec(ca))
            .await
            .expect_problem(422, &["/smtp/ca"]);
    }
    // All errors are told at once.
    let more = with(spec(&wrong[0]), json!({"to": ["nobody"]}));
    node.put("/v1/channels/c", more)
        .await
        .expect_problem(422, &["/smtp/ca", "/to/0"]);
    let more = with(spec(&wrong[0]), json!({"from": null}));
    node.put("/v1/channels/c", more)
        .await
        .expect_problem(422, &["/smtp/ca", "/from"]);
    let several = format!("# ours\n{}{}", server.ca, server.ca);
    node.put("/v1/channels/c", spec(&several)).await.expect_status(201);
    let told = node.post("/v1/channels/c/test", json!({})).await.expect_status(200);
    assert_eq!(told["state"], "sent", "{told:#}");
}
