//! Shows what a script is given.

use heddle::serde_json::Map;
use heddle::{Failure, Value, json};

/// Answers with its params and its context.
#[heddle::task]
fn run(params: Map<String, Value>) -> Result<Value, Failure> {
    Ok(json!({"params": params, "context": heddle::context().to_json()}))
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn params_and_context_come_back() {
        let _host = Host::new().logical_time("2013-07-01T00:00:00Z").item(json!("b"), 1, 3);
        let output = run(Map::from_iter([("a".to_owned(), json!([1]))])).unwrap();
        assert_eq!(output["params"], json!({"a": [1]}));
        assert_eq!(output["context"]["logical_time"], "2013-07-01T00:00:00.000000Z");
        assert_eq!(output["context"]["item"], json!({"item": "b", "index": 1, "count": 3}));
        assert_eq!(output["context"]["attempt"], 1);
    }
}
