//! The pages, as browsers get them: what is sent, what a real one says of it.
//!
//! Where there is no Chromium the tests that need one say so and pass: `apt-get install chromium`, as `.ci/run` does.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use heddle_tests::{Dev, Node, TOKEN, World, eventually};
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

/// Pages that there are whatever is in the database.
const PAGES: [&str; 22] = [
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
    let connect = page
        .split("sse-connect=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .replace("&amp;", "&");
    let mut stream = visitor
        .client
        .get(format!("{}{connect}", visitor.base))
        .header("cookie", &visitor.cookie)
        .send()
        .await
        .unwrap();
    let mut heard = String::new();
    let ended = tokio::time::timeout(Duration::from_secs(30), async {
        while let Some(piece) = stream.chunk().await.unwrap() {
            heard.push_str(&String::from_utf8_lossy(&piece));
            if heard.contains("event: run-head") && heard.contains("s-succeeded") {
                return;
            }
        }
    });
    assert!(ended.await.is_ok(), "the page was not told of the end: {heard}");
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

/// Chromium's program, if there is one.
fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    named
        .into_iter()
        .chain(
            std::env::split_paths(&paths)
                .flat_map(|path| ["chromium", "chromium-browser", "google-chrome"].map(|name| path.join(name))),
        )
        .find(|path| path.is_file())
}

/// Opens a page in a browser of its own, and takes a picture; answers what the browser's console said.
async fn looked_at(program: &Path, url: &str, width: u32, name: &str) -> Vec<String> {
    let profile = tempfile::tempdir().unwrap();
    let picture = profile.path().join(format!("{name}.png"));
    let mut command = tokio::process::Command::new(program);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},1000"))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(url)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let done = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
    let done = done
        .unwrap_or_else(|_| panic!("the browser does not come back from {url}"))
        .unwrap();
    assert!(
        picture.is_file(),
        "no picture of {url}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    if let Some(directory) = std::env::var_os("HEDDLE_SCREENSHOTS") {
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::copy(&picture, PathBuf::from(directory).join(format!("{name}-{width}.png"))).unwrap();
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    said.lines()
        .filter(|line| line.contains("CONSOLE"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_has_nothing_to_complain_of() {
    let Some(program) = chromium() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(&directory.path().join("data"), &[]).await;
    let api: &heddle_tests::Api = &dev;
    let run = api.start("hello", json!({})).await;
    let ended: Value = api.ended(&run).await;
    assert_eq!(ended["state"], "succeeded");
    let mut pages = vec![
        ("overview".to_owned(), "/".to_owned()),
        ("groups".to_owned(), "/groups".to_owned()),
        ("group".to_owned(), "/groups/seattle-weather".to_owned()),
        ("graph".to_owned(), "/groups/seattle-weather/graph".to_owned()),
        ("script".to_owned(), "/scripts/hello".to_owned()),
        ("topic".to_owned(), "/topics/greetings".to_owned()),
        ("run".to_owned(), format!("/runs/{run}")),
        ("log".to_owned(), format!("/runs/{run}/log")),
    ];
    pages.extend(
        [
            ("system", "/system"),
            ("audit", "/system/audit"),
            ("runs", "/runs"),
            ("dispatch", "/dispatch"),
        ]
        .map(|(name, path)| (name.to_owned(), path.to_owned())),
    );
    for (name, path) in &pages {
        for width in [1_280, 390] {
            let said = looked_at(&program, &format!("{}{path}", api.base()), width, name).await;
            assert!(said.is_empty(), "{path} at {width}: {said:#?}");
        }
    }
}
