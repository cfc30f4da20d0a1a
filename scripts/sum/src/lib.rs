//! Adds up what other tasks have put out.

use heddle::{Failure, Value};

/// The numbers to add: those of dependencies, and others.
#[heddle::data]
pub struct Params {
    /// Names of dependencies: all numbers in their outputs count, also those within arrays and objects.
    #[serde(default)]
    upstream: Vec<String>,
    /// Numbers that are added to those of the dependencies.
    #[serde(default)]
    numbers: Vec<f64>,
}

/// The sum, and what it is made of.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The sum; 0 of nothing.
    sum: f64,
    /// How many numbers were added.
    count: u64,
    /// The smallest of the numbers; none if there are none.
    min: Option<f64>,
    /// The largest of the numbers; none if there are none.
    max: Option<f64>,
}

/// Adds up the numbers in the outputs of dependencies.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let mut output = Output {
        sum: 0.0,
        count: 0,
        min: None,
        max: None,
    };
    for task in &params.upstream {
        add(&mut output, &heddle::upstream(task)?);
    }
    for number in params.numbers {
        add_number(&mut output, number);
    }
    Ok(output)
}

/// No deeper than the JSON parser's own bound.
fn add(output: &mut Output, value: &Value) {
    match value {
        Value::Number(number) => add_number(output, number.as_f64().unwrap_or_default()),
        Value::Array(values) => values.iter().for_each(|value| add(output, value)),
        Value::Object(members) => members.values().for_each(|value| add(output, value)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn add_number(output: &mut Output, number: f64) {
    output.sum += number;
    output.count += 1;
    output.min = Some(output.min.map_or(number, |min| min.min(number)));
    output.max = Some(output.max.map_or(number, |max| max.max(number)));
}

#[cfg(test)]
mod tests {
    use heddle::json;
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn numbers_are_found_wherever_they_are() {
        let _host = Host::new()
            .upstream("mapped", json!([1, null, {"n": 2.5, "text": "3"}]))
            .upstream("single", json!(10))
            .upstream("nothing", json!(null));
        let upstream = ["mapped", "single", "nothing"].map(str::to_owned).to_vec();
        let output = run(Params {
            upstream,
            numbers: vec![-1.0],
        })
        .unwrap();
        assert_eq!(
            output,
            Output {
                sum: 12.5,
                count: 4,
                min: Some(-1.0),
                max: Some(10.0)
            }
        );
    }

    #[test]
    fn a_stranger_is_no_dependency() {
        let _host = Host::new();
        assert!(
            run(Params {
                upstream: vec!["stranger".into()],
                numbers: vec![]
            })
            .unwrap_err()
            .is_fatal()
        );
    }
}
