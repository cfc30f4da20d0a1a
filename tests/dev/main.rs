//! `heddle dev`: an embedded Postgres, a node, and the demo, by one command.

#![allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use heddle_tests::{Answer, Dev, Receiver, calls, eventually, id, one, run_program, task, within};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::Builder::new().prefix("heddle-dev-").tempdir().unwrap();
    let data_dir = directory.path().join("data");
    (directory, data_dir)
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// A month's report, computed from the CSV itself.
fn expected(month: &str) -> Value {
    let rows: Vec<Vec<&str>> = heddle_scripts::SEATTLE_WEATHER_CSV
        .lines()
        .filter(|line| line.starts_with(month))
        .map(|line| line.split(',').collect())
        .collect();
    let column = |index: usize| {
        rows.iter()
            .map(|row| row[index].parse::<f64>().unwrap())
            .collect::<Vec<f64>>()
    };
    let (precipitation, highest, lowest) = (column(1), column(2), column(3));
    let mean = |values: &[f64]| rounded(values.iter().sum::<f64>() / values.len() as f64);
    let mut wettest = 0;
    for index in 1..rows.len() {
        if precipitation[index] > precipitation[wettest] {
            wettest = index;
        }
    }
    let mut weather: BTreeMap<&str, u32> = BTreeMap::new();
    for row in &rows {
        *weather.entry(row[5]).or_default() += 1;
    }
    json!({
        "month": month, "days": rows.len(), "temp_max_mean": mean(&highest), "temp_min_mean": mean(&lowest),
        "precipitation_total": rounded(precipitation.iter().sum()), "wettest_day": rows[wettest][0],
        "weather_counts": weather,
    })
}

/// A year's report, computed from the days themselves, not from the months.
fn expected_year(year: u32) -> Value {
    let rows: Vec<Vec<&str>> = heddle_scripts::SEATTLE_WEATHER_CSV
        .lines()
        .filter(|line| line.starts_with(&format!("{year}-")))
        .map(|line| line.split(',').collect())
        .collect();
    let column = |index: usize| rows.iter().map(move |row| row[index].parse::<f64>().unwrap());
    let mean = |index: usize| rounded(column(index).sum::<f64>() / rows.len() as f64);
    let mut weather: BTreeMap<&str, u32> = BTreeMap::new();
    let mut months: BTreeMap<&str, f64> = BTreeMap::new();
    for (row, precipitation) in rows.iter().zip(column(1)) {
        *weather.entry(row[5]).or_default() += 1;
        *months.entry(&row[0][..7]).or_default() += precipitation;
    }
    let wettest = months.iter().max_by(|one, other| one.1.total_cmp(other.1)).unwrap().0;
    json!({
        "year": year, "months": 12, "days": rows.len(), "temp_max_mean": mean(2), "temp_min_mean": mean(3),
        "precipitation_total": rounded(column(1).sum()), "wettest_month": wettest, "weather_counts": weather,
    })
}

/// The README's walk: 48 months by a backfill, which brings the four years along, each when its twelve months are in.
#[tokio::test]
async fn years_follow_their_months() {
    let (_directory, data_dir) = directory();
    let dev = Dev::start(&data_dir, &[]).await;
    // The schedule names what there are data for, and nothing comes due any more that would have to fail.
    let next = dev.get("/v1/groups/seattle-weather/next").await.expect_status(200);
    assert_eq!(next["instants"], json!([]));
    let output = run_program(
        &[
            "backfill",
            "seattle-weather",
            "--from",
            "2012-01-01",
            "--to",
            "2015-12-31",
            "--max-active",
            "8",
            "--include-downstream",
            "--watch",
        ],
        &[("HEDDLE_URL", dev.base())],
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let years = eventually("four years", async || {
        let years = dev.all("/v1/runs?group=yearly-summary").await;
        (years.len() >= 4 && years.iter().all(|run| run["state"] == "succeeded")).then_some(years)
    })
    .await;
    let months = dev.all("/v1/runs?group=seattle-weather&limit=500").await;
    assert_eq!(months.len(), 48);
    let mut found = Vec::new();
    for run in &years {
        let run = dev.run_now(&id(run)).await;
        let year = task(&run, "summary")["output"]["year"].as_u64().unwrap() as u32;
        assert_eq!(task(&run, "summary")["output"], expected_year(year));
        // It has waited for all twelve.
        let of_year = |month: &&Value| month["logical_time"].as_str().unwrap().starts_with(&year.to_string());
        let last = months
            .iter()
            .filter(of_year)
            .map(|month| heddle_tests::time(&month["finished_at"]))
            .max();
        assert!(heddle_tests::time(&task(&run, "summary")["started_at"]) >= last.unwrap());
        found.push(year);
    }
    found.sort_unstable();
    assert_eq!(found, [2012, 2013, 2014, 2015]);
}

/// The demo's numbers against the CSV: the first and the last month, leap years, and months in between.
#[tokio::test]
async fn the_demo_reports_the_weather() {
    let (_directory, data_dir) = directory();
    let dev = Dev::start(&data_dir, &[]).await;
    dev.get("/readyz").await.expect_status(200);
    let group = dev.get("/v1/groups/seattle-weather").await.expect_status(200);
    assert_eq!((&group["history"], &group["category"]), (&json!(true), &json!("demo")));
    for month in ["2012-01", "2012-02", "2013-02", "2013-07", "2014-12", "2015-12"] {
        let run = dev
            .run(
                "seattle-weather",
                json!({"logical_time": format!("{month}-15T12:00:00Z")}),
            )
            .await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(task(&run, "report")["output"], expected(month));
        // Side by side, after the extract, before the report.
        for middle in ["temperature", "precipitation"] {
            assert!(
                heddle_tests::seconds(&task(&run, "extract")["finished_at"], &task(&run, middle)["started_at"]) >= 0.0
            );
            assert!(
                heddle_tests::seconds(&task(&run, middle)["finished_at"], &task(&run, "report")["started_at"]) >= 0.0
            );
        }
    }
    // Months out of range fail with a clear, fatal error.
    for time in ["2011-12-31T23:59:59Z", "2016-01-01T00:00:00Z"] {
        let run = dev.run("seattle-weather", json!({"logical_time": time})).await;
        assert_eq!(run["state"], "failed");
        let extract = task(&run, "extract");
        assert_eq!(
            (&extract["error"]["kind"], &extract["attempt"]),
            (&json!("fatal"), &json!(1)),
            "{extract:#}"
        );
        let message = extract["error"]["message"].as_str().unwrap();
        assert!(
            message.contains(&time[..7]) && message.contains("2012-01 to 2015-12"),
            "{message}"
        );
        assert_eq!(task(&run, "report")["state"], "upstream_failed");
    }
    // The rows are in the warehouse: one for each month, also after a rerun.
    let again = dev
        .run("seattle-weather", json!({"logical_time": "2013-07-01T00:00:00Z"}))
        .await;
    assert_eq!(again["state"], "succeeded");
    let look = json!({"tasks": {"t": {"script": "query", "sql": ["warehouse"], "params": {
        "connection": "warehouse", "statement": "select month, days, run from monthly_report order by month",
    }}}, "category": "demo"});
    let wasm = heddle_scripts::get("query").unwrap();
    dev.put_bytes("/v1/scripts/query", "application/wasm", wasm)
        .await
        .expect_status(201);
    dev.put_group("look", look).await;
    let found = dev.run("look", json!({})).await;
    let rows = task(&found, "t")["output"]["rows"].as_array().unwrap().clone();
    let months: Vec<&str> = rows.iter().filter_map(|row| row["month"].as_str()).collect();
    assert_eq!(
        months,
        ["2012-01", "2012-02", "2013-02", "2013-07", "2014-12", "2015-12"]
    );
    assert_eq!(rows[3]["run"], again["id"]);
    // A page of another site, or a name rebound to this machine, does not reach it.
    for (header, value, status) in [
        ("host", "evil.example.com", 403),
        ("origin", "https://evil.example.com", 403),
        ("origin", "http://localhost:1", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
        ("sec-fetch-site", "none", 200),
        ("host", "localhost:1", 200),
    ] {
        let request = dev.request(reqwest::Method::GET, "/v1/groups").header(header, value);
        assert_eq!(dev.send(request).await.status, status, "{header}: {value}");
    }
    // A target may name a host too.
    for (target, host, status) in [
        ("http://evil.example.com/v1/groups", "localhost", "403"),
        ("http://localhost/v1/groups", "evil.example.com", "403"),
        ("http://localhost/v1/groups", "localhost", "200"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(dev.authority()).await.unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{target} {host}: {answer}");
    }
}

/// Stopped, started, killed, started: what was there is there.
#[tokio::test]
async fn life_of_a_data_directory() {
    let (_directory, data_dir) = directory();
    let mut dev = Dev::start(&data_dir, &["--no-demo"]).await;
    assert_eq!(dev.all("/v1/groups").await.len(), 0, "--no-demo brings nothing along");
    let wasm = heddle_scripts::get("sleep").unwrap();
    dev.put_bytes("/v1/scripts/sleep", "application/wasm", wasm)
        .await
        .expect_status(201);
    dev.put_group(
        "g",
        json!({"tasks": {"t": {"script": "sleep", "params": {"seconds": 0.1}}}}),
    )
    .await;
    let first = id(&dev.run("g", json!({})).await);
    // One instance per data directory.
    let text = data_dir.to_string_lossy().into_owned();
    let second = run_program(
        &["dev", "--listen", "127.0.0.1:0", "--no-demo", "--data-dir", &text],
        &[],
    );
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("data") && !said.contains("panicked"), "{said}");
    dev.process().terminate();
    let status = dev.process().end().await;
    assert!(status.success(), "{status}");
    let home = ["--allow-private", "127.0.0.1"];
    let mut dev = Dev::start(&data_dir, &["--no-demo", home[0], home[1]]).await;
    assert_eq!(dev.run_now(&first).await["state"], "succeeded");
    // kill -9 with work in hand.
    let gate = Receiver::start(Answer::Held).await;
    dev.put_group("g", one(calls(&gate))).await;
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(dev.start("g", json!({})).await);
    }
    dev.task_becomes(&runs[0], "t", "running").await;
    dev.process().kill();
    gate.answers(Answer::Json(200, "{}".into()));
    let dev = Dev::start(&data_dir, &home).await;
    for run in &runs {
        assert_eq!(dev.ended(run).await["state"], "succeeded");
    }
    assert_eq!(dev.run_now(&first).await["state"], "succeeded");
    // Now with the demo.
    eventually("the demo's group", async || {
        let reply = dev.get("/v1/groups/seattle-weather").await;
        (reply.status == 200).then_some(())
    })
    .await;
    let run = dev
        .run("seattle-weather", json!({"logical_time": "2014-05-01T00:00:00Z"}))
        .await;
    assert_eq!(task(&run, "report")["output"], expected("2014-05"));
}

/// The demo is put in once: what people changed of it stays, also after a restart.
#[tokio::test]
async fn the_demo_leaves_changes_alone() {
    let (_directory, data_dir) = directory();
    let mut dev = Dev::start(&data_dir, &[]).await;
    let mut group = dev.get("/v1/groups/hello").await.expect_status(200);
    group["description"] = json!("mine");
    let changed = dev.put_group("hello", group).await;
    dev.process().terminate();
    dev.process().end().await;
    let dev = Dev::start(&data_dir, &[]).await;
    let found = dev.get("/v1/groups/hello").await.expect_status(200);
    assert_eq!(
        (&found["description"], &found["revision"]),
        (&json!("mine"), &changed["revision"])
    );
    let versions = dev.all("/v1/scripts/weather-extract/versions").await;
    assert_eq!(versions.len(), 1);
    let run = dev
        .run("seattle-weather", json!({"logical_time": "2015-03-01T00:00:00Z"}))
        .await;
    assert_eq!(task(&run, "report")["output"], expected("2015-03"));
}

/// The groups that get a day of their past after the start.
const LIVELY: [&str; 5] = [
    "photo-prints",
    "price-import",
    "reader-survey",
    "stations",
    "weather-hourly",
];

/// A visitor soon finds a day full of runs. It is made once: deleted objects are not added again, nor is their past.
#[tokio::test]
async fn the_demo_has_a_day_behind_it() {
    let (_directory, data_dir) = directory();
    let mut dev = Dev::start(&data_dir, &[]).await;
    // The node is ready, so the groups and what they need are there. Only their past comes later.
    for group in LIVELY {
        dev.get(&format!("/v1/groups/{group}")).await.expect_status(200);
    }
    let readers = dev.get("/v1/audiences/gid_readers/members").await.expect_status(200);
    assert_eq!(readers["members"].as_array().map(Vec::len), Some(3), "{readers:#}");
    eventually("a past of each of them", async || {
        let mut groups: Vec<String> = dev
            .all("/v1/backfills")
            .await
            .iter()
            .map(|one| one["group"].as_str().unwrap().to_owned())
            .collect();
        groups.sort_unstable();
        (groups == LIVELY).then_some(())
    })
    .await;
    // Each in its way: by scripts, by the demo's worker, by its readers; and one that fails now and then, and recovers.
    for (group, state) in LIVELY
        .iter()
        .map(|group| (*group, "succeeded"))
        .chain([("price-import", "failed")])
    {
        eventually(&format!("{state} run of {group}"), async || {
            let runs = dev.all(&format!("/v1/runs?group={group}&state={state}")).await;
            runs.iter().any(|run| run["trigger"] == "backfill").then_some(())
        })
        .await;
    }
    let page = dev.request(reqwest::Method::GET, "/").header("accept", "text/html");
    let overview = page.send().await.unwrap().text().await.unwrap();
    for group in LIVELY {
        assert!(overview.contains(&format!("href=\"/groups/{group}\"")), "{group}");
    }
    // A group with active runs is not deleted.
    eventually("the whole past of stations", async || {
        let all = dev.all("/v1/backfills?group=stations").await;
        all.iter().all(|one| !one["finished_at"].is_null()).then_some(())
    })
    .await;
    // One that its schedule makes is active for a while too: it makes no more.
    dev.post("/v1/groups/stations/schedules/hourly/disable", json!({}))
        .await
        .expect_status(200);
    eventually("the end of all runs of stations", async || {
        let runs = heddle_tests::runs(&dev, "stations").await;
        runs.iter().all(|run| !run["finished_at"].is_null()).then_some(())
    })
    .await;
    dev.delete("/v1/groups/stations").await.expect_status(200);
    dev.process().terminate();
    dev.process().end().await;
    let dev = Dev::start(&data_dir, &[]).await;
    // The worker begins once everything has been put in.
    let run = dev.run("photo-prints", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(dev.get("/v1/groups/stations").await.status, 404);
    assert_eq!(dev.all("/v1/backfills").await.len(), LIVELY.len(), "no second past");
}

/// The script that is text: its form comes from its type, its answer from the warehouse.
#[tokio::test]
async fn the_demo_has_a_script_that_is_text() {
    let (_directory, data_dir) = directory();
    let dev = Dev::start(&data_dir, &[]).await;
    // A node that never had a text compiles the interpreter first, here without optimisation.
    within(Duration::from_secs(300), "the group of the text", async || {
        let reply = dev.get("/v1/groups/what-to-wear").await;
        (reply.status == 200).then_some(())
    })
    .await;
    let script = dev.get("/v1/scripts/what-to-wear").await.expect_status(200);
    assert_eq!(script["world"], "source/typescript");
    assert_eq!(script["params_schema"]["required"], json!(["day"]), "{script:#}");
    let described = &script["params_schema"]["properties"]["warm"]["description"];
    assert_eq!(described, "From how many degrees Celsius on it is warm.");
    for (params, weather, wear) in [
        (json!({}), "sun", json!(["a shirt"])),
        (json!({"day": "2012-01-02"}), "rain", json!(["a coat", "an umbrella"])),
        (
            json!({"day": "2012-01-02", "warm": 10}),
            "rain",
            json!(["a shirt", "an umbrella"]),
        ),
    ] {
        let run = dev.run("what-to-wear", json!({"params": params})).await;
        let output = &task(&run, "suggest")["output"];
        assert_eq!(
            (&output["weather"], &output["wear"]),
            (&json!(weather), &wear),
            "{run:#}"
        );
    }
    let run = dev.run("what-to-wear", json!({"params": {"day": "2020-01-01"}})).await;
    let error = &task(&run, "suggest")["error"];
    assert_eq!(error["kind"], "fatal");
    assert!(error["message"].as_str().unwrap().contains("2020-01-01"), "{error:#}");
    let wrong = json!({"params": {"warm": "very"}});
    dev.post("/v1/groups/what-to-wear/runs", wrong).await.expect_status(422);
}

/// Only loopback addresses: there is no token.
#[test]
fn other_addresses_are_refused() {
    let (_directory, data_dir) = directory();
    let text = data_dir.to_string_lossy().into_owned();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080"] {
        let output = run_program(&["dev", "--listen", address, "--data-dir", &text], &[]);
        assert_eq!(output.status.code(), Some(2), "{address}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("loopback"),
            "{address}"
        );
    }
    assert!(!data_dir.exists(), "nothing was made");
}

/// A channel without a server writes its mails into the data directory.
#[tokio::test]
async fn mails_are_written_into_files() {
    let (_directory, data_dir) = directory();
    let dev = Dev::start(&data_dir, &["--no-demo"]).await;
    dev.put("/v1/channels/ops", json!({"kind": "email", "to": ["ops@example.com"]}))
        .await
        .expect_status(201);
    let answer = dev.post("/v1/channels/ops/test", json!({})).await.expect_status(200);
    assert_eq!(answer["state"], "sent", "{answer:#}");
    let mails: Vec<PathBuf> = std::fs::read_dir(data_dir.join("mails"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(mails.len(), 1, "{mails:?}");
    assert!(
        mails[0].extension().is_some_and(|extension| extension == "eml"),
        "{mails:?}"
    );
    let mail = std::fs::read_to_string(&mails[0]).unwrap();
    assert!(
        mail.contains("To: ops@example.com\r\n") && mail.contains("the channel works"),
        "{mail}"
    );
}
