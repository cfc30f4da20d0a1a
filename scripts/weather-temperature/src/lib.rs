//! Of the demo: a month's temperatures.

use heddle::{Failure, OrFail};

/// What is needed of the output of `extract`.
#[heddle::data]
struct Extract {
    month: String,
    days: Vec<Day>,
}

#[heddle::data]
struct Day {
    temp_max: f64,
    temp_min: f64,
}

/// A month's temperatures, in degrees Celsius, rounded to two decimals.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The month, as `YYYY-MM`.
    month: String,
    /// How many days were measured.
    days: usize,
    /// The mean of the days' highest.
    temp_max_mean: f64,
    /// The mean of the days' lowest.
    temp_min_mean: f64,
}

/// Means of a month's temperatures, from the output of `extract`.
#[heddle::task]
fn run() -> Result<Output, Failure> {
    let Extract { month, days } = heddle::upstream("extract")?;
    Ok(Output {
        days: days.len(),
        temp_max_mean: mean(days.iter().map(|day| day.temp_max)).or_fatal(format!("{month} has no days"))?,
        temp_min_mean: mean(days.iter().map(|day| day.temp_min)).or_fatal(format!("{month} has no days"))?,
        month,
    })
}

/// Rounded to two decimals; none of nothing.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| (values.sum::<f64>() / count as f64 * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use heddle::json;
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn means_have_two_decimals() {
        let day = |temp_max, temp_min| json!({"date": "2013-07-01", "temp_max": temp_max, "temp_min": temp_min});
        let days = [day(31.7, 18.3), day(28.3, 15.6), day(26.1, 13.9)];
        let _host = Host::new().upstream("extract", json!({"month": "2013-07", "days": days}));
        let expect = Output {
            month: "2013-07".into(),
            days: 3,
            temp_max_mean: 28.7,
            temp_min_mean: 15.93,
        };
        assert_eq!(run().unwrap(), expect);
    }

    #[test]
    fn a_month_without_days_has_no_mean() {
        let _host = Host::new().upstream("extract", json!({"month": "2013-07", "days": []}));
        assert_eq!(run(), Err(Failure::fatal("2013-07 has no days")));
    }
}
