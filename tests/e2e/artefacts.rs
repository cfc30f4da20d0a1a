//! What scripts are compiled to, on the disk of a node.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use heddle_tests::World;
use serde_json::json;

fn others_may(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o077
}

/// Nobody but the node's user reads or changes them, also in a directory that an earlier version made for all.
#[tokio::test]
async fn they_are_the_nodes_own() {
    let world = World::new().await;
    let data = world.directory().join("data");
    let artefacts = data.join("artefacts");
    std::fs::create_dir_all(&artefacts).unwrap();
    std::fs::set_permissions(&artefacts, PermissionsExt::from_mode(0o755)).unwrap();
    let node = world.options().data_dir(&data).start().await;
    node.put_bytes(
        "/v1/scripts/mine",
        "application/wasm",
        heddle_scripts::get("hello").unwrap(),
    )
    .await
    .expect_status(201);
    assert_eq!(others_may(&artefacts), 0);
    let mut files = 0;
    for engine in std::fs::read_dir(&artefacts).unwrap() {
        let engine = engine.unwrap().path();
        assert_eq!(others_may(&engine), 0);
        for file in std::fs::read_dir(&engine).unwrap() {
            assert_eq!(others_may(&file.unwrap().path()), 0);
            files += 1;
        }
    }
    assert!(files > 0);
}

/// An upgrade replaces the program of a running node: until its restart, the node's children (for compiling, schemas)
/// run the program of the node.
#[tokio::test]
async fn an_upgrade_on_disk_waits_for_the_restart() {
    let world = World::new().await;
    let program = world.directory().join("heddle");
    std::fs::copy(heddle_tests::program(), &program).unwrap();
    let node = world.options().program(&program).start().await;
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "#!/bin/false\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let text = r#"(module (memory (export "memory") 1) (func (export "_start")) (@custom "upgrade" "on disk"))"#;
    node.put_bytes("/v1/scripts/fresh", "application/wasm", text)
        .await
        .expect_status(201);
    let heavy = json!({"properties": {"n": {"type": "integer"}}, "unevaluatedProperties": false});
    node.put("/v1/templates/heavy", heavy).await.expect_status(201);
    node.put_group("g", json!({"tasks": {"t": {"script": "fresh"}}})).await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
}
