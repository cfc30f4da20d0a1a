//! The pages, as browsers get them: what is sent, what a real one says of it.
//!
//! Where there is no Chromium the tests that need one say so and pass: `apt-get install chromium`, as `.ci/run` does.

mod chrome;
mod provider;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use chrome::Chrome;
use heddle_tests::{Dev, Node, TOKEN, World, eventually};
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

/// Pages that there are whatever is in the database.
const PAGES: [&str; 24] = [
    "/",
    "/groups",
    "/groups/new",
    "/runs",
    "/backfills",
    "/scripts",
    "/queues",
    "/dispatch",
    "/topics",
    "/notifications",
    "/system",
    "/system/pools",
    "/system/connections",
    "/system/secrets",
    "/system/tokens",
    "/system/retention",
    "/system/audit",
    "/preferences",
    "/search?q=a",
    "/scripts/echo",
    "/scripts/echo/console",
    "/groups?q=nothing",
    "/groups?view=graph",
    "/runs/compare",
];

/// What somebody may have called something.
const HOSTILE: &str = "<script>alert(1)</script> \u{202e}desrever \u{1f4a5} \"quoted\" & 'so'";

/// A browser's side of a connection.
struct Visitor {
    client: Client,
    base: String,
    cookie: String,
}

struct Page {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Page {
    #[track_caller]
    fn fine(self) -> String {
        assert_eq!(self.status, 200, "{}", self.text);
        self.text
    }

    fn leads_to(&self) -> &str {
        self.headers.get(LOCATION).map_or("", |value| value.to_str().unwrap())
    }
}

impl Visitor {
    fn new(base: &str) -> Self {
        heddle_tests::choose_cryptography();
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self {
            client,
            base: base.to_owned(),
            cookie: String::new(),
        }
    }

    async fn signed_in(base: &str, token: &str) -> Self {
        let mut visitor = Self::new(base);
        let page = visitor.post("/sign-in", &[("token", token), ("to", "/runs")]).await;
        assert_eq!(
            (page.status, page.leads_to()),
            (StatusCode::SEE_OTHER, "/runs"),
            "{}",
            page.text
        );
        let set = page.headers[SET_COOKIE].to_str().unwrap();
        visitor.cookie = set.split(';').next().unwrap().to_owned();
        visitor
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Page {
        let answer = request
            .header("accept", "text/html")
            .header("cookie", &self.cookie)
            .send()
            .await
            .unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        Page {
            status,
            headers,
            text: answer.text().await.unwrap(),
        }
    }

    async fn get(&self, path: &str) -> Page {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    /// Listens to a page's changes until one of these has come.
    async fn hears(&self, page: &str, until: &[&str]) -> String {
        let mut stream = self.opens(page).await;
        hear(&mut stream, until).await
    }

    /// Opens the stream of a page's changes.
    async fn opens(&self, page: &str) -> reqwest::Response {
        let connect = page.split("sse-connect=\"").nth(1).expect("the page is live");
        let connect = connect.split('"').next().unwrap().replace("&amp;", "&");
        self.client
            .get(format!("{}{connect}", self.base))
            .header("cookie", &self.cookie)
            .send()
            .await
            .unwrap()
    }

    /// A form of one of our own pages.
    async fn post(&self, path: &str, form: &[(&str, &str)]) -> Page {
        self.post_from(path, form, &self.base).await
    }

    async fn post_from(&self, path: &str, form: &[(&str, &str)], origin: &str) -> Page {
        let body: String = url_encoded(form);
        let request = self
            .client
            .request(Method::POST, format!("{}{path}", self.base))
            .header("origin", origin)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        self.send(request).await
    }
}

/// What a stream tells until all of these have come.
async fn hear(stream: &mut reqwest::Response, until: &[&str]) -> String {
    let mut heard = String::new();
    let found = tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(piece) = stream.chunk().await.unwrap() {
            heard.push_str(&String::from_utf8_lossy(&piece));
            if until.iter().all(|text| heard.contains(text)) {
                return;
            }
        }
        panic!("the stream has ended: {heard}");
    });
    assert!(found.await.is_ok(), "{until:?} was not heard: {heard}");
    heard
}

fn url_encoded(form: &[(&str, &str)]) -> String {
    let escaped = |text: &str| -> String {
        text.bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect()
    };
    form.iter()
        .map(|(name, value)| format!("{}={}", escaped(name), escaped(value)))
        .collect::<Vec<_>>()
        .join("&")
}

/// Nothing of a page runs or is shown but what its policy lets through, and nothing that people wrote is HTML.
#[track_caller]
fn check_page(path: &str, page: &Page) {
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
        "{path}: {policy}"
    );
    assert!(!policy.contains("unsafe"), "{path}: {policy}");
    assert!(
        !page.text.contains("<script>alert"),
        "{path} has markup that somebody wrote"
    );
    for inline in [" style=\"", "<style", " onclick=", " onload=", "javascript:"] {
        assert!(!page.text.contains(inline), "{path} has {inline}");
    }
    for tag in page.text.split("<script").skip(1) {
        assert!(
            tag.trim_start().starts_with("src=\"/assets/") || tag.contains("src=\"/assets/"),
            "{path}: <script{}",
            &tag[..80.min(tag.len())]
        );
    }
    for elsewhere in ["src=\"http", "href=\"http", "url(http"] {
        assert!(!page.text.contains(elsewhere), "{path} fetches from elsewhere");
    }
}

async fn group_with_everything(node: &Node) -> String {
    node.put_group(
        "shown",
        json!({
            "description": HOSTILE, "history": true,
            "schedules": {"yearly": {"cron": "0 0 1 1 *"}},
            "tasks": {
                "good": {"script": "echo", "params": {"text": HOSTILE}},
                "bad": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}, "depends_on": ["good"]},
                "late": {"script": "hello", "depends_on": ["bad"]},
            },
        }),
    )
    .await;
    let run = node
        .start("shown", json!({"params": {"note": HOSTILE}, "key": "a-key"}))
        .await;
    node.run_becomes(&run, "failed").await;
    run
}

#[tokio::test]
async fn every_page_is_shown_and_nothing_in_it_is_markup() {
    let world = World::new().await;
    let node = world.node().await;
    let run = group_with_everything(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let mut pages: Vec<String> = PAGES.iter().map(|path| (*path).to_owned()).collect();
    for tab in [
        "",
        "/graph",
        "/runs",
        "/schedules",
        "/calendar",
        "/calendar?year=1999",
        "/state",
        "/run",
        "/backfill",
        "/spec",
        "/spec?edit=1",
    ] {
        pages.push(format!("/groups/shown{tab}"));
    }
    for tab in [
        "",
        "/graph",
        "/log",
        "/log?find=a&level=info",
        "/data",
        "/attempts",
        "/events",
        "/rerun",
    ] {
        pages.push(format!("/runs/{run}{tab}"));
    }
    pages.push(format!("/groups/shown?run={run}&task=bad"));
    pages.push(format!("/runs/compare?run={run}"));
    for language in ["en", "zh"] {
        let visitor = Visitor {
            cookie: format!("{}; heddle_lang={language}", visitor.cookie),
            ..Visitor::new(node.base())
        };
        for path in &pages {
            let page = visitor.get(path).await;
            assert_eq!(page.status, 200, "{path}: {}", page.text);
            check_page(path, &page);
            assert!(
                page.text.contains(if language == "en" {
                    "lang=\"en\""
                } else {
                    "lang=\"zh-CN\""
                }),
                "{path}"
            );
        }
    }
    let overview = visitor.get("/").await.fine();
    assert!(
        overview.contains("shown") && overview.contains(&format!("/runs/{run}/restart")),
        "{overview}"
    );
    let missing = visitor.get("/groups/none").await;
    assert_eq!(missing.status, 404);
    check_page("/groups/none", &missing);
    // By key and by id: the only thing found is opened.
    assert_eq!(visitor.get("/search?q=a-key").await.status, StatusCode::SEE_OTHER);
    assert_eq!(
        visitor.get(&format!("/search?q={run}")).await.status,
        StatusCode::SEE_OTHER
    );
    assert_eq!(visitor.get("/search?q=shown").await.status, StatusCode::OK);
    // A program is told so in its own way.
    node.get("/nothing-here").await.expect_problem(404, &[]);
    node.get("/v1/nothing-here").await.expect_problem(404, &[]);
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let world = World::new().await;
    let node = world.node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let first = visitor.get("/preferences").await;
    let tag = first.headers["etag"].to_str().unwrap().to_owned();
    let again = visitor
        .send(
            visitor
                .client
                .get(format!("{}/preferences", visitor.base))
                .header("if-none-match", &tag),
        )
        .await;
    assert_eq!((again.status, again.text.len()), (StatusCode::NOT_MODIFIED, 0));
    let asset = first
        .text
        .split("href=\"/assets/heddle.")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let asset = visitor.get(&format!("/assets/heddle.{asset}")).await;
    assert!(asset.headers["cache-control"].to_str().unwrap().contains("immutable"));
    assert_eq!(visitor.get("/assets/heddle.css").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn one_signs_in_does_what_one_may_and_signs_out() {
    let world = World::new().await;
    let node = world.node().await;
    let run = group_with_everything(&node).await;
    // Whoever has not signed in is asked to, wherever they go, and gets there after.
    let nobody = Visitor::new(node.base());
    let page = nobody.get("/groups/shown").await.fine();
    assert!(
        page.contains("name=\"token\"") && page.contains("value=\"/groups/shown\"") && !page.contains("yearly"),
        "{page}"
    );
    let wrong = nobody.post("/sign-in", &[("token", "hdl_wrong"), ("to", "/")]).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    let away = nobody
        .post("/sign-in", &[("token", TOKEN), ("to", "//evil.example/")])
        .await;
    assert_eq!(away.leads_to(), "/");
    let forged = nobody
        .post_from("/sign-in", &[("token", TOKEN)], "https://evil.example")
        .await;
    assert_eq!(forged.status, StatusCode::UNAUTHORIZED, "{}", forged.text);

    let token = |role: &str| json!({"name": format!("a-{role}"), "role": role});
    let viewer = node.post("/v1/tokens", token("viewer")).await.expect_status(201)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let worker = node.post("/v1/tokens", token("worker")).await.expect_status(201)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let sees = Visitor::signed_in(node.base(), &viewer).await;
    let restart = format!("/runs/{run}/restart");
    let page = sees.get(&format!("/runs/{run}")).await.fine();
    assert!(page.contains("flaky") || page.contains("bad"), "{page}");
    assert!(!page.contains(&restart), "what a viewer may not do is not offered");
    assert_eq!(sees.get("/groups/shown/run").await.status, StatusCode::FORBIDDEN);
    let refused = sees.post(&restart, &[]).await;
    assert_eq!(refused.status, StatusCode::SEE_OTHER);
    assert_eq!(
        node.get(&format!("/v1/runs/{run}")).await.expect_status(200)["state"],
        "failed"
    );
    let works = Visitor::signed_in(node.base(), &worker).await;
    assert!(
        works.get("/runs").await.fine().contains("name=\"token\""),
        "a worker has no pages"
    );

    let acts = Visitor::signed_in(node.base(), TOKEN).await;
    assert!(acts.get(&format!("/runs/{run}")).await.fine().contains(&restart));
    // A page of another site, with this browser's cookie.
    let forged = acts.post_from(&restart, &[], "https://evil.example").await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    assert_eq!(
        node.get(&format!("/v1/runs/{run}")).await.expect_status(200)["state"],
        "failed"
    );
    let done = acts.post(&restart, &[]).await;
    assert_eq!(
        (done.status, done.leads_to()),
        (StatusCode::SEE_OTHER, format!("/runs/{run}").as_str())
    );
    eventually("a second attempt", async || {
        let task = node.get(&format!("/v1/runs/{run}/tasks/bad")).await.expect_status(200);
        (task["attempts"].as_array().unwrap().len() > 1).then_some(())
    })
    .await;
    let out = acts.post("/sign-out", &[]).await;
    assert_eq!(out.leads_to(), "/sign-in");
    assert!(
        acts.get("/runs").await.fine().contains("name=\"token\""),
        "the session has ended"
    );
}

#[tokio::test]
async fn a_run_is_started_with_a_form_and_watched() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group("slow", json!({"tasks": {"nap": {"script": "sleep"}}}))
        .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let form = visitor.get("/groups/slow/run").await.fine();
    assert!(form.contains("name=\"p.seconds\""), "{form}");
    let wrong = visitor.post("/groups/slow/run", &[("p.seconds", "soon")]).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        wrong.text.contains("/params/seconds") && wrong.text.contains("value=\"soon\""),
        "{}",
        wrong.text
    );
    let started = visitor.post("/groups/slow/run", &[("p.seconds", "1.5")]).await;
    assert_eq!(started.status, StatusCode::SEE_OTHER, "{}", started.text);
    let path = started.leads_to().to_owned();
    let page = visitor.get(&path).await.fine();
    visitor.hears(&page, &["event: run-head", "s-succeeded"]).await;
    let id = path.rsplit('/').next().unwrap();
    assert_eq!(node.ended(id).await["state"], "succeeded");
    // Cancelled, with a form, in the middle.
    let started = visitor.post("/groups/slow/run", &[("p.seconds", "60")]).await;
    let path = started.leads_to().to_owned();
    node.run_becomes(path.rsplit('/').next().unwrap(), "running").await;
    visitor.post(&format!("{path}/cancel"), &[]).await;
    assert_eq!(node.ended(path.rsplit('/').next().unwrap()).await["state"], "cancelled");
}

#[tokio::test]
async fn a_node_without_pages_has_none() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_NO_UI", "true").start().await;
    node.get("/").await.expect_problem(404, &[]);
    node.get("/v1/groups").await.expect_status(200);
}

#[tokio::test]
async fn a_task_is_run_again_and_runs_are_compared() {
    let world = World::new().await;
    let node = world.node().await;
    let run = group_with_everything(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    // One run alone has nothing beside it.
    let alone = visitor.get(&format!("/runs/compare?run={run}")).await.fine();
    assert!(alone.contains("no other run"), "{alone}");
    let page = visitor.get(&format!("/runs/{run}")).await.fine();
    let clear = format!("/runs/{run}/tasks/good/clear");
    assert!(page.contains(&clear), "{page}");
    let done = visitor.post(&clear, &[("downstream", "false")]).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    eventually("a second attempt of what had succeeded", async || {
        let task = node.get(&format!("/v1/runs/{run}/tasks/good")).await.expect_status(200);
        (task["attempts"].as_array().unwrap().len() > 1).then_some(())
    })
    .await;
    node.run_becomes(&run, "failed").await;
    let second = node
        .start(
            "shown",
            json!({"task_params": {"bad": {"fail_times": 0}}, "params": {"note": "plain"}}),
        )
        .await;
    node.run_becomes(&second, "succeeded").await;
    for query in [format!("run={second}"), format!("run={run}&run={second}")] {
        let both = visitor.get(&format!("/runs/compare?{query}")).await;
        check_page("/runs/compare", &both);
        let both = both.fine();
        assert!(both.contains(&run) && both.contains(&second), "{both}");
        assert!(
            both.contains("s-failed") && both.contains("s-succeeded") && both.contains("class=\"added\""),
            "{both}"
        );
    }
    // Today failed, as far as a day's picture goes, and leads to its runs.
    let calendar = visitor.get("/groups/shown/calendar").await.fine();
    assert!(calendar.contains("2 runs, 1 failed"), "{calendar}");
    let day = calendar
        .split("href=\"/runs?")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let listed = visitor
        .get(&format!("/runs?{}", day.replace("&amp;", "&")))
        .await
        .fine();
    assert!(listed.contains(&run) && listed.contains(&second), "{listed}");
    // What the script has kept.
    node.put_group("keeps", json!({"tasks": {"count": {"script": "stateful"}}}))
        .await;
    node.run("keeps", json!({})).await;
    let kept = visitor.get("/groups/keeps/state").await.fine();
    assert!(!kept.contains("kept nothing") && kept.contains("<code><bdi>"), "{kept}");
    // Many groups at once, and which follows which.
    node.put_group(
        "after",
        json!({"depends_on": ["keeps"], "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    let picture = visitor.get("/groups?view=graph&q=AFTER").await.fine();
    assert!(
        picture.contains("href=\"/groups/keeps\"") && !picture.contains("href=\"/groups/shown\""),
        "{picture}"
    );
    let none = visitor.post("/groups/set", &[("enable", "false")]).await;
    assert_eq!(none.status, StatusCode::SEE_OTHER);
    let set = [("group", "after"), ("group", "keeps"), ("enable", "false")];
    visitor.post("/groups/set", &set).await;
    for name in ["after", "keeps"] {
        let group = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
        assert_eq!(group["enabled"], false, "{name}");
    }
}

#[tokio::test]
async fn a_graph_of_many_tasks_is_drawn_and_one_of_too_many_is_not() {
    let world = World::new().await;
    let node = world.node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    for (name, count, drawn) in [("many", 500, true), ("too-many", 10_000, false)] {
        let tasks: serde_json::Map<String, Value> = (0..count)
            .map(|n| {
                let needs: BTreeSet<String> = [n / 3, n / 2]
                    .iter()
                    .filter(|m| **m < n)
                    .map(|m| format!("t{m}"))
                    .collect();
                (format!("t{n}"), json!({"script": "hello", "depends_on": needs}))
            })
            .collect();
        node.put_group(name, json!({"tasks": tasks})).await;
        let page = visitor.get(&format!("/groups/{name}/graph")).await.fine();
        assert_eq!(
            page.matches("class=\"node\"").count(),
            if drawn { count } else { 0 },
            "{name}"
        );
        assert!(drawn || page.contains("too many for a picture"), "{name}");
        visitor.get(&format!("/groups/{name}")).await.fine();
    }
}

#[tokio::test]
async fn what_goes_away_while_a_page_is_open_is_said() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group("brief", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let made = node
        .post("/v1/tokens", json!({"name": "passing", "role": "operator"}))
        .await
        .expect_status(201);
    let visitor = Visitor::signed_in(node.base(), made["token"].as_str().unwrap()).await;
    // A group that somebody deletes.
    let page = visitor.get("/groups/brief").await.fine();
    let (heard, ()) = tokio::join!(visitor.hears(&page, &["event: over", "data: gone"]), async {
        node.delete("/v1/groups/brief").await.expect_status(200);
    });
    assert!(!heard.contains("signed-out"), "{heard}");
    let gone = visitor.get("/groups/brief").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    check_page("/groups/brief", &gone);
    assert!(
        gone.text.contains("was deleted by") && gone.text.contains("/system/audit?kind=group"),
        "{}",
        gone.text
    );
    // The database, which comes back.
    let page = visitor.get("/runs").await.fine();
    let owner = world.sql_as_owner().await;
    let allow = format!("ALTER DATABASE {} ALLOW_CONNECTIONS", world.database());
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    let away = async {
        owner.batch_execute(&format!("{allow} false")).await.unwrap();
        owner.query(&cut, &[]).await.unwrap();
        let shown = eventually("page that says that the database is away", async || {
            Some(visitor.get("/runs").await).filter(|page| page.status == StatusCode::SERVICE_UNAVAILABLE)
        })
        .await;
        assert!(
            shown.text.contains("database does not answer") && shown.text.contains("http-equiv=\"refresh\""),
            "{}",
            shown.text
        );
    };
    tokio::join!(visitor.hears(&page, &["event: away"]), away);
    owner.batch_execute(&format!("{allow} true")).await.unwrap();
    eventually("page", async || {
        Some(visitor.get("/runs").await).filter(|page| page.status == StatusCode::OK)
    })
    .await
    .fine();
}

/// A token that is revoked, a session that is ended: pages that are open end with it, on every node, and do not wait for
/// anything else to happen.
#[tokio::test]
async fn a_page_ends_with_what_its_viewer_has_shown() {
    /// Far more than it takes, and far less than the minute after which a page is made again anyway.
    const SOON: Duration = Duration::from_secs(20);
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let make = async |name: &str| {
        let body = json!({"name": name, "role": "operator"});
        let made = nodes[0].post("/v1/tokens", body).await.expect_status(201);
        made["token"].as_str().unwrap().to_owned()
    };
    for (what, path) in [("revoked", "/queues"), ("ended", "/groups?q=a")] {
        let token = make(what).await;
        let here = Visitor::signed_in(nodes[0].base(), &token).await;
        let mut there = Visitor::new(nodes[1].base());
        there.cookie = here.cookie.clone();
        let mut streams = [
            here.opens(&here.get("/runs").await.fine()).await,
            there.opens(&there.get(path).await.fine()).await,
        ];
        for stream in &mut streams {
            hear(stream, &["event: here"]).await;
        }
        if what == "revoked" {
            nodes[0].delete(&format!("/v1/tokens/{what}")).await.expect_status(204);
        } else {
            assert_eq!(here.post("/sign-out", &[]).await.leads_to(), "/sign-in");
        }
        for stream in &mut streams {
            let heard = hear(stream, &["event: over", "data: signed-out"]);
            let heard = tokio::time::timeout(SOON, heard).await;
            assert!(heard.is_ok(), "{what}: a page stays open");
        }
        // The browser loads the page anew, and is led back to it.
        let asked = there.get(path).await.fine();
        let back = format!("name=\"to\" value=\"{path}\"");
        assert!(asked.contains("name=\"token\"") && asked.contains(&back), "{asked}");
    }
}

/// Finds what cannot be read or used without a pointer or without seeing; `VENDORED.md` beside it says whence it is.
const AXE: &str = include_str!("vendor/axe-core-4.10.3.min.js");

/// What axe finds wrong, a line each.
async fn axe(chrome: &mut Chrome, rules: &str) -> Vec<String> {
    if chrome.value("typeof axe").await != "object" {
        chrome.value(&format!("{AXE}\n;0")).await;
    }
    let run = format!(
        "axe.run(document, {{resultTypes: ['violations'], {rules}}}).then((found) => found.violations.flatMap((one) => \
         one.nodes.slice(0, 4).map((node) => `${{one.id}} at ${{node.target.join(' ')}}: ${{node.html.slice(0, 160)}} ${{node.failureSummary}}`)))"
    );
    let found = chrome.value(&run).await;
    let lines = found.as_array().unwrap_or_else(|| panic!("{found}"));
    lines
        .iter()
        .map(|line| line.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A picture of the page for whoever runs the tests to look at: in the directory `HEDDLE_SCREENSHOTS`.
async fn keep(chrome: &mut Chrome, name: &str) {
    if let Some(directory) = std::env::var_os("HEDDLE_SCREENSHOTS") {
        std::fs::create_dir_all(&directory).unwrap();
        let picture = chrome.picture().await;
        std::fs::write(PathBuf::from(directory).join(format!("{name}.png")), picture).unwrap();
    }
}

const NO_SCROLL: &str = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_has_nothing_to_complain_of() {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(&directory.path().join("data"), &[]).await;
    let api: &heddle_tests::Api = &dev;
    // Something of everything: a run that fails, a map, a queue in which something waits, a pool, an offer.
    api.put("/v1/pools/few", json!({"slots": 2})).await;
    api.put_group(
        "mixed",
        json!({
            "description": HOSTILE, "category": "demo",
            "schedules": {"hourly": {"cron": "5 * * * *"}},
            "tasks": {
                "good": {"script": "hello", "pools": {"few": 1}},
                "a-task-with-a-name-that-is-far-too-long-for-most-of-the-places": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}, "depends_on": ["good"]},
                "late": {"script": "hello", "depends_on": ["a-task-with-a-name-that-is-far-too-long-for-most-of-the-places"]},
            },
        }),
    )
    .await;
    api.put_group(
        "follower",
        json!({"depends_on": ["mixed"], "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    api.put_group("by-hand", json!({"tasks": {"stamp": {"queue": "people"}}}))
        .await;
    let run = api.start("hello", json!({})).await;
    let ended: Value = api.ended(&run).await;
    assert_eq!(ended["state"], "succeeded");
    let failed = api.start("mixed", json!({})).await;
    api.run_becomes(&failed, "failed").await;
    api.start("by-hand", json!({})).await;
    let pages = [
        ("overview", "/".to_owned()),
        ("groups", "/groups".to_owned()),
        ("groups-graph", "/groups?view=graph".to_owned()),
        ("group", format!("/groups/mixed?run={failed}&task=good")),
        ("group-graph", "/groups/mixed/graph".to_owned()),
        ("group-runs", "/groups/mixed/runs".to_owned()),
        ("calendar", "/groups/mixed/calendar".to_owned()),
        ("schedules", "/groups/mixed/schedules".to_owned()),
        ("spec", "/groups/mixed/spec".to_owned()),
        ("state", "/groups/mixed/state".to_owned()),
        ("start", "/groups/mixed/run".to_owned()),
        ("backfill", "/groups/seattle-weather/backfill".to_owned()),
        ("runs", "/runs".to_owned()),
        ("run", format!("/runs/{failed}")),
        ("run-graph", format!("/runs/{failed}/graph")),
        ("log", format!("/runs/{run}/log")),
        ("data", format!("/runs/{run}/data")),
        ("attempts", format!("/runs/{failed}/attempts")),
        ("events", format!("/runs/{failed}/events")),
        ("rerun", format!("/runs/{failed}/rerun")),
        ("backfills", "/backfills".to_owned()),
        ("scripts", "/scripts".to_owned()),
        ("script", "/scripts/hello".to_owned()),
        ("console", "/scripts/hello/console".to_owned()),
        ("queues", "/queues".to_owned()),
        ("queue", "/queues/people".to_owned()),
        ("dispatch", "/dispatch".to_owned()),
        ("topics", "/topics".to_owned()),
        ("topic", "/topics/greetings".to_owned()),
        ("notifications", "/notifications".to_owned()),
        ("system", "/system".to_owned()),
        ("pools", "/system/pools".to_owned()),
        ("tokens", "/system/tokens".to_owned()),
        ("retention", "/system/retention".to_owned()),
        ("audit", "/system/audit".to_owned()),
        ("preferences", "/preferences".to_owned()),
        ("missing", "/groups/none".to_owned()),
    ];
    let base = api.base().to_owned();
    let mut chrome = Chrome::start(&program).await;
    let mut wrong: Vec<String> = Vec::new();
    for (name, path) in &pages {
        let url = format!("{base}{path}");
        chrome.cookie(&base, "heddle_lang", "en").await;
        chrome.shape(1_280, false).await;
        chrome.open(&url).await;
        wrong.extend(
            axe(&mut chrome, "")
                .await
                .into_iter()
                .map(|line| format!("{name}: {line}")),
        );
        keep(&mut chrome, &format!("{name}-1280-light")).await;
        chrome.shape(1_280, true).await;
        let contrast = "runOnly: ['color-contrast']";
        wrong.extend(
            axe(&mut chrome, contrast)
                .await
                .into_iter()
                .map(|line| format!("{name}, dark: {line}")),
        );
        keep(&mut chrome, &format!("{name}-1280-dark")).await;
        chrome.shape(390, false).await;
        if chrome.value(NO_SCROLL).await != true {
            wrong.push(format!("{name} scrolls sideways at 390"));
        }
        keep(&mut chrome, &format!("{name}-390-light")).await;
        chrome.cookie(&base, "heddle_lang", "zh").await;
        chrome.open(&url).await;
        let words = "runOnly: ['cat.name-role-value', 'cat.language', 'cat.forms']";
        wrong.extend(
            axe(&mut chrome, words)
                .await
                .into_iter()
                .map(|line| format!("{name}, Chinese: {line}")),
        );
        if chrome.value(NO_SCROLL).await != true {
            wrong.push(format!("{name} scrolls sideways at 390 in Chinese"));
        }
        keep(&mut chrome, &format!("{name}-390-zh")).await;
        // A page that is not there is a 404, which the console has.
        let said = chrome.complaints(&base);
        wrong.extend(
            said.into_iter()
                .filter(|_| *name != "missing")
                .map(|line| format!("{name}: {line}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    chrome.cookie(&base, "heddle_lang", "en").await;
    chrome.shape(1_280, false).await;
    a_person_at_work(&mut chrome, api).await;
}

/// Somebody who clicks, types and drags, with scripts and without.
async fn a_person_at_work(chrome: &mut Chrome, api: &heddle_tests::Api) {
    let base = api.base().to_owned();
    // From a form to a run that goes on, which ends while they look.
    api.put_group("nap", json!({"tasks": {"nap": {"script": "sleep"}}}))
        .await;
    for _ in 0..2 {
        chrome.open(&format!("{base}/groups/nap/run")).await;
        chrome
            .value("document.querySelector('[name=\"p.seconds\"]').value = '1'")
            .await;
        chrome.click("main form button.primary").await;
        chrome.until("location.pathname.startsWith('/runs/')").await;
        chrome.until("!!document.querySelector('#run-head .s-succeeded')").await;
        assert_eq!(
            chrome.value("document.querySelector('#live').dataset.state").await,
            "live"
        );
    }
    // A page that is left gives its connection back (a browser has six), and takes one again when it is come back to.
    chrome
        .value(
            "document.addEventListener('htmx:sseOpen', (event) => { window.source = event.detail.source; }); \
             dispatchEvent(new Event('pagehide')); dispatchEvent(new Event('pageshow')); 0",
        )
        .await;
    chrome.until("window.source?.readyState === EventSource.OPEN").await;
    let left = "dispatchEvent(new Event('pagehide')); window.source.readyState === EventSource.CLOSED";
    assert_eq!(chrome.value(left).await, true);
    // A click into the grid shows what is known of the cell, beside it.
    chrome.open(&format!("{base}/groups/mixed")).await;
    let cell = "(() => { const svg = document.querySelector('svg[data-columns]'), at = svg.getBoundingClientRect(); \
                return [at.x + at.width - 10, at.y + 84 + 10]; })()";
    let at = chrome.value(cell).await;
    let at = [0, 1].map(|axis| at[axis].as_f64().unwrap());
    chrome.drag(at, at).await;
    chrome
        .until("document.querySelector('#detail').textContent.includes('good')")
        .await;
    // A stretch of the durations leads to its runs.
    chrome.open(&format!("{base}/groups/nap/runs")).await;
    let from = chrome.place("svg.scatter", 0.2, 0.5).await;
    let to = chrome.place("svg.scatter", 1.0, 0.5).await;
    chrome.drag(from, to).await;
    chrome
        .until("location.pathname === '/runs' && location.search.includes('group=nap') && location.search.includes('logical_from')")
        .await;
    chrome
        .until("document.querySelectorAll('main table tbody tr').length === 1")
        .await;
    // What a user would be given: nothing is taken by looking.
    api.put("/v1/audiences/gid_people/members", json!({"members": ["ann"]}))
        .await;
    api.put("/v1/offers/greet", json!({"audience": "gid_people", "enabled": false}))
        .await;
    api.put(
        "/v1/offers/wave",
        json!({"audience": "uid_ann", "params": {"to": "bob"}}),
    )
    .await;
    chrome.open(&format!("{base}/dispatch")).await;
    chrome.value("document.querySelector('#as').value = 'ann'").await;
    for _ in 0..2 {
        // The second answer has the first one's address: this tells the page that is left from the one that comes.
        chrome.value("window.isLeft = true").await;
        chrome.click("main form[action='/dispatch/as'] button").await;
        chrome
            .until(
                "!window.isLeft && location.pathname === '/dispatch/as' \
                 && document.querySelector('.verdict')?.textContent.includes('wave')",
            )
            .await;
    }
    let said = chrome.value("document.querySelector('main').innerText").await;
    let said = said.as_str().unwrap();
    assert!(
        said.contains("this is given") && said.contains("it is not given out"),
        "{said}"
    );
    keep(chrome, "poll-as-1280-light").await;
    let wrong = axe(chrome, "").await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    chrome.shape(390, false).await;
    assert_eq!(chrome.value(NO_SCROLL).await, true);
    keep(chrome, "poll-as-390-light").await;
    chrome.shape(1_280, false).await;
    // Without any script: the same, by links and forms.
    chrome.scripts(false).await;
    chrome.open(&format!("{base}/groups/nap/run")).await;
    chrome.click("main form button.primary").await;
    chrome.until("location.pathname.startsWith('/runs/')").await;
    chrome.click("nav.tabs a[href$='/events']").await;
    chrome
        .until("location.pathname.endsWith('/events') && !!document.querySelector('main table')")
        .await;
    chrome.scripts(true).await;
    assert!(chrome.complaints(&base).is_empty(), "{:?}", chrome.complaints(&base));
}
