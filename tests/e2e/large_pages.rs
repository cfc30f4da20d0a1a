//! Lists of large items: a page has a bound in bytes, too, and the next one continues behind it.

use heddle_tests::{Api, World, eventually, path_part};
use serde_json::{Value, json};

use crate::dispatch::{given, members, offer, users};
use crate::events::lines;

/// The largest params of an offer, as JSON.
const PARAMS_BYTES_MAX: usize = 256 * 1024;

/// How many items there are, and how many of them fit into a page of 4 MiB.
const ALL: usize = 20;
const FITTING: usize = 16;

/// Params with so many bytes as JSON.
fn params(bytes: usize) -> Value {
    json!({"x": "y".repeat(bytes - r#"{"x":""}"#.len())})
}

/// How many items each page of a list has.
async fn pages(api: &Api, path: &str) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("{path}{cursor}")).await.expect_status(200);
        sizes.push(page["items"].as_array().expect("items").len());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", path_part(next)),
            None => return sizes,
        }
    }
}

/// The names that the items of a list have in a field, each once.
fn names(items: &[Value], field: &str) -> Vec<String> {
    let mut names: Vec<String> = items
        .iter()
        .map(|item| item[field].as_str().expect("a name").to_owned())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Offers, what the audit has of them, assignments and events: all with params of the largest size.
#[tokio::test]
async fn pages_have_a_bound_in_bytes() {
    let (world, node) = World::with_node().await;
    members(&node, "gid_g", &users(ALL)).await;
    for n in 0..ALL {
        // The first one is for all; nobody asks for the others.
        let audience = if n == 0 { "gid_g" } else { "uid_nobody" };
        let spec = json!({"audience": audience, "dispatch_times": if n == 0 { json!("each") } else { json!(1) },
            "params": params(PARAMS_BYTES_MAX)});
        offer(&node, &format!("o{n:02}"), spec).await;
    }
    for user in users(ALL) {
        given(&node, &user).await.expect("an assignment");
    }
    for (path, field) in [
        ("/v1/offers?limit=500", "id"),
        ("/v1/audit?kind=offer&limit=500", "name"),
        ("/v1/assignments?limit=500", "uid"),
    ] {
        assert_eq!(pages(&node, path).await, [FITTING, ALL - FITTING], "{path}");
        let items = node.all(path).await;
        assert_eq!((items.len(), names(&items, field).len()), (ALL, ALL), "{path}");
    }
    // A smaller limit counts first.
    assert_eq!(pages(&node, "/v1/offers?limit=8").await, [8, 8, 4]);
    // The feed waits for transactions of other tests.
    let dispatched = eventually("an event for each assignment", async || {
        let found = lines(&node, "kinds=assignment.dispatched").await;
        (found.len() >= ALL).then_some(found)
    })
    .await;
    assert_eq!((dispatched.len(), names(&dispatched, "uid").len()), (ALL, ALL));
    // An occurrence has no params.
    let occurrences = node.get("/v1/offers/occurrences?limit=500").await.expect_status(200);
    assert_eq!(occurrences["items"].as_array().expect("items").len(), ALL);

    // Larger params are refused; those that an older program stored can be read, one offer after the other.
    let large = json!({"audience": "uid_nobody", "params": params(PARAMS_BYTES_MAX + 1)});
    node.put("/v1/offers/o00", large)
        .await
        .expect_problem(422, &["/params"]);
    world
        .sql()
        .await
        .batch_execute(
            "UPDATE heddle.offers SET spec = jsonb_set(spec, '{params,x}', to_jsonb(repeat('z', 5000000)))
              WHERE name IN ('o03', 'o04')",
        )
        .await
        .expect("two offers");
    assert_eq!(pages(&node, "/v1/offers?limit=500").await, [4, 1, ALL - 5]);
    let stored = node.get("/v1/offers/o03").await.expect_status(200);
    assert_eq!(stored["params"]["x"].as_str().map(str::len), Some(5_000_000));
}
