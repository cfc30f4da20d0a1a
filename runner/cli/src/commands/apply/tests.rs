use super::brought::{When, brought};
use super::*;

#[test]
fn an_answer_and_the_file_it_came_from_do_not_differ() {
    let file = json!({"schedules": {"n": {"cron": "0 2 * * *"}}, "params": {"a": null},
                          "tasks": {"t": {"script": "x", "timeout": "90s"}}});
    let mut answer = serde_json::to_value(serde_json::from_value::<GroupSpec>(file.clone()).unwrap()).unwrap();
    for (field, value) in [
        ("name", json!("g")),
        ("revision", json!(3)),
        ("enabled", json!(true)),
        ("deadline", json!(null)),
    ] {
        answer[field] = value;
    }
    answer["schedules"]["n"]["next"] = json!("2026-11-21T02:00:00.000000Z");
    let theirs = normal(Kind::Group, &strip(Kind::Group, answer));
    assert_eq!(theirs, normal(Kind::Group, &file));
    assert_eq!(theirs["params"], json!({"a": null}), "a null param is a param");
    assert!(theirs.get("history").is_none(), "defaults are left out: {theirs}");
}

#[test]
fn what_was_shown_is_no_difference() {
    let document = |kind, spec: &Value| Document {
        kind,
        name: "g".into(),
        spec: spec.clone(),
        source: "f.yaml".into(),
    };
    let mut group = json!({"revision": 3, "enabled": true, "created_at": "2026-11-20T08:00:00.000000Z",
                               "updated_at": "2026-11-20T08:00:00.000000Z", "timezone": "UTC", "max_active_runs": null,
                               "schedules": {"n": {"cron": "0 2 * * *", "enabled": true, "next": null}},
                               "tasks": {"t": {"script": "x"}}});
    let (ours, theirs) = compared(&document(Kind::Group, &group), Some(group.clone()));
    assert_eq!(theirs, Some(ours));
    // What `apply` would do is shown, and only that.
    let shown = group.clone();
    group["enabled"] = json!(false);
    let (ours, theirs) = compared(&document(Kind::Group, &group), Some(shown.clone()));
    let text = unified(&document(Kind::Group, &group), theirs.as_ref(), &ours).unwrap();
    assert!(text.contains("-enabled: true\n+enabled: false\n"), "{text}");
    group.as_object_mut().unwrap().remove("enabled");
    let (ours, theirs) = compared(&document(Kind::Group, &group), Some(shown));
    assert_eq!(theirs, Some(ours));
    let pool = json!({"slots": 3, "created_at": "2026-11-20T08:00:00.000000Z", "updated_at": null});
    let (ours, theirs) = compared(&document(Kind::Pool, &pool), Some(pool.clone()));
    assert_eq!(theirs, Some(ours));
}

#[test]
fn to_enable_is_a_change() {
    let group = |revision, enabled| json!({"revision": revision, "enabled": enabled});
    assert!(same(Kind::Group, &group(1, true), &group(1, true)));
    assert!(!same(Kind::Group, &group(1, true), &group(1, false)));
    assert!(!same(Kind::Group, &group(1, true), &group(2, true)));
}

#[test]
fn an_offer_and_the_file_it_came_from_do_not_differ() {
    let file = json!({"audience": "gid_a", "every": "60m", "params": {"a": null}});
    let answer = json!({"id": "o", "kind": "interval", "audience": "gid_a", "anchor": "2026-11-20T08:00:00.000000Z",
                            "every": "1h", "params": {"a": null}, "dispatch_times": 1, "mode": "single", "priority": 0,
                            "max_hold": null, "return_failed": false, "enabled": true, "ends_at": null, "template": null,
                            "created_at": "2026-11-20T08:00:00.000000Z", "updated_at": "2026-11-20T08:00:00.000000Z"});
    let theirs = normal(Kind::Offer, &strip(Kind::Offer, answer));
    let ours = normal(Kind::Offer, &file);
    assert_eq!(
        theirs["anchor"], "2026-11-20T08:00:00.000000Z",
        "what is exported says it"
    );
    assert_eq!(without_creation(Kind::Offer, theirs, &ours), ours);
}

#[test]
fn what_only_an_answer_has_is_no_spec() {
    let spec = json!({"retention": {"runs": "30d"}, "priority": 1, "tasks": {"t": {"script": "hello"}},
                          "schedules": {"s": {"once": {"at": "2026-01-01"}}}});
    let mut answer = spec.clone();
    for (field, value) in [("name", json!("g")), ("revision", json!(3)), ("enabled", json!(false))] {
        answer[field] = value;
    }
    answer["schedules"]["s"] = json!({"once": {"at": "2026-01-01"}, "enabled": false, "next": null,
                                          "fired_at": "2026-01-01T00:00:00.000000Z"});
    assert_eq!(strip(Kind::Group, answer), spec);
}

#[test]
fn a_topic_and_the_file_it_came_from_do_not_differ() {
    let file = json!({"script": "greetings", "send_at": "09:00:00", "retry": null});
    let answer = json!({"name": "t", "script": "greetings", "granularity": "day", "timezone": "UTC", "send_at": "09:00",
                            "batch": 1000, "concurrency": null, "rate": null, "retry": null, "retention": "7d",
                            "timeout": "5m", "max_payload": 8192, "enabled": true, "problem": "x"});
    assert_eq!(
        normal(Kind::Topic, &strip(Kind::Topic, answer)),
        normal(Kind::Topic, &file)
    );
}

#[test]
fn what_is_secret_of_a_channel_is_no_difference() {
    let file = json!({"kind": "slack", "url": "https://hooks.slack.com/services/T/B/X", "burst": 3});
    let shown = json!({"name": "c", "kind": "slack", "url": "https://hooks.slack.com/…", "burst": 3,
                           "created_at": "2026-11-21T02:00:00.000000Z", "updated_at": "2026-11-21T02:00:00.000000Z"});
    assert_eq!(
        normal(Kind::Channel, &file),
        normal(Kind::Channel, &strip(Kind::Channel, shown))
    );
}

#[test]
fn what_is_left_out_of_a_small_thing_is_no_difference() {
    for (kind, file, answer) in [
        (
            Kind::Connection,
            json!({"url": "postgres://u:p@h/d", "groups": ["g"]}),
            json!({"name": "c", "groups": ["g"], "categories": [], "max_connections": 4, "read_only": false,
                       "created_at": "2026-11-21T02:00:00.000000Z", "updated_at": "2026-11-21T02:00:00.000000Z"}),
        ),
        (
            Kind::Category,
            json!({}),
            json!({"name": "c", "description": null, "created_at": "2026-11-21T02:00:00.000000Z"}),
        ),
        (
            Kind::Category,
            json!({"description": ""}),
            json!({"name": "c", "description": ""}),
        ),
        (
            Kind::Pool,
            json!({"slots": 3}),
            json!({"name": "p", "slots": 3, "used": 1, "waiting": 0}),
        ),
    ] {
        assert_eq!(normal(kind, &file), normal(kind, &strip(kind, answer)), "{file}");
    }
}

#[test]
fn diffs_are_unified() {
    let document = Document {
        kind: Kind::Pool,
        name: "db".into(),
        spec: json!({"slots": 3}),
        source: "f.yaml".into(),
    };
    let text = unified(&document, Some(&json!({"slots": 2})), &document.spec).unwrap();
    assert!(text.contains("--- server: pool db\n+++ f.yaml: pool db\n"), "{text}");
    assert!(text.contains("-slots: 2\n+slots: 3\n"), "{text}");
}

#[test]
fn a_missing_group_is_found_in_the_files_by_its_place() {
    let document = |kind, name: &str, spec: Value| Document {
        kind,
        name: name.into(),
        spec,
        source: "f.yaml".into(),
    };
    let spec = json!({"depends_on": ["b", {"group": "c", "need": "interval"}, "b", "nobody"],
                      "tasks": {"x/y": {"group": "b"}, "own": {"group": "a"}, "t": {"script": "b"}}});
    let documents = [
        document(Kind::Group, "a", spec),
        document(Kind::Pool, "b", json!({})),
        document(Kind::Group, "b", json!({})),
        document(Kind::Group, "c", json!({})),
        document(Kind::Pool, "nobody", json!({})),
    ];
    for (pointer, expect) in [
        ("/depends_on/0", Some("b")),
        ("/depends_on/1", Some("c")),
        // It is a duplicate.
        ("/depends_on/2", None),
        ("/depends_on/3", None),
        ("/depends_on/4", None),
        // A cycle.
        ("/depends_on", None),
        ("/tasks/x~1y/group", Some("b")),
        ("/tasks/own/group", None),
        ("/tasks/t/script", None),
        ("/tasks/t/group", None),
        ("", None),
    ] {
        let found = brought(&documents[0], &documents, pointer);
        assert_eq!(
            found.map(|(one, when)| (one.kind, one.name.as_str(), when)),
            expect.map(|name| (Kind::Group, name, When::New)),
            "{pointer}"
        );
    }
}

#[test]
fn what_a_group_uses_is_found_in_the_files_by_its_place() {
    let document = |kind, name: &str, spec: Value| Document {
        kind,
        name: name.into(),
        spec,
        source: "f.yaml".into(),
    };
    let spec = json!({
        "category": "day", "template": "form", "notify": {"channels": ["ops", "nobody"]},
        "tasks": {
            "t": {"pools": {"db": 3, "none": 1}, "secrets": ["open", "of-day", "of-others", "kept"], "sql": ["shop", "old"],
                  "notify": {"channels": ["ops"]}},
            "u": {"pools": {"db": 4}, "query": {"connection": "shop"}, "audience": {"template": "form"}},
        },
    });
    let documents = [
        document(Kind::Group, "g", spec),
        document(Kind::Template, "form", json!({"type": "object"})),
        document(Kind::Channel, "ops", json!({"kind": "email"})),
        document(Kind::Pool, "db", json!({"slots": 3})),
        document(Kind::Secret, "open", json!({"value": "x", "groups": ["*"]})),
        document(Kind::Secret, "of-day", json!({"value": "x", "categories": ["day"]})),
        document(Kind::Secret, "of-others", json!({"value": "x", "groups": ["h"]})),
        // What `show` prints has no value, and a secret is never put without one.
        document(Kind::Secret, "kept", json!({"groups": ["g"]})),
        document(
            Kind::Connection,
            "shop",
            json!({"url": "postgres://x", "groups": ["g"]}),
        ),
        document(Kind::Connection, "old", json!({"groups": ["g"]})),
    ];
    for (pointer, expect) in [
        ("/template", Some(("form", When::New))),
        ("/tasks/u/audience/template", Some(("form", When::New))),
        ("/notify/channels/0", Some(("ops", When::New))),
        ("/notify/channels/1", None),
        ("/tasks/t/notify/channels/0", Some(("ops", When::New))),
        ("/tasks/t/pools/db", Some(("db", When::Always))),
        ("/tasks/t/pools/none", None),
        ("/tasks/u/pools/db", None),
        ("/tasks/t/pools", None),
        ("/tasks/t/secrets/0", Some(("open", When::Always))),
        ("/tasks/t/secrets/1", Some(("of-day", When::Always))),
        ("/tasks/t/secrets/2", None),
        ("/tasks/t/secrets/3", None),
        ("/tasks/t/sql/0", Some(("shop", When::Always))),
        ("/tasks/t/sql/1", Some(("old", When::Known))),
        ("/tasks/u/query/connection", Some(("shop", When::Always))),
    ] {
        let found = brought(&documents[0], &documents, pointer);
        assert_eq!(found.map(|(one, when)| (one.name.as_str(), when)), expect, "{pointer}");
    }
}
