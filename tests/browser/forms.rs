//! Forms: what they carry, and what is no form.

use heddle_tests::{TOKEN, World, eventually};
use reqwest::StatusCode;
use serde_json::json;

use crate::open::{browser, open_signed_in};
use crate::{HOSTILE, Page, Visitor, check_page};

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

/// Two people create a group of one name at the same moment: one of them does, and the other one is told.
#[tokio::test]
async fn a_new_group_replaces_no_other() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let create = async |name: &str, mine: &str| {
        let spec = format!("description: {mine}\ntasks: {{a: {{script: hello}}}}\n");
        let form = [("name", name), ("spec", spec.as_str()), ("do", "save")];
        visitor.post("/groups/new", &form).await
    };
    for n in 0..10 {
        let name = format!("both-{n}");
        let (ann, bob) = tokio::join!(create(&name, "Ann"), create(&name, "Bob"));
        let (made, refused, by) = match ann.status {
            StatusCode::SEE_OTHER => (ann, bob, "Ann"),
            _ => (bob, ann, "Bob"),
        };
        assert_eq!(made.leads_to(), format!("/groups/{name}"), "{}", made.text);
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
        let said = format!("A group named {name} already exists.");
        assert!(refused.text.contains(&said), "{}", refused.text);
        let group = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
        assert_eq!((&group["description"], &group["revision"]), (&json!(by), &json!(1)));
    }
}

/// Of several groups, one is gone: the others are changed, and the page says which is not.
#[tokio::test]
async fn groups_are_switched_although_one_is_gone() {
    let (_world, node) = World::with_node().await;
    for name in ["a", "c"] {
        node.put_group(name, json!({"tasks": {"t": {"script": "hello"}}})).await;
    }
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    for (enable, enabled) in [("false", false), ("true", true)] {
        let form = [("group", "a"), ("group", "b"), ("group", "c"), ("enable", enable)];
        let page = visitor.post("/groups/set", &form).await;
        assert_eq!(page.status, StatusCode::SEE_OTHER, "{}", page.text);
        let said = page.headers["set-cookie"].to_str().unwrap();
        let in_part = "heddle_said=%21Changed%3A%202%20of%203%2E%20Not%20changed%3A%20b%20";
        assert!(said.starts_with(in_part), "{said}");
        for name in ["a", "c"] {
            let group = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
            assert_eq!(group["enabled"], enabled, "{name}");
        }
    }
    // One alone says what is wrong with it.
    let page = visitor.post("/groups/set", &[("group", "b"), ("enable", "true")]).await;
    let said = page.headers.get("set-cookie").map_or("", |said| said.to_str().unwrap());
    assert!(
        said.starts_with("heddle_said=%21") && !said.contains("Changed"),
        "{said}: {}",
        page.text
    );
}

/// A new token is shown once. Nothing keeps the page, and it is shown although the lists below it cannot be read.
#[tokio::test]
async fn a_new_token_is_shown_whatever_else_can_be() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let make = async |name: &str| {
        let form = [("name", name), ("role", "viewer")];
        let page = visitor.post("/system/tokens", &form).await;
        check_page("/system/tokens", &page);
        assert_eq!(page.status, StatusCode::OK, "{}", page.text);
        assert_eq!(page.headers["cache-control"], "no-store");
        assert!(!page.headers.contains_key("etag"), "{:?}", page.headers);
        let token = page.text.split("data-copy=\"").nth(1).expect("a token");
        (token.split('"').next().unwrap().to_owned(), page.text)
    };
    let (token, page) = make("first").await;
    assert!(token.starts_with("hdl_") && page.contains("Signed in now"), "{page}");
    // The list of those who have signed in cannot be read.
    let sql = world.sql().await;
    let rename = "ALTER TABLE heddle.sessions RENAME COLUMN";
    sql.batch_execute(&format!("{rename} subject TO other")).await.unwrap();
    let (token, page) = make("second").await;
    sql.batch_execute(&format!("{rename} other TO subject")).await.unwrap();
    assert!(
        !page.contains("Signed in now") && page.contains("role=\"alert\""),
        "{page}"
    );
    Visitor::signed_in(node.base(), &token).await;
}

/// A form: its path, its fields, and what the page must show of them.
type Posted<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

/// Somebody deletes what a form is about while another person fills it: the page says so, and shows what was typed.
#[tokio::test]
async fn what_was_typed_about_a_deleted_thing_is_shown() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    node.put_group("brief", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    node.delete("/v1/groups/brief").await.expect_status(200);
    let new = [
        ("lang", "javascript"),
        ("name", "short"),
        ("text", "export default () => 1;\n"),
        ("do", "save"),
    ];
    let made = visitor.post("/scripts/write", &new).await;
    assert_eq!(made.status, StatusCode::SEE_OTHER, "{}", made.text);
    let deleted = node.delete("/v1/scripts/short").await;
    assert!(matches!(deleted.status, 200 | 204), "{:#}", deleted.body);
    let spec = format!("\ndescription: {HOSTILE}");
    let forms: [Posted; 6] = [
        (
            "/groups/brief/spec",
            &[("opened", "hidden-value"), ("spec", spec.as_str()), ("do", "save")],
            &["<span>Spec</span>"],
        ),
        (
            "/groups/brief/spec",
            &[("opened", "hidden-value"), ("spec", spec.as_str()), ("do", "check")],
            &["<span>Spec</span>"],
        ),
        (
            "/groups/brief/run",
            &[
                ("p.who", "Ada"),
                ("params", HOSTILE),
                ("key", ""),
                ("force", "hidden-value"),
            ],
            &["<span>who</span>", "<span>Params (JSON)</span>", "Ada</textarea>"],
        ),
        (
            "/groups/brief/backfill",
            &[("from", HOSTILE), ("max_active", "7"), ("do", "start")],
            &["<span>From</span>", "7</textarea>"],
        ),
        (
            "/scripts/short/source",
            &[("opened", "hidden-value"), ("text", HOSTILE), ("do", "save")],
            &["<span>Source</span>"],
        ),
        (
            "/scripts/short/source",
            &[("opened", "hidden-value"), ("text", HOSTILE), ("do", "try")],
            &["<span>Source</span>"],
        ),
    ];
    for (path, form, shown) in forms {
        // With the address of the page that has the form, and from a browser that does not tell it.
        for page in [visitor.fill(path, form).await, visitor.post(path, form).await] {
            check_page(path, &page);
            assert_eq!(page.status, StatusCode::NOT_FOUND, "{path}: {}", page.text);
            let common = ["was deleted by", "What you typed", "<textarea readonly", "desrever"];
            for text in common.iter().chain(shown) {
                assert!(page.text.contains(text), "{path} lacks {text}: {}", page.text);
            }
            assert!(!page.text.contains("hidden-value"), "{path}: {}", page.text);
            assert!(!page.text.contains("<span>Key</span>"), "{path}: {}", page.text);
        }
        // Another site does not write on our pages.
        let forged = visitor.post_from(path, form, "https://evil.example").await;
        assert!(!forged.text.contains("desrever"), "{path}: {}", forged.text);
    }
    // A line end with which a text begins is kept.
    let page = visitor.post(forms[0].0, forms[0].1).await;
    let escaped = "spellcheck=\"false\">\n\ndescription: &lt;script&gt;";
    assert!(page.text.contains(escaped), "{}", page.text);
    // A button leads back to its page.
    let button = visitor.post("/groups/brief/enable", &[]).await;
    assert_eq!(button.status, StatusCode::SEE_OTHER, "{}", button.text);
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
            format!("spec={}", "x".repeat(17 << 20)),
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

/// A browser sends nine bytes for a Chinese character: a spec far below its own bound makes a form of several MiB.
#[tokio::test]
async fn a_long_spec_in_chinese_is_saved() {
    let (_world, node) = World::with_node().await;
    node.put_group("many", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let comment = format!("# {}\n", "停".repeat(100)).repeat(3_000);
    let spec = format!("{comment}description: 新的\ntasks:\n  a:\n    script: hello\n");
    let form = [("opened", "1"), ("do", "save"), ("spec", spec.as_str())];
    let page = visitor.fill("/groups/many/spec", &form).await;
    assert_eq!(page.status, StatusCode::SEE_OTHER, "{}", page.leads_to());
    let group = node.get("/v1/groups/many").await.expect_status(200);
    assert_eq!(group["description"], "新的");
}

/// Whoever opened the spec of a group that was deleted and created anew since replaces nothing: the page shows what there is
/// now. Its first revision is compared with no other.
#[tokio::test]
async fn a_spec_of_a_deleted_group_replaces_no_other() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let spec = |description: &str| json!({"description": description, "tasks": {"a": {"script": "hello"}}});
    for description in ["one", "two", "three"] {
        node.put_group("anew", spec(description)).await;
    }
    node.delete("/v1/groups/anew").await.expect_status(200);
    node.put_group("anew", spec("another")).await;
    let form = [
        ("opened", "3"),
        ("spec", "description: mine\ntasks: {a: {script: hello}}"),
        ("do", "save"),
    ];
    let page = visitor.fill("/groups/anew/spec", &form).await;
    assert_eq!(page.status, StatusCode::PRECONDITION_FAILED, "{}", page.text);
    assert!(page.text.contains("description: mine"), "{}", page.text);
    assert_eq!(
        node.get("/v1/groups/anew").await.expect_status(200)["description"],
        "another"
    );
    let page = visitor.get("/groups/anew/spec").await.fine();
    assert!(!page.contains("against=3"), "{}", page);
    node.put_group("anew", spec("later")).await;
    let page = visitor.get("/groups/anew/spec").await.fine();
    assert!(page.contains("revision=5&amp;against=4"), "{}", page);
    assert!(!page.contains("against=3"), "{}", page);
}

/// Somebody whose browser keeps what the answer to a form has said, for the next page.
fn after(visitor: &Visitor, done: &Page) -> Visitor {
    let said = done.headers["set-cookie"].to_str().unwrap();
    Visitor {
        client: visitor.client.clone(),
        base: visitor.base.clone(),
        cookie: format!("{}; {}", visitor.cookie, said.split(';').next().unwrap()),
    }
}

/// The ids of users are the callers' own: one may have a space. A change of members says what it did, and what it did not.
#[tokio::test]
async fn a_change_of_members_names_whom_it_did_not_change() {
    let (_world, node) = World::with_node().await;
    let members = "/v1/audiences/gid_team/members";
    node.put(members, json!({"members": ["ann", "bob smith"]})).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let path = "/dispatch/audiences/gid_team";
    let change = async |add: &str, remove: &str| {
        let done = visitor.fill(path, &[("add", add), ("remove", remove)]).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
        after(&visitor, &done).get(path).await.fine()
    };
    let now = async || node.get(members).await.expect_status(200)["members"].clone();
    let page = change("cas dee\r\nuid_eve, ann", "bob smith").await;
    for said in ["2 members added.", "1 member removed.", "Already members: ann."] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert_eq!(now().await, json!(["ann", "cas dee", "eve"]));
    let page = change("", "cas, dee").await;
    assert!(
        page.contains("role=\"alert\"") && page.contains("No members before: cas, dee."),
        "{page}"
    );
    assert_eq!(now().await, json!(["ann", "cas dee", "eve"]));
    // Nobody is named: that is no change that could be saved.
    let page = visitor.fill(path, &[("add", " , "), ("remove", "")]).await;
    check_page(path, &page);
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", page.text);
    assert!(page.text.contains("Name at least one user."), "{}", page.text);
}

/// The hidden fields of each form of a page that is sent to this path.
fn hidden<'a>(page: &'a str, path: &str) -> Vec<Vec<(&'a str, &'a str)>> {
    let action = format!("action=\"{path}\"");
    let forms = page
        .split("<form")
        .skip(1)
        .map(|form| form.split("</form>").next().unwrap());
    let fields = |form: &'a str| {
        let fields = form.split("type=\"hidden\" name=\"").skip(1);
        let field = |field: &'a str| {
            let (name, rest) = field.split_once('"').unwrap();
            (name, rest.split('"').nth(1).unwrap())
        };
        fields.map(field).collect::<Vec<_>>()
    };
    forms.filter(|form| form.contains(&action)).map(fields).collect()
}

/// A second press, or a browser that sends once more what was not answered: what a form starts is started once.
#[tokio::test]
async fn a_form_that_is_sent_twice_starts_its_runs_once() {
    let (_world, node) = World::with_node().await;
    node.put_group("pressed", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    for _ in 0..3 {
        node.run("pressed", json!({})).await;
    }
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let count = async || node.all("/v1/runs?group=pressed").await.len();
    // Many runs, of which the new ones match the filter too.
    let preview = [("group", "pressed"), ("action", "rerun"), ("do", "preview")];
    let page = visitor.post("/runs/bulk", &preview).await.fine();
    let mut form = hidden(&page, "/runs/bulk").remove(0);
    form.push(("do", "start"));
    for says in [
        "3 of 3 runs changed.",
        "0 of 3 runs changed. This form has already started 3 of them. To start them again, open the form again.",
    ] {
        let done = visitor.post("/runs/bulk", &form).await;
        assert_eq!(done.leads_to(), "/runs?group=pressed", "{}", done.text);
        assert_eq!(count().await, 6);
        let page = after(&visitor, &done).get(done.leads_to()).await.fine();
        assert!(page.contains(&format!(">{says}<")), "{says}: {page}");
    }
    // One run, with the same params and with others.
    let run = heddle_tests::id(&node.all("/v1/runs?group=pressed").await[0]);
    let path = format!("/runs/{run}/rerun");
    let page = visitor.get(&path).await.fine();
    let forms = hidden(&page, &path);
    assert_eq!(forms.len(), 2, "{page}");
    for (mut form, more) in forms.into_iter().zip([("scripts", "pinned"), ("params", "{}")]) {
        form.push(more);
        let before = count().await;
        let [first, second] = [visitor.post(&path, &form).await, visitor.post(&path, &form).await];
        assert!(first.leads_to().starts_with("/runs/"), "{}", first.text);
        assert_eq!(first.leads_to(), second.leads_to(), "{more:?}: {}", second.text);
        assert_eq!(count().await, before + 1, "{more:?}");
    }
    // A run of the group. A form that was refused keeps its key; each new form has another.
    let path = "/groups/pressed/run";
    let page = visitor.get(path).await.fine();
    let mut form = hidden(&page, path).remove(0);
    let key = form[0].1;
    let wrong = visitor.post(path, &[form[0], ("priority", "high")]).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", wrong.text);
    assert_eq!(hidden(&wrong.text, path), [form.clone()]);
    form.push(("priority", "7"));
    let [first, second] = [visitor.post(path, &form).await, visitor.post(path, &form).await];
    assert_eq!(first.leads_to(), second.leads_to(), "{}", second.text);
    assert_eq!(count().await, 9);
    assert_ne!(hidden(&visitor.get(path).await.fine(), path)[0][0].1, key);
    // The key says nothing to people.
    for page in [first.leads_to(), "/runs?group=pressed"] {
        let page = visitor.get(page).await.fine();
        assert!(!page.contains(key), "{page}");
    }
}

/// Whoever comes back to a form whose answer was lost sends the same form once more. So it keeps its key.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_is_come_back_to_is_still_the_same() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group("left", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    open_signed_in(&mut chrome, node.base(), "/groups/left/run").await;
    let key = "document.querySelector('form[action=\"/groups/left/run\"] input[name=once]').value";
    let first = chrome.value(key).await;
    assert!(first.as_str().is_some_and(|key| key.starts_with("page/")), "{first}");
    let back = "dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true})); 0";
    chrome.value(back).await;
    assert_eq!(chrome.value(key).await, first);
    // With other contents it asks for another run.
    let changed = "document.querySelector('form[action=\"/groups/left/run\"] input:not([type=hidden]), \
                   form[action=\"/groups/left/run\"] textarea').dispatchEvent(new Event('input', {bubbles: true})); 0";
    chrome.value(changed).await;
    let other = chrome.value(key).await;
    assert_ne!(other, first);
    let shape = |key: &serde_json::Value| key.as_str().map(|key| (key.len(), key.starts_with("page/")));
    assert_eq!(shape(&other), shape(&first));
}

/// A browser may stop an answer, and a form may have nothing to change. So the form can be sent again after some seconds. A
/// second backfill is refused by nothing: its form can be sent again when something in it has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_whose_answer_was_stopped_is_sent_again() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group("stopped", json!({"history": true, "tasks": {"a": {"script": "hello"}}}))
        .await;
    for (form, after) in [("run", json!(["1", null])), ("backfill", json!(["1", "1"]))] {
        let path = format!("/groups/stopped/{form}");
        open_signed_in(&mut chrome, node.base(), &path).await;
        // The browser stays on the page, and what the page does later is done at once.
        let sent = format!(
            "(() => {{ const form = document.querySelector('form[action=\"{path}\"]'); \
             for (const field of form.querySelectorAll('[required]')) field.value = '2026-01-01'; \
             addEventListener('submit', (event) => event.preventDefault(), {{once: true}}); \
             const later = [], timer = window.setTimeout; \
             window.setTimeout = (what) => later.push(what); form.requestSubmit(); window.setTimeout = timer; \
             const before = form.dataset.sent ?? null; later.forEach((what) => what()); \
             return [before, form.dataset.sent ?? null]; }})()"
        );
        assert_eq!(chrome.value(&sent).await, after, "{form}");
    }
    let changed = "(() => { const field = document.querySelector('form[data-unkeyed] [name=from]'); \
                   field.dispatchEvent(new Event('input', {bubbles: true})); return field.form.dataset.sent ?? null; })()";
    assert_eq!(chrome.value(changed).await, json!(null));
}

/// A run with other params has those of its form, and all else of the run that it is like. An empty field means no params.
#[tokio::test]
async fn a_run_with_other_params_has_those_of_its_form() {
    let (_world, node) = World::with_node().await;
    node.put_group("like", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let old = json!({"params": {"name": "Ada"}, "priority": 7, "labels": {"by": "hand"}});
    let old = heddle_tests::id(&node.run("like", old).await);
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    for (written, params) in [
        ("", json!({})),
        (" \n", json!({})),
        (r#"{"name": "Bo"}"#, json!({"name": "Bo"})),
    ] {
        let made = visitor
            .post(&format!("/runs/{old}/rerun"), &[("params", written)])
            .await;
        let id = made.leads_to().strip_prefix("/runs/");
        let id = id.unwrap_or_else(|| panic!("{written:?}: {}", made.text));
        let run = node.run_now(id).await;
        assert_eq!(run["params"], params, "{written:?}");
        assert_eq!((&run["priority"], &run["labels"]["by"]), (&json!(7), &json!("hand")));
        assert_eq!(run["trigger"], "manual", "{written:?}");
    }
    // What cannot be read is shown again as it was written.
    let wrong = visitor.post(&format!("/runs/{old}/rerun"), &[("params", "{")]).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", wrong.text);
    assert!(wrong.text.contains(">{</textarea>"), "{}", wrong.text);
}

/// The form for a backfill of a disabled group offers what the form for a run offers, and takes as many runs at once as the API.
#[tokio::test]
async fn a_disabled_group_is_filled_with_force() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "off",
        json!({"history": true, "schedules": {"daily": {"cron": "0 0 * * *"}}, "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let path = "/groups/off/backfill";
    let page = visitor.get(path).await.fine();
    assert!(
        !page.contains("name=\"force\"") && page.contains("max=\"10000\""),
        "{page}"
    );
    node.post("/v1/groups/off/disable", json!({})).await.expect_status(200);
    let form = [
        ("from", "2026-01-01"),
        ("to", "2026-01-02"),
        ("max_active", "1001"),
        ("do", "start"),
    ];
    let wrong = eventually("a page that says that the group is disabled", async || {
        let page = visitor.post(path, &form).await;
        (page.status == StatusCode::CONFLICT).then_some(page.text)
    })
    .await;
    assert!(wrong.contains("name=\"force\" value=\"true\""), "{wrong}");
    let with_force = [form.as_slice(), &[("force", "true")]].concat();
    let made = visitor.post(path, &with_force).await;
    assert!(made.leads_to().starts_with("/backfills/"), "{}", made.text);
}

/// A backfill for which nothing is left to do says so once.
#[tokio::test]
async fn a_backfill_with_nothing_to_do_says_so_once() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "past",
        json!({"history": true, "schedules": {"daily": {"cron": "0 0 * * *"}}, "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let form = visitor.get("/groups/past/backfill").await.fine();
    assert!(form.contains("A date means midnight"), "{form}");
    let start = [("from", "2026-01-01"), ("to", "2026-01-03"), ("do", "start")];
    let first = visitor.post("/groups/past/backfill", &start).await;
    assert_eq!(first.status, StatusCode::SEE_OTHER, "{}", first.text);
    eventually("the runs of the first backfill", async || {
        (node.all("/v1/runs?group=past").await.len() == 3).then_some(())
    })
    .await;
    let second = visitor.post("/groups/past/backfill", &start).await;
    let page = eventually("the end of the second backfill", async || {
        let page = visitor.get(second.leads_to()).await.fine();
        page.contains("3 times already had a run").then_some(page)
    })
    .await;
    assert_eq!(page.matches("already had a run").count(), 1, "{page}");
}
