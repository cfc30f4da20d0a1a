//! The first minute of somebody new: from `heddle dev` to "I know which task of which month failed, and I have restarted it".

use std::time::Duration;

use heddle_tests::{Dev, eventually};
use serde_json::json;

use crate::chrome::{self, Chrome};

/// How long somebody new may look, and how often they may click.
const A_MINUTE: Duration = Duration::from_secs(60);
const CLICKS_MAX: usize = 4;

/// A person with a mouse, whose clicks are counted.
struct Person<'a> {
    chrome: &'a mut Chrome,
    clicks: usize,
}

impl Person<'_> {
    /// Clicks what a selector finds, once it is there, and waits for the result.
    async fn clicks(&mut self, selector: &str, then: &str) {
        self.chrome
            .until(&format!("!!document.querySelector({selector:?})"))
            .await;
        self.chrome.click(selector).await;
        self.clicks += 1;
        self.chrome.until(then).await;
    }

    /// All that can be read on the page.
    async fn reads(&mut self) -> String {
        let text = self.chrome.value("document.querySelector('main').innerText").await;
        text.as_str().unwrap_or_default().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_is_found_and_restarted_within_a_minute_and_four_clicks() {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(&directory.path().join("data"), &[]).await;
    let api: &heddle_tests::Api = &dev;
    // The weather ends with 2015: of this month there is none.
    let run = api
        .start("seattle-weather", json!({"logical_time": "2016-01-01T00:00:00Z"}))
        .await;
    api.run_becomes(&run, "failed").await;
    let base = api.base().to_owned();
    let mut chrome = Chrome::start(&program).await;
    chrome.cookie(&base, "heddle_lang", "en").await;
    chrome.shape(1_280, false).await;
    let begun = tokio::time::Instant::now();
    chrome.open(&format!("{base}/")).await;
    let mut person = Person {
        chrome: &mut chrome,
        clicks: 0,
    };
    // The overview says which group needs attention, and why.
    let said = person.reads().await;
    assert!(
        said.contains("Needs attention") && said.contains("seattle-weather") && said.contains("extract"),
        "{said}"
    );
    person
        .clicks(
            &format!("#attention a[href='/runs/{run}']"),
            &format!(
                "location.pathname === '/runs/{run}' && document.querySelector('#tasks').innerText.includes('failed')"
            ),
        )
        .await;
    // The run says which task of which month, and has what one can do about it.
    let said = person.reads().await;
    assert!(
        said.contains("2016")
            && said.contains("task extract: ")
            && said.contains("3 tasks did not run because of that"),
        "{said}"
    );
    person
        .clicks(
            "form[action$='/restart'] button",
            "document.querySelector('.said')?.textContent.includes('Restarted')",
        )
        .await;
    let (clicks, took) = (person.clicks, begun.elapsed());
    eprintln!("{clicks} clicks, {} ms", took.as_millis());
    assert!(clicks <= CLICKS_MAX && took < A_MINUTE, "{clicks} clicks in {took:?}");
    eventually("a second attempt of what had failed", async || {
        let task = api
            .get(&format!("/v1/runs/{run}/tasks/extract"))
            .await
            .expect_status(200);
        (task["attempts"].as_array().unwrap().len() > 1).then_some(())
    })
    .await;
    // One that failed in the night and has recovered since is listed after those that need somebody, and marked on the day.
    // At any hour: its past is over, its schedule makes no more runs, and its newest run succeeds.
    eventually("the whole past of price-import", async || {
        let all = api.all("/v1/backfills").await;
        let mut past = all.iter().filter(|one| one["group"] == "price-import");
        past.any(|one| !one["finished_at"].is_null()).then_some(())
    })
    .await;
    api.post("/v1/groups/price-import/schedules/half-hourly/disable", json!({}))
        .await
        .expect_status(200);
    let runs = eventually("the end of all runs of price-import", async || {
        let runs = heddle_tests::runs(api, "price-import").await;
        runs.iter().all(|run| !run["finished_at"].is_null()).then_some(runs)
    })
    .await;
    // Three of a day fail: the second is hours away from both ends of the picture.
    let failed = runs
        .iter()
        .filter(|run| run["trigger"] == "backfill" && run["state"] == "failed")
        .nth(1)
        .map(heddle_tests::id)
        .expect("a night in which something failed");
    let newest = api
        .run("price-import", json!({"logical_time": "2024-01-01T00:00:00Z"}))
        .await;
    assert_eq!(newest["state"], "succeeded", "{newest:#}");
    chrome.open(&format!("{base}/")).await;
    let row = "[...document.querySelectorAll('#attention tr')].find(row => row.querySelector(`a[href='/groups/price-import']`))";
    chrome
        .until(&format!(
            "{row}?.innerText.includes('The newest run') && !!{row}.querySelector(\"form[action$='/restart']\")"
        ))
        .await;
    let mut person = Person {
        chrome: &mut chrome,
        clicks: 0,
    };
    person
        .clicks(
            &format!(".lanes a[href='/runs/{failed}']"),
            &format!("location.pathname === '/runs/{failed}' && !!document.querySelector('#run-head .s-failed')"),
        )
        .await;
    assert!(chrome.complaints(&base).is_empty(), "{:?}", chrome.complaints(&base));
}
