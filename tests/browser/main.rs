//! The pages, as browsers get them: what is sent, what a real one says of it.
//!
//! Where there is no Chromium the tests that need one say so and pass: `apt-get install chromium`, as `.ci/run` does.

#![allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")]

mod asked;
mod between;
mod by_hand;
mod chrome;
mod ended;
mod forms;
mod keyboard;
mod large;
mod live;
mod looks;
mod minute;
mod open;
mod pages;
mod people;
mod phone;
mod provider;
mod roles;
mod silent;
mod steady;
mod uploads;
mod waiting;
mod zones;

use chrono::{DateTime, Datelike, Months, NaiveDate, Utc};
use heddle_tests::{Node, PATIENCE};
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, StatusCode};
use serde_json::json;

/// What somebody may have called something.
const HOSTILE: &str = "<script>alert(1)</script> \u{202e}desrever \u{1f4a5} \"quoted\" & 'so'";

/// A day of the month after next, for which messages may come in at any time.
fn later(now: DateTime<Utc>) -> NaiveDate {
    let month = now.date_naive() + Months::new(2);
    month.with_day(17).expect("each month has it")
}

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
        self.send(self.form(path, form, origin)).await
    }

    /// The form of a page that the page gets itself.
    async fn fill(&self, path: &str, form: &[(&str, &str)]) -> Page {
        let page = format!("{}{path}", self.base);
        let action = path.split('?').next().unwrap_or_default();
        self.send(self.form(action, form, &self.base).header("referer", page))
            .await
    }

    fn form(&self, path: &str, form: &[(&str, &str)], origin: &str) -> reqwest::RequestBuilder {
        self.client
            .request(Method::POST, format!("{}{path}", self.base))
            .header("origin", origin)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(url_encoded(form))
    }
}

/// What a stream tells until all of these have come.
async fn hear(stream: &mut reqwest::Response, until: &[&str]) -> String {
    let mut heard = String::new();
    let found = tokio::time::timeout(PATIENCE, async {
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
