//! Sessions that end while somebody fills a form: what was typed is not lost, and nothing is sent by itself.

use heddle_tests::{Node, TOKEN, World};
use serde_json::json;

use crate::chrome::Chrome;
use crate::open::browser;
use crate::{HOSTILE, Visitor, check_page, hear};

/// A group with a spec, and the token of somebody who may change it.
async fn group_and_token(node: &Node) -> String {
    node.put_group(
        "short",
        json!({"description": "before", "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    let made = json!({"name": "ann", "role": "operator"});
    let made = node.post("/v1/tokens", made).await.expect_status(201);
    made["token"].as_str().unwrap().to_owned()
}

/// The browser gets a session, as if somebody had signed in in another tab.
async fn gets_a_session(chrome: &mut Chrome, base: &str, token: &str) {
    let visitor = Visitor::signed_in(base, token).await;
    let (name, value) = visitor.cookie.split_once('=').unwrap();
    chrome.cookie(base, name, value).await;
    chrome.cookie(base, "heddle_lang", "en").await;
}

#[tokio::test]
async fn a_form_hears_that_its_session_has_ended() {
    let (_world, node) = World::with_node().await;
    let token = group_and_token(&node).await;
    let visitor = Visitor::signed_in(node.base(), &token).await;
    for path in ["/groups/new", "/groups/short/run", "/groups/short/spec?edit=1"] {
        let page = visitor.get(path).await.fine();
        assert!(page.contains("data-session=\"/live?session=1\""), "{path}: {page}");
    }
    // A page that is kept up to date hears it with its changes.
    let page = visitor.get("/runs").await.fine();
    assert!(page.contains("sse-connect") && !page.contains("data-session"), "{page}");
    let stream = visitor.client.get(format!("{}/live?session=1", visitor.base));
    let stream = stream.header("cookie", &visitor.cookie).send().await;
    let mut stream = stream.unwrap();
    hear(&mut stream, &["event: heard"]).await;
    node.delete("/v1/sessions/ann").await.expect_status(200);
    hear(&mut stream, &["event: over", "data: signed-out"]).await;
}

#[tokio::test]
async fn a_form_that_is_sent_too_late_can_be_sent_again() {
    let (_world, node) = World::with_node().await;
    group_and_token(&node).await;
    let nobody = Visitor::new(node.base());
    let form = [("opened", "1"), ("spec", HOSTILE), ("do", "save")];
    let page = nobody.post("/groups/short/spec", &form).await;
    check_page("/groups/short/spec", &page);
    let page = page.fine();
    assert!(
        page.contains("method=\"post\" action=\"/groups/short/spec\"") && page.contains("Send again"),
        "{page}"
    );
    for (name, _) in form {
        assert!(
            page.contains(&format!("type=\"hidden\" name=\"{name}\" value=\"")),
            "{page}"
        );
    }
    // One signs in beside it.
    assert!(page.contains("action=\"/sign-in\" target=\"_blank\""), "{page}");
    // Another site can neither write here nor prepare what somebody sends.
    let forged = nobody
        .post_from("/groups/short/spec", &form, "https://evil.example")
        .await;
    let forged = forged.fine();
    assert!(
        forged.contains("name=\"token\"") && !forged.contains("Send again") && !forged.contains("desrever"),
        "{forged}"
    );
    // What is sent again is checked as if it were new.
    let acts = Visitor::signed_in(node.base(), TOKEN).await;
    let spec = "description: kept\ntasks: {a: {script: hello}}";
    let form = [("opened", "1"), ("spec", spec), ("do", "save")];
    let refused = acts
        .post_from("/groups/short/spec", &form, "https://evil.example")
        .await;
    assert!(refused.status.is_client_error(), "{}", refused.status);
    acts.post("/groups/short/spec", &form).await;
    let text = acts.get("/groups/short/spec").await.fine();
    assert!(text.contains("kept"), "{text}");
}

/// Whoever presses a button too late signs in, and is led to the page with the button: the button's own address has no page.
#[tokio::test]
async fn a_button_that_is_pressed_too_late_leads_back_to_its_page() {
    let (_world, node) = World::with_node().await;
    group_and_token(&node).await;
    let run = heddle_tests::id(&node.run("short", json!({})).await);
    let mut nobody = Visitor::new(node.base());
    for (home, action) in [
        (format!("/runs/{run}?item=1"), format!("/runs/{run}/restart")),
        ("/groups?q=short".to_owned(), "/groups/set".to_owned()),
        ("/runs?group=short".to_owned(), "/runs/bulk".to_owned()),
        ("/groups/short/spec?edit=1".to_owned(), "/groups/short/spec".to_owned()),
    ] {
        let button = nobody.form(&action, &[("group", "short"), ("to", "2026-01-01")], node.base());
        let page = nobody
            .send(button.header("referer", format!("{}{home}", node.base())))
            .await;
        let page = page.fine();
        let back = format!("name=\"to\" value=\"{home}\"");
        assert!(
            page.contains("name=\"token\"") && page.contains(&back),
            "{action}: {page}"
        );
        // A browser that does not tell where the button is.
        let page = nobody.post(&action, &[]).await.fine();
        assert!(page.contains("name=\"to\" value=\"/\""), "{action}: {page}");
        let signed = nobody.post("/sign-in", &[("token", TOKEN), ("to", &home)]).await;
        assert_eq!(signed.leads_to(), home, "{}", signed.text);
        let cookie = signed.headers["set-cookie"].to_str().unwrap();
        nobody.cookie = cookie.split(';').next().unwrap().to_owned();
        nobody.get(&home).await.fine();
        nobody.cookie.clear();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_types_outlives_the_session() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let base = node.base().to_owned();
    let token = group_and_token(&node).await;
    gets_a_session(&mut chrome, &base, &token).await;
    let form = format!("{base}/groups/short/spec?edit=1");
    chrome.open(&form).await;
    chrome.until("!!document.querySelector('#spec')").await;
    let types = "window.isTheSame = true; document.querySelector('#spec').value = \
                 document.querySelector('#spec').value.replace('before', 'kept'); 0";
    chrome.value(types).await;
    node.delete("/v1/sessions/ann").await.expect_status(200);
    let told = "window.isTheSame && !document.querySelector('#ended').hidden \
                && document.querySelector('#spec').value.includes('kept')";
    chrome.until(told).await;
    // Somebody signs in in another tab, and comes back to this one.
    gets_a_session(&mut chrome, &base, &token).await;
    chrome.value("window.dispatchEvent(new Event('focus')); 0").await;
    chrome
        .until("window.isTheSame && document.querySelector('#ended').hidden")
        .await;
    chrome.click("main form button.primary").await;
    chrome
        .until("!window.isTheSame && !document.querySelector('#spec') && document.querySelector('main').innerText.includes('kept')")
        .await;
    // If nothing was typed, the page asks for a sign-in.
    chrome.open(&form).await;
    chrome.until("!!document.querySelector('#spec')").await;
    node.delete("/v1/sessions/ann").await.expect_status(200);
    chrome
        .until("!!document.querySelector('form[action=\"/sign-in\"] [name=token]')")
        .await;
}
