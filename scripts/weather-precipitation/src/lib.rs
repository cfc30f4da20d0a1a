//! Of the demo: a month's precipitation.

use std::collections::BTreeMap;

use heddle::{Failure, OrFail};

/// What is needed of the output of `extract`.
#[heddle::data]
struct Extract {
    month: String,
    days: Vec<Day>,
}

#[heddle::data]
struct Day {
    date: String,
    precipitation: f64,
    weather: String,
}

/// The rain and snow of one month, and its kinds of weather.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The month, as `YYYY-MM`.
    month: String,
    /// Millimetres, rounded to two decimals.
    precipitation_total: f64,
    /// The day with the most precipitation, the earliest if several have it.
    wettest_day: String,
    /// How many days had which weather.
    weather_counts: BTreeMap<String, u32>,
}

/// A month's precipitation and kinds of weather, from the output of `extract`.
#[heddle::task]
fn run() -> Result<Output, Failure> {
    let Extract { month, days } = heddle::upstream("extract")?;
    let total: f64 = days.iter().map(|day| day.precipitation).sum();
    let wettest = days.iter().reduce(|wettest, day| {
        if day.precipitation > wettest.precipitation {
            day
        } else {
            wettest
        }
    });
    let wettest_day = wettest.or_fatal(format!("{month} has no days"))?.date.clone();
    let mut weather_counts = BTreeMap::new();
    for day in days {
        *weather_counts.entry(day.weather).or_insert(0) += 1;
    }
    Ok(Output {
        month,
        precipitation_total: (total * 100.0).round() / 100.0,
        wettest_day,
        weather_counts,
    })
}

#[cfg(test)]
mod tests {
    use heddle::json;
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn the_wettest_day_is_the_earliest_of_the_wettest() {
        let day = |date, mm, weather| json!({"date": date, "precipitation": mm, "weather": weather});
        let days = [
            day("2013-09-01", 0.1, "sun"),
            day("2013-09-02", 0.2, "rain"),
            day("2013-09-03", 0.2, "rain"),
        ];
        let _host = Host::new().upstream("extract", json!({"month": "2013-09", "days": days}));
        let output = run().unwrap();
        assert_eq!(
            (output.precipitation_total, output.wettest_day.as_str()),
            (0.5, "2013-09-02")
        );
        assert_eq!(
            output.weather_counts,
            BTreeMap::from([("rain".to_owned(), 2), ("sun".to_owned(), 1)])
        );
    }

    #[test]
    fn a_month_without_days_is_fatal() {
        let _host = Host::new().upstream("extract", json!({"month": "2013-09", "days": []}));
        assert!(run().unwrap_err().is_fatal());
    }
}
