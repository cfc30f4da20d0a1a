//! Places in the log of a run: the cursors of its lines, and the ids of the events with which a follower gets them.
//!
//! A cursor is a position in time: it is the same in every answer. A follower needs more. Attempts write at the same time,
//! and a worker reports its lines when it likes, with the times that it likes, so a line can become visible after the
//! follower was sent later ones. So the id of an event has behind the cursor of its line the next line of each attempt: a
//! follower that comes back with it gets what is missing, and nothing twice. If there are too many attempts, it names those
//! of the latest lines. Of the others, lines of the last minute before the event are sent again: few of them write then.

use std::collections::HashMap;
use std::fmt::Write as _;

use heddle_domain::run::AttemptKey;
use heddle_store::live::LogRow;
use heddle_store::log::{LogPosition, LogsSeen};

/// How many attempts the id of an event names at most. An id is then shorter than 2 KiB.
const NAMED_MAX: usize = 32;

/// The end of an id that does not name all attempts.
const OTHERS: &str = "*";

/// How long before an event the lines of attempts that its id does not name are sent again, in microseconds.
const SENT_AGAIN_MICROS: i64 = 60_000_000;

/// A log position as text: micros, task, item, attempt, line.
pub(super) fn cursor_of(row: &LogRow) -> String {
    let key = row.at.key;
    format!(
        "{}-{}-{}-{}-{}",
        row.time.timestamp_micros(),
        key.task,
        key.item_number(),
        row.at.attempt,
        row.line
    )
}

/// The numbers of a text that has so many. The third from the end is an item, which may be -1: its sign is not a separator.
fn numbers<const N: usize>(text: &str) -> Option<[i64; N]> {
    let text = text.replace("--1-", "-_-");
    let mut parts = text.split('-');
    let mut numbers = [0; N];
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = match parts.next()? {
            "_" if index + 3 == N => -1,
            part => part.parse().ok()?,
        };
    }
    parts.next().is_none().then_some(numbers)
}

fn parse_cursor(text: &str) -> Option<LogPosition> {
    let [at_micros, task, item, attempt, line] = numbers::<5>(text)?;
    Some(LogPosition {
        at_micros,
        task: task.try_into().ok()?,
        item: item.try_into().ok()?,
        attempt: attempt.try_into().ok()?,
        line: line.try_into().ok()?,
    })
}

/// An attempt, and its next line.
fn parse_next(text: &str) -> Option<(AttemptKey, i32)> {
    let [task, item, attempt, next] = numbers::<4>(text)?;
    let at = AttemptKey::from_numbers(task.try_into().ok()?, item.try_into().ok()?, attempt.try_into().ok()?);
    Some((at, next.try_into().ok()?))
}

/// Where a reader of a log continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The last line that it was sent, or has read.
    pub(super) line: LogPosition,
    /// What it was sent up to there. `None`: it has a cursor, and not the id of an event.
    pub(super) sent: Option<Sent>,
}

impl Place {
    /// From a cursor, or the id of an event.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let line = parse_cursor(parts.next()?)?;
        let mut sent = None;
        for part in parts {
            let sent = sent.get_or_insert_with(Sent::default);
            match part {
                _ if sent.has_others => return None,
                OTHERS => sent.has_others = true,
                part if sent.nexts.len() < NAMED_MAX => sent.nexts.push(parse_next(part)?),
                _ => return None,
            }
        }
        Some(Self { line, sent })
    }
}

/// How far a follower was sent the lines of each attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// The next line of each attempt; those of the latest lines come last.
    nexts: Vec<(AttemptKey, i32)>,
    /// There were more attempts than it names.
    has_others: bool,
}

impl Sent {
    /// For a follower that has seen this.
    pub(super) fn of(seen: &LogsSeen) -> Self {
        let mut sent = Self::default();
        for (at, next) in seen {
            sent.move_to(*at, *next);
        }
        sent
    }

    /// The next lines of the attempts that it names.
    pub(super) fn named(&self) -> impl Iterator<Item = (AttemptKey, i32)> {
        self.nexts.iter().copied()
    }

    /// Up to where the follower has certainly seen the lines of attempts that it does not name. `line`: the line of its
    /// event. `None`: it was sent none of theirs.
    pub(super) fn others_until(&self, line: LogPosition) -> Option<LogPosition> {
        let at_micros = line.at_micros.saturating_sub(SENT_AGAIN_MICROS);
        self.has_others.then_some(LogPosition { at_micros, ..line })
    }

    fn move_to(&mut self, at: AttemptKey, next: i32) {
        self.nexts.retain(|(other, _)| *other != at);
        self.nexts.push((at, next));
        if self.nexts.len() > NAMED_MAX {
            self.nexts.remove(0);
            self.has_others = true;
        }
    }

    /// The id of the event of a line, after which this was sent.
    fn id(&self, line: &LogRow) -> String {
        let mut id = cursor_of(line);
        for (AttemptKey { key, attempt }, next) in &self.nexts {
            let _ = write!(id, ",{}-{}-{attempt}-{next}", key.task, key.item_number());
        }
        if self.has_others {
            id.push(',');
            id.push_str(OTHERS);
        }
        id
    }
}

/// The ids of the events of lines that are sent in this order; `seen` and `sent` become what is so afterwards.
///
/// Lines are sent in the order of their time. If that is not the order of an attempt's lines, its next line is the first one
/// that is still to be sent, until then.
pub(super) fn ids(rows: &[LogRow], seen: &mut LogsSeen, sent: &mut Sent) -> Vec<String> {
    for row in rows {
        let next = seen.entry(row.at).or_default();
        *next = (*next).max(row.line + 1);
    }
    let mut first_left: HashMap<AttemptKey, i32> = HashMap::new();
    let mut nexts: Vec<i32> = Vec::with_capacity(rows.len());
    for row in rows.iter().rev() {
        let left = first_left.get(&row.at).or_else(|| seen.get(&row.at));
        nexts.push(left.copied().unwrap_or_default());
        let first = first_left.entry(row.at).or_insert(row.line);
        *first = (*first).min(row.line);
    }
    let lines = rows.iter().zip(nexts.into_iter().rev());
    lines
        .map(|(row, next)| {
            sent.move_to(row.at, next);
            sent.id(row)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use heddle_domain::Time;
    use heddle_domain::id::RunId;
    use heddle_domain::state::LogLevel;

    use super::*;

    fn attempt(item: i32) -> AttemptKey {
        AttemptKey::from_numbers(0, item, 1)
    }

    /// A line of an item at so many microseconds.
    fn row(item: i32, line: i32, micros: i64) -> LogRow {
        LogRow {
            run: RunId(uuid::Uuid::nil()),
            at: attempt(item),
            line,
            time: Time::UNIX_EPOCH + chrono::TimeDelta::microseconds(micros),
            level: LogLevel::Info,
            message: "said".into(),
            fields: None,
        }
    }

    fn sent(text: &str) -> LogsSeen {
        let place = Place::parse(text).expect("a place");
        place.sent.expect("the id of an event").named().collect()
    }

    #[test]
    fn places_are_read_back() {
        let line = LogPosition {
            at_micros: 1_795_499_958_954_908,
            task: 2,
            item: -1,
            attempt: 3,
            line: 4,
        };
        let cursor = "1795499958954908-2--1-3-4";
        assert_eq!(Place::parse(cursor), Some(Place { line, sent: None }));
        let place = Place::parse(&format!("{cursor},2--1-3-5,0-7-1-9,*")).expect("a place");
        let of_id = place.sent.expect("the id of an event");
        assert_eq!(place.line, line);
        let named: Vec<_> = of_id.named().collect();
        let first = AttemptKey::from_numbers(2, -1, 3);
        assert_eq!(named, [(first, 5), (attempt(7), 9)]);
        let until = of_id.others_until(line).expect("there are others");
        assert_eq!(until.at_micros, line.at_micros - SENT_AGAIN_MICROS);
        for wrong in [
            "",
            ",",
            "x",
            "1-2",
            "1-2-3-4",
            "1-_-3-4-5",
            "1-2-3-4-5-6",
            "1-2-3-4-9999999999",
        ] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
        for wrong in ["", "1-2-3", "1--1-3", "_-1-2-3", "*,1-2-3-4", "1-2-3-4-5"] {
            assert_eq!(Place::parse(&format!("{cursor},{wrong}")), None, "{wrong}");
        }
    }

    #[test]
    fn an_id_says_what_is_still_to_be_sent() {
        let (mut seen, mut told) = (LogsSeen::new(), Sent::default());
        // The lines of the first item are out of order in time; those of the second are as usual.
        let rows = [row(1, 0, 1), row(0, 2, 2), row(0, 0, 3), row(1, 1, 4), row(0, 1, 5)];
        let ids = ids(&rows, &mut seen, &mut told);
        let expect: [&[(i32, i32)]; 5] = [
            &[(1, 1)],
            &[(1, 1), (0, 0)],
            &[(1, 1), (0, 1)],
            &[(1, 2), (0, 1)],
            &[(1, 2), (0, 3)],
        ];
        for (id, expect) in ids.iter().zip(expect) {
            let expect: LogsSeen = expect.iter().map(|(item, next)| (attempt(*item), *next)).collect();
            assert_eq!(sent(id), expect, "{id}");
        }
        assert_eq!(seen, sent(&ids[4]));
        assert!(ids[0].starts_with(&cursor_of(&rows[0])));
    }

    #[test]
    fn an_id_names_the_attempts_of_the_latest_lines() {
        let (mut seen, mut told) = (LogsSeen::new(), Sent::default());
        let many = NAMED_MAX as i32;
        let rows: Vec<LogRow> = (0..many).map(|item| row(item, 0, item.into())).collect();
        let all = ids(&rows, &mut seen, &mut told).pop().expect("an id");
        assert_eq!((sent(&all).len(), told.has_others), (NAMED_MAX, false));
        // The first one is among the latest again; the second one is not named any more.
        let more = ids(&[row(0, 1, 100), row(many, 0, 101)], &mut seen, &mut told);
        let last = more.last().expect("an id");
        let named = sent(last);
        assert_eq!(
            (named.len(), named.get(&attempt(0)), named.get(&attempt(1))),
            (NAMED_MAX, Some(&2), None)
        );
        assert!(last.ends_with(",*") && last.len() < 2_048, "{last}");
        assert!(Sent::of(&seen).has_others);
    }
}
