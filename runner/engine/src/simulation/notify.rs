//! Notifications: when they are sent, tried again, gathered and given up.

use futures::future::BoxFuture;
use heddle_domain::Faults;
use heddle_domain::notify;
use heddle_domain::notify::channel::ChannelSpec;
use heddle_domain::notify::rules::Notice;
use heddle_domain::spec::NotifyEvent;
use heddle_store::channel::ChannelPut;
use heddle_store::notice::NoticeRow;
use heddle_store::run::RunFilter;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::EngineError;
use crate::notify::StalledQueues;
use crate::runs::control::BulkAction;

/// A request of a webhook.
#[derive(Clone, Debug)]
struct Delivery {
    id: String,
    body: Value,
}

/// A server to which a channel sends: it answers as it is told to, and remembers the requests.
#[derive(Clone)]
struct Receiver {
    url: String,
    /// The line of the status, and further headers.
    answer: Arc<Mutex<String>>,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
    /// Who holds it keeps the answers back.
    gate: Arc<tokio::sync::Mutex<()>>,
}

impl Receiver {
    async fn start(answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let receiver = Self {
            url: format!("http://{}/", listener.local_addr().expect("an address")),
            answer: Arc::new(Mutex::new(answer.to_owned())),
            deliveries: Arc::default(),
            gate: Arc::default(),
        };
        let own = receiver.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                own.answer(stream).await.expect("a request");
            }
        });
        receiver
    }

    async fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let (mut id, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            match line.trim_end().split_once(": ") {
                Some(("webhook-id", value)) => value.clone_into(&mut id),
                Some(("content-length", value)) => length = value.parse().expect("a number"),
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let body = serde_json::from_slice(&body).expect("JSON");
        self.deliveries.lock().push(Delivery { id, body });
        drop(self.gate.lock().await);
        let answer = self.answer.lock().clone();
        let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }

    fn count(&self) -> usize {
        self.deliveries.lock().len()
    }

    fn answers(&self, answer: &str) {
        answer.clone_into(&mut self.answer.lock());
    }
}

impl World {
    /// A channel `hook` that sends to a receiver.
    async fn hook(&self, receiver: &Receiver, more: Value) {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let spec = json!({"kind": "webhook", "url": receiver.url, "secret": secret, "allow_private": true});
        let spec: ChannelSpec = serde_json::from_value(with(spec, more)).expect("a channel");
        let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
        let put = self
            .store
            .put_channel(self.by(), &keys, &*self.chance, "hook", (spec, Faults::default()))
            .await;
        assert!(matches!(put, Ok(ChannelPut::Done(_))), "{put:?}");
    }

    /// A group whose run begins after this delay, and which tells the channel `hook` of failures.
    async fn telling(&self, name: &str, delay: &str) {
        let rules = json!({"on": ["failed"], "channels": ["hook"]});
        let spec = json!({"schedules": {"s": {"once": {"delay": delay}}}, "notify": rules});
        self.group(name, spec).await;
    }

    /// When the next notification is due.
    async fn due_at(&self) -> Option<Time> {
        self.instant("SELECT min(due_at) AS at FROM heddle.outgoing").await
    }

    /// The state of the only notification, and its last error.
    async fn notified(&self) -> (i16, String) {
        let row = self
            .sql
            .query_one("SELECT state, coalesce(last_error, '') FROM heddle.notifications", &[]);
        let row = row.await.expect("one notification");
        (row.get(0), row.get(1))
    }
}

impl Simulated {
    /// Runs that are due now fail.
    async fn fail(&self) {
        self.tick(&mut Scheduler(self.schedules())).await;
        for begun in self.begun() {
            self.end(begun, Ending::failed(ErrorKind::Failed, "on purpose")).await;
        }
    }
}

/// The states of notifications.
const PENDING: i16 = 0;
const SENT: i16 = 1;
const FAILED: i16 = 2;

/// Longer than any task run waits in its queue in these tests.
const LONG: Duration = Duration::from_secs(86_400);

/// What a receiver refuses is sent again after 2 s, 5 s, 15 s and so on, each up to a fifth longer, and not a moment before:
/// with the same id, twelve times in all. Then it is given up.
#[tokio::test]
async fn what_is_refused_is_sent_again_after_its_time_and_given_up_after_twelve_tries() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("503 Service Unavailable").await;
    world.hook(&receiver, json!({})).await;
    world.telling("g", "1s").await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    let mut notifier = node.notifier(LONG);
    let second = Duration::from_secs(1);
    assert_eq!(node.tick(&mut notifier).await, second);
    assert_eq!(receiver.count(), 0);
    node.fail().await;
    node.tick(&mut notifier).await;
    for (tries, seconds) in [2, 5, 15, 60, 300, 900, 3_600, 7_200, 14_400, 21_600, 28_800]
        .into_iter()
        .enumerate()
    {
        assert_eq!((receiver.count(), world.notified().await.0), (tries + 1, PENDING));
        let wait = world.due_at().await.expect("it is sent again") - world.now();
        let least = TimeDelta::seconds(seconds);
        assert!(
            least <= wait && wait <= least * 6 / 5,
            "{wait} after {} tries",
            tries + 1
        );
        world.pass_for(&node, wait - MOMENT).await;
        assert_eq!(node.tick(&mut notifier).await, Duration::from_micros(1));
        assert_eq!(receiver.count(), tries + 1, "it is not due");
        world.pass_for(&node, MOMENT).await;
        node.tick(&mut notifier).await;
    }
    let (state, error) = world.notified().await;
    assert_eq!((receiver.count(), state, world.due_at().await), (12, FAILED, None));
    assert!(error.ends_with("gave up after 12 tries"), "{error}");
    let deliveries = receiver.deliveries.lock().clone();
    assert!(
        deliveries
            .iter()
            .all(|one| one.id == deliveries[0].id && one.body == deliveries[0].body),
        "{deliveries:?}"
    );
}

/// A receiver may ask for a later time than ours, up to an hour; when it accepts, nothing more is sent.
#[tokio::test]
async fn a_receiver_may_ask_for_time() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("429 Too Many Requests\r\nretry-after: 600").await;
    world.hook(&receiver, json!({})).await;
    world.telling("g", "1s").await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    let mut notifier = node.notifier(LONG);
    node.fail().await;
    node.tick(&mut notifier).await;
    assert_eq!(world.due_at().await, Some(world.now() + TimeDelta::minutes(10)));
    world.pass_for(&node, TimeDelta::minutes(10)).await;
    receiver.answers("503 Service Unavailable\r\nretry-after: 86400");
    node.tick(&mut notifier).await;
    assert_eq!(world.due_at().await, Some(world.now() + TimeDelta::hours(1)));
    world.pass_for(&node, TimeDelta::hours(1)).await;
    receiver.answers("204 No Content");
    node.tick(&mut notifier).await;
    assert_eq!(
        (world.notified().await, world.due_at().await),
        ((SENT, String::new()), None)
    );
    world.pass_for(&node, TimeDelta::days(1)).await;
    node.tick(&mut notifier).await;
    assert_eq!(receiver.count(), 3);
}

/// More failures of a group than its channel wants one by one are told as one message, at the end of the channel's span and
/// not before; it counts all of them.
#[tokio::test]
async fn a_storm_is_told_at_the_end_of_its_span() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({"burst": 1, "digest_every": "10m"})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    world
        .group("g", json!({"schedules": {"s": {"every": "1m"}}, "notify": rules}))
        .await;
    let node = world.node(1).await;
    let mut notifier = node.notifier(LONG);
    for count in [1, 1, 1] {
        world.pass_for(&node, TimeDelta::minutes(1)).await;
        node.fail().await;
        node.tick(&mut notifier).await;
        assert_eq!(receiver.count(), count);
    }
    let ends_at = at("2026-03-01T00:11:00Z");
    assert_eq!(world.due_at().await, Some(ends_at));
    world.pass_for(&node, ends_at - world.now() - MOMENT).await;
    node.tick(&mut notifier).await;
    assert_eq!(receiver.count(), 1);
    world.pass_for(&node, MOMENT).await;
    node.tick(&mut notifier).await;
    let counts: Vec<Value> = receiver
        .deliveries
        .lock()
        .iter()
        .map(|one| one.body["data"]["count"].clone())
        .collect();
    assert_eq!(counts, [1, 2]);
}

/// People are told that nobody claims a task run when it has waited for longer than they want, once; and again of the next
/// one if somebody has come in between. It is looked for every ten seconds, or more often if they want to hear of it sooner.
#[tokio::test]
async fn a_queue_without_workers_is_told_when_patience_is_over() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    let rules = json!({"on": ["queue_stalled"], "channels": ["hook"]});
    let often = json!({"notify": rules, "schedules": {"s": {"every": "1h"}}});
    world.group("g", with(queued(json!({})), often)).await;
    world.pass(TimeDelta::hours(1)).await;
    let mut node = world.node(1).await;
    let queues = node.queues();
    let mut scheduler = Scheduler(node.schedules());
    let mut stalls = StalledQueues(node.notifier(Duration::from_secs(600)));
    let stalled = "SELECT count(*) FROM heddle.notices WHERE event = 'queue_stalled'";
    node.tick(&mut scheduler).await;
    assert_eq!(node.tick(&mut stalls).await, Duration::from_secs(10));
    world.pass_for(&node, TimeDelta::minutes(10)).await;
    node.tick(&mut stalls).await;
    assert_eq!(
        world.one::<i64>(stalled).await,
        0,
        "it has not waited for longer than that"
    );
    world.pass_for(&node, MOMENT).await;
    for _ in 0..2 {
        node.tick(&mut stalls).await;
        assert_eq!(world.one::<i64>(stalled).await, 1);
        world.pass_for(&node, TimeDelta::minutes(1)).await;
    }
    // A worker comes, and goes.
    assert_eq!(claim(&queues, LONG).await.len(), 1);
    node.tick(&mut stalls).await;
    world.pass_for(&node, at("2026-03-01T02:00:00Z") - world.now()).await;
    node.tick(&mut scheduler).await;
    for (minutes, count) in [(10, 1), (1, 2)] {
        world.pass_for(&node, TimeDelta::minutes(minutes)).await;
        node.tick(&mut stalls).await;
        assert_eq!(world.one::<i64>(stalled).await, count);
    }
    let mut impatient = StalledQueues(node.notifier(Duration::from_secs(3)));
    let pause = Duration::from_secs(3);
    assert_eq!(
        (impatient.first_after(), node.tick(&mut impatient).await),
        (pause, pause)
    );
}

/// A tick that ends between its look and its notices loses none of them: the next one announces what waits. A group that cannot
/// be read keeps no other group's announcement waiting, and is announced by a node that can read it. What waited before there
/// was a rule keeps nothing that waits under the rule from being told.
#[tokio::test]
async fn a_stalled_queue_is_told_in_spite_of_failures() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    let rules = json!({"on": ["queue_stalled"], "channels": ["hook"]});
    for name in ["a", "b"] {
        world
            .group(name, with(queued(json!({})), json!({"notify": rules})))
            .await;
    }
    world.group("c", queued(json!({}))).await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    world.pass_for(&node, TimeDelta::minutes(10) + MOMENT).await;
    let spoilt = "UPDATE heddle.revisions v SET spec = v.spec || '{\"tasks\": 7}'
                    FROM heddle.groups g WHERE g.id = v.group_id AND g.name = 'a'";
    world
        .execute(&format!(
            "CREATE TABLE public.kept AS SELECT id, spec FROM heddle.revisions;
             {spoilt};
             CREATE FUNCTION public.refuses() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'no notice'; END $$;
             CREATE TRIGGER refuses BEFORE INSERT ON heddle.notices EXECUTE FUNCTION public.refuses()"
        ))
        .await;
    let told = async || {
        let told = "SELECT coalesce(string_agg(g.name, ' ' ORDER BY n.id), '')
                      FROM heddle.notices n JOIN heddle.groups g ON g.id = n.group_id WHERE n.event = 'queue_stalled'";
        world.one::<String>(told).await
    };
    // It has read no revision yet.
    let other = world.node(2).await;
    let mut stalls = StalledQueues(other.notifier(Duration::from_secs(600)));
    assert!(stalls.tick(world.now()).await.is_err());
    world.execute("DROP TRIGGER refuses ON heddle.notices").await;
    for _ in 0..2 {
        other.tick(&mut stalls).await;
        assert_eq!(told().await, "b");
    }
    world
        .execute("UPDATE heddle.revisions v SET spec = k.spec FROM public.kept k WHERE k.id = v.id")
        .await;
    for _ in 0..2 {
        other.tick(&mut stalls).await;
        assert_eq!(told().await, "b a");
    }
    let once = json!({"once": {"delay": "1s"}});
    let with_rule = json!({"notify": rules, "schedules": {"s": once, "later": once}});
    world.group("c", with(queued(json!({})), with_rule)).await;
    other.tick(&mut stalls).await;
    assert_eq!(told().await, "b a", "that run has no rule");
    assert_eq!(world.one::<i64>("SELECT count(*) FROM heddle.stalls").await, 2);
    world.pass_for(&node, TimeDelta::seconds(1)).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    world.pass_for(&node, TimeDelta::minutes(10) + MOMENT).await;
    let mut stalls = StalledQueues(node.notifier(Duration::from_secs(600)));
    for _ in 0..2 {
        node.tick(&mut stalls).await;
        assert_eq!(told().await, "b a c");
    }
}

/// A test message that begins while the loop of its node takes what is due is sent once. The loop does not know of it: it has
/// read what is in hand before.
#[tokio::test]
async fn a_test_message_that_begins_meanwhile_is_sent_once() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    world
        .execute(
            "INSERT INTO heddle.notifications (id, channel, event, subject, facts, state, created_at)
                 VALUES ('00000000-0000-0000-0000-000000000001', 'gone', 'failed', 's', '{}', 0, clock_timestamp());
             INSERT INTO heddle.outgoing (notification, lane, due_at)
                 SELECT id, 'gone', clock_timestamp() FROM heddle.notifications",
        )
        .await;
    let node = world.node(1).await;
    let notifier = node.notifier(LONG);
    let held_back = receiver.gate.lock().await;
    // Who takes notifications looks at the leases of nodes.
    world
        .execute("BEGIN; LOCK TABLE heddle.nodes IN ACCESS EXCLUSIVE MODE")
        .await;
    let mut looking = notifier.clone();
    let looks = looking.tick(world.now());
    let begins = async {
        until(async || world.has_to_wait_for("heddle.nodes").await).await;
        let own = notifier.clone();
        let test = tokio::spawn(async move { own.test_channel("hook").await });
        until(async || receiver.count() == 1).await;
        world.execute("COMMIT").await;
        [test]
    };
    let (looked, [test]) = tokio::join!(looks, begins);
    looked.expect("a tick");
    drop(held_back);
    let id = soon(test).await.expect("no panic").expect("an answer");
    node.settled().await;
    assert_eq!((receiver.count(), world.due_at().await), (1, None));
    let state = format!(
        "SELECT state FROM heddle.notifications WHERE id = '{}'",
        id.expect("a channel")
    );
    assert_eq!(world.one::<i16>(&state).await, SENT);
}

/// A digest that a node cannot read takes no event with it: further ones go into another digest, which is sent at its time. The
/// first is given back, and tried again a minute later.
#[tokio::test]
async fn a_digest_that_cannot_be_read_takes_no_event_with_it() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({"burst": 1, "digest_every": "10m"})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    world
        .group("g", json!({"schedules": {"s": {"every": "1m"}}, "notify": rules}))
        .await;
    let node = world.node(1).await;
    let mut notifier = node.notifier(LONG);
    let sets = async |count: &str| {
        let of_first = "id = (SELECT min(notification::text)::uuid FROM heddle.outgoing)";
        let sets =
            format!("UPDATE heddle.notifications SET facts = facts || '{{\"count\": {count}}}' WHERE {of_first}");
        world.execute(&sets).await;
    };
    for minute in 1..=3 {
        world.pass_for(&node, TimeDelta::minutes(1)).await;
        node.fail().await;
        node.tick(&mut notifier).await;
        if minute == 2 {
            sets("\"many\"").await;
        }
    }
    assert_eq!(world.one::<i64>("SELECT count(*) FROM heddle.outgoing").await, 2);
    let ends_at = at("2026-03-01T00:11:00Z");
    world.pass_for(&node, ends_at - world.now()).await;
    node.tick(&mut notifier).await;
    assert_eq!(receiver.count(), 2);
    assert_eq!(receiver.deliveries.lock()[1].body["data"]["count"], json!(1));
    assert_eq!(
        world.one::<i64>("SELECT lease FROM heddle.outgoing").await,
        0,
        "another node may send it"
    );
    sets("1").await;
    world.pass_for(&node, TimeDelta::minutes(1) - MOMENT).await;
    node.tick(&mut notifier).await;
    assert_eq!(receiver.count(), 2, "it is passed over");
    world.pass_for(&node, MOMENT).await;
    node.tick(&mut notifier).await;
    assert_eq!((receiver.count(), world.due_at().await), (3, None));
}

/// Notifications of an event that only a newer build knows keep none waiting that are due after them; a node of that build
/// sends them at once.
#[tokio::test]
async fn notifications_that_cannot_be_read_stop_no_others() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    let (node, newer) = (world.node(1).await, world.node(2).await);
    let facts = r#"{"event": "failed", "at": "", "count": 1}"#;
    // More of them than a node sends at once to one destination.
    world
        .execute(&format!(
            "INSERT INTO heddle.notifications (id, channel, event, subject, facts, state, created_at)
                 SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'hook',
                        CASE WHEN n = 6 THEN 'failed' ELSE 'of_a_newer_build' END, 's', '{facts}', 0, clock_timestamp()
                   FROM generate_series(1, 6) AS n;
             INSERT INTO heddle.outgoing (notification, lane, due_at)
                 SELECT id, 'hook', clock_timestamp() - interval '1 hour' FROM heddle.notifications WHERE event <> 'failed';
             INSERT INTO heddle.outgoing (notification, lane, due_at)
                 SELECT id, 'hook', clock_timestamp() FROM heddle.notifications WHERE event = 'failed'"
        ))
        .await;
    let mut notifier = node.notifier(LONG);
    for _ in 0..2 {
        node.tick(&mut notifier).await;
        assert_eq!(receiver.count(), 1);
        let given_back = "SELECT count(*) FROM heddle.outgoing WHERE lease = 0";
        assert_eq!(world.one::<i64>(given_back).await, 5);
    }
    // What the other node knows.
    world.execute("UPDATE heddle.notifications SET event = 'failed'").await;
    node.tick(&mut notifier).await;
    assert_eq!(receiver.count(), 1);
    let mut notifier = newer.notifier(LONG);
    for _ in 0..2 {
        newer.tick(&mut notifier).await;
    }
    assert_eq!((receiver.count(), world.due_at().await), (6, None));
}

/// Callbacks of large runs go into several transactions, each of bounded bytes, and no alert waits for them: it has arrived
/// when the first of these is taken up.
#[tokio::test]
async fn large_callbacks_are_taken_in_pieces_behind_alerts() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    world.group("g", json!({"history": true})).await;
    let finished_at = "2026-03-01T00:00:00.000000Z";
    world
        .execute(&format!(
            r#"CREATE TABLE public.made (n bigint GENERATED ALWAYS AS IDENTITY, event text, by bigint);
             CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO public.made (event, by) VALUES (NEW.event, txid_current()); RETURN NEW; END $$;
             CREATE TRIGGER note BEFORE INSERT ON heddle.notifications FOR EACH ROW EXECUTE FUNCTION public.note();
             INSERT INTO heddle.notices (event, group_id, revision_id, run, ended)
                 SELECT 'callback', id, revision_id, gen_random_uuid(),
                        '{{"callback": "hook", "run": {{"state": "failed", "finished_at": "{finished_at}"}}}}'
                   FROM heddle.groups, generate_series(1, 20);
             INSERT INTO heddle.notices (event, channel, subject, body) VALUES ('script', 'hook', 's', 'b')"#
        ))
        .await;
    let node = world.node(1).await;
    let mut notifier = node.notifier(LONG);
    let told = receiver.clone();
    notifier.show_runs_with(Arc::new(
        move |run: RunId| -> BoxFuture<'static, Result<Option<String>, EngineError>> {
            let output = "x".repeat(1 << 20);
            let shown = json!({"id": run.0, "state": "failed", "finished_at": finished_at, "output": output});
            let told = told.clone();
            Box::pin(async move {
                soon(async {
                    while told.count() == 0 {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                Ok(Some(shown.to_string()))
            })
        },
    ));
    node.tick(&mut notifier).await;
    assert!(
        receiver.deliveries.lock()[0].body["id"].is_null(),
        "the alert comes first"
    );
    let first = "SELECT event FROM public.made ORDER BY n LIMIT 1";
    assert_eq!(world.one::<String>(first).await, "script");
    let callbacks = "FROM public.made WHERE event = 'callback'";
    assert_eq!(world.one::<i64>(&format!("SELECT count(*) {callbacks}")).await, 20);
    let transactions = world
        .one::<i64>(&format!("SELECT count(DISTINCT by) {callbacks}"))
        .await;
    assert!(transactions >= 3, "{transactions}");
}

/// A callback says how its run ended, also if the run is deleted, or goes on, before anybody has read the notice.
#[tokio::test]
async fn a_callback_says_the_end_of_a_run_that_is_gone_or_goes_on() {
    let world = with_due(&["deleted", "kept", "restarted"]).await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    world
        .execute("UPDATE heddle.runs_live SET callback = 'hook', created_by = 'me'")
        .await;
    let run_of = async |group: &str| {
        let run = format!(
            "SELECT r.id::text FROM heddle.runs_live r JOIN heddle.groups g ON g.id = r.group_id WHERE g.name = '{group}'"
        );
        let run = world.one::<String>(&run).await;
        RunId(run.parse::<Uuid>().expect("an id"))
    };
    let (deleted, kept) = (run_of("deleted").await, run_of("kept").await);
    let restarted = run_of("restarted").await;
    // It reads that they have a callback now.
    let other = world.node(2).await;
    for run in [deleted, kept, restarted] {
        let cancelled = other.runs.control(run, &BulkAction::Cancel, "test").await;
        cancelled.expect("an end");
    }
    let gone = world
        .store
        .delete_runs(world.by(), &[deleted])
        .await
        .expect("an answer");
    assert_eq!(gone, [deleted]);
    let again = other.runs.control(restarted, &BulkAction::Restart(false), "test").await;
    again.expect("a restart");
    assert_eq!(world.runs("running").await.len(), 1);
    let mut notifier = other.notifier(LONG);
    let store = world.store.clone();
    notifier.show_runs_with(Arc::new(
        move |run: RunId| -> BoxFuture<'static, Result<Option<String>, EngineError>> {
            let store = store.clone();
            Box::pin(async move {
                let filter = RunFilter {
                    ids: vec![run.0],
                    ..RunFilter::default()
                };
                let rows = store.runs(&filter, 1).await?;
                Ok(rows.items.into_iter().next().map(|row| {
                    let finished_at = row.finished_at.map(|at| at.to_rfc3339());
                    json!({"id": row.id, "state": row.state, "finished_at": finished_at}).to_string()
                }))
            })
        },
    ));
    other.tick(&mut notifier).await;
    let deliveries = receiver.deliveries.lock().clone();
    assert_eq!(deliveries.len(), 3, "{deliveries:?}");
    for (run, group, omitted) in [
        (deleted, "deleted", json!(true)),
        (kept, "kept", Value::Null),
        (restarted, "restarted", json!(true)),
    ] {
        let id = json!(run.0);
        let told = deliveries.iter().find(|one| one.body["id"] == id).expect("a callback");
        let body = &told.body;
        assert_eq!(
            (&body["state"], &body["outputs_omitted"]),
            (&json!("cancelled"), &omitted),
            "{body:#}"
        );
        assert!(body["finished_at"].is_string(), "{body:#}");
        if omitted == json!(true) {
            assert_eq!((&body["group"], &body["created_by"]), (&json!(group), &json!("me")));
        }
    }
}

/// A notice that an older node cannot read is left to a newer one, which tells of it once. What no node could read for a week is
/// given up, and the history says so.
#[tokio::test]
async fn notices_that_cannot_be_read_are_left_to_other_nodes() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let receiver = Receiver::start("204 No Content").await;
    world.hook(&receiver, json!({})).await;
    world.telling("g", "1s").await;
    world.pass(TimeDelta::seconds(1)).await;
    world.node(3).await.fail().await;
    world
        .execute(
            "CREATE TABLE public.kept AS SELECT id, spec FROM heddle.revisions;
             UPDATE heddle.revisions SET spec = spec || '{\"tasks\": 7}';
             INSERT INTO heddle.notices (event, revision_id, at)
                 SELECT 'of_a_newer_build', revision_id, clock_timestamp() - n * interval '1 day'
                   FROM heddle.groups, (VALUES (6), (8)) AS d (n)",
        )
        .await;
    let left = async || {
        let left = "SELECT coalesce(string_agg(event, ' ' ORDER BY event), '') FROM heddle.notices";
        world.one::<String>(left).await
    };
    let given_up = "SELECT count(*) FROM heddle.notifications WHERE event = 'of_a_newer_build' AND state = 2";
    let older = world.node(1).await;
    let mut notifier = older.notifier(LONG);
    for _ in 0..2 {
        older.tick(&mut notifier).await;
        assert_eq!(left().await, "failed of_a_newer_build");
        assert_eq!((receiver.count(), world.one::<i64>(given_up).await), (0, 1));
    }
    // What the other node can read.
    world
        .execute("UPDATE heddle.revisions v SET spec = k.spec FROM public.kept k WHERE k.id = v.id")
        .await;
    older.tick(&mut notifier).await;
    assert_eq!(receiver.count(), 0, "it is passed over");
    let newer = world.node(2).await;
    newer.tick(&mut newer.notifier(LONG)).await;
    assert_eq!((receiver.count(), left().await.as_str()), (1, "of_a_newer_build"));
    world.pass_for(&older, TimeDelta::minutes(1)).await;
    older.tick(&mut notifier).await;
    assert_eq!((receiver.count(), left().await.as_str()), (1, "of_a_newer_build"));
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
        end: None,
    };
    let failures = world.store.last_failures(&[&notice]).await.expect("failures");
    assert_eq!((failures[&1].kind, failures[&1].message.as_str()), (None, "broken"));
}
