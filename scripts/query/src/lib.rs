//! Runs an SQL statement on a connection that the task was granted.

use heddle::{Failure, Value, json, sql};

/// The statement to run, and where.
#[heddle::data]
pub struct Params {
    /// The name of the connection; the task has to be granted it.
    connection: String,
    /// The SQL text; `$1`, `$2`, … stand for its params.
    statement: String,
    /// For `$1`, `$2`, ….
    #[serde(default)]
    params: Vec<Value>,
    /// Whether the statement changes rows; the output is then how many, otherwise the rows.
    #[serde(default)]
    execute: bool,
}

/// Runs an SQL statement; answers with its rows, or with how many it changed.
#[heddle::task]
fn run(params: Params) -> Result<Value, Failure> {
    let connection = sql::connection(&params.connection);
    if params.execute {
        let changed = connection.execute(&params.statement, &params.params)?;
        return Ok(json!({"changed": changed}));
    }
    let rows: Vec<Value> = connection.query(&params.statement, &params.params)?;
    Ok(json!({"rows": rows}))
}

#[cfg(test)]
mod tests {
    use heddle::script::Task;
    use heddle::testing::Host;

    use super::*;

    fn call(params: Value) -> Result<String, Failure> {
        HeddleTask::run(&params.to_string())
    }

    #[test]
    fn rows_or_their_number_come_back() {
        let host = Host::new()
            .on_query(|_| Ok(vec![json!({"n": 1})]))
            .on_execute(|_| Ok(3));
        let rows = call(json!({"connection": "w", "statement": "select $1::int as n", "params": [1]}));
        assert_eq!(rows.unwrap(), r#"{"rows":[{"n":1}]}"#);
        let changed = call(json!({"connection": "w", "statement": "delete from t", "execute": true}));
        assert_eq!(changed.unwrap(), r#"{"changed":3}"#);
        assert_eq!(host.statements()[0].params, [json!(1)]);
    }

    #[test]
    fn the_databases_verdict_decides() {
        let _host = Host::new().on_query(|statement| match statement.text.as_str() {
            "select" => Err("syntax error (SQLSTATE 42601)".to_owned()),
            _ => Err("terminating connection (SQLSTATE 57P01)".to_owned()),
        });
        assert!(
            call(json!({"connection": "w", "statement": "select"}))
                .unwrap_err()
                .is_fatal()
        );
        assert!(
            !call(json!({"connection": "w", "statement": "select 1"}))
                .unwrap_err()
                .is_fatal()
        );
    }
}
