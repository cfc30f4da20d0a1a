//! The audit: what was before an action, and what is after it.

use heddle_tests::{Api, World};
use serde_json::{Value, json};

use crate::with;

/// What the newest entry about an object says: the action, and the object before and after it.
async fn newest(api: &Api, kind: &str, name: &str) -> (String, Value, Value) {
    let page = api.get(&format!("/v1/audit?kind={kind}&name={name}&limit=1")).await;
    let entry = page.expect_status(200)["items"][0].clone();
    let action = entry["action"].as_str().unwrap_or_default().to_owned();
    (action, entry["before"].clone(), entry["after"].clone())
}

/// The secret parts of a channel are never shown, but a change of one of them is.
#[tokio::test]
async fn a_changed_secret_of_a_channel_is_told() {
    let (_world, node) = World::with_node().await;
    let flags = async |spec: Value| {
        let reply = node.put("/v1/channels/c", spec).await;
        assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
        let (_, _, after) = newest(&node, "channel", "c").await;
        let entries = node.all("/v1/audit?kind=channel&name=c").await;
        let text = json!(entries).to_string();
        assert!(!text.contains("sesame"), "{text}");
        json!([after["url_changed"], after["secret_changed"], after["password_changed"]])
    };
    let robot = |token: &str, secret: &str| {
        let url = format!("https://oapi.dingtalk.com/robot/send?access_token=sesame{token}");
        json!({"kind": "dingtalk", "url": url, "secret": format!("SECsesame{secret}")})
    };
    // A creation has no secret parts before it.
    assert_eq!(flags(robot("1", "1")).await, json!([null, null, null]));
    assert_eq!(flags(robot("2", "1")).await, json!([true, false, null]));
    assert_eq!(flags(robot("2", "2")).await, json!([false, true, null]));
    // An empty secret removes it; what is left out, or given as it is shown, stays.
    let shown = json!({"kind": "dingtalk", "url": "https://oapi.dingtalk.com/…", "secret": ""});
    assert_eq!(flags(shown).await, json!([false, true, null]));
    assert_eq!(
        flags(json!({"kind": "dingtalk", "burst": 9})).await,
        json!([false, false, null])
    );
    // Another kind: it has other secret parts.
    let mail = |password: &str, more: Value| {
        let smtp = json!({"host": "mail.example.com", "username": "u", "password": format!("sesame{password}")});
        let spec = json!({"kind": "email", "smtp": smtp, "from": "h@example.com", "to": ["a@example.com"]});
        with(spec, more)
    };
    assert_eq!(flags(mail("1", json!({}))).await, json!([true, false, true]));
    assert_eq!(flags(mail("2", json!({}))).await, json!([null, null, true]));
    assert_eq!(flags(mail("2", json!({"burst": 9}))).await, json!([null, null, false]));
    // The URL of a webhook is shown, so it needs no flag.
    let hook = |url: &str, secret: &str| json!({"kind": "webhook", "url": url, "secret": secret});
    flags(hook("https://a.example", "whsec_c2VzYW1l")).await;
    let same = flags(hook("https://b.example", "whsec_c2VzYW1l")).await;
    assert_eq!(same, json!([null, false, null]));
    let other = flags(hook("https://b.example", "whsec_c2VzYW1m")).await;
    assert_eq!(other, json!([null, true, null]));
    let entries = node.all("/v1/audit?kind=channel&name=c").await;
    assert!(!json!(entries).to_string().contains("c2VzYW1"), "{entries:#?}");
}
