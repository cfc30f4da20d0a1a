//! A node: its configuration, and its life from the first connection to the last drained task.

mod config;
mod keys;
mod server;
mod settings;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_domain::Chain;
use heddle_domain::{Chance, Time};
use heddle_engine::{Engine, EngineConfig, NodeClock, SystemChance};
use heddle_http::access::{TokenSpec, USES_WRITTEN_EVERY};
use heddle_http::{App, AppParts};
use heddle_sandbox::{Sandbox, SandboxConfig};
use heddle_store::change::Noun;
use heddle_store::forget::{LOST_MAX, LostSeal};
use heddle_store::secret::SecretKeys;
use heddle_store::{Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::NodeOptions;
use crate::demo;
use crate::exit::usage;
use crate::metrics;
use crate::pages;
use crate::traces::{self, Traces};

pub use config::NodeConfig;
pub(crate) use keys::device_keys;
use keys::{identity, known_keys, lock_identity, require_keys, secret_keys};
use server::{Server, allow_open_files};
pub(crate) use settings::{check, start_children};
use settings::{dispatch_config, host_name, http_config, notify_config, sandbox_config, short_ways};

/// How long a node's lease holds without a heartbeat; a dead node's work is taken over after it.
const LEASE_FOR: Duration = Duration::from_secs(8);
/// How long attempts in hand may take to end when the node is told to stop; what is left is run again elsewhere.
const DRAIN_FOR: Duration = Duration::from_secs(20);
/// How long to wait for a database that does not answer yet.
const DATABASE_WAIT: Duration = Duration::from_secs(60);
/// The pause between two tries to reach it.
const DATABASE_PAUSE: Duration = Duration::from_millis(500);
/// How long the node may take at its end to write which tokens were used.
const LAST_WRITES_MAX: Duration = Duration::from_secs(1);

/// Runs a node on a bound address until `shutdown` is cancelled. When migrations are applied and the demo is created,
/// it sends the address to `ready`.
pub async fn run_node(config: NodeConfig, listener: TcpListener, ready: oneshot::Sender<SocketAddr>) -> Result<()> {
    let address = listener.local_addr().context("the listener has no address")?;
    allow_open_files();
    let data_dir = &config.data_dir;
    std::fs::create_dir_all(data_dir).with_context(|| format!("cannot create {}", data_dir.display()))?;
    let chance: Arc<dyn Chance> = Arc::new(SystemChance);
    let skew = chrono::TimeDelta::milliseconds(config.options.clock_skew_ms.unwrap_or(0));
    let clock = Arc::new(NodeClock::skewed(skew));
    let device_keys = device_keys(&config.options)?;
    let _lock = lock_identity(data_dir, config.node_id.as_deref())?;
    let node = identity(data_dir, config.node_id.as_deref(), clock.own(), chance.as_ref())?;
    let name = config.node_id.clone().unwrap_or_else(host_name);
    let traces = traces::start(&config.options, node, &name, chance.clone())?;
    let keys = secret_keys(&config, chance.as_ref())?;
    let others = !device_keys.is_empty() || config.provider.is_some();
    let sandbox_config = sandbox_config(&config.options, data_dir)?;
    let engine_config = engine_config(&config, &sandbox_config, node, name, address)?;
    let own_clock = clock.clone();
    // From here on, the node says that it lives, also while it waits for the database.
    let server = Server::start(listener);
    tracing::info!("listening at http://{address}; the node is starting");
    // This takes some milliseconds on another thread. Meanwhile, the connection to the database is opened.
    let sandbox = tokio::task::spawn_blocking(move || Sandbox::new(sandbox_config, own_clock));
    let open = open_store(&config, &keys, others, clock.own());
    let Some(store) = unless_stopped(&config.shutdown, open).await? else {
        return Ok(());
    };
    let sandbox = sandbox.await?.context("cannot start the sandbox")?;
    let start = Engine::start(
        engine_config,
        store.clone(),
        sandbox,
        Arc::new(keys.clone()),
        clock.clone(),
        chance.clone(),
    );
    let start = async { start.await.context("cannot register the node") };
    let Some(engine) = unless_stopped(&config.shutdown, start).await? else {
        return Ok(());
    };
    let (traces, trace_sender) = traces.unzip();
    if let Some(traces) = &traces {
        engine.trace_with(traces.clone());
    }
    let request_tracer = traces.as_ref().map(Traces::of_requests);
    let app = App::new(AppParts {
        store: store.clone(),
        engine: engine.clone(),
        clock: clock.clone(),
        chance,
        secret_keys: keys,
        metrics: metrics::of(engine.clone(), traces),
        tracer: request_tracer,
        config: http_config(&config, device_keys)?,
    });
    engine.show_runs_with(heddle_http::shown_runs(&engine));
    forget_changed_tokens(&engine, app.clone());
    let uses = tokio::spawn(write_token_uses(app.clone(), server.closing.clone()));
    let started = clock.own();
    let router = if config.options.no_ui.unwrap_or(false) {
        heddle_http::router(app)
    } else {
        pages::router(app, engine.clone(), clock, config.dev)
    };
    server.open(router);
    be_ready(&engine, &config, address, started, ready).await?;
    engine.set_ready(false);
    engine.drain().await;
    server.close().await;
    let _ = tokio::time::timeout(LAST_WRITES_MAX, uses).await;
    if let Some(sender) = trace_sender {
        sender.end().await;
    }
    store.close();
    Ok(())
}

/// Connects to the database, applies migrations, and checks that the keys fit the stored secrets and that somebody may
/// call the API. `others`: some callers need no stored token, because they are devices, or people whom a provider
/// vouches for.
async fn open_store(config: &NodeConfig, keys: &SecretKeys, others: bool, now: Time) -> Result<Store> {
    let store = connect(&config.database_url).await?;
    store.migrate().await.context("cannot migrate the database schema")?;
    // Not beside the migrations: both look whether sessions are shared, and the sessions of one would mislead the other.
    let (fits, ()) = tokio::join!(require_keys(config, &store, keys), report_server(&store));
    fits?;
    require_tokens(config, &store, others, now).await?;
    Ok(store)
}

/// The configuration of the engine.
fn engine_config(
    config: &NodeConfig,
    sandbox: &SandboxConfig,
    node: Uuid,
    name: String,
    address: SocketAddr,
) -> Result<EngineConfig> {
    Ok(EngineConfig {
        node,
        name,
        address: address.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        lease_for: LEASE_FOR,
        slots: sandbox.max_instances as usize,
        threads: sandbox.threads,
        data_dir: config.data_dir.clone(),
        drain_for: DRAIN_FOR,
        dispatch: dispatch_config(&config.options)?,
        notify: notify_config(config, address)?,
        short_ways: short_ways(&config.options)?,
        warms: true,
    })
}

/// Prepares all that a node needs to accept work, reports that it is ready, and stays so until it is told to stop.
async fn be_ready(
    engine: &Engine,
    config: &NodeConfig,
    address: SocketAddr,
    started: Time,
    ready: oneshot::Sender<SocketAddr>,
) -> Result<()> {
    let url = format!("http://{address}");
    let demo = async {
        if config.demo {
            demo::install(&url, &config.database_url, &config.data_dir)
                .await
                .context("cannot create the demo")?;
        }
        Ok(())
    };
    let fill = async { tokio::join!(engine.warm(), demo).1 };
    if unless_stopped(&config.shutdown, fill).await?.is_none() {
        return Ok(());
    }
    engine.set_ready(true);
    let _ = ready.send(address);
    let living = config.demo.then(|| {
        let (shutdown, data_dir) = (config.shutdown.clone(), config.data_dir.clone());
        tokio::spawn(demo::live(url.clone(), data_dir, started, shutdown))
    });
    config.shutdown.cancelled().await;
    if let Some(living) = living {
        let _ = living.await;
    }
    Ok(())
}

/// Does something at the start. `None`: the node was told to stop in the meantime; then it does not wait for a database
/// that does not answer.
async fn unless_stopped<T>(shutdown: &CancellationToken, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {
            tracing::info!("stopping before the node was ready");
            Ok(None)
        }
        done = work => done.map(Some),
    }
}

/// Lets the API forget known tokens when one has changed.
fn forget_changed_tokens(engine: &Engine, app: App) {
    engine.on_change(move |change| {
        if change.is_none_or(|change| change.noun == Some(Noun::Token)) {
            app.forget_tokens();
        }
    });
}

/// Writes which tokens were used, many in one statement.
async fn write_token_uses(app: App, closing: CancellationToken) {
    loop {
        let ended = tokio::time::timeout(USES_WRITTEN_EVERY, closing.cancelled())
            .await
            .is_ok();
        app.write_token_uses().await;
        if ended {
            return;
        }
    }
}

/// If there is no token, refuses to serve on an address that other machines can reach. Such an address is a mistake:
/// strangers could find the node before its owner creates the first token. On a loopback address, it only warns.
/// `others`: some callers need no stored token, because they are devices, or people whom a provider vouches for.
async fn require_tokens(config: &NodeConfig, store: &Store, others: bool, now: Time) -> Result<()> {
    if config.dev || others || store.has_tokens(now).await.context("cannot read tokens")? {
        return Ok(());
    }
    let advice = "create the first token with `heddle token create --database-url ... --name me --role admin`";
    if config.listen.ip().to_canonical().is_loopback() {
        tracing::warn!("there is no token, so nobody can use this node; {advice}");
        return Ok(());
    }
    bail!(usage(format!(
        "there is no token in this database, and {} is not a loopback address; {advice}, then start the node again",
        config.listen
    )))
}

/// Connects, and waits for some time for a database that is still starting. A refusal that waiting does not help, such as
/// of the password, ends it at once.
async fn connect(url: &str) -> Result<Store> {
    let until = tokio::time::Instant::now() + DATABASE_WAIT;
    loop {
        match Store::connect(url, heddle_store::DEFAULT_CONNECTIONS_MAX).await {
            Ok(store) => return Ok(store),
            Err(error) if error.is_refusal() => return Err(not_connected(error)),
            // It may have tried for some seconds already. But a server that is up refuses at once, and so does a pooler whose
            // database is not there.
            Err(StoreError::Unavailable(error)) if tokio::time::Instant::now() < until => {
                tracing::warn!(error = %Chain(&error), "waiting for the database, which does not answer");
                tokio::time::sleep(DATABASE_PAUSE).await;
            }
            // A standby may be promoted.
            Err(StoreError::ReadOnly(error)) if tokio::time::Instant::now() < until => {
                tracing::warn!(error = %Chain(&error), "waiting for the database, which is read-only");
                tokio::time::sleep(DATABASE_PAUSE).await;
            }
            Err(error) => return Err(not_connected(error)),
        }
    }
}

/// Logs a warning for each property of the database server that causes problems for nodes.
async fn report_server(store: &Store) {
    match store.server_report().await {
        Ok(server) => {
            for hurt in server.hurts {
                tracing::warn!(postgres = server.version, "{hurt}");
            }
        }
        Err(error) => tracing::warn!(error = %Chain(&error), "cannot read the settings of the database server"),
    }
}

/// Connects for a command. An error says what is wrong with the typed address, without the place in the code.
async fn connect_once(url: &str) -> Result<Store> {
    let connected = Store::connect(url, 1).await;
    connected.map_err(|error| match &error {
        StoreError::Unavailable(failed) => match std::error::Error::source(failed) {
            Some(cause) => anyhow::anyhow!("{NOT_CONNECTED}: {}", Chain(cause)),
            None => not_connected(error),
        },
        _ => not_connected(error),
    })
}

const NOT_CONNECTED: &str = "cannot connect to the database";

fn not_connected(error: StoreError) -> anyhow::Error {
    match error {
        StoreError::Address(_) => usage(error.to_string()),
        error => match std::error::Error::source(&error) {
            // A node that works would wait for it (`StoreError::is_refusal`); here, the reason is all that helps.
            Some(cause) if error.is_refusal() => anyhow::anyhow!("{NOT_CONNECTED}: {}", Chain(cause)),
            _ => anyhow::Error::from(error).context(NOT_CONNECTED),
        },
    }
}

/// Brings a database's schema up to date.
pub async fn migrate(database_url: &str) -> Result<()> {
    let store = connect_once(database_url).await?;
    store.migrate().await.context("cannot migrate the database schema")?;
    store.close();
    Ok(())
}

/// Creates a token directly in the database: the way to create the first one. It is checked as the API checks it, and
/// the result is the API's answer.
pub async fn create_token(database_url: &str, token: &heddle_client::NewToken) -> Result<heddle_client::MadeToken> {
    let now = NodeClock::default().own();
    let spec = TokenSpec::read(&serde_json::to_value(token)?, now)
        .map_err(|faults| usage(format!("the token is not valid: {faults}")))?;
    let store = connect_once(database_url).await?;
    store.migrate().await.context("cannot migrate the database schema")?;
    let by = heddle_store::change::By {
        actor: "command line",
        at: now,
    };
    let made = spec.create(&store, by, &SystemChance).await;
    let made = made.context("cannot create the token")?;
    store.close();
    made.with_context(|| format!("a token named `{}` already exists; revoke it first", token.name))
}

/// Objects that no key of a node with certain options decrypts.
pub(crate) struct LostSecrets {
    pub(crate) lost: Vec<LostSeal>,
    /// Those of them that were deleted.
    pub(crate) deleted: Vec<LostSeal>,
    /// The fingerprints of the keys, that of the current key first.
    pub(crate) keys: Vec<String>,
    /// There may be more.
    pub(crate) is_full: bool,
    /// What stopped the deletion before its end.
    pub(crate) failed: Option<anyhow::Error>,
}

/// Lists the objects in a database that no key of a node with these options decrypts; `forget`: and deletes them.
pub(crate) async fn lost_secrets(database_url: &str, options: &NodeOptions, forget: bool) -> Result<LostSecrets> {
    let data_dir = options.data_directory();
    // A key that was made up here would decrypt nothing at all.
    let Some(keys) = known_keys(options, &data_dir)? else {
        return Err(usage(format!(
            "there is no key: HEDDLE_SECRETS_KEY is not set, and {} has no secrets.key; give the key that the nodes have \
            from now on, or the data directory of a node with --data-dir",
            data_dir.display()
        )));
    };
    let store = connect_once(database_url).await?;
    store.migrate().await.context("cannot migrate the database schema")?;
    let lost = store.lost_seals(&keys).await.context("cannot read secrets")?;
    if forget && !lost.is_empty() {
        require_no_node(&store).await?;
    }
    let by = heddle_store::change::By {
        actor: "command line",
        at: NodeClock::default().own(),
    };
    let (mut deleted, mut failed) = (Vec::new(), None);
    for one in lost.iter().filter(|_| forget) {
        match store.forget_seal(by, &keys, &one.seal).await {
            Ok(true) => deleted.push(one.clone()),
            // It is gone, or was put again with a key that is known.
            Ok(false) => {}
            Err(error) => {
                let what = format!("cannot delete the {} `{}`", one.seal.kind, one.seal.name);
                failed = Some(anyhow::Error::from(error).context(what));
                break;
            }
        }
    }
    store.close();
    let is_full = lost.len() as i64 == LOST_MAX;
    Ok(LostSecrets {
        lost,
        deleted,
        keys: keys.ids(),
        is_full,
        failed,
    })
}

/// Refuses to delete beside a node that is alive. A node only starts if its keys decrypt everything, so what the keys of
/// this command do not decrypt would be in use there.
async fn require_no_node(store: &Store) -> Result<()> {
    let nodes = store
        .nodes(chrono::TimeDelta::zero())
        .await
        .context("cannot read nodes")?;
    match nodes.into_iter().find(|node| node.alive) {
        Some(node) => Err(usage(format!(
            "the node `{}` is running, and decrypts everything that is stored: give its keys to this command. If nothing \
            shall be kept, stop all nodes first (a killed one counts as running for 8 s)",
            node.name
        ))),
        None => Ok(()),
    }
}
