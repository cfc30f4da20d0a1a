//! The DAG: what starts when, and what becomes of what did not.

use heddle_tests::{World, seconds, states, task};
use serde_json::json;

/// A diamond: both middle tasks start once the first has ended, the last one after both.
#[tokio::test]
async fn diamond() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group(
        "diamond",
        json!({"tasks": {
            "top": {"script": "hello"},
            "left": {"script": "sum", "params": {"numbers": [1, 2]}, "depends_on": ["top"]},
            "right": {"script": "sum", "params": {"numbers": [10]}, "depends_on": ["top"]},
            "bottom": {"script": "sum", "params": {"upstream": ["left", "right"]}, "depends_on": ["left", "right"]},
        }}),
    )
    .await;
    let run = node.run("diamond", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        states(&run),
        "bottom=succeeded left=succeeded right=succeeded top=succeeded"
    );
    for (before, after) in [
        ("top", "left"),
        ("top", "right"),
        ("left", "bottom"),
        ("right", "bottom"),
    ] {
        let gap = seconds(&task(&run, before)["finished_at"], &task(&run, after)["started_at"]);
        assert!(gap >= 0.0, "{after} started {gap} s before {before} had ended");
    }
    // left gives {sum: 3, count: 2, min: 1, max: 2}, right {sum: 10, count: 1, min: 10, max: 10}.
    assert_eq!(task(&run, "bottom")["output"]["sum"], 39.0);
}
