//! The state of groups, which scripts write with their outcomes.

use heddle_store::live::Effect;
use tokio_postgres::Client;

use super::{begin, close, meanwhile, run, set_up};

fn set(key: &str, value: &str) -> Effect {
    let (key, value) = (key.to_owned(), value.to_owned());
    Effect::Set { key, value }
}

/// Keys of group 1, with their versions.
async fn state(sql: &Client) -> Vec<(String, String, i64)> {
    let all = "SELECT key, value, version FROM heddle.script_state ORDER BY key";
    let rows = sql.query(all, &[]).await.expect("the state");
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// An attempt locks the keys that it writes in their order, whatever it does with them and however often: while it waits for
/// the first, it has none of the others. So nobody who writes the same keys waits for it in a circle.
#[tokio::test]
async fn keys_are_locked_in_their_order() {
    let (_world, store, sql, mut other) = set_up().await;
    let compared = |key: &str| Effect::CompareAndSet {
        key: key.to_owned(),
        expected: Some(5),
        value: "\"own\"".to_owned(),
    };
    let deleted = |key: &str| Effect::Delete { key: key.to_owned() };
    let own = |key: &str| set(key, "\"own\"");
    // The key that an attempt wrote first in each case, although `a` comes before it: one that it writes less often, compares,
    // or deletes.
    for (name, effects, versions) in [
        (
            "written once",
            vec![own("a"), own("a"), own("b")],
            vec![("a", 8), ("b", 7)],
        ),
        ("compared", vec![own("a"), compared("c")], vec![("a", 7), ("c", 6)]),
        ("deleted", vec![own("a"), deleted("b")], vec![("a", 7)]),
    ] {
        sql.batch_execute(
            "DELETE FROM heddle.script_state;
             INSERT INTO heddle.script_state (group_id, key, value, version)
                 VALUES (1, 'a', '0', 5), (1, 'b', '0', 5), (1, 'c', '0', 5)",
        )
        .await
        .unwrap();
        let writer = other.transaction().await.unwrap();
        let write = "UPDATE heddle.script_state SET value = '1', version = version + 1 WHERE key = $1";
        assert_eq!(writer.execute(write, &[&"a"]).await.unwrap(), 1);
        let applied = async {
            let mut completion = begin(&store, 7).await;
            let applied = completion
                .apply_effects(run(1), 0, 1, &effects)
                .await
                .expect("no deadlock");
            completion.commit().await.expect("a commit");
            applied
        };
        let applied = meanwhile(&sql, applied, async {
            // It does not wait: the attempt has none of the other keys. It would be a deadlock otherwise.
            let others = "SELECT FROM heddle.script_state WHERE key <> 'a' FOR UPDATE NOWAIT";
            let locked = writer.execute(others, &[]).await;
            assert_eq!(locked.unwrap_or_else(|error| panic!("{name}: {error}")), 2);
            assert_eq!(writer.execute(write, &[&"b"]).await.unwrap(), 1);
            close(writer, true).await;
        });
        assert!(applied.await, "{name}");
        let written = state(&sql).await;
        let written: Vec<(&str, i64)> = written
            .iter()
            .filter(|(_, value, _)| value == "\"own\"")
            .map(|(key, _, version)| (key.as_str(), *version))
            .collect();
        assert_eq!(written, versions, "{name}");
    }
}
