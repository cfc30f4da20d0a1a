//! Scripts in the browser: files that are chosen and files that are dropped, versions, and the console.

use heddle_tests::{Node, TOKEN, World};
use reqwest::StatusCode;
use serde_json::json;

use crate::open::{browser, open_signed_in};
use crate::{Page, Visitor, check_page};

/// A form with files, as a browser sends it: names and contents; and its other fields.
async fn upload(visitor: &Visitor, files: &[(&str, &str)], fields: &[(&str, &str)]) -> Page {
    upload_from(visitor, "/scripts", "/scripts/upload", files, fields).await
}

/// The same from a page at an address, whose form has this action.
async fn upload_from(
    visitor: &Visitor,
    page: &str,
    action: &str,
    files: &[(&str, &str)],
    fields: &[(&str, &str)],
) -> Page {
    const BETWEEN: &str = "between-two-parts";
    let mut body = String::new();
    for (name, value) in fields {
        body.push_str(&format!(
            "--{BETWEEN}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    for (name, content) in files {
        body.push_str(&format!(
            "--{BETWEEN}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             content-type: application/octet-stream\r\n\r\n{content}\r\n"
        ));
    }
    body.push_str(&format!("--{BETWEEN}--\r\n"));
    let request = visitor
        .client
        .post(format!("{}{action}", visitor.base))
        .header("origin", &visitor.base)
        .header("referer", format!("{}{page}", visitor.base))
        .header("content-type", format!("multipart/form-data; boundary={BETWEEN}"))
        .body(body);
    visitor.send(request).await
}

async fn active(node: &Node, script: &str) -> i64 {
    let script = node.get(&format!("/v1/scripts/{script}")).await.expect_status(200);
    script["active_version"].as_i64().unwrap()
}

#[tokio::test]
async fn files_become_scripts() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let first = ("greet.js", "export default (p) => `Hello, ${p.name}`;");
    let done = upload(&visitor, &[first], &[]).await;
    assert_eq!(
        (done.status, done.leads_to()),
        (StatusCode::SEE_OTHER, "/scripts/greet"),
        "{}",
        done.text
    );
    // Several at once, each under the name of its file.
    let more = [
        ("one.js", "export default () => 1;"),
        ("two.ts", "export default (): number => 2;"),
    ];
    let done = upload(&visitor, &more, &[]).await;
    assert_eq!(
        (done.status, done.leads_to()),
        (StatusCode::SEE_OTHER, "/scripts"),
        "{}",
        done.text
    );
    for name in ["one", "two"] {
        assert_eq!(active(&node, name).await, 1);
    }
    // A version that waits to be activated, and is.
    let second = ("another-name.js", "export default (p) => `Good day, ${p.name}`;");
    upload(&visitor, &[second], &[("name", "greet"), ("keep", "true")]).await;
    assert_eq!(active(&node, "greet").await, 1);
    let page = visitor.get("/scripts/greet").await.fine();
    assert!(page.contains("action=\"/scripts/greet/activate\""), "{page}");
    visitor.post("/scripts/greet/activate", &[("version", "2")]).await;
    assert_eq!(active(&node, "greet").await, 2);
}

/// What is no script, and no file at all: the page says which and why, at the field, and keeps what was typed. It does so again
/// from the address under which the first refusal was shown.
#[tokio::test]
async fn a_refused_upload_keeps_what_was_typed() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let fine = ("fine.js", "export default () => 1;");
    let broken = ("broken.js", "export default (");
    let too_many = vec![fine; 21];
    for (files, name, field, says) in [
        (vec![broken], "kept-name", "file", "broken.js: "),
        (vec![("nothing.wasm", "text")], "kept-name", "file", "nothing.wasm: "),
        (vec![fine, broken], "kept-name", "file", "fine@1 uploaded"),
        (vec![], "kept-name", "file", "Choose a file first."),
        (too_many, "kept-name", "file", "Choose at most 20 files."),
        (vec![fine, ("hollow.js", "")], "kept-name", "file", "Empty: hollow.js"),
        (vec![fine], "-kept name", "name", "a name must begin with"),
    ] {
        for from in ["/scripts", "/scripts/upload"] {
            let fields = [("name", name), ("keep", "true")];
            let page = upload_from(&visitor, from, "/scripts/upload", &files, &fields).await;
            check_page("/scripts", &page);
            assert!(page.status.is_client_error(), "{says}: {} {}", page.status, page.text);
            keeps(&page.text, name, field, says);
        }
    }
    assert!(!visitor.get("/scripts").await.fine().contains("Choose the files again"));
    // Whoever loads the address of a refused form of one script gets that script's page.
    let done = upload(&visitor, &[fine], &[("name", "fine"), ("keep", "true")]).await;
    assert_eq!(done.leads_to(), "/scripts/fine", "{}", done.text);
    assert!(visitor.get("/scripts/upload?of=fine").await.fine().contains("fine"));
}

/// Scripts of Python or with data are larger than what web frameworks read of a form unless they are told.
#[tokio::test]
async fn a_large_script_is_uploaded() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let data = "a".repeat(3 << 20);
    let text =
        format!("(module (memory (export \"memory\") 64) (data (i32.const 0) \"{data}\") (func (export \"_start\")))");
    let done = upload(&visitor, &[("large.wat", &text)], &[]).await;
    assert_eq!(done.leads_to(), "/scripts/large", "{}", done.text);
    node.get("/v1/scripts/large").await.expect_status(200);
}

/// A page has the form with what was typed into it, and says at a field why it was refused.
#[track_caller]
fn keeps(text: &str, name: &str, field: &str, says: &str) {
    assert!(text.contains("role=\"alert\""), "{says}: {text}");
    let id = format!("<small class=\"wrong\" id=\"{field}-fault\">");
    let at_field = text
        .split(id.as_str())
        .nth(1)
        .and_then(|rest| rest.split("</small>").next());
    assert!(at_field.is_some_and(|said| said.contains(says)), "{says}: {text}");
    assert!(
        text.contains(&format!("aria-describedby=\"{field}-fault\"")),
        "{says}: {text}"
    );
    assert!(text.contains(&format!("value=\"{name}\"")), "{says}: {text}");
    assert!(text.contains("name=\"keep\" value=\"true\" checked"), "{says}: {text}");
    assert!(text.contains("Choose the files again"), "{says}: {text}");
}

/// Only who may upload can send a large body: it is read whole before anything else is known of it.
#[tokio::test]
async fn the_body_of_who_may_not_upload_is_bounded_like_a_form() {
    let (_world, node) = World::with_node().await;
    let made = node
        .post("/v1/tokens", json!({"name": "looks", "role": "viewer"}))
        .await;
    let made = made.expect_status(201);
    let looks = Visitor::signed_in(node.base(), made["token"].as_str().unwrap()).await;
    let acts = Visitor::signed_in(node.base(), TOKEN).await;
    let large = "x".repeat(17 << 20);
    let page = upload(&looks, &[("large.js", large.as_str())], &[]).await;
    assert_eq!(page.status, StatusCode::PAYLOAD_TOO_LARGE);
    // The same file of somebody else is read, and refused as a script.
    let page = upload(&acts, &[("large.js", large.as_str())], &[]).await;
    assert!(page.text.contains("large.js: "), "{} {}", page.status, page.text);
}

/// The form of one script that was refused is on the page of that script, under the address that got it; so are its other forms.
#[tokio::test]
async fn a_refused_version_leaves_one_at_its_script() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let action = "/scripts/upload?of=greet";
    for text in ["export default () => 1;", "export default () => 2;"] {
        let fields = [("name", "greet"), ("keep", "true")];
        let done = upload(&visitor, &[("greet.js", text)], &fields).await;
        assert_eq!(done.leads_to(), "/scripts/greet", "{}", done.text);
    }
    for from in ["/scripts/greet", action] {
        let fields = [("name", "greet"), ("keep", "true")];
        let page = upload_from(&visitor, from, action, &[("broken.js", "export default (")], &fields).await;
        assert!(page.status.is_client_error(), "{} {}", page.status, page.text);
        keeps(&page.text, "greet", "file", "broken.js: ");
        assert!(page.text.contains(&format!("action=\"{action}\"")), "{}", page.text);
        assert!(
            page.text.contains("action=\"/scripts/greet/activate\""),
            "{}",
            page.text
        );
    }
    for (form, fields, from, home) in [
        ("/scripts/greet/activate", [("version", "2")], action, "/scripts/greet"),
        ("/preferences", [("lang", "en")], action, "/scripts/greet"),
        ("/preferences", [("lang", "en")], "/scripts/upload", "/scripts"),
    ] {
        let request = visitor.form(form, &fields, &visitor.base);
        let done = visitor
            .send(request.header("referer", format!("{}{from}", visitor.base)))
            .await;
        assert_eq!(
            (done.status, done.leads_to()),
            (StatusCode::SEE_OTHER, home),
            "{}",
            done.text
        );
    }
    assert_eq!(active(&node, "greet").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_dropped_and_tried() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    open_signed_in(&mut chrome, node.base(), "/scripts").await;
    let text = "export const params = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };\\n\
                export default (p) => { console.warn('hm', p.name); return { greeting: `Hello, ${p.name}` }; };";
    let drop = format!(
        "(() => {{ const data = new DataTransfer(); data.items.add(new File([{}.replaceAll('\\\\n', '\\n')], 'dropped.js')); \
         const event = (kind) => new DragEvent(kind, {{ dataTransfer: data, bubbles: true, cancelable: true }}); \
         document.body.dispatchEvent(event('dragover')); \
         const shown = document.querySelector('form[data-drop]').classList.contains('over'); \
         document.body.dispatchEvent(event('drop')); \
         return [shown, document.querySelector('#files').files.length, document.activeElement.type]; }})()",
        json!(text)
    );
    assert_eq!(
        chrome.value(&drop).await,
        json!([true, 1, "submit"]),
        "it shows where it goes, and what is next"
    );
    chrome.press("Enter").await;
    chrome
        .until("location.pathname === '/scripts/dropped' && document.readyState === 'complete'")
        .await;
    chrome.click("nav.tabs a[href$='/console']").await;
    chrome.until("!!document.querySelector('[name=\"p.name\"]')").await;
    let result = "document.querySelector('section[aria-live]').innerText";
    // What the schema refuses is said, and what was written stays.
    chrome
        .value("document.querySelector('[name=params]').value = '{\"name\": 5}'; window.isLeft = true")
        .await;
    chrome.click("main form.fields button.primary").await;
    chrome
        .until(&format!("!window.isLeft && {result}.includes('name: ')"))
        .await;
    assert_eq!(
        chrome.value("document.querySelector('[name=params]').value").await,
        "{\"name\": 5}"
    );
    chrome.value("document.querySelector('[name=params]').value = ''; document.querySelector('[name=\"p.name\"]').value = 'Ada'; window.isLeft = true").await;
    chrome.click("main form.fields button.primary").await;
    chrome
        .until(&format!(
            "!window.isLeft && {result}.includes('Hello, Ada') && {result}.includes('hm Ada')"
        ))
        .await;
    // Who comes back finds it filled in.
    chrome.open(&format!("{}/scripts/dropped/console", node.base())).await;
    chrome
        .until("document.querySelector('[name=\"p.name\"]').value === 'Ada'")
        .await;
}
