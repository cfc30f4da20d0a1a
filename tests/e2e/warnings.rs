//! What is no mistake for certain, but may well be one: params that nobody reads.

use heddle_tests::{TOKEN, World, run_program};
use serde_json::{Value, json};

#[tokio::test]
async fn params_that_nobody_reads() {
    let (world, node) = World::with_node().await;
    let group = json!({"tasks": {"t": {"script": "hello", "params": {"nme": "Ada"}}}});
    let put = node.put("/v1/groups/g", group.clone()).await.expect_status(201);
    assert_eq!(
        put["warnings"],
        json!([{"pointer": "/tasks/t/params/nme", "detail": "the script of this task does not have a param named \
            `nme`; did you mean `name`?"}])
    );
    let valid = node.post("/v1/groups/g/validate", group).await.expect_status(200);
    assert_eq!((&valid["valid"], &valid["warnings"]), (&json!(true), &put["warnings"]));
    // What was answered may be put again, and is no part of the spec.
    let again = node.put("/v1/groups/g", put).await.expect_status(200);
    assert_eq!(again["revision"], 1);
    assert_eq!(
        node.get("/v1/groups/g").await.expect_status(200)["warnings"],
        Value::Null
    );
    let fine = json!({"tasks": {"t": {"script": "hello", "params": {"name": "Ada"}}}});
    assert_eq!(node.put_group("g", fine).await["warnings"], Value::Null);
    // On the command line, also of what comes with a run.
    let heddle = |arguments: &[&str]| {
        let output = run_program(arguments, &[("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    let said = heddle(&["run", "start", "g", "--param", "nme=Ada"]);
    assert!(
        said.contains("warning: /params/nme: no script of this group has a param named `nme`; did you mean `name`?"),
        "{said}"
    );
    assert_eq!(heddle(&["run", "start", "g", "--param", "name=Ada"]), "");
    let file = world.directory().join("group.yaml");
    std::fs::write(
        &file,
        "kind: group\nname: h\nspec:\n  tasks:\n    t: { script: hello, params: { nme: Ada } }\n",
    )
    .unwrap();
    let said = heddle(&["apply", "-f", file.to_str().unwrap()]);
    assert!(said.contains("warning: group h: /tasks/t/params/nme:"), "{said}");
}
