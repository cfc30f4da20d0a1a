//! Last of the demo's tasks: joins what was computed side by side, and writes it to the warehouse.

use std::collections::BTreeMap;

use heddle::{Failure, sql};

/// What is needed of the output of `temperature`.
#[heddle::data]
struct Temperature {
    month: String,
    days: u32,
    temp_max_mean: f64,
    temp_min_mean: f64,
}

/// What is needed of the output of `precipitation`.
#[heddle::data]
struct Precipitation {
    month: String,
    precipitation_total: f64,
    wettest_day: String,
    weather_counts: BTreeMap<String, u32>,
}

/// A month's report; means and the total are rounded to two decimals.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The month, as `YYYY-MM`.
    month: String,
    /// How many days were measured.
    days: u32,
    /// Degrees Celsius, the mean of the days' highest.
    temp_max_mean: f64,
    /// Degrees Celsius, the mean of the days' lowest.
    temp_min_mean: f64,
    /// The rain and snow of the month, in millimetres.
    precipitation_total: f64,
    /// The day with the most precipitation, the earliest if several have it.
    wettest_day: String,
    /// How many days had which weather.
    weather_counts: BTreeMap<String, u32>,
}

/// Written over, so that a repeated attempt or a rerun leaves one row per month. Everything travels as text or number.
const WRITE: &str = "insert into monthly_report \
     (month, days, temp_max_mean, temp_min_mean, precipitation_total, wettest_day, weather_counts, run) \
     values ($1::text, $2::text::int, $3::text::float8, $4::text::float8, $5::text::float8, $6::text::date, \
     $7::text::jsonb, $8::text) \
     on conflict (month) do update set days = excluded.days, temp_max_mean = excluded.temp_max_mean, \
     temp_min_mean = excluded.temp_min_mean, precipitation_total = excluded.precipitation_total, \
     wettest_day = excluded.wettest_day, weather_counts = excluded.weather_counts, run = excluded.run, \
     written_at = now()";

/// Joins the outputs of `temperature` and `precipitation` into a month's report, and writes it to the warehouse.
#[heddle::task]
fn run() -> Result<Output, Failure> {
    let temperature: Temperature = heddle::upstream("temperature")?;
    let precipitation: Precipitation = heddle::upstream("precipitation")?;
    if temperature.month != precipitation.month {
        let (one, other) = (temperature.month, precipitation.month);
        return Err(Failure::fatal(format!(
            "temperatures of {one} and precipitation of {other} make no report"
        )));
    }
    let report = Output {
        month: temperature.month,
        days: temperature.days,
        temp_max_mean: temperature.temp_max_mean,
        temp_min_mean: temperature.temp_min_mean,
        precipitation_total: precipitation.precipitation_total,
        wettest_day: precipitation.wettest_day,
        weather_counts: precipitation.weather_counts,
    };
    let params = [
        report.month.clone(),
        report.days.to_string(),
        report.temp_max_mean.to_string(),
        report.temp_min_mean.to_string(),
        report.precipitation_total.to_string(),
        report.wettest_day.clone(),
        heddle::json!(report.weather_counts).to_string(),
        heddle::context().run,
    ];
    sql::connection("warehouse").execute(WRITE, params)?;
    heddle::info!("{} reported", report.month; days = report.days, precipitation_total = report.precipitation_total);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use heddle::script::Task;
    use heddle::testing::Host;
    use heddle::{Value, json};

    use super::*;

    fn host(precipitation_month: &str) -> Host {
        Host::new()
            .upstream(
                "temperature",
                json!({"month": "2013-07", "days": 31, "temp_max_mean": 26.09, "temp_min_mean": 13.93}),
            )
            .upstream(
                "precipitation",
                json!({
                    "month": precipitation_month, "precipitation_total": 0.0, "wettest_day": "2013-07-01",
                    "weather_counts": {"sun": 30, "fog": 1},
                }),
            )
            .on_execute(|_| Ok(1))
    }

    #[test]
    fn the_report_is_written_and_returned() {
        let host = host("2013-07");
        let output: Value = heddle::serde_json::from_str(&HeddleTask::run("{}").unwrap()).unwrap();
        let expect = json!({
            "month": "2013-07", "days": 31, "temp_max_mean": 26.09, "temp_min_mean": 13.93, "precipitation_total": 0.0,
            "wettest_day": "2013-07-01", "weather_counts": {"sun": 30, "fog": 1},
        });
        assert_eq!(output, expect);
        let statement = &host.statements()[0];
        assert_eq!(statement.connection, "warehouse");
        assert_eq!(statement.params[..3], [json!("2013-07"), json!("31"), json!("26.09")]);
        assert_eq!(statement.params[6], json!(r#"{"fog":1,"sun":30}"#));
    }

    #[test]
    fn two_months_make_no_report() {
        let host = host("2013-08");
        assert!(run().unwrap_err().is_fatal());
        assert!(host.statements().is_empty());
    }
}
