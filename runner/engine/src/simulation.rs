//! Services alone, driven by a clock that the test sets: a real Postgres, no loops, and no other activity.
//!
//! There are two clocks, and both are set together: the node's clock stands still until it is set, and the test's
//! database has its own `clock_timestamp()`. So every period (a lease, a back-off, a month) lasts exactly as long as
//! the test says, on the slowest machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::notify;
use heddle_domain::notify::rules::Notice;
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::{NotifyEvent, gather_group};
use heddle_domain::state::ErrorKind;
use heddle_domain::{Chance, Clock, Name, Time};
use heddle_postgres::{TestCluster, TestDatabase, stamp};
use heddle_sandbox::{CompilerCommand, Sandbox, SandboxConfig};
use heddle_store::Store;
use heddle_store::change::By;
use heddle_store::live::{EndedAttempt, Grant};
use heddle_store::notice::NoticeRow;
use heddle_store::secret::{SecretKey, SecretKeys};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::RunContext;
use crate::node::clock::NodeClock;
use crate::node::lease::Keeper;
use crate::node::part::{Part, Parts};
use crate::node::service::Service;
use crate::node::short_ways::ShortWays;
use crate::node::{Identity, Node};
use crate::put_group::put_group;
use crate::retention::{Pruner, Rounds};
use crate::runs::claimer::Claimer;
use crate::runs::ending::{Applied, End, Ending};
use crate::runs::given_up::Abandoner;
use crate::runs::held::HeldAttempt;
use crate::runs::inbox::{Inbox, Reaper};
use crate::runs::{GatheringRuns, Runs, Worker};
use crate::schedules::{Links, Scheduler, Schedules};

mod work;

/// Replaces the database's clock: it returns the time in a table. What the migrations dated by the machine's clock is
/// long ago.
const CLOCK: &str = "
    CREATE TABLE public.simulated_clock (at timestamptz NOT NULL);
    INSERT INTO public.simulated_clock VALUES (pg_catalog.clock_timestamp());
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO machine_timestamp;
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
        AS 'SELECT at FROM public.simulated_clock';
    UPDATE heddle.upkeep SET due_at = '2000-01-01';";

/// For how long a lease holds.
const LEASE: TimeDelta = TimeDelta::seconds(8);

static CLUSTER: OnceCell<(TestCluster, String)> = OnceCell::const_new();

async fn cluster() -> (TestCluster, String) {
    let cluster = TestCluster::start().await.expect("a cluster");
    let program = std::env::current_exe().expect("the test's own file");
    let template = format!("simulation_{}", stamp(&program).expect("its stamp"));
    let migrate = async |url: String| {
        let store = Store::connect(&url, 1).await?;
        store.migrate().await?;
        store.close();
        client(&url).await.batch_execute(CLOCK).await?;
        Ok(())
    };
    cluster.template(&template, migrate).await.expect("a template");
    (cluster, template)
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// Chance that gives the same bits in each test run, and different ones with each call.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Chance for Counting {
    fn bits(&self) -> u128 {
        let n = u128::from(self.0.fetch_add(1, Ordering::Relaxed));
        (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
    }
}

/// A database and its time.
struct World {
    store: Store,
    sql: Client,
    clock: Arc<NodeClock>,
    chance: Arc<dyn Chance>,
    _database: TestDatabase,
}

fn at(text: &str) -> Time {
    text.parse().expect("an instant")
}

impl World {
    async fn at(start: &str) -> Self {
        let (cluster, template) = CLUSTER.get_or_init(cluster).await;
        let database = cluster.database(template).await.expect("a database");
        let start = at(start);
        let world = Self {
            store: Store::connect(database.url(), 4).await.expect("a store"),
            sql: client(database.url()).await,
            clock: Arc::new(NodeClock::by_hand(start)),
            chance: Arc::new(Counting::default()),
            _database: database,
        };
        world.set(start).await;
        // The partitions that the migrations created are for other days.
        world.store.make_all_partitions(2).await.expect("partitions");
        world
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn set(&self, to: Time) {
        let micros = to.timestamp_micros();
        let move_clock = "UPDATE public.simulated_clock SET at = to_timestamp($1::bigint / 1000000.0)";
        assert_eq!(self.sql.execute(move_clock, &[&micros]).await.expect("a clock"), 1);
        self.clock.set(to);
        assert_eq!((self.store.now().await.expect("a time"), self.now()), (to, to));
    }

    async fn pass(&self, time: TimeDelta) {
        self.set(self.now() + time).await;
    }

    /// A group of one task, which calls a server; its runs do not wait for each other.
    async fn group(&self, name: &str, more: Value) {
        let mut spec = json!({"tasks": {"t": {"http": {"url": "http://example.com/"}}}, "overlap": "allow"});
        let fields = spec.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        let spec = gather_group(&spec).rest.expect("a spec");
        let by = By {
            actor: "test",
            at: self.now(),
        };
        let name: Name = name.parse().expect("a name");
        let put = put_group(&self.store, by, &name, spec, None, None, None).await;
        put.expect("a group");
    }

    /// The logical times of all runs in this state, in their order.
    async fn runs(&self, state: &str) -> Vec<Time> {
        let state = heddle_domain::state::RunState::ALL
            .iter()
            .find(|one| one.as_str() == state)
            .expect("a state")
            .number();
        let made_for = "SELECT (extract(epoch FROM logical_time) * 1000000)::bigint
               FROM (SELECT state, logical_time FROM heddle.runs_live
                      UNION ALL SELECT state, logical_time FROM heddle.runs_done) AS runs
              WHERE state = $1 ORDER BY 1";
        let rows = self.sql.query(made_for, &[&state]).await.expect("runs");
        let instant = |micros: i64| chrono::DateTime::from_timestamp_micros(micros).expect("an instant");
        rows.into_iter().map(|row| instant(row.get(0))).collect()
    }

    async fn node(&self, number: u128) -> Simulated {
        let identity = Identity {
            id: Uuid::from_u128(number),
            name: number.to_string(),
            address: String::new(),
            version: String::new(),
            slots: 100,
            lease_for: LEASE.to_std().expect("a span"),
        };
        let node = Node::new(
            identity,
            self.store.clone(),
            self.clock.clone(),
            self.chance.clone(),
            ShortWays::ALL,
        );
        let node = Arc::new(node);
        let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
        let (runs, gathering) = Runs::new(node.clone(), sandbox(), Arc::new(keys), 100, 2);
        let begun = Arc::new(Begun::default());
        let worker: Arc<dyn Worker> = begun.clone();
        runs.held.carried_out_by(&worker);
        node.register().await.expect("a lease");
        let parts = Parts::new([runs.clone() as Arc<dyn Part>]);
        Simulated {
            keeper: Keeper::of(node.clone(), parts),
            node,
            runs,
            begun,
            _worker: worker,
            _gathering: gathering,
        }
    }
}

/// It runs nothing; it only says how many slots there are.
fn sandbox() -> Sandbox {
    static SANDBOX: std::sync::OnceLock<(Sandbox, tempfile::TempDir)> = std::sync::OnceLock::new();
    let (sandbox, _) = SANDBOX.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let compiler = CompilerCommand {
            program: "false".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let config = SandboxConfig {
            threads: 1,
            long_threads: 1,
            max_instances: 4,
            max_memory_bytes: 1 << 20,
            ..SandboxConfig::new(directory.path().to_owned(), compiler)
        };
        let sandbox = Sandbox::new(config, Arc::new(NodeClock::default())).expect("a sandbox");
        (sandbox, directory)
    });
    sandbox.clone()
}

/// Attempts that a node was given, in their order. They end only when the test says so.
#[derive(Default)]
struct Begun(Mutex<Vec<(RunId, AttemptKey)>>);

impl Worker for Begun {
    fn begin(self: Arc<Self>, context: Arc<RunContext>, at: AttemptKey, _hand: HeldAttempt) {
        self.0.lock().push((context.facts.id, at));
    }
}

/// A node that does nothing by itself.
struct Simulated {
    node: Arc<Node>,
    runs: Arc<Runs>,
    keeper: Keeper,
    begun: Arc<Begun>,
    _worker: Arc<dyn Worker>,
    _gathering: GatheringRuns,
}

impl Simulated {
    fn schedules(&self) -> Arc<Schedules> {
        Arc::new(Schedules::new(self.node.clone(), self.runs.clone()))
    }

    /// One tick of a service, and what it has started.
    async fn tick(&self, service: &mut impl Service) {
        let ticked = service.tick(self.node.now()).await;
        ticked.expect("a tick");
        self.node.tracker.close();
        self.node.tracker.wait().await;
        self.node.tracker.reopen();
    }

    /// The attempts that began since the last call.
    fn begun(&self) -> Vec<(RunId, AttemptKey)> {
        std::mem::take(&mut *self.begun.0.lock())
    }

    /// The same, when there is only one.
    fn only_begun(&self) -> (RunId, AttemptKey) {
        let [begun] = self.begun()[..] else {
            panic!("one attempt has begun");
        };
        begun
    }

    async fn end(&self, (run, at): (RunId, AttemptKey), ending: Ending) {
        let now = self.node.now();
        let lease = self.runs.lease();
        let applied = Applied {
            ended: EndedAttempt { run, at, lease },
            end: End::plain(ending),
            finished_at: Some(now),
            node: Some(self.node.identity.id),
        };
        let contexts = self.runs.contexts_of(&[run]).await.expect("a context");
        let mut completion = self.node.completion("simulated_end").await.expect("a transaction");
        let mut grant = Grant::none();
        let after = self.runs.apply(&mut completion, &contexts, vec![applied], &mut grant);
        let after = after.await.expect("an end");
        completion.commit().await.expect("a commit");
        self.runs.acted(after);
        self.runs.held.forget(run, at);
    }
}

/// Every noon of March in Zurich, whose clocks are put forward on the 29th: no microsecond sooner, and none twice.
#[tokio::test]
async fn a_schedule_fires_at_exactly_the_instants_of_a_month() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let noon = json!({"cron": "0 12 * * *", "timezone": "Europe/Zurich"});
    world.group("g", json!({"schedules": {"noon": noon}})).await;
    let node = world.node(1).await;
    let mut scheduler = Scheduler(node.schedules());
    let mut rounds = Rounds::of(Arc::new(Pruner::new(node.node.clone())));
    let expected: Vec<Time> = (1..=31)
        .map(|day| at(&format!("2026-03-{day:02}T{}:00:00Z", if day < 29 { 11 } else { 10 })))
        .collect();
    for (day, instant) in expected.iter().enumerate() {
        world.set(*instant - TimeDelta::microseconds(1)).await;
        node.tick(&mut rounds).await;
        node.tick(&mut scheduler).await;
        assert_eq!(world.runs("running").await.len(), day, "before {instant}");
        world.set(*instant).await;
        node.tick(&mut scheduler).await;
        node.tick(&mut scheduler).await;
        assert_eq!(world.runs("running").await, expected[..=day]);
    }
}

/// When a node is not heard of any more, another node runs its attempts as soon as its lease has expired, and not
/// before; and the node itself has stopped by then.
#[tokio::test]
async fn a_lease_runs_out_and_is_taken_over() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"schedules": {"s": {"every": "1h"}}})).await;
    let (mut one, mut other) = (world.node(1).await, world.node(2).await);
    world.pass(TimeDelta::hours(1)).await;
    // Both have been alive all the time.
    for node in [&one, &other] {
        node.node.register().await.expect("a lease");
    }
    one.keeper = Keeper::of(one.node.clone(), Parts::new([one.runs.clone() as Arc<dyn Part>]));
    other.keeper = Keeper::of(other.node.clone(), Parts::new([other.runs.clone() as Arc<dyn Part>]));
    one.tick(&mut Scheduler(one.schedules())).await;
    let (run, first) = one.only_begun();
    let mut reaper = Reaper::of(other.runs.clone());
    let lease = one.runs.lease();
    // One sends no heartbeat any more; the other does.
    for _ in 0..3 {
        world.pass(TimeDelta::seconds(2)).await;
        other.keeper.tick(world.now()).await.expect("a heartbeat");
        other.tick(&mut reaper).await;
        assert_eq!(other.begun(), [], "the lease holds");
    }
    assert!(!one.node.is_fenced());
    world.pass(TimeDelta::seconds(2)).await;
    other.keeper.tick(world.now()).await.expect("a heartbeat");
    other.tick(&mut reaper).await;
    let second = AttemptKey { attempt: 2, ..first };
    assert_eq!(other.begun(), [(run, second)]);
    // It finds that its time is over before it asks the database, stops what it has in hand, and continues under a new
    // lease.
    let held = one.runs.held.get(run, first.key).expect("it is in hand");
    one.keeper.tick(world.now()).await.expect("a new lease");
    assert!(held.stop.is_cancelled());
    assert!(!one.node.is_fenced() && one.runs.lease() > lease);
    assert_eq!(one.node.state.now().leases_lost, 1);
}

/// If a newer build has written the progress of a run, an older node does not change the run. It takes the run over when it
/// can read the progress.
#[tokio::test]
async fn a_run_of_a_newer_format_is_left_to_newer_nodes() {
    // Format 3; see `heddle_domain::run`.
    is_left_to_newer_nodes("'\\x800003'::bytea || progress", "substr(progress, 4)").await;
    // The state of its task.
    is_left_to_newer_nodes("set_byte(progress, 1, 10)", "set_byte(progress, 1, 1)").await;
}

async fn is_left_to_newer_nodes(newer: &str, older: &str) {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world
        .group("g", json!({"schedules": {"s": {"once": {"delay": "1s"}}}}))
        .await;
    world.pass(TimeDelta::seconds(1)).await;
    let one = world.node(1).await;
    one.tick(&mut Scheduler(one.schedules())).await;
    let (run, first) = one.only_begun();
    let progress = async || {
        let row = world.sql.query_one("SELECT progress FROM heddle.runs_live", &[]).await;
        row.expect("a run").get::<_, Vec<u8>>(0)
    };
    let write = async |value: &str| {
        let update = format!("UPDATE heddle.runs_live SET progress = {value}");
        assert_eq!(world.sql.execute(&update, &[]).await.expect("a run"), 1);
    };
    write(newer).await;
    let written = progress().await;
    // Its node dies.
    world.pass(LEASE + TimeDelta::seconds(1)).await;
    let other = world.node(2).await;
    let mut reaper = Reaper::of(other.runs.clone());
    let mut abandoner = Abandoner(other.runs.clone());
    let given_up = &other.runs.reports.given_up;
    let pass = async || {
        world.pass(TimeDelta::seconds(31)).await;
        other.node.register().await.expect("a lease");
    };
    for _ in 0..3 {
        other.tick(&mut reaper).await;
        other.tick(&mut abandoner).await;
        assert_eq!((given_up.set_aside(), given_up.runs()), (1, 0));
        assert_eq!(world.runs("running").await.len(), 1);
        assert_eq!(progress().await, written);
        pass().await;
    }
    write(older).await;
    other.tick(&mut abandoner).await;
    assert_eq!(given_up.set_aside(), 0);
    other.tick(&mut reaper).await;
    let second = AttemptKey { attempt: 2, ..first };
    assert_eq!(other.begun(), [(run, second)]);
}

/// Attempts of a dead node are taken over while the end of a run that is given up waits.
#[tokio::test]
async fn nobody_waits_for_a_run_that_is_given_up() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    for name in ["bad", "good"] {
        world
            .group(name, json!({"schedules": {"s": {"once": {"delay": "1s"}}}}))
            .await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let one = world.node(1).await;
    one.tick(&mut Scheduler(one.schedules())).await;
    let begun = one.begun();
    let [(bad, _), (good, first)] = begun[..] else {
        panic!("two attempts have begun: {begun:?}");
    };
    // The history refuses an attempt of one run, and its end waits for a lock.
    let poison = format!(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'poisonous' USING ERRCODE = 'P0099'; END $$;
         CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END $$;
         CREATE TRIGGER poison BEFORE INSERT ON heddle.attempts FOR EACH ROW WHEN (NEW.run = '{bad}')
             EXECUTE FUNCTION public.refuse();
         CREATE TRIGGER poison BEFORE INSERT ON heddle.runs_done FOR EACH ROW WHEN (NEW.id = '{bad}')
             EXECUTE FUNCTION public.wait();
         SELECT pg_advisory_lock(77)"
    );
    world.sql.batch_execute(&poison).await.expect("triggers");
    world.pass(LEASE + TimeDelta::seconds(1)).await;
    let other = world.node(2).await;
    other.tick(&mut Reaper::of(other.runs.clone())).await;
    let second = AttemptKey { attempt: 2, ..first };
    assert_eq!(other.begun(), [(good, second)]);
    let given_up = &other.runs.reports.given_up;
    assert_eq!((given_up.set_aside(), given_up.runs()), (1, 0));
    world
        .sql
        .batch_execute("SELECT pg_advisory_unlock(77)")
        .await
        .expect("a lock");
    other.tick(&mut Abandoner(other.runs.clone())).await;
    assert_eq!((given_up.set_aside(), given_up.runs()), (0, 1));
    assert_eq!(world.runs("failed").await.len(), 1);
}

/// Between a failure and the next attempt, a task run waits for its interval: exact to the microsecond.
#[tokio::test]
async fn a_retry_waits_its_backoff() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let retry = json!({"strategy": "exponential", "retries": 3, "interval": "10m"});
    let task = json!({"http": {"url": "http://example.com/"}, "retry": retry});
    let spec = json!({"tasks": {"t": task}, "schedules": {"s": {"once": {"delay": "1s"}}}});
    world.group("g", spec).await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let (mut inbox, mut claimer) = (Inbox(node.runs.clone()), Claimer::of(node.runs.clone()));
    for (attempt, minutes) in [(1, 10), (2, 20), (3, 40)] {
        let (run, at) = node.only_begun();
        assert_eq!(at.attempt, attempt);
        node.end((run, at), Ending::failed(ErrorKind::Failed, "on purpose"))
            .await;
        // It holds its lease all the time, without heartbeats.
        node.node.register().await.expect("a lease");
        world
            .pass(TimeDelta::minutes(minutes) - TimeDelta::microseconds(1))
            .await;
        node.node.register().await.expect("a lease");
        node.tick(&mut inbox).await;
        node.tick(&mut claimer).await;
        assert_eq!(node.begun(), [], "attempt {} is not due", attempt + 1);
        world.pass(TimeDelta::microseconds(1)).await;
        node.tick(&mut inbox).await;
        node.tick(&mut claimer).await;
        assert_eq!(node.begun.0.lock().len(), 1, "attempt {}", attempt + 1);
    }
    let last = node.only_begun();
    node.end(last, Ending::failed(ErrorKind::Failed, "on purpose")).await;
    assert_eq!(world.runs("failed").await.len(), 1, "three retries are all");
}

/// Runs are removed when they were kept for 90 days, counted from their ends, and not a round sooner.
#[tokio::test]
async fn retention_removes_what_is_old() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world
        .group("g", json!({"schedules": {"s": {"once": {"delay": "1s"}}}}))
        .await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let begun = node.only_begun();
    node.end(begun, Ending::Succeeded("null".into())).await;
    assert_eq!(world.runs("succeeded").await.len(), 1);
    let mut rounds = Rounds::of(Arc::new(Pruner::new(node.node.clone())));
    world.pass(TimeDelta::days(90) - TimeDelta::seconds(1)).await;
    node.tick(&mut rounds).await;
    assert_eq!(world.runs("succeeded").await.len(), 1);
    // The next round of the cluster.
    world.pass(TimeDelta::minutes(10)).await;
    node.tick(&mut rounds).await;
    assert!(world.runs("succeeded").await.is_empty());
}

/// A run at a gate with an unreadable progress holds up neither those behind it nor other groups, and gets its turn
/// when it is repaired.
#[tokio::test]
async fn a_gate_is_held_up_by_no_run_that_cannot_be_read() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let spec = json!({"schedules": {"s": {"every": "1h", "misfire": "all", "grace": "1d"}}, "overlap": "queue"});
    world.group("one", spec.clone()).await;
    world.group("other", spec).await;
    world.pass(TimeDelta::hours(3)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    assert_eq!(world.runs("waiting").await.len(), 6);
    let garble = async |logical_time: Time, with: &str| {
        let micros = logical_time.timestamp_micros();
        let statement = format!(
            "UPDATE heddle.runs_live SET progress = {with}
              WHERE group_id = (SELECT id FROM heddle.groups WHERE name = 'one')
                AND logical_time = to_timestamp($1::bigint / 1000000.0)"
        );
        assert_eq!(world.sql.execute(&statement, &[&micros]).await.expect("a run"), 1);
    };
    let first = world.now() - TimeDelta::hours(2);
    garble(first, "'\\xff'::bytea || progress").await;
    // One tick finds out which it is, the next decides about the others: each group runs one at a time.
    let mut inbox = Inbox(node.runs.clone());
    node.tick(&mut inbox).await;
    node.tick(&mut inbox).await;
    let begun = world.runs("running").await;
    assert_eq!(begun, [first, first + TimeDelta::hours(1)]);
    let set_aside = node.runs.pending.aside.of(crate::runs::aside::Kind::Gates);
    assert_eq!(set_aside.len(), 1);
    // It is repaired, tried again, and gets its turn when no run is before it.
    garble(first, "substr(progress, 2)").await;
    for _ in 0..2 {
        node.node.register().await.expect("a lease");
        world.pass(TimeDelta::seconds(11)).await;
        node.node.register().await.expect("a lease");
        node.tick(&mut inbox).await;
    }
    assert_eq!(set_aside.len(), 0);
}

/// People are told of a failure also if only a newer build knows its kind.
#[tokio::test]
async fn a_failure_of_an_unknown_kind_is_told() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let run = RunId(Uuid::from_u128(7));
    let newer = format!(
        "ALTER TABLE heddle.attempts DROP CONSTRAINT attempts_error_kind_check;
         INSERT INTO heddle.attempts (run, task, item, attempt, state, started_at, finished_at, error_kind, error_message)
             VALUES ('{run}', 0, -1, 1, 2, now(), now(), 99, 'broken')"
    );
    world.sql.batch_execute(&newer).await.expect("an attempt");
    let notice = NoticeRow {
        id: 1,
        at: world.now(),
        event: notify::Event::Rule(NotifyEvent::Failed),
        group_id: None,
        revision_id: None,
        run: Some(run),
        notice: Notice::of_run(NotifyEvent::Failed),
        about: None,
        said: None,
    };
    let failures = world.store.last_failures(&[&notice]).await.expect("failures");
    assert_eq!((failures[&1].kind, failures[&1].message.as_str()), (None, "broken"));
}

/// A group with an unreadable revision holds up only its followers, and these go on when it is repaired: the run that
/// waits for it, and the one that a success of another group calls for.
#[tokio::test]
async fn links_are_held_up_by_no_revision_that_cannot_be_read() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let hourly = json!({"schedules": {"s": {"every": "1h"}}});
    world.group("upstream", hourly.clone()).await;
    world.group("unreadable", json!({})).await;
    let follows = |groups: Value| json!({"depends_on": groups});
    world.group("called", follows(json!(["upstream"]))).await;
    world.group("held", follows(json!(["upstream", "unreadable"]))).await;
    let waits = |group: &str| {
        let mut spec = hourly.clone();
        spec["depends_on"] = json!([group]);
        spec
    };
    world.group("waiting", waits("upstream")).await;
    world.group("held-waiting", waits("unreadable")).await;
    let garble = async |from: &str, to: &str| {
        let statement = "UPDATE heddle.revisions SET spec = (spec - $1) || jsonb_build_object($2::text, spec -> $1)
              WHERE group_id = (SELECT id FROM heddle.groups WHERE name = 'unreadable')";
        assert_eq!(
            world.sql.execute(statement, &[&from, &to]).await.expect("a revision"),
            1
        );
    };
    garble("tasks", "no tasks").await;
    world.pass(TimeDelta::hours(1)).await;
    let instant = world.now();
    let node = world.node(1).await;
    let schedules = node.schedules();
    node.tick(&mut Scheduler(schedules.clone())).await;
    let [first] = node.begun()[..] else {
        panic!("the upstream's run has begun, those that follow wait");
    };
    node.end(first, Ending::Succeeded("null".into())).await;
    let made = async || {
        let of = "SELECT g.name FROM heddle.runs_live r JOIN heddle.groups g ON g.id = r.group_id
              WHERE NOT EXISTS (SELECT FROM heddle.waits w WHERE w.run = r.id AND w.upstreams) ORDER BY 1";
        let rows = world.sql.query(of, &[]).await.expect("runs");
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    let mut links = Links::of(schedules);
    node.tick(&mut links).await;
    node.tick(&mut links).await;
    assert_eq!(made().await, ["called", "waiting"]);
    // It is repaired, and has succeeded: what was left is checked after a while, and the waiting run by the sweep.
    garble("no tasks", "tasks").await;
    let micros = instant.timestamp_micros();
    let succeeded = "INSERT INTO heddle.successes (group_id, logical_time, run)
         SELECT id, to_timestamp($1::bigint / 1000000.0), gen_random_uuid() FROM heddle.groups WHERE name = 'unreadable'";
    world.sql.execute(succeeded, &[&micros]).await.expect("a success");
    node.tick(&mut links).await;
    assert_eq!(made().await, ["called", "waiting"]);
    for _ in 0..2 {
        node.node.register().await.expect("a lease");
        world.pass(TimeDelta::seconds(16)).await;
        node.node.register().await.expect("a lease");
        node.tick(&mut links).await;
    }
    assert_eq!(made().await, ["called", "held", "held-waiting", "waiting"]);
    let left = world
        .sql
        .query_one("SELECT count(*) FROM heddle.link_events", &[])
        .await;
    assert_eq!(left.expect("a count").get::<_, i64>(0), 0);
}
