//! The doubles keep the contract's rules.

use heddle::testing::Host;
use heddle::{Failure, json, state};

#[test]
fn state_is_compared_by_version() {
    let host = Host::new().with_state("n", json!(1));
    let entry = state::get::<u32>("n").unwrap().unwrap();
    state::compare_and_set("n", Some(entry.version), &2).unwrap();
    let late = state::compare_and_set("n", Some(entry.version), &3).unwrap_err();
    assert!(!Failure::from(late).is_fatal(), "a lost comparison is retried");
    assert_eq!(host.state("n"), Some(json!(2)));
    state::delete("n").unwrap();
    assert_eq!(state::get::<u32>("n").unwrap(), None);
    assert!(state::set("", &1).is_err());
    assert!(state::set("n", &"x".repeat(65 << 10)).is_err());
}

#[test]
fn what_was_not_granted_is_refused() {
    let _host = Host::new();
    assert!(heddle::upstream::<u32>("elsewhere").unwrap_err().is_final());
    assert!(heddle::secret("token").unwrap_err().is_final());
    assert!(heddle::sql::connection("warehouse").execute("select 1", ()).is_err());
    assert!(heddle::http::get("https://example.com").send().unwrap_err().is_final());
}

#[test]
fn statements_take_tuples_and_arrays() {
    let host = Host::new()
        .on_execute(|_| Ok(1))
        .on_query(|_| Ok(vec![json!({"n": 5})]));
    let warehouse = heddle::sql::connection("warehouse");
    warehouse
        .execute("update t set a = $1 where b = $2", (1, "two"))
        .unwrap();
    warehouse.execute("truncate t", ()).unwrap();
    assert!(warehouse.execute("select $1", 1).is_err());
    let row: Option<std::collections::BTreeMap<String, u8>> = warehouse.query_first("select 5 as n", [0; 0]).unwrap();
    assert_eq!(row.unwrap()["n"], 5);
    let params: Vec<_> = host
        .statements()
        .into_iter()
        .map(|statement| statement.params)
        .collect();
    assert_eq!(params, [vec![json!(1), json!("two")], vec![], vec![]]);
}

#[test]
fn hosts_nest_and_end() {
    let outer = Host::new().secret("a", "outer");
    {
        let _inner = Host::new().secret("a", "inner");
        assert_eq!(heddle::secret("a").unwrap(), "inner");
    }
    assert_eq!(heddle::secret("a").unwrap(), "outer");
    drop(outer);
    assert!(heddle::secret("a").is_err());
}

#[test]
fn sleeping_moves_the_clock() {
    let host = Host::new();
    let before = heddle::now();
    heddle::sleep(std::time::Duration::from_secs(90));
    assert_eq!((heddle::now() - before).num_seconds(), 90);
    assert_eq!(host.slept().as_secs(), 90);
}
