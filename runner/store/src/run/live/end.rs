//! The end of a run, said once in SQL: whatever ends it, its row goes to history, schedules count their delays, and followers
//! and the feed are told. And its way back, if somebody continues it.

use heddle_domain::id::RunId;
use heddle_domain::state::{RunState, Skip};
use uuid::Uuid;

use super::{AttemptRow, Completion, LogRow, RunWrite};
use crate::database::column;
use crate::run::kept::with_kept_columns;
use crate::{Store, StoreError};

/// A statement that ends runs: an `sqlx::query!` whose text begins with `$ends` and ends with `$answer`.
///
/// `$ends` is a `WITH` whose last part, `gone`, deletes the runs from *runs_live* and returns of each its row, and:
///
/// * `end_state`, `end_progress`, `end_error`, and `skipped` if it never began;
/// * `ended_at`: the instant of its end, never before it began. Its row, its event and what counts from its end have it;
/// * `told`: its end was told before, and is not told again.
///
/// `$answer` selects from `gone`, and from `followed` the runs that succeeded and whose group others follow.
///
/// Locking: `$ends` has the runs' rows. Schedules that await these runs come last, in the order of group and name. A
/// schedule that awaits a run is not due, so no scheduler holds its row; a change of its group may, but locks no run, and
/// both lock the schedules of a group in the order of names.
///
/// A function of the database in place of this macro costs as much (measured with one and with a hundred runs at a time),
/// but its text would stand in a migration, where no macro checks it and no plan shows what it does, and a change of it
/// would reach the old nodes too that are still at work during an upgrade.
macro_rules! end_runs {
    ($ends:literal, $answer:literal, $($arguments:tt)+) => {
        with_kept_columns!(end_runs_keeping!($ends, $answer, $($arguments)+))
    };
}

/// [`end_runs`], with the columns that are kept.
macro_rules! end_runs_keeping {
    ($kept:literal; $ends:literal, $answer:literal, $($arguments:tt)+) => {
        sqlx::query!(
            $ends
                + "
            -- One that was continued and has only waited since did no work: it was reopened at its end.
            done AS (
                INSERT INTO heddle.runs_done ("
                + $kept
                + ", state, deadline_at, parent_run, parent_task, parent_item, parent_attempt,
                    reopened_at, progress, finished_at, error, skipped)
                SELECT "
                + $kept
                + ", end_state, deadline_at, parent_run, parent_task, parent_item, parent_attempt,
                    CASE WHEN waiting_for IS NULL OR reopened_at IS NULL THEN reopened_at ELSE ended_at END, end_progress,
                    ended_at, end_error, skipped
                  FROM gone
            ),
            awaiting AS MATERIALIZED (
                SELECT s.group_id, s.name, g.id, g.ended_at
                  FROM gone g JOIN heddle.schedules s ON s.group_id = ANY (ARRAY[g.group_id]) AND s.awaits = g.id
                 WHERE g.trigger IN (1, 2, 3)
                 ORDER BY s.group_id, s.name FOR NO KEY UPDATE OF s
            ),
            counted AS (
                UPDATE heddle.schedules s
                   SET awaits = NULL, cursor = a.ended_at,
                       next_fire_at = CASE
                           WHEN s.live AND greatest(a.ended_at + s.delay, s.starts_at) < coalesce(s.ends_at, 'infinity')
                               THEN greatest(a.ended_at + s.delay, s.starts_at)
                       END
                  FROM awaiting a
                 WHERE s.group_id = ANY (ARRAY[a.group_id]) AND s.name = a.name AND s.awaits = a.id
            ),
            followed AS (
                INSERT INTO heddle.link_events (kind, group_id, run, logical_time, source, backfilled)
                SELECT 0, g.group_id, g.id, g.logical_time, g.source, g.trigger = 2
                  FROM gone g
                 WHERE g.end_state = 3
                   AND EXISTS (SELECT FROM heddle.group_links l WHERE l.upstream_id = g.group_id AND l.kind = 'depends_on')
                RETURNING run
            ),
            -- One row of the feed for all runs that ended alike; see migration 0006. An end that was told is not told again.
            noted AS (
                INSERT INTO heddle.events (kind, at, data)
                SELECT CASE WHEN x.skipped IS NULL THEN (ARRAY['run.succeeded', 'run.failed', 'run.cancelled'])[x.end_state - 2]
                            ELSE 'run.skipped' END, max(x.ended_at),
                       jsonb_agg(jsonb_build_object('run', x.id, 'group', g.name, 'trigger',
                           (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[x.trigger + 1],
                           'logical_time', heddle.moment(x.logical_time), 'error', x.end_error,
                           'at', heddle.moment(x.ended_at))
                           || CASE WHEN x.skipped IS NULL THEN '{}'::jsonb
                                   ELSE jsonb_build_object('skipped', (ARRAY['overlap', 'max_waiting'])[x.skipped]) END)
                  FROM gone x JOIN heddle.groups g ON g.id = x.group_id
                 WHERE NOT x.told
                 GROUP BY 1
            )
            "
                + $answer,
            $($arguments)+
        )
    };
}

/// The statement of [`Completion::reopen`], with the columns that are kept.
macro_rules! reopen_keeping {
    ($kept:literal; $runs:expr, $at:expr) => {
        sqlx::query!(
            "WITH gone AS (DELETE FROM heddle.runs_done WHERE id = ANY ($1) RETURNING *),
             unnoted AS (DELETE FROM heddle.successes WHERE run = ANY ($1)),
             back AS (
                 INSERT INTO heddle.runs_live ("
                + $kept
                + ", state, deadline_at, reopened_at, progress)
                 SELECT "
                + $kept
                + ", CASE WHEN started_at IS NULL THEN 0 ELSE 1 END,
                        CASE WHEN deadline_at > now() THEN deadline_at END, $2, progress
                   FROM gone
                 RETURNING id, deadline_at
             )
             INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at)
             SELECT id, -1, -1, 1, 0, deadline_at FROM back WHERE deadline_at IS NOT NULL",
            $runs,
            $at
        )
    };
}

/// A run of one task run whose outcome ends it; see [`Store::complete_single_task`].
#[derive(Clone, Debug)]
pub struct SingleTaskEnd {
    /// The attempt; `started_at` is not used.
    pub attempt: AttemptRow,
    /// The final state of the run.
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    pub error: Option<String>,
}

impl Completion {
    /// Moves ended runs, in the order of their ids, from *live* to history, tells parents of sub-runs and groups that
    /// follow, wakes turnstiles, and makes fixed delays due that are counted from these ends. Returns whether a sub-run
    /// ended, and whether a run succeeded whose group others follow.
    ///
    /// Locking: the caller holds the runs' rows. They are deleted in the order of their ids: a scheduler that keeps runs
    /// from ending until it has noted that it awaits them (`move_schedules`) does so in that order. The parent's run is not
    /// locked here (that would be a second lock out of order): its settlement is picked up by a transaction of its own; so
    /// are the events for followers. The rest is said at `end_runs`.
    pub(super) async fn finish_runs(&mut self, ended: &[&RunWrite]) -> Result<(bool, bool), StoreError> {
        let rows = end_runs!(
            "-- finish_runs
             WITH ended AS (
                 SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::bytea[], $4::text[], $6::boolean[], $7::smallint[],
                     $8::boolean[]) AS e (id, state, progress, error, gated, skipped, told)
             ),
             gone AS (
                 DELETE FROM heddle.runs_live l USING ended e WHERE l.id = ANY (ARRAY[e.id])
                 RETURNING l.*, e.state AS end_state, e.progress AS end_progress, e.error AS end_error, e.gated, e.skipped, e.told,
                           greatest($5, l.created_at, l.started_at, l.reopened_at) AS ended_at
             ),
             settlements AS (
                 INSERT INTO heddle.settlements (run, task, item, attempt, child, state, error)
                 SELECT parent_run, parent_task, parent_item, parent_attempt, id, end_state, end_error
                   FROM gone WHERE parent_run IS NOT NULL
             ),
             woken AS (
                 INSERT INTO heddle.turnstiles (group_id) SELECT DISTINCT group_id FROM gone WHERE gated
             ),",
            r#"SELECT id AS "id!", parent_run IS NOT NULL AS "has_parent!", id IN (SELECT run FROM followed) AS "followed!"
                 FROM gone"#,
            &column(ended, |write| write.run.0),
            &column(ended, |write| write.state.number()),
            &column(ended, |write| write.progress.as_slice()) as &[&[u8]],
            &column(ended, |write| write.error.as_deref()) as &[Option<&str>],
            self.now,
            &column(ended, |write| write.gated),
            &column(ended, |write| write.skipped.map(Skip::number)) as &[Option<i16>],
            &column(ended, |write| write.told)
        )
        .fetch_all(&mut *self.tx)
        .await?;
        Ok((
            rows.iter().any(|row| row.has_parent),
            rows.iter().any(|row| row.followed),
        ))
    }

    /// Makes ended runs live again that this transaction has locked, and notes since when they continue. (A run that ends
    /// again at once gets the time of that end: it did no work.) A deadline that has not passed is still valid, so its
    /// timer, which was deleted at the end, is set again. A deadline that has passed has had its effect. A run that never
    /// began is waiting, until the caller writes its next state.
    ///
    /// The row in *successes* is deleted, because the run may fail now. If it succeeds again, it gets a new one.
    pub async fn reopen(&mut self, runs: &[RunId]) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        let now = self.now;
        with_kept_columns!(reopen_keeping!(&column(runs, |run| run.0), now))
            .execute(&mut *self.tx)
            .await?;
        Ok(())
    }
}

impl Store {
    /// Ends runs of one task run with their attempts, in one statement, under this node's lease; returns which of them
    /// it has ended, and whether a run succeeded whose group others follow. `lines` are their log lines.
    ///
    /// For these no progress has to be read: the outcome of the attempt is the outcome of the run. (`+ 0`: the only
    /// task of each of these runs has the number 0, so a condition with an index on it would read the whole index.)
    ///
    /// Locking: runs first, in id order, then their rows in *running*, as in `lock_ended`; whoever deletes the row in
    /// *running* ends the run. The count is an initial plan of that DELETE, so all runs are locked before a row is deleted.
    /// The rest is said at `end_runs`.
    pub async fn complete_single_task(
        &self,
        rows: &[&SingleTaskEnd],
        lines: &[LogRow],
        lease: i64,
        node: Uuid,
    ) -> Result<(Vec<RunId>, bool), StoreError> {
        let owned = end_runs!(
            "-- complete_single_task
             WITH ended AS (
                 SELECT * FROM UNNEST($1::uuid[], $2::integer[], $3::smallint[], $4::bytea[], $5::text[], $6::smallint[],
                                      $7::boolean[], $8::timestamptz[], $9::text[], $10::smallint[], $11::text[], $12::text[],
                                      $13::bigint[], $14::bigint[])
                     AS e (run, attempt, run_state, progress, run_error, state, skipped, finished_at, output, error_kind,
                           error_message, error_trace, memory_bytes, cpu_micros)
             ),
             locked AS MATERIALIZED (
                 SELECT l.id FROM heddle.runs_live l WHERE l.id = ANY ($1) ORDER BY l.id FOR UPDATE
             ),
             logged AS (
                 -- What a zombie logged is kept as well: it happened.
                 INSERT INTO heddle.logs (run, task, item, attempt, line, at, level, message, fields)
                 SELECT l.run, 0, -1, l.attempt, l.line, l.at, l.level, l.message, l.fields
                   FROM UNNEST($17::uuid[], $18::integer[], $19::integer[], $20::timestamptz[], $21::smallint[], $22::text[],
                               $23::text[]) AS l (run, attempt, line, at, level, message, fields)
                 ON CONFLICT DO NOTHING
             ),
             fenced AS (
                 DELETE FROM heddle.running r
                  USING ended e
                  WHERE r.run = ANY (ARRAY[e.run]) AND r.task + 0 = 0 AND r.item + 0 = -1 AND r.attempt = e.attempt
                    AND r.lease = $15 AND (SELECT count(*) FROM locked) >= 0
                 RETURNING e.*, r.started_at, greatest(e.finished_at, r.started_at) AS ended_at
             ),
             recorded AS (
                 INSERT INTO heddle.attempts (run, task, item, attempt, state, skipped, started_at, finished_at, node, output,
                     error_kind, error_message, error_trace, memory_bytes, cpu_micros)
                 SELECT run, 0, -1, attempt, state, skipped, started_at, ended_at, $16, output,
                     error_kind, error_message, error_trace, memory_bytes, cpu_micros
                   FROM fenced
             ),
             gone AS (
                 DELETE FROM heddle.runs_live l USING fenced f WHERE l.id = ANY (ARRAY[f.run])
                 RETURNING l.*, f.run_state AS end_state, f.progress AS end_progress, f.run_error AS end_error,
                           NULL::smallint AS skipped, false AS told,
                           greatest(f.ended_at, l.created_at, l.started_at, l.reopened_at) AS ended_at
             ),",
            r#"SELECT run AS "run!", run IN (SELECT run FROM followed) AS "followed!" FROM fenced"#,
            &column(rows, |row| row.attempt.run.0),
            &column(rows, |row| row.attempt.at.attempt as i32),
            &column(rows, |row| row.state.number()),
            &column(rows, |row| row.progress.as_slice()) as &[&[u8]],
            &column(rows, |row| row.error.as_deref()) as &[Option<&str>],
            &column(rows, |row| row.attempt.state.number()),
            &column(rows, |row| row.attempt.skipped),
            &column(rows, |row| row.attempt.finished_at),
            &column(rows, |row| row.attempt.output.as_deref()) as &[Option<&str>],
            &column(rows, |row| row.attempt.error.as_ref().map(|error| error.0.number())) as &[Option<i16>],
            &column(rows, |row| row.attempt.error.as_ref().map(|error| error.1.as_str())) as &[Option<&str>],
            &column(rows, |row| row
                .attempt
                .error
                .as_ref()
                .and_then(|error| error.2.as_deref())) as &[Option<&str>],
            &column(rows, |row| row.attempt.memory_bytes) as &[Option<i64>],
            &column(rows, |row| row.attempt.cpu_micros) as &[Option<i64>],
            lease,
            node,
            &column(lines, |line| line.run.0),
            &column(lines, |line| line.at.attempt as i32),
            &column(lines, |line| line.line),
            &column(lines, |line| line.time),
            &column(lines, |line| line.level.number()),
            &column(lines, |line| line.message.as_str()) as &[&str],
            &column(lines, |line| line.fields.as_deref()) as &[Option<&str>]
        )
        .fetch_all(&self.pool)
        .await?;
        let followed = owned.iter().any(|row| row.followed);
        Ok((owned.into_iter().map(|row| RunId(row.run)).collect(), followed))
    }
}

#[cfg(test)]
mod tests {
    //! What is said twice all the same, is said alike.

    use heddle_domain::state::{RunState, Skip, Trigger};

    use crate::run::kept::KEPT;

    const END: &str = include_str!("end.rs");
    const WRITE: &str = include_str!("write.rs");
    const CREATE: &str = include_str!("../../sql/create_runs.sql");
    const STEP: &str = include_str!("../../sql/step_backfill.sql");
    const MISSED: &str = include_str!("../../schedule/mod.rs");

    const EVENT: &str = "INSERT INTO heddle.events";

    /// The words between these two marks.
    fn between(text: &str, begin: &str, end: &str) -> String {
        let (_, part) = text.split_once(begin).expect("the begin of a part");
        let (part, _) = part.split_once(end).expect("the end of a part");
        part.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ends_that_were_missed_count_delays_by_the_same_rule() {
        let due = |statement, end| {
            let rule = between(statement, "WHEN s.live AND greatest(", "END");
            assert!(rule.contains(end), "{rule}");
            rule.replace(end, "END OF THE RUN")
        };
        assert_eq!(due(END, "a.ended_at"), due(MISSED, "e.at"));
    }

    #[test]
    fn an_end_says_of_a_run_what_its_beginning_said() {
        let event_of = |statement: &str| {
            let (_, insert) = statement.split_once(EVENT).expect("an event");
            between(insert, "jsonb_agg(jsonb_build_object(", "FROM")
        };
        let begun = event_of(CREATE);
        for (file, statement) in [
            ("create_runs.sql", CREATE),
            ("step_backfill.sql", STEP),
            ("write.rs", WRITE),
        ] {
            assert_eq!(event_of(statement), begun, "{file}");
            assert_eq!(statement.matches(EVENT).count(), 1, "{file}");
            assert!(statement.contains("SELECT 'run.started', "), "{file}");
        }
        let ended = event_of(END);
        assert!(ended.starts_with(begun.trim_end_matches(')')), "{ended}");
    }

    /// `step_backfill` repeats what `create_runs` does, for one run.
    #[test]
    fn a_backfill_creates_runs_as_everybody_does() {
        // What its one run has by other names than many runs have.
        let own = [
            ("$7,", "run,"),
            ("$11,", "priority,"),
            ("$23", "$34"),
            ("begun.at", "$35"),
            ("rows, begun", "rows"),
        ];
        for (begin, end) in [
            ("rows AS MATERIALIZED (", " AS here"),
            ("queued AS (", "\n)"),
            ("running AS (", "\n)"),
        ] {
            let step = own
                .iter()
                .fold(between(STEP, begin, end), |part, (from, to)| part.replace(from, to));
            assert_eq!(step, between(CREATE, begin, end), "{begin}");
        }
        // A run of a backfill has none of these.
        let left_out = "task_params, key, dedupe, callback, deadline_at, parent_run, parent_task, parent_item, \
                        parent_attempt, waiting_for, created_by";
        let columns = |statement: &str| {
            let columns = between(statement, "INSERT INTO heddle.runs_live (", ")");
            columns.split(", ").map(str::to_owned).collect::<Vec<_>>()
        };
        let mut created = columns(CREATE);
        created.retain(|column| !left_out.split(", ").any(|other| other == column));
        let mut stepped = columns(STEP);
        created.sort();
        stepped.sort();
        assert_eq!(stepped, created);
        // It is handed all that the lease may have, or nothing.
        assert!(CREATE.contains("SELECT coalesce(bool_and(here), true) AS \"fit!\""));
        assert!(CREATE.contains("FROM rows WHERE handed"));
        assert!(STEP.contains("SELECT coalesce((SELECT bool_and(here) FROM rows WHERE handed), true) AS \"fit!\""));
    }

    /// Arrays of words in statements have the words of the domain, all of them, each at the place of its number.
    #[test]
    fn statements_have_the_words_of_the_domain() {
        let array = |words: &[&str], index: &str| format!("(ARRAY['{}'])[x.{index}]", words.join("', '"));
        let triggers: Vec<&str> = Trigger::ALL.iter().map(|trigger| trigger.as_str()).collect();
        let triggers = array(&triggers, "trigger + 1");
        let numbers: Vec<i16> = Trigger::ALL.iter().map(|trigger| trigger.number()).collect();
        assert_eq!(numbers, (0..numbers.len() as i16).collect::<Vec<_>>());
        for (file, statement) in [
            ("create_runs.sql", CREATE),
            ("step_backfill.sql", STEP),
            ("write.rs", WRITE),
            ("end.rs", END),
        ] {
            assert_eq!(
                statement.matches(&triggers).count(),
                1,
                "{file} does not have {triggers}"
            );
        }
        let skips: Vec<&str> = Skip::ALL.iter().map(|skip| skip.as_str()).collect();
        let numbers: Vec<i16> = Skip::ALL.iter().map(|skip| skip.number()).collect();
        assert_eq!(numbers, (1..=numbers.len() as i16).collect::<Vec<_>>());
        assert!(END.contains(&array(&skips, "skipped")), "{skips:?}");
        let ends = RunState::ALL.iter().filter(|state| state.is_final());
        let (numbers, ends): (Vec<i16>, Vec<String>) =
            ends.map(|state| (state.number(), format!("run.{state}"))).unzip();
        assert_eq!(numbers, [3, 4, 5]);
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        assert!(END.contains(&array(&ends, "end_state - 2")), "{ends:?}");
    }

    #[test]
    fn what_a_run_is_created_with_it_keeps() {
        let kept: Vec<&str> = KEPT.split(", ").collect();
        // These are named where a run ends, and those that it gets back where it is continued.
        let own = "state, deadline_at, parent_run, parent_task, parent_item, parent_attempt";
        let created = between(CREATE, "INSERT INTO heddle.runs_live (", ")");
        for column in created.split(", ") {
            let is_dropped = ["waiting_for", "progress"].contains(&column);
            let is_named = own.split(", ").any(|named| named == column);
            assert!(
                is_dropped || is_named != kept.contains(&column),
                "{column} is lost or named twice"
            );
        }
        assert_eq!(between(END, "+ $kept\n                + \", ", ",\n"), own);
    }
}
