//! What scripts are compiled to, on the disk of a node.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use heddle_tests::World;

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
