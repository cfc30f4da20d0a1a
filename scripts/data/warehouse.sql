-- The demo's warehouse. Safe to run again.

-- Loaded from seattle-weather.csv.
create table if not exists seattle_weather (
    date          date primary key,
    precipitation float8 not null,
    temp_max      float8 not null,
    temp_min      float8 not null,
    wind          float8 not null,
    weather       text not null
);

-- Written by the script weather-report.
create table if not exists monthly_report (
    month               text primary key,
    days                integer not null,
    temp_max_mean       float8 not null,
    temp_min_mean       float8 not null,
    precipitation_total float8 not null,
    wettest_day         date not null,
    weather_counts      jsonb not null,
    run                 text not null,
    written_at          timestamptz not null default now()
);

-- Written by the script yearly-summary.
create table if not exists yearly_report (
    year                integer primary key,
    days                integer not null,
    temp_max_mean       float8 not null,
    temp_min_mean       float8 not null,
    precipitation_total float8 not null,
    wettest_month       text not null,
    weather_counts      jsonb not null,
    run                 text not null,
    written_at          timestamptz not null default now()
);

-- Written by the consumer greetings, on topics whose name begins with `greetings` or `stored`.
create table if not exists greetings_sent (
    id       text primary key,
    sender   bigint not null,
    receiver bigint not null,
    greeting text not null,
    sent_at  timestamptz not null default now()
);
