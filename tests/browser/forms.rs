//! Forms: what they carry, and what is no form.

use heddle_tests::{TOKEN, World};
use reqwest::StatusCode;
use serde_json::json;

use crate::{Visitor, check_page};

/// Two people change one script: the second save says so, and replaces nothing that its author has not seen.
#[tokio::test]
async fn nobody_replaces_a_script_that_they_have_not_seen() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let text = |word: &str| format!("export default () => 1;\n// {word}\n");
    let (first, theirs, mine) = (text("first"), text("theirs"), text("mine"));
    let new = [
        ("lang", "javascript"),
        ("name", "shared"),
        ("text", first.as_str()),
        ("do", "save"),
    ];
    let made = visitor.post("/scripts/write", &new).await;
    assert_eq!(made.status, StatusCode::SEE_OTHER, "{}", made.text);
    let page = visitor.get("/scripts/shared/source?version=1").await.fine();
    assert!(page.contains("name=\"opened\" value=\"1\""), "{page}");
    let save = async |opened: &str, text: &str| {
        let form = [("opened", opened), ("text", text), ("do", "save")];
        visitor.post("/scripts/shared/source?version=1", &form).await
    };
    assert_eq!(save("1", &theirs).await.leads_to(), "/scripts/shared/source?version=2");
    let page = save("1", &mine).await;
    check_page("/scripts/shared/source", &page);
    assert_eq!(page.status, StatusCode::PRECONDITION_FAILED, "{}", page.text);
    for shown in [
        "@2 instead of @1",
        "- // first",
        "+ // theirs",
        "// mine",
        "name=\"opened\" value=\"2\"",
    ] {
        assert!(page.text.contains(shown), "{shown}: {}", page.text);
    }
    let script = node.get("/v1/scripts/shared").await.expect_status(200);
    assert_eq!(script["latest_version"], 2);
    assert_eq!(save("2", &mine).await.leads_to(), "/scripts/shared/source?version=3");
    // A form that does not say so saves onto the version of its page.
    let bare = [("text", theirs.as_str()), ("do", "save")];
    let page = visitor.post("/scripts/shared/source?version=1", &bare).await;
    assert_eq!(page.status, StatusCode::PRECONDITION_FAILED, "{}", page.text);
}

/// What is no form does nothing, and what is too large is said on a page like all other errors.
#[tokio::test]
async fn what_is_no_form_is_refused_on_a_page() {
    let (_world, node) = World::with_node().await;
    node.put_group("many", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let post = async |path: &str, media: &str, body: String| {
        let request = visitor
            .client
            .post(format!("{}{path}", visitor.base))
            .header("origin", &visitor.base)
            .header("content-type", media)
            .body(body);
        visitor.send(request).await
    };
    let urlencoded = "application/x-www-form-urlencoded";
    for (path, media, body, status) in [
        ("/groups/many/run", "application/json", "{}".to_owned(), 415),
        ("/groups/many/run", "text/plain", String::new(), 415),
        (
            "/groups/many/run",
            "multipart/form-data; boundary=x",
            String::new(),
            415,
        ),
        ("/groups/many/disable", "application/json", "{}".to_owned(), 415),
        ("/system/pools", "application/json", "{}".to_owned(), 415),
        ("/scripts/upload", urlencoded, "file=x".to_owned(), 415),
        (
            "/groups/many/spec",
            urlencoded,
            format!("spec={}", "x".repeat(3 << 20)),
            413,
        ),
    ] {
        let page = post(path, media, body).await;
        assert_eq!(page.status.as_u16(), status, "{path} {media}: {}", page.text);
        check_page(path, &page);
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8", "{path}");
        assert!(page.text.contains("href=\"/groups\""), "{path}: {}", page.text);
    }
    assert!(node.all("/v1/runs?group=many").await.is_empty());
    let group = node.get("/v1/groups/many").await.expect_status(200);
    assert_eq!(group["enabled"], true);
    let media = "Application/X-WWW-Form-Urlencoded; charset=UTF-8";
    let run = post("/groups/many/run", media, String::new()).await;
    assert_eq!(run.status, StatusCode::SEE_OTHER, "{}", run.text);
    // Somebody who has not signed in is told the same.
    let nobody = Visitor::new(node.base());
    let request = nobody
        .client
        .post(format!("{}/sign-in", nobody.base))
        .header("origin", &nobody.base)
        .header("content-type", "application/json")
        .body(json!({"token": TOKEN}).to_string());
    let page = nobody.send(request).await;
    assert_eq!(page.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{}", page.text);
}
