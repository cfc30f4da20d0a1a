use serde_json::{Value, json};

use super::*;

fn spec(value: Value) -> ChannelSpec {
    serde_json::from_value(value).unwrap()
}

fn check(value: Value, pointers: &[&str]) {
    let found = match spec(value.clone()).complete(None).check() {
        Ok(()) => Vec::new(),
        Err(faults) => faults.0.into_iter().map(|fault| fault.pointer).collect(),
    };
    assert_eq!(found, pointers, "{value}");
}

#[test]
fn channels_are_checked() {
    check(json!({"kind": "email", "to": ["a@example.com"]}), &[]);
    check(
        json!({"kind": "email", "from": "Ops <ops@example.com>", "smtp": {"host": "mail.example.com"}}),
        &[],
    );
    check(json!({}), &["/kind"]);
    check(json!({"kind": "webhook"}), &["/url"]);
    check(json!({"kind": "webhook", "url": "ftp://x"}), &["/url"]);
    check(json!({"kind": "webhook", "url": "https://u:p@example.com"}), &["/url"]);
    check(
        json!({"kind": "webhook", "url": "https://example.com/\nX: y"}),
        &["/url"],
    );
    check(
        json!({"kind": "webhook", "url": "https://example.com", "secret": "plain"}),
        &["/secret"],
    );
    check(
        json!({"kind": "webhook", "url": "https://example.com", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}),
        &[],
    );
    check(
        json!({"kind": "slack", "url": "https://example.com/x", "to": ["a@b.c"]}),
        &["/to"],
    );
    check(
        json!({"kind": "email", "from": "x\r\nBcc: y@example.com", "to": ["ok@example.com", "a@b.c\nBcc: z@b.c"]}),
        &["/from", "/to/1"],
    );
    check(
        json!({"kind": "email", "to": ["a@b.c", "b@b.c", "A@b.c", "x@[127.0.0.1]"]}),
        &["/to/2", "/to/3"],
    );
    check(
        json!({"kind": "email", "smtp": {"host": "a b", "port": 0, "username": "u"}}),
        &["/smtp/host", "/smtp/port", "/smtp/password"],
    );
    check(
        json!({"kind": "email", "subject": "{{ nothing_of_that_name }}", "text": "{{ 1 + }}", "digest_every": "0s"}),
        &["/digest_every", "/subject", "/text"],
    );
    check(
        json!({"kind": "email", "subject": "{{ group }} {{ event }}: {{ subject }}"}),
        &[],
    );
}

#[test]
fn what_is_secret_is_not_shown_and_not_forgotten() {
    let kept = spec(json!({"kind": "dingtalk", "secret": "SEC1",
            "url": "https://oapi.dingtalk.com/robot/send?access_token=abc"}));
    let shown = serde_json::to_value(kept.shown()).unwrap();
    assert_eq!(shown, json!({"kind": "dingtalk", "url": "https://oapi.dingtalk.com/…"}));
    assert_eq!(kept.shown().with_secrets(kept.secrets()), kept);
    // As it was shown: nothing changes. Another kind: nothing is taken over.
    assert_eq!(spec(shown).complete(Some(&kept)), kept);
    assert_eq!(
        spec(json!({"kind": "slack", "url": "https://example.com"}))
            .complete(Some(&kept))
            .secret,
        None
    );
    let without = spec(json!({"kind": "dingtalk", "secret": ""})).complete(Some(&kept));
    assert_eq!((without.secret, without.url), (None, kept.url.clone()));
}

/// A masked URL is no URL: it stands for the stored one of the same kind and host.
#[test]
fn a_masked_url_is_not_stored() {
    let kept = spec(json!({"kind": "slack", "url": "http://127.0.0.1:21120/secret"}));
    let put = |kind: &str, url: &str| {
        let given = spec(json!({"kind": kind, "url": url})).complete(Some(&kept));
        let faults = given.check().err().unwrap_or_default().0;
        let pointers: Vec<String> = faults.into_iter().map(|fault| fault.pointer).collect();
        (given.url, pointers)
    };
    assert_eq!(put("slack", "http://127.0.0.1:21120/…"), (kept.url.clone(), vec![]));
    for (kind, url) in [
        ("slack", "http://127.0.0.1:21121/…"),
        ("feishu", "http://127.0.0.1:21120/…"),
        ("webhook", "http://127.0.0.1:21120/…"),
    ] {
        assert_eq!(put(kind, url), (Some(url.to_owned()), vec!["/url".to_owned()]));
    }
    assert_eq!(put("feishu", "http://127.0.0.1:21120/new").1, Vec::<String>::new());
}

#[test]
fn a_password_goes_to_no_other_server() {
    let mail = |host: &str, password: Option<&str>| {
        spec(json!({"kind": "email", "smtp": {"host": host, "username": "u", "password": password}}))
    };
    let kept = mail("a.example.com", Some("secret"));
    assert_eq!(mail("a.example.com", None).complete(Some(&kept)), kept);
    let moved = mail("b.example.com", None).complete(Some(&kept));
    assert_eq!(moved.smtp.as_ref().unwrap().password, None);
    assert!(moved.check().is_err());
}

#[test]
fn which_secret_parts_have_changed() {
    let changed = |old: Value, new: Value, opens: bool| {
        let (old, new) = (spec(old), spec(new));
        let kept = opens.then(|| old.secrets());
        new.secrets().changed([old.kind, new.kind], kept.as_ref())
    };
    let robot = |token: &str| json!({"kind": "dingtalk", "url": format!("https://h.example/{token}"), "secret": "s"});
    assert_eq!(
        changed(robot("a"), robot("b"), true),
        [("url", true), ("secret", false)]
    );
    let hook = |url: &str, secret: Option<&str>| json!({"kind": "webhook", "url": url, "secret": secret});
    // The URL of a webhook is shown.
    assert_eq!(
        changed(hook("https://a", Some("s")), hook("https://b", None), true),
        [("secret", true)]
    );
    let mail = |password: &str| json!({"kind": "email", "smtp": {"host": "h", "username": "u", "password": password}});
    assert_eq!(changed(mail("a"), mail("a"), true), [("password", false)]);
    assert_eq!(changed(mail("a"), mail("b"), true), [("password", true)]);
    // What cannot be decrypted any more may have been anything.
    assert_eq!(changed(mail("a"), mail("a"), false), [("password", true)]);
    // Another kind: the parts of both.
    assert_eq!(
        changed(robot("a"), mail("a"), true),
        [("url", true), ("secret", true), ("password", true)]
    );
}

#[test]
fn addresses() {
    for good in [
        "a@example.com",
        "a.b+c@x-y.example",
        "ü@пример.рф",
        "root@localhost",
        "a'b@c.d",
    ] {
        assert!(is_address(good), "{good}");
    }
    for bad in [
        "",
        "a",
        "@b",
        "a@",
        "a@b@c",
        "a b@c",
        "a@b\n",
        "a@b\r\nRCPT TO:<x@y>",
        "<a@b>",
        "a@b,c@d",
        "a@-b",
        "a@b..c",
        ".a@b",
        "a..b@c",
        "\"a\"@b",
        "a@[::1]",
        "a@[127.0.0.1]",
        "a\u{2028}@b",
    ] {
        assert!(!is_address(bad), "{bad:?}");
    }
    assert_eq!(mailbox_parts("Ops <o@x.y>"), (Some("Ops"), "o@x.y"));
    assert_eq!(mailbox_parts("o@x.y"), (None, "o@x.y"));
}
