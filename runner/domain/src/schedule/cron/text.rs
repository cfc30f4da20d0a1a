//! Cron expressions as people write them.
//!
//! Accepted in addition to what every cron accepts: `?` in any field for `*`, `5/15`, `/15`, `22-2` and `FRI-MON` over
//! the end, `@midnight`, full names, `L` (in the weekdays alone: Saturday), `L-3`, `LW`, `L-3W`, `15W`, `5L`, `5#3`. An
//! error names the field and the item.
//!
//! Quartz' dialect has other meanings (weekdays are 1 to 7 from Sunday) and is read as strictly as Quartz reads it:
//! seconds are required, and exactly one of the two day fields is `?`. Its years begin with 1970. But it also has `L` in
//! lists of days of the month, which Quartz accepts since 2.5. A step after a name, which Quartz ignores, is refused.

use super::{Cron, FIRST_YEAR, MonthDays, Weekdays, YEAR_WORDS, Years};
use crate::spec::CronDialect;

/// The longest expression that is read.
const TEXT_MAX_BYTES: usize = 256;
/// How the last days of a month are written.
const LAST_DAY: &str = "write the last day as `L`, `L-3`, `LW` or `L-3W`";
/// The most days before the last one of a month.
const BEFORE_LAST_MAX: u32 = 30;

struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    /// The widest step that leads from one value to another, or (days, months, weekdays) that other crons take.
    step_max: u32,
}

const FIELDS: [Field; 7] = [
    Field {
        name: "seconds",
        min: 0,
        max: 59,
        step_max: 59,
    },
    Field {
        name: "minutes",
        min: 0,
        max: 59,
        step_max: 59,
    },
    Field {
        name: "hours",
        min: 0,
        max: 23,
        step_max: 23,
    },
    Field {
        name: "day of month",
        min: 1,
        max: 31,
        step_max: 31,
    },
    Field {
        name: "month",
        min: 1,
        max: 12,
        step_max: 12,
    },
    Field {
        name: "day of week",
        min: 0,
        max: 6,
        step_max: 7,
    },
    Field {
        name: "year",
        min: 1,
        max: 5_000,
        step_max: 5_000,
    },
];
const DAY_OF_MONTH: usize = 3;
const MONTH: usize = 4;
const DAY_OF_WEEK: usize = 5;
const YEAR: usize = 6;
/// The first year of `*` in Quartz' dialect: steps are counted from it.
const QUARTZ_FIRST_YEAR: u32 = 1970;

const MONTHS: [&str; 12] = [
    "JANUARY",
    "FEBRUARY",
    "MARCH",
    "APRIL",
    "MAY",
    "JUNE",
    "JULY",
    "AUGUST",
    "SEPTEMBER",
    "OCTOBER",
    "NOVEMBER",
    "DECEMBER",
];
const WEEKDAYS: [&str; 7] = [
    "SUNDAY",
    "MONDAY",
    "TUESDAY",
    "WEDNESDAY",
    "THURSDAY",
    "FRIDAY",
    "SATURDAY",
];

/// The beginning of a text, for errors.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The expression with every start of a step that lies below its field's range (`0/2` in days) raised to the first legal
/// value, as some schedulers read it.
pub fn with_legal_starts(text: &str) -> String {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if !(5..=7).contains(&fields.len()) {
        return text.to_owned();
    }
    let seconds = usize::from(fields.len() == 5);
    let mended = fields.iter().zip(&FIELDS[seconds..]).map(|(field, bounds)| {
        let items = field.split(',').map(|item| {
            let digits = item.bytes().take_while(u8::is_ascii_digit).count();
            let (start, rest) = item.split_at(digits);
            match start.parse::<u32>() {
                Ok(start) if start < bounds.min && rest.contains('/') => format!("{}{rest}", bounds.min),
                _ => item.to_owned(),
            }
        });
        items.collect::<Vec<_>>().join(",")
    });
    mended.collect::<Vec<_>>().join(" ")
}

/// How an expression is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) dialect: CronDialect,
    /// It was accepted before some texts were refused, such as `L` in lists: it continues as before.
    pub(crate) stored: bool,
}

pub(super) fn read(text: &str, reading: Reading) -> Result<Cron, String> {
    let Reading { dialect, .. } = reading;
    let wrong = |detail: String| format!("invalid cron expression: {detail}");
    if text.len() > TEXT_MAX_BYTES {
        return Err(wrong(format!("longer than {TEXT_MAX_BYTES} bytes")));
    }
    let text = text.trim().to_uppercase();
    let text = match text.as_str() {
        other if dialect == CronDialect::Quartz => other,
        "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
        "@MONTHLY" => "0 0 1 * *",
        "@WEEKLY" => "0 0 * * 0",
        "@DAILY" | "@MIDNIGHT" => "0 0 * * *",
        "@HOURLY" => "0 * * * *",
        other => other,
    };
    if text.starts_with('@') {
        return Err(wrong(no_such_word(text, dialect)));
    }
    let mut fields: Vec<&str> = text.split_whitespace().collect();
    let count = fields.len();
    match dialect {
        CronDialect::Unix if !(5..=7).contains(&count) => {
            return Err(wrong(format!(
                "`{}` has {count} fields; write 5 (minutes, hours, day of month, month, day of week), 6 (seconds first) \
                 or 7 (year last)",
                cut(text)
            )));
        }
        CronDialect::Quartz if !(6..=7).contains(&count) => {
            return Err(wrong(format!(
                "`{}` has {count} fields; in the Quartz dialect write 6 (seconds, minutes, hours, day of month, \
                month, day of week) or 7 (year last)",
                cut(text)
            )));
        }
        _ => {}
    }
    if count == 5 {
        fields.insert(0, "0");
    }
    if fields.len() == 6 {
        fields.push("*");
    }
    if dialect == CronDialect::Quartz {
        quartz_only(&fields).map_err(wrong)?;
    }
    let mut cron = Cron::default();
    for (index, field) in fields.iter().enumerate() {
        read_field(&mut cron, index, field, reading).map_err(wrong)?;
    }
    Ok(cron)
}

/// Why a text that begins with `@` is refused.
fn no_such_word(text: &str, dialect: CronDialect) -> String {
    let word = cut(&text.to_lowercase());
    match (dialect, word.split_once(char::is_whitespace)) {
        (CronDialect::Quartz, _) => format!("`{word}`: the Quartz dialect has no words with `@`"),
        (CronDialect::Unix, Some(("@every", period))) => {
            format!(
                "`{word}`: a fixed rate is no cron expression; write `every: {}` instead of `cron`",
                period.trim()
            )
        }
        (CronDialect::Unix, _) => format!(
            "`{word}` does not exist; there are `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly` and \
             `@annually`"
        ),
    }
}

/// Refuses what Quartz refuses and others accept.
fn quartz_only(fields: &[&str]) -> Result<(), String> {
    let asked = |index: usize| fields[index] == "?";
    if asked(DAY_OF_MONTH) == asked(DAY_OF_WEEK) {
        return Err(
            "in the Quartz dialect, exactly one of day of month and day of week must be `?` (`cron_dialect: unix` \
            accepts both)"
                .into(),
        );
    }
    for (index, field) in fields.iter().enumerate() {
        if field.contains('?') && (index != DAY_OF_MONTH && index != DAY_OF_WEEK || *field != "?") {
            return Err(format!(
                "{} `{}`: `?` must be the whole field, and only day of month or day of week can be `?`",
                FIELDS[index].name,
                cut(field)
            ));
        }
    }
    let weekdays = fields[DAY_OF_WEEK];
    if weekdays.matches('#').count() > 1 {
        return Err(format!("day of week `{}`: only one `#` is allowed", cut(weekdays)));
    }
    Ok(())
}

fn read_field(cron: &mut Cron, index: usize, text: &str, reading: Reading) -> Result<(), String> {
    let field = &FIELDS[index];
    let text = text.replace('?', "*");
    let items: Vec<&str> = text.split(',').collect();
    // `L` and its variants next to other days have different meanings in different schedulers.
    let alone = match index {
        _ if reading.stored => false,
        DAY_OF_MONTH => reading.dialect == CronDialect::Unix,
        _ => true,
    };
    let mut all = false;
    for item in &items {
        let wrong = |detail: &str| format!("{} `{}`: {detail}", field.name, cut(item));
        if item.is_empty() {
            return Err(format!("{} `{}`: an item of the list is empty", field.name, cut(&text)));
        }
        if items.len() > 1 && alone && is_last(index, item) {
            return Err(wrong("`L` must be the whole field, not an item of a list"));
        }
        all |= read_item(cron, index, item, reading).map_err(|detail| wrong(&detail))?;
    }
    match index {
        DAY_OF_MONTH => cron.days.any = all,
        DAY_OF_WEEK => cron.weekdays.any = all,
        // If one item means all values, the field means all values.
        YEAR if all => cron.years = Years::All,
        _ => {}
    }
    Ok(())
}

/// Whether an item asks for the last of something.
fn is_last(index: usize, item: &str) -> bool {
    match index {
        DAY_OF_MONTH => item.starts_with('L'),
        DAY_OF_WEEK => item == "L" || item.ends_with("#L") || of_last_weekday(item).is_some(),
        _ => false,
    }
}

/// `5L`, `FRIL`: the part before the `L`.
fn of_last_weekday(item: &str) -> Option<&str> {
    item.strip_suffix('L').filter(|bare| !bare.is_empty())
}

/// Reads one item; whether it says *all*.
fn read_item(cron: &mut Cron, index: usize, item: &str, reading: Reading) -> Result<bool, String> {
    match index {
        DAY_OF_MONTH if item.contains(['L', 'W']) => return read_special_day(&mut cron.days, item).map(|()| false),
        DAY_OF_WEEK => {
            if item == "L" {
                cron.weekdays.days |= 1 << 6;
                return Ok(false);
            }
            if let Some((days, nth)) = item.split_once('#') {
                let nth = match nth {
                    "L" => None,
                    number => match number.parse::<usize>() {
                        Ok(nth @ 1..=5) => Some(nth),
                        _ => return Err("a number from 1 to 5 must follow `#`".into()),
                    },
                };
                let days = bits_of(index, days, reading)?.bits as u8;
                mark_some(&mut cron.weekdays, days, nth);
                return Ok(false);
            }
            if let Some(days) = of_last_weekday(item) {
                let days = bits_of(index, days, reading)?.bits as u8;
                mark_some(&mut cron.weekdays, days, None);
                return Ok(false);
            }
        }
        YEAR => return read_years(&mut cron.years, item, reading),
        _ => {}
    }
    let Found { bits, all, steps } = bits_of(index, item, reading)?;
    let field = match index {
        0 => &mut cron.seconds,
        1 => &mut cron.minutes,
        2 => &mut cron.hours,
        DAY_OF_MONTH => &mut cron.days.days,
        MONTH => &mut cron.months,
        _ => {
            cron.weekdays.days |= bits as u8;
            return Ok(all);
        }
    };
    *field |= bits;
    cron.every_time |= index < DAY_OF_MONTH && (all || steps);
    Ok(all)
}

fn mark_some(weekdays: &mut Weekdays, days: u8, nth: Option<usize>) {
    match nth {
        Some(nth) => weekdays.nth[nth - 1] |= days,
        None => weekdays.last |= days,
    }
}

/// `L`, `L-3`, `LW`, `L-3W`, `15W`.
fn read_special_day(days: &mut MonthDays, item: &str) -> Result<(), String> {
    let (bare, nearest) = match item.strip_suffix('W') {
        Some(bare) => (bare, true),
        None => (item, false),
    };
    if let Some(before) = bare.strip_prefix('L') {
        let before = match before.strip_prefix('-') {
            Some(number) => digits(number)?,
            None if before.is_empty() => 0,
            None => return Err(LAST_DAY.into()),
        };
        if before > BEFORE_LAST_MAX {
            return Err(format!("the number after `L-` must be at most {BEFORE_LAST_MAX}"));
        }
        match nearest {
            true => days.nearest_before_last |= 1 << before,
            false => days.before_last |= 1 << before,
        }
        return Ok(());
    }
    if bare.contains('L') {
        return Err(LAST_DAY.into());
    }
    let day = digits(bare).map_err(|_| "write the weekday nearest to a day as `15W`".to_owned())?;
    if !nearest || !(1..=31).contains(&day) {
        return Err("the day must be from 1 to 31".into());
    }
    days.nearest |= 1 << day;
    Ok(())
}

fn digits(text: &str) -> Result<u32, String> {
    if text.is_empty() || text.len() > 9 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a number was expected".into());
    }
    text.parse().map_err(|_| "a number was expected".into())
}

struct Found {
    bits: u64,
    all: bool,
    steps: bool,
}

/// The span of an item: from, to, step.
struct Range {
    from: u32,
    to: u32,
    step: u32,
    /// `*`, without a step.
    all: bool,
    steps: bool,
}

fn range_of(index: usize, item: &str, reading: Reading) -> Result<Range, String> {
    let field = &FIELDS[index];
    let dialect = reading.dialect;
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => {
            let step = digits(step).map_err(|_| "a number must follow `/`".to_owned())?;
            if step == 0 || (step > field.step_max && !reading.stored) {
                return Err(format!("the step must be from 1 to {}", field.step_max));
            }
            (range, Some(step))
        }
        None => (item, None),
    };
    let steps = step.is_some();
    let step = step.unwrap_or(1);
    if range == "*" || (range.is_empty() && steps) {
        return Ok(Range {
            from: match (index, dialect) {
                (YEAR, CronDialect::Quartz) => QUARTZ_FIRST_YEAR,
                _ => field.min,
            },
            to: field.max,
            step,
            all: step == 1,
            steps,
        });
    }
    let (from, to) = match range.split_once('-') {
        Some((from, to)) => (number_of(index, from, dialect)?, Some(number_of(index, to, dialect)?)),
        None => (number_of(index, range, dialect)?, None),
    };
    // Whoever writes such a step expects it to have an effect. Schedules that were accepted with it keep it.
    if steps
        && dialect == CronDialect::Quartz
        && !reading.stored
        && range.contains(|letter: char| letter.is_alphabetic())
    {
        return Err("Quartz ignores a step after a name; write the names as numbers, or as a list".into());
    }
    let to = to.unwrap_or(if steps { field.max.max(from) } else { from });
    Ok(Range {
        from,
        to,
        step,
        all: false,
        steps,
    })
}

/// The values of an item, as bits.
fn bits_of(index: usize, item: &str, reading: Reading) -> Result<Found, String> {
    let field = &FIELDS[index];
    let Range {
        from,
        to,
        step,
        all,
        steps,
    } = range_of(index, item, reading)?;
    let size = field.max - field.min + 1;
    // `22-2` goes over the end; so does Sunday as 7.
    let to = if to < from { to + size } else { to };
    let bits = (from..=to)
        .step_by(step as usize)
        .fold(0, |bits, value| bits | 1 << ((value - field.min) % size + field.min));
    Ok(Found { bits, all, steps })
}

fn read_years(years: &mut Years, item: &str, reading: Reading) -> Result<bool, String> {
    let Range {
        from, to, step, all, ..
    } = range_of(YEAR, item, reading)?;
    if to < from {
        return Err("the first year of a range must not be after the last".into());
    }
    if all {
        return Ok(true);
    }
    let mut words = match std::mem::take(years) {
        Years::All => Box::new([0; YEAR_WORDS]),
        Years::Some(words) => words,
    };
    for year in (from..=to).step_by(step as usize) {
        let bit = (year as i32)
            .checked_sub(FIRST_YEAR)
            .and_then(|bit| usize::try_from(bit).ok());
        if let Some(bit) = bit
            && let Some(word) = words.get_mut(bit / 64)
        {
            *word |= 1 << (bit % 64);
        }
    }
    *years = Years::Some(words);
    Ok(false)
}

/// A number or a name; weekdays from 0, Sunday, to 7, Sunday again.
fn number_of(index: usize, text: &str, dialect: CronDialect) -> Result<u32, String> {
    let field = &FIELDS[index];
    let named = |names: &[&str], first: u32| {
        names
            .iter()
            .position(|name| *name == text || name[..3] == *text)
            .map(|nth| nth as u32 + first)
    };
    let name = match index {
        MONTH => named(&MONTHS, 1),
        DAY_OF_WEEK => named(&WEEKDAYS, 0),
        _ => None,
    };
    if let Some(number) = name {
        return Ok(number);
    }
    let (min, max) = match (index, dialect) {
        (DAY_OF_WEEK, CronDialect::Unix) => (0, 7),
        (DAY_OF_WEEK, CronDialect::Quartz) => (1, 7),
        _ => (field.min, field.max),
    };
    let kind = match index {
        MONTH => "a number or a month's name",
        DAY_OF_WEEK => "a number or a day's name",
        _ => "a number",
    };
    let number = digits(text).map_err(|_| format!("{kind} was expected"))?;
    if !(min..=max).contains(&number) {
        return Err(format!("the value must be from {min} to {max}"));
    }
    match (index, dialect) {
        (DAY_OF_WEEK, CronDialect::Quartz) => Ok(number - 1),
        _ => Ok(number),
    }
}
