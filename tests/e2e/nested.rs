//! Values that are nested as deeply as a body may be. Answers put them into frames of their own, and are read all the same.

use heddle_tests::{World, task};
use serde_json::{Value, json};

use crate::cli::{DONE, ends};

/// Arrays in each other.
fn nested(levels: usize) -> Value {
    (1..levels).fold(json!([]), |inner, _| json!([inner]))
}

#[tokio::test]
async fn the_command_line_reads_what_the_api_takes() {
    let (world, node) = World::with_node().await;
    // A body may be nested 127 levels deep: two of them are around this value.
    let spec = |levels: usize| json!({"params": {"deep": nested(levels)}, "tasks": {"t": {"script": "echo"}}});
    assert_eq!(node.refused_group("deeper", spec(126)).await.status, 400);
    node.put_group("deep", spec(125)).await;
    let run = node.run("deep", json!({"params": {"given": nested(125)}})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["params"]["given"], nested(125));
    assert_eq!(task(&run, "t")["output"]["params"]["deep"], nested(125));
    let id = run["id"].as_str().unwrap();
    let commands: [(&[&str], &str); 6] = [
        (&["group", "list"], "deep"),
        (&["group", "show", "deep"], "deep"),
        (&["export"], "deep"),
        (&["run", "list"], id),
        (&["run", "show", id], id),
        (&["audit"], "deep"),
    ];
    for (command, expect) in commands {
        let said = ends(&node, DONE, command);
        assert!(said.contains(expect), "{command:?}: {said}");
    }
    for (command, ..) in commands.iter().filter(|(command, _)| *command != ["export"]) {
        for format in ["json", "yaml"] {
            let said = ends(&node, DONE, &[*command, &["-o", format][..]].concat());
            assert!(!said.trim().is_empty(), "{command:?} {format}");
        }
    }
    // What is exported is read again.
    let file = world.directory().join("exported.yaml");
    std::fs::write(&file, ends(&node, DONE, &["export", "deep"])).unwrap();
    ends(&node, DONE, &["apply", "-f", &file.to_string_lossy()]);
    assert_eq!(node.get("/v1/groups/deep").await.expect_status(200)["revision"], 1);
    // Programs get the whole value.
    let said = ends(&node, DONE, &["run", "show", id, "-o", "json"]);
    let flat: String = said.split_whitespace().collect();
    assert!(flat.contains(&format!("\"given\":{}", nested(125))), "{said}");
}
