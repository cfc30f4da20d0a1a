//! First of the demo's tasks: the days of a month from the warehouse.

use heddle::chrono::{Datelike, Months, NaiveDate};
use heddle::{Failure, OrFail, sql};

/// The first month that there is data for.
const FIRST: &str = "2012-01";
/// The last month that there is data for.
const LAST: &str = "2015-12";

/// The first day of `month` and of the one after it bound the rows. Dates travel as text.
const DAYS: &str = "select to_char(date, 'YYYY-MM-DD') as date, precipitation, temp_max, temp_min, wind, weather \
     from seattle_weather where date >= $1::text::date and date < $2::text::date order by date";

/// The month whose weather is read.
#[heddle::data]
pub struct Params {
    /// `YYYY-MM`; without it, the month of the run's logical time (UTC).
    #[serde(default)]
    #[schemars(regex(pattern = r"^\d{4}-\d{2}$"))]
    month: Option<String>,
}

/// The weather of one month, day by day.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The month, as `YYYY-MM`.
    month: String,
    /// The days, in order.
    days: Vec<Day>,
}

/// The weather of one day, as it was measured.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Day {
    /// The day, as `YYYY-MM-DD`.
    date: String,
    /// The rain and snow of the day, in millimetres.
    precipitation: f64,
    /// The highest temperature, in degrees Celsius.
    temp_max: f64,
    /// The lowest temperature, in degrees Celsius.
    temp_min: f64,
    /// The speed of the wind, in metres per second.
    wind: f64,
    /// `sun`, `rain`, `drizzle`, `fog` or `snow`.
    weather: String,
}

/// Reads a month of Seattle's daily weather (2012-01 to 2015-12) from the warehouse.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let first_day = match &params.month {
        Some(month) => first_day(month)?,
        None => heddle::context()
            .logical_time
            .date_naive()
            .with_day(1)
            .or_fatal("the logical time has no month")?,
    };
    let month = first_day.format("%Y-%m").to_string();
    if !(FIRST..=LAST).contains(&month.as_str()) {
        return Err(Failure::fatal(format!(
            "no weather for {month}: the data covers {FIRST} to {LAST}"
        )));
    }
    let next = first_day
        .checked_add_months(Months::new(1))
        .or_fatal("the month has no successor")?;
    let days: Vec<Day> = sql::connection("warehouse").query(DAYS, (first_day.to_string(), next.to_string()))?;
    if days.is_empty() {
        return Err(Failure::fatal(format!(
            "the warehouse has no rows for {month}: is seattle_weather loaded?"
        )));
    }
    heddle::info!("{} days of {month}", days.len(); month = month);
    Ok(Output { month, days })
}

fn first_day(month: &str) -> Result<NaiveDate, Failure> {
    NaiveDate::parse_from_str(&format!("{month}-01"), "%Y-%m-%d")
        .or_fatal(format!("the month `{month}` is not of the form 2013-07"))
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;
    use heddle::{Value, json};

    use super::*;

    fn rows() -> Vec<Value> {
        vec![json!({
            "date": "2013-07-01", "precipitation": 0.0, "temp_max": 31.7, "temp_min": 18.3, "wind": 2.3, "weather": "sun",
        })]
    }

    fn extract(logical_time: &str, month: Option<&str>) -> (Result<Output, Failure>, Vec<Value>) {
        let host = Host::new().logical_time(logical_time).on_query(|_| Ok(rows()));
        let output = run(Params {
            month: month.map(str::to_owned),
        });
        let asked = host.statements().into_iter().next().map(|statement| statement.params);
        (output, asked.unwrap_or_default())
    }

    #[test]
    fn the_month_is_that_of_the_logical_time() {
        let (output, asked) = extract("2013-07-19T23:00:00Z", None);
        let output = output.unwrap();
        assert_eq!((output.month.as_str(), output.days[0].temp_max), ("2013-07", 31.7));
        assert_eq!(asked, [json!("2013-07-01"), json!("2013-08-01")]);
    }

    #[test]
    fn a_param_names_another_month() {
        let (output, asked) = extract("2026-01-01T00:00:00Z", Some("2015-12"));
        assert_eq!(output.unwrap().month, "2015-12");
        assert_eq!(asked, [json!("2015-12-01"), json!("2016-01-01")]);
    }

    #[test]
    fn months_without_data_are_fatal() {
        for (time, month) in [
            ("2011-12-31T23:59:59Z", None),
            ("2016-01-01T00:00:00Z", None),
            ("2013-07-01T00:00:00Z", Some("2016-01")),
        ] {
            let (output, asked) = extract(time, month);
            let failure = output.unwrap_err();
            assert!(
                failure.is_fatal() && failure.message().contains("2012-01 to 2015-12"),
                "{failure}"
            );
            assert!(asked.is_empty(), "the warehouse is not asked");
        }
        assert!(
            extract("2013-07-01T00:00:00Z", Some("2013-13"))
                .0
                .unwrap_err()
                .is_fatal()
        );
    }

    #[test]
    fn an_empty_warehouse_is_named_as_such() {
        let _host = Host::new()
            .logical_time("2013-07-01T00:00:00Z")
            .on_query(|_| Ok(vec![]));
        let failure = run(Params { month: None }).unwrap_err();
        assert!(
            failure.is_fatal() && failure.message().contains("seattle_weather"),
            "{failure}"
        );
    }
}
