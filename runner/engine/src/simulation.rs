//! Services alone, driven by a clock that the test sets: a real Postgres, no loops, and no other activity.
//!
//! There are two clocks, and both are set together: the node's clock stands still until it is set, and the test's
//! database has its own `clock_timestamp()`. So every period (a lease, a back-off, a month) lasts exactly as long as
//! the test says, on the slowest machine.
//!
//! The tests are below, by subject. Each service has one (`runner/cli/tests/architecture/services.rs` checks that): what
//! it does, at which instant, and that it does nothing a moment before.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::gather_group;
use heddle_domain::state::{ErrorKind, RunState};
use heddle_domain::{Chance, Clock, Name, Time};
use heddle_postgres::{TestCluster, TestDatabase, stamp};
use heddle_sandbox::{CompilerCommand, Sandbox, SandboxConfig};
use heddle_store::Store;
use heddle_store::change::By;
use heddle_store::live::{EndedAttempt, Grant};
use heddle_store::secret::{SecretKey, SecretKeys};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, mpsc};
use tokio_postgres::types::FromSqlOwned;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::RunContext;
use crate::messages::Messages;
use crate::node::clock::NodeClock;
use crate::node::lease::Keeper;
use crate::node::part::{Part, Parts};
use crate::node::service::Service;
use crate::node::short_ways::ShortWays;
use crate::node::{Identity, Node};
use crate::notify::{Notifier, NotifyConfig};
use crate::put_group::{PutGroup, put_group};
use crate::queues::{ClaimRequest, QueueClaim, Queues};
use crate::runs::ending::{Applied, End, Ending};
use crate::runs::take::held::{HeldAttempt, Report};
use crate::runs::{GatheringRuns, Runs, Worker};
use crate::schedules::{Scheduler, Schedules};
use crate::scripts::Scripts;

mod dispatch;
mod instants;
mod leases;
mod logs;
mod messages;
mod node;
mod notify;
mod overlap;
mod queues;
mod retention;
mod runs;
mod schedules;
mod scripts;

/// Replaces the database's clock: it returns the time in a table. The values of columns that are left out have to be told:
/// they hold on to the function that was renamed. What the migrations dated by the machine's clock is long ago.
const CLOCK: &str = "
    CREATE TABLE public.simulated_clock (at timestamptz NOT NULL);
    INSERT INTO public.simulated_clock VALUES (pg_catalog.clock_timestamp());
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO machine_timestamp;
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
        AS 'SELECT at FROM public.simulated_clock';
    DO $$ DECLARE kept record; BEGIN
        FOR kept IN SELECT c.attrelid::regclass AS relation, c.attname, pg_get_expr(d.adbin, d.adrelid) AS value
                      FROM pg_attrdef d JOIN pg_attribute c ON c.attrelid = d.adrelid AND c.attnum = d.adnum LOOP
            IF kept.value LIKE '%machine_timestamp()%' THEN
                EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', kept.relation, kept.attname,
                               replace(kept.value, 'machine_timestamp()', 'clock_timestamp()'));
            END IF;
        END LOOP;
    END $$;
    UPDATE heddle.upkeep SET due_at = '2000-01-01';";

/// For how long a lease holds.
const LEASE: TimeDelta = TimeDelta::seconds(8);

/// The shortest time that a clock here tells.
const MOMENT: TimeDelta = TimeDelta::microseconds(1);

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

/// An object with the fields of another besides its own.
fn with(mut object: Value, more: Value) -> Value {
    let fields = object.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    object
}

/// Waits for something that is under way: where it does not come, the test fails.
async fn soon<T>(comes: impl Future<Output = T>) -> T {
    let comes = tokio::time::timeout(Duration::from_secs(60), comes);
    comes.await.expect("it comes within a minute")
}

/// The same for what has to be looked for.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let comes = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    soon(comes).await;
}

/// A group of one task that a worker of queue `q` does; its run begins after a second.
fn queued(more: Value) -> Value {
    let task = with(json!({"queue": "q"}), more);
    json!({"tasks": {"t": task}, "schedules": {"s": {"once": {"delay": "1s"}}}})
}

/// A worker of queue `q` asks for what there is at once.
fn request(lease: Duration) -> ClaimRequest {
    ClaimRequest {
        queue: "q".into(),
        worker: "w".into(),
        tags: Vec::new(),
        max: 10,
        lease,
        wait: Duration::ZERO,
    }
}

/// The task runs that a worker gets with this lease.
async fn claim(queues: &Arc<Queues>, lease: Duration) -> Vec<QueueClaim> {
    queues.claim(&request(lease)).await.expect("an answer")
}

/// A world in which each of these groups has just come due, for the first and only time, one second after the start.
async fn with_due(groups: &[&str]) -> World {
    let world = World::at("2026-03-01T00:00:00Z").await;
    for name in groups {
        world
            .group(name, json!({"schedules": {"s": {"once": {"delay": "1s"}}}}))
            .await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    world
}

/// A world, and a node in it that has begun the only attempt: of a group `g`, fired one second after the start.
async fn with_one_attempt() -> (World, Simulated) {
    let world = with_due(&["g"]).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    (world, node)
}

impl World {
    async fn at(start: &str) -> Self {
        let (cluster, template) = CLUSTER.get_or_init(cluster).await;
        let database = cluster.database(template).await.expect("a database");
        let start = at(start);
        let world = Self {
            store: Store::connect(database.url(), 4).await.expect("a store"),
            sql: client(database.url()).await,
            clock: Arc::new(NodeClock::manual(start)),
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

    /// Lets time pass for a node that holds its lease all the while, without a heart.
    async fn pass_for(&self, node: &Simulated, time: TimeDelta) {
        node.node.register().await.expect("a lease");
        self.pass(time).await;
        node.node.register().await.expect("a lease");
    }

    fn by(&self) -> By<'static> {
        By {
            actor: "test",
            at: self.now(),
        }
    }

    /// A group of one task, which calls a server; its runs do not wait for each other.
    async fn group(&self, name: &str, more: Value) {
        let spec = json!({"tasks": {"t": {"http": {"url": "http://example.com/"}}}, "overlap": "allow"});
        let spec = gather_group(&with(spec, more)).rest.expect("a spec");
        let name: Name = name.parse().expect("a name");
        let put = PutGroup {
            name: &name,
            spec,
            enabled: None,
            if_match: None,
            tree: None,
        };
        put_group(&self.store, self.by(), put).await.expect("a group");
    }

    /// The logical times of all runs in this state, in their order.
    async fn runs(&self, state: &str) -> Vec<Time> {
        let state = RunState::ALL
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

    /// The one value that a query returns.
    async fn one<T: FromSqlOwned>(&self, query: &str) -> T {
        let row = self.sql.query_one(query, &[]).await;
        row.unwrap_or_else(|error| panic!("{query}: {error}")).get(0)
    }

    /// The one instant that a query returns as `at`, if it is not null.
    async fn instant(&self, query: &str) -> Option<Time> {
        let query = format!("SELECT (extract(epoch FROM at) * 1000000)::bigint FROM ({query}) AS it");
        let micros: Option<i64> = self.one(&query).await;
        micros.map(|micros| chrono::DateTime::from_timestamp_micros(micros).expect("an instant"))
    }

    /// Whether a connection waits for a lock of this table.
    async fn has_to_wait_for(&self, table: &str) -> bool {
        // Databases of one template have the same numbers for their tables.
        let waits = format!(
            "SELECT EXISTS (SELECT FROM pg_locks
                             WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
                               AND relation = '{table}'::regclass AND NOT granted)"
        );
        self.one(&waits).await
    }

    async fn execute(&self, statements: &str) {
        let executed = self.sql.batch_execute(statements).await;
        executed.unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    async fn node(&self, number: u128) -> Simulated {
        self.node_with(number, sandbox()).await
    }

    async fn node_with(&self, number: u128, sandbox: Sandbox) -> Simulated {
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
        let scripts = Arc::new(Scripts::new(node.clone(), sandbox, Arc::new(keys)));
        let (runs, gathering) = Runs::new(node.clone(), scripts.clone(), 100, 2);
        let begun = Arc::new(Begun::default());
        let worker: Arc<dyn Worker> = begun.clone();
        runs.held.carried_out_by(&worker);
        node.register().await.expect("a lease");
        let parts = Parts::new([runs.clone() as Arc<dyn Part>, scripts]);
        Simulated {
            keeper: Keeper::of(node.clone(), parts),
            node,
            runs,
            begun,
            gathering: Some(gathering),
            loops: 0,
            _worker: worker,
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
        (sandbox_in(directory.path(), compiler), directory)
    });
    sandbox.clone()
}

fn sandbox_in(directory: &Path, compiler: CompilerCommand) -> Sandbox {
    let config = SandboxConfig {
        threads: 1,
        long_threads: 1,
        max_instances: 4,
        max_memory_bytes: 1 << 20,
        ..SandboxConfig::new(directory.to_owned(), compiler)
    };
    Sandbox::new(config, Arc::new(NodeClock::default())).expect("a sandbox")
}

/// Attempts that a node was given, in their order. They end only when the test says so.
#[derive(Default)]
struct Begun(Mutex<Vec<(RunId, AttemptKey)>>);

impl Worker for Begun {
    fn begin(self: Arc<Self>, context: Arc<RunContext>, at: AttemptKey, _held: HeldAttempt) {
        self.0.lock().push((context.facts.id, at));
    }
}

/// A node that does nothing by itself.
struct Simulated {
    node: Arc<Node>,
    runs: Arc<Runs>,
    keeper: Keeper,
    begun: Arc<Begun>,
    gathering: Option<GatheringRuns>,
    /// How many async tasks of the node go on as long as it does.
    loops: usize,
    _worker: Arc<dyn Worker>,
}

impl Simulated {
    fn schedules(&self) -> Arc<Schedules> {
        Arc::new(Schedules::new(self.node.clone(), self.runs.clone()))
    }

    fn messages(&self) -> Arc<Messages> {
        Arc::new(Messages::new(self.node.clone(), self.runs.clone()))
    }

    /// `stalled_after`: how long a task run may wait in its queue before people are told.
    fn notifier(&self, stalled_after: Duration) -> Arc<Notifier> {
        let config = NotifyConfig {
            public_url: "http://heddle.example.com".into(),
            mail_dir: None,
            stalled_after,
        };
        let scripts = &self.runs.scripts;
        let notifier = Notifier::new(
            self.node.clone(),
            scripts.keys.clone(),
            config,
            scripts.sandbox.outbound(),
        );
        Arc::new(notifier.expect("a notifier"))
    }

    /// Workers' queues, whose claims can be ended.
    fn queues(&mut self) -> Arc<Queues> {
        let (queues, gathering) = Queues::new(self.node.clone(), self.runs.clone());
        gathering.start(&queues);
        self.loops = self.node.tracker.len();
        queues
    }

    /// Lets outcomes and submissions be recorded as they come. Returns the attempts whose logs come first.
    fn records(&mut self) -> mpsc::Receiver<Report> {
        let gathering = self.gathering.take().expect("it is called once");
        let long_logs = gathering.start(&self.runs);
        self.loops = self.node.tracker.len();
        long_logs
    }

    /// One tick of a service, and what it has started. Returns the time until the next.
    async fn tick(&self, service: &mut impl Service) -> Duration {
        let ticked = service.tick(self.node.now()).await;
        let next = ticked.expect("a tick");
        self.settled().await;
        next
    }

    /// Waits until nothing is left to do of what was begun.
    async fn settled(&self) {
        until(async || self.node.tracker.len() <= self.loops).await;
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
        let contexts = self.runs.contexts.of(&[run]).await.expect("a context");
        let mut completion = self.node.completion("simulated_end").await.expect("a transaction");
        let mut grant = Grant::none();
        let after = self.runs.apply(&mut completion, &contexts, vec![applied], &mut grant);
        let after = after.await.expect("an end");
        completion.commit().await.expect("a commit");
        self.runs.acted(after);
        self.runs.held.forget(run, at);
    }
}
