//! Log lines: when others can see them, and how long an outcome waits for them.

use futures::FutureExt;

use super::*;
use crate::runs::record::logs::LogWriter;

/// An attempt in hand, whose log a writer writes.
struct Logging {
    world: World,
    node: Simulated,
    writer: LogWriter,
    run: RunId,
    at: AttemptKey,
    held: HeldAttempt,
}

impl Logging {
    async fn begun() -> Self {
        let world = with_due(&["g"]).await;
        let slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$;
             CREATE TRIGGER slow BEFORE INSERT ON heddle.logs FOR EACH STATEMENT EXECUTE FUNCTION public.slow()";
        world.execute(slow).await;
        let mut node = world.node(1).await;
        node.tick(&mut Scheduler(node.schedules())).await;
        let (run, at) = node.only_begun();
        let long_logs = node.records();
        Self {
            writer: LogWriter::of(node.runs.clone(), long_logs),
            held: node.runs.held.get(run, at.key).expect("it is in hand"),
            world,
            node,
            run,
            at,
        }
    }

    fn say(&self, lines: std::ops::Range<u32>) {
        for line in lines {
            let now = self.world.now();
            self.held.log.say(self.run, self.at, now, line.to_string());
        }
    }

    /// How many lines are committed.
    async fn seen(&self) -> i64 {
        self.world.one("SELECT count(*) FROM heddle.logs").await
    }

    async fn tick(&mut self) -> Duration {
        self.node.tick(&mut self.writer).await
    }

    /// A tick whose statement the database takes this long for.
    async fn slow_tick(&mut self, takes: TimeDelta) -> Duration {
        let world = &self.world;
        let now = world.now();
        world.execute("SELECT pg_advisory_lock(77)").await;
        let meanwhile = async {
            let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                  WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted)";
            until(async || world.one::<bool>(waits).await).await;
            world.pass(takes).await;
            world.execute("SELECT pg_advisory_unlock(77)").await;
        };
        let (next, ()) = tokio::join!(self.writer.tick(now), meanwhile);
        next.expect("a tick")
    }

    /// The attempt has ended.
    fn succeed(&self) {
        let runs = &self.node.runs;
        let report = Report {
            run: self.run,
            at: self.at,
            context: runs.contexts.get(&self.run).expect("its context"),
            held: self.held.clone(),
            end: End::plain(Ending::Succeeded("null".into())),
            finished_at: self.world.now(),
            lasted: Duration::ZERO,
            lines: Vec::new(),
        };
        runs.reports.record(&runs.node, report);
    }

    async fn has_succeeded(&self) -> bool {
        !self.world.runs("succeeded").await.is_empty()
    }
}

/// What an attempt says can be seen as soon as it is written. It is written in pieces of 500 lines, and after each the
/// writer pauses for as long as the database took for it; nothing makes it go on sooner. When it has written all, it looks
/// again after 200 ms.
#[tokio::test]
async fn lines_are_written_in_pieces_with_pauses() {
    let mut log = Logging::begun().await;
    let flush = Duration::from_millis(200);
    assert_eq!((log.writer.first_after(), log.tick().await), (flush, flush));
    log.say(0..3);
    assert_eq!(log.seen().await, 0);
    assert_eq!((log.tick().await, log.seen().await), (Duration::ZERO, 3));
    assert_eq!(log.tick().await, flush);
    log.say(3..803);
    let took = TimeDelta::milliseconds(40);
    assert_eq!(
        (log.slow_tick(took).await, log.seen().await),
        (Duration::from_millis(40), 503)
    );
    log.succeed();
    let asked = &log.node.runs.reports.log_writer;
    until(async || asked.capacity() < asked.max_capacity()).await;
    assert!(log.writer.woken().now_or_never().is_none(), "it pauses");
    assert_eq!((log.tick().await, log.seen().await), (Duration::ZERO, 803));
}

/// An outcome waits for the lines of its attempt until writing has taken five seconds, with the pauses, and no moment less:
/// then it is recorded with the last line, and with a line that says how many are left out.
#[tokio::test]
async fn an_outcome_waits_five_seconds_for_its_lines() {
    let mut log = Logging::begun().await;
    log.say(0..2_000);
    log.succeed();
    soon(log.writer.woken()).await;
    let half = TimeDelta::milliseconds(1_250);
    for (takes, seen) in [(half, 500), (half - MOMENT, 1_000)] {
        log.slow_tick(takes).await;
        log.node.settled().await;
        assert_eq!((log.seen().await, log.node.runs.held.len()), (seen, 1));
    }
    log.slow_tick(MOMENT).await;
    until(async || log.has_succeeded().await).await;
    assert_eq!(log.seen().await, 1_502);
    let last =
        "SELECT string_agg(split_part(message, ' (', 1), ', ' ORDER BY line) FROM heddle.logs WHERE line >= 1500";
    assert_eq!(log.world.one::<String>(last).await, "499 lines, 1999");
}

/// Lines that the database refuses are tried again, twenty times; then they are given up, and the outcome is recorded.
#[tokio::test]
async fn lines_that_are_refused_hold_up_no_outcome_for_ever() {
    let mut log = Logging::begun().await;
    log.world
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'on purpose'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON heddle.logs FOR EACH ROW EXECUTE FUNCTION public.refuse()",
        )
        .await;
    log.say(0..300);
    log.succeed();
    soon(log.writer.woken()).await;
    for attempt in 1..20 {
        let ticked = log.writer.tick(log.world.now()).await;
        assert!(ticked.is_err(), "attempt {attempt}");
    }
    log.tick().await;
    until(async || log.has_succeeded().await).await;
    assert_eq!(log.seen().await, 0);
}

/// A node that stops writes the lines that its writer has taken.
#[tokio::test]
async fn lines_that_were_taken_are_written_when_the_node_stops() {
    let mut log = Logging::begun().await;
    log.world
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'on purpose'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON heddle.logs FOR EACH ROW EXECUTE FUNCTION public.refuse()",
        )
        .await;
    log.say(0..300);
    assert!(log.writer.tick(log.world.now()).await.is_err());
    log.world.execute("DROP TRIGGER refuse ON heddle.logs").await;
    log.writer.finish().await;
    assert_eq!(log.seen().await, 300);
}
