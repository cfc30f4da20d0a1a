//! Of the demo: a year's weather, from the twelve months that `weather-report` has written.

use std::collections::BTreeMap;

use heddle::chrono::Datelike;
use heddle::{Failure, sql};

/// A month as it was reported. Dates and counts travel as text.
const MONTHS: &str = "select month, days, temp_max_mean, temp_min_mean, precipitation_total, weather_counts::text \
     from monthly_report where month between $1::text and $2::text order by month";

/// Written over, so that a repeated attempt or a rerun leaves one row per year.
const WRITE: &str = "insert into yearly_report \
     (year, days, temp_max_mean, temp_min_mean, precipitation_total, wettest_month, weather_counts, run) \
     values ($1::text::int, $2::text::int, $3::text::float8, $4::text::float8, $5::text::float8, $6::text, \
     $7::text::jsonb, $8::text) \
     on conflict (year) do update set days = excluded.days, temp_max_mean = excluded.temp_max_mean, \
     temp_min_mean = excluded.temp_min_mean, precipitation_total = excluded.precipitation_total, \
     wettest_month = excluded.wettest_month, weather_counts = excluded.weather_counts, run = excluded.run, \
     written_at = now()";

/// The year that is summed up.
#[heddle::data]
pub struct Params {
    /// Without it, the year in which the run's data interval begins (UTC).
    #[serde(default)]
    year: Option<i32>,
}

#[heddle::data]
struct Month {
    month: String,
    days: u32,
    temp_max_mean: f64,
    temp_min_mean: f64,
    precipitation_total: f64,
    weather_counts: String,
}

/// A year's report; means and the total are rounded to two decimals.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The year that was summed up.
    year: i32,
    /// How many months it is made of: all twelve.
    months: usize,
    /// How many days were measured.
    days: u32,
    /// Degrees Celsius, the mean of the days' highest.
    temp_max_mean: f64,
    /// Degrees Celsius, the mean of the days' lowest.
    temp_min_mean: f64,
    /// The rain and snow of the year, in millimetres.
    precipitation_total: f64,
    /// The month with the most precipitation, the earliest if several have it.
    wettest_month: String,
    /// How many days had which weather.
    weather_counts: BTreeMap<String, u32>,
}

/// Sums up the twelve monthly reports of a year, and writes the result to the warehouse.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let year = params
        .year
        .unwrap_or_else(|| heddle::context().data_interval.start.year());
    let warehouse = sql::connection("warehouse");
    let months: Vec<Month> = warehouse.query(MONTHS, (format!("{year:04}-01"), format!("{year:04}-12")))?;
    if months.len() != 12 {
        return Err(Failure::fatal(format!(
            "{} of the twelve months of {year} have been reported",
            months.len()
        )));
    }
    let days: u32 = months.iter().map(|month| month.days).sum();
    let mean = |of: fn(&Month) -> f64| {
        let sum: f64 = months.iter().map(|month| of(month) * f64::from(month.days)).sum();
        rounded(sum / f64::from(days))
    };
    let mut weather_counts = BTreeMap::new();
    for month in &months {
        let counts: BTreeMap<String, u32> = heddle::serde_json::from_str(&month.weather_counts)
            .map_err(|error| Failure::fatal(format!("the weather of {}: {error}", month.month)))?;
        for (weather, count) in counts {
            *weather_counts.entry(weather).or_insert(0) += count;
        }
    }
    let mut wettest = &months[0];
    for month in &months {
        if month.precipitation_total > wettest.precipitation_total {
            wettest = month;
        }
    }
    let report = Output {
        year,
        months: months.len(),
        days,
        temp_max_mean: mean(|month| month.temp_max_mean),
        temp_min_mean: mean(|month| month.temp_min_mean),
        precipitation_total: rounded(months.iter().map(|month| month.precipitation_total).sum()),
        wettest_month: wettest.month.clone(),
        weather_counts,
    };
    let params = [
        report.year.to_string(),
        report.days.to_string(),
        report.temp_max_mean.to_string(),
        report.temp_min_mean.to_string(),
        report.precipitation_total.to_string(),
        report.wettest_month.clone(),
        heddle::json!(report.weather_counts).to_string(),
        heddle::context().run,
    ];
    warehouse.execute(WRITE, params)?;
    heddle::info!("{year} summed up"; days = report.days, precipitation_total = report.precipitation_total);
    Ok(report)
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;
    use heddle::{Value, json};

    use super::*;

    fn month(number: u32) -> Value {
        json!({
            "month": format!("2012-{number:02}"), "days": if number == 2 { 29 } else { 31 },
            "temp_max_mean": f64::from(number), "temp_min_mean": 1.5,
            "precipitation_total": if number == 3 || number == 11 { 100.25 } else { 10.0 },
            "weather_counts": r#"{"rain": 20, "sun": 9}"#,
        })
    }

    fn host(months: u32) -> Host {
        Host::new()
            .context(|context| {
                context.logical_time = "2013-01-01T00:00:00Z".parse().unwrap();
                context.data_interval.start = "2012-01-01T00:00:00Z".parse().unwrap();
                context.data_interval.end = "2013-01-01T00:00:00Z".parse().unwrap();
            })
            .on_query(move |_| Ok((1..=months).map(month).collect()))
            .on_execute(|_| Ok(1))
    }

    #[test]
    fn the_year_is_that_in_which_the_interval_begins() {
        let host = host(12);
        let report = run(Params { year: None }).unwrap();
        let days = 11 * 31 + 29;
        let weighed = (31.0 * (78.0 - 2.0) + 29.0 * 2.0) / f64::from(days);
        let expect = Output {
            year: 2012,
            months: 12,
            days,
            temp_max_mean: rounded(weighed),
            temp_min_mean: 1.5,
            precipitation_total: 300.5,
            wettest_month: "2012-03".into(),
            weather_counts: [("rain".to_owned(), 240), ("sun".to_owned(), 108)].into(),
        };
        assert_eq!(report, expect);
        let statements = host.statements();
        assert_eq!(statements[0].params, [json!("2012-01"), json!("2012-12")]);
        assert_eq!(statements[1].params[..2], [json!("2012"), json!("370")]);
    }

    #[test]
    fn a_param_names_another_year() {
        let host = host(12);
        assert_eq!(run(Params { year: Some(2014) }).unwrap().year, 2014);
        assert_eq!(host.statements()[0].params, [json!("2014-01"), json!("2014-12")]);
    }

    #[test]
    fn a_year_that_is_not_complete_is_fatal() {
        let host = host(11);
        let failure = run(Params { year: None }).unwrap_err();
        assert!(
            failure.is_fatal() && failure.message().contains("11 of the twelve"),
            "{failure}"
        );
        assert_eq!(host.statements().len(), 1, "nothing is written");
    }
}
