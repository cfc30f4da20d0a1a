//! A headless Chromium, driven over its DevTools protocol through two pipes: no port, no library, one browser for many
//! pages.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use heddle_tests::PATIENCE;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

/// The program, if there is one.
pub fn program() -> Option<PathBuf> {
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

/// One of several tabs.
pub struct Tab(Option<String>);

pub struct Chrome {
    _child: Child,
    _profile: TempDir,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    events: VecDeque<Value>,
    last: u64,
}

impl Chrome {
    /// A browser with one empty page.
    pub async fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The protocol is spoken on the descriptors 3 and 4; a shell puts our pipes there.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
            ])
            .args([
                "--hide-scrollbars",
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args([
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
                "--lang=en-US",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut chrome = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            _child: child,
            _profile: profile,
            session: None,
            events: VecDeque::new(),
            last: 0,
        };
        chrome.tab().await;
        chrome
    }

    /// Opens another tab, which all that follows is said to; answers the one that it was said to before.
    pub async fn tab(&mut self) -> Tab {
        let before = self.session.take();
        let made = self.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": made["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach).await;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({})).await;
        }
        self.call("Page.setLifecycleEventsEnabled", json!({"enabled": true}))
            .await;
        Tab(before)
    }

    /// Switches to another tab; returns the previous one.
    pub async fn turn_to(&mut self, tab: Tab) -> Tab {
        let before = std::mem::replace(&mut self.session, tab.0);
        self.call("Page.bringToFront", json!({})).await;
        Tab(before)
    }

    async fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.output.read_until(0, &mut bytes)).await;
        read.expect("the browser does not answer").unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.try_call(method, params).await;
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    async fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.last += 1;
        let id = self.last;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).await.unwrap();
        loop {
            let answer = self.read().await;
            if answer["id"] == id {
                return match &answer["error"] {
                    Value::Null => Ok(answer["result"].clone()),
                    error => Err(error.clone()),
                };
            }
            self.events.push_back(answer);
        }
    }

    /// Opens an address and waits until all of it has loaded: this address, and not the one that a click before it has
    /// led to and that may still be loading.
    pub async fn open(&mut self, url: &str) {
        self.events.clear();
        let went = self.call("Page.navigate", json!({"url": url})).await;
        assert!(
            went["errorText"].is_null() && went["loaderId"].is_string(),
            "{url}: {went}"
        );
        let session = json!(self.session);
        let loaded = |event: &Value| {
            event["method"] == "Page.lifecycleEvent"
                && event["sessionId"] == session
                && event["params"]["name"] == "load"
                && event["params"]["loaderId"] == went["loaderId"]
        };
        if self.events.iter().any(loaded) {
            return;
        }
        loop {
            let event = self.read().await;
            let found = loaded(&event);
            self.events.push_back(event);
            if found {
                return;
            }
        }
    }

    /// What the browser's console said since the page was opened, and requests to elsewhere.
    pub fn complaints(&self, base: &str) -> Vec<String> {
        let complains = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" => Some(params["args"].to_string()),
                // What is verbose is advice.
                "Log.entryAdded" if params["entry"]["level"] != "verbose" => Some(params["entry"].to_string()),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap_or_default();
                    let ours = url.starts_with(base) || url.starts_with("data:");
                    (!ours).then(|| format!("a request to {url}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(complains).collect()
    }

    /// The value of an expression, waited for if it is a promise.
    pub async fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let found = self.call("Runtime.evaluate", params).await;
        assert!(found["exceptionDetails"].is_null(), "{}", found["exceptionDetails"]);
        found["result"]["value"].clone()
    }

    /// Waits until an expression is true; while one page goes and another comes there is nothing to ask.
    pub async fn until(&mut self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let params = json!({"expression": expression, "returnByValue": true});
            let found = self.try_call("Runtime.evaluate", params).await;
            if found.is_ok_and(|found| found["result"]["value"] == true) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it does not become true: {expression}");
    }

    /// Presses the mouse at one position and releases it at another.
    pub async fn drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        for (kind, at, buttons) in [
            ("mouseMoved", from, 0),
            ("mousePressed", from, 1),
            ("mouseMoved", to, 1),
            ("mouseReleased", to, 0),
        ] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event =
                json!({"type": kind, "x": at[0], "y": at[1], "button": button, "buttons": buttons, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Presses a key and lets it go: `a`, `?`, `Tab`, `Enter`, `Escape`, `ArrowDown`, or `Control+k`.
    pub async fn press(&mut self, key: &str) {
        self.press_at(key, None).await;
    }

    /// Presses a key and lets it go, both at an instant of the browser's clock: seconds since 1970, or now.
    pub async fn press_at(&mut self, key: &str, at: Option<f64>) {
        let (modifier, key) = match key.split_once('+') {
            Some(("Control", key)) => (2, key),
            _ => (0, key),
        };
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => key.to_ascii_uppercase().bytes().next().map_or(0, u32::from),
        };
        // What a key writes: one that is held with Control writes nothing.
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 && modifier == 0 => key,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code, "modifiers": modifier});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            if let Some(at) = at {
                event["timestamp"] = json!(at);
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// The time by the clock of the browser, in seconds since 1970.
    pub async fn clock(&mut self) -> f64 {
        let millis = self.value("Date.now()").await;
        millis.as_f64().expect("a number") / 1_000.0
    }

    /// Moves the pointer there, and presses nothing.
    pub async fn point(&mut self, at: [f64; 2]) {
        let event = json!({"type": "mouseMoved", "x": at[0], "y": at[1], "button": "none", "buttons": 0});
        self.call("Input.dispatchMouseEvent", event).await;
    }

    /// The position of a point of the first element that a selector finds: from 0, its left and top, to 1.
    pub async fn point_of(&mut self, selector: &str, across: f64, down: f64) -> [f64; 2] {
        // A page has its address before it has its elements.
        self.until(&format!("!!document.querySelector({selector:?})")).await;
        let point = format!(
            "(() => {{ const it = document.querySelector({selector:?}); it.scrollIntoView({{block: 'center'}}); \
             const at = it.getBoundingClientRect(); return [at.x + at.width * {across}, at.y + at.height * {down}]; }})()"
        );
        let point = self.value(&point).await;
        [0, 1].map(|axis| {
            point[axis]
                .as_f64()
                .unwrap_or_else(|| panic!("{selector} is nowhere: {point}"))
        })
    }

    /// Clicks what a selector finds first, as a mouse does.
    pub async fn click(&mut self, selector: &str) {
        let at = self.point_of(selector, 0.5, 0.5).await;
        self.drag(at, at).await;
    }

    /// The window's width, and whether the page is shown dark.
    pub async fn shape(&mut self, width: u32, dark: bool) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme},
                                        {"name": "prefers-reduced-motion", "value": "reduce"}]});
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    pub async fn cookie(&mut self, base: &str, name: &str, value: &str) {
        let cookie = json!({"url": base, "name": name, "value": value});
        self.call("Network.setCookie", cookie).await;
    }

    /// Scripts of pages run, or not.
    pub async fn scripts(&mut self, run: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !run}))
            .await;
    }

    /// A picture of the window, as a PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        use base64::Engine;
        let taken = self.call("Page.captureScreenshot", json!({"format": "png"})).await;
        let data = taken["data"].as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }
}
