//! The head of pages on a phone.

use heddle_tests::World;
use serde_json::json;

use crate::open::{browser, open_signed_in};

/// Where one is takes one line, however long names are, and no word is broken.
#[tokio::test(flavor = "multi_thread")]
async fn the_head_is_two_lines_on_a_phone() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let long = "abcdefghi".repeat(7);
    node.put_group(&long, json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let measured = "(() => { const crumbs = document.querySelector('.crumbs'), place = crumbs.getBoundingClientRect(); \
                    const inside = [...crumbs.querySelectorAll('li')].every((one) => { \
                      const at = one.getBoundingClientRect(); return at.right <= place.right + 1 && at.height <= 24; }); \
                    return [crumbs.offsetWidth >= 200, crumbs.offsetHeight <= 24, document.querySelector('.top').offsetHeight <= 90, inside, \
                      document.documentElement.scrollWidth <= document.documentElement.clientWidth].join(); })()";
    for width in [360, 390] {
        chrome.shape(width, false).await;
        for path in [
            "/".to_owned(),
            format!("/groups/{long}"),
            format!("/groups/{long}/spec"),
        ] {
            open_signed_in(&mut chrome, node.base(), &path).await;
            chrome.until("document.readyState === 'complete'").await;
            let found = chrome.value(measured).await;
            assert_eq!(found, "true,true,true,true,true", "{path} at {width} px");
        }
    }
}

/// A short name takes only its own room: nothing stands between it and the next stroke.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_name_leaves_no_hole_in_the_path() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group("evil", json!({"category": "it", "tasks": {"a": {"script": "hello"}}}))
        .await;
    let holes = "[...document.querySelectorAll('.crumbs li:not(:last-child)')].map((one) => \
                 Math.round(one.getBoundingClientRect().right - one.lastElementChild.getBoundingClientRect().right)).join()";
    chrome.shape(390, false).await;
    open_signed_in(&mut chrome, node.base(), "/groups/evil/spec").await;
    chrome.until("document.readyState === 'complete'").await;
    assert_eq!(chrome.value(holes).await, "0,0,0");
}

/// However long the last name is, the short ones before it are not cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_name_stays_before_a_long_one() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let long = "abcdefghi".repeat(7);
    node.put_group(&long, json!({"category": "it", "tasks": {"a": {"script": "hello"}}}))
        .await;
    let whole = "[...document.querySelectorAll('.crumbs li.short > a')].map((one) => one.scrollWidth <= one.clientWidth).join()";
    for width in [360, 390] {
        chrome.shape(width, false).await;
        open_signed_in(&mut chrome, node.base(), &format!("/groups/{long}")).await;
        chrome.until("document.readyState === 'complete'").await;
        assert_eq!(chrome.value(whole).await, "true,true", "at {width} px");
    }
}

/// The name of a category is as long as that of a group, and is broken where it would make the page scroll sideways.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_category_fits_a_phone() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let long = "abcdefghi".repeat(7);
    node.put_group("g", json!({"category": long, "tasks": {"a": {"script": "hello"}}}))
        .await;
    for width in [360, 390] {
        chrome.shape(width, false).await;
        let path = format!("/groups?category={long}");
        open_signed_in(&mut chrome, node.base(), &path).await;
        chrome
            .until("document.readyState === 'complete' && !!document.querySelector('.tree [aria-current]')")
            .await;
        let found = chrome
            .value("[document.documentElement.scrollWidth, document.documentElement.clientWidth].join()")
            .await;
        assert_eq!(found, format!("{width},{width}"), "at {width} px");
    }
}
