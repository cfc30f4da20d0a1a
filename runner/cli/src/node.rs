//! A node: what it is given, and its run from the first connection to the last task drained.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_domain::Chance;
use heddle_domain::dispatch::HORIZON_MAX;
use heddle_engine::heddle_sandbox::{CompilerCommand, Sandbox, SandboxConfig};
use heddle_engine::{Counters, DispatchConfig, Engine, EngineConfig, NodeClock, NotifyConfig, SystemChance};
use heddle_http::{App, AppParts, HttpConfig, ServeLimits};
use heddle_store::Store;
use heddle_store::secret::{SecretKey, SecretKeys};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::NodeOptions;
use crate::demo;
use crate::exit::usage;

/// How long a node's lease holds without a heartbeat; a dead node's work is taken over after it.
const LEASE_FOR: Duration = Duration::from_secs(8);
/// How long attempts in hand may take to end when the node is told to stop; what is left is run again elsewhere.
const DRAIN_FOR: Duration = Duration::from_secs(20);
/// Attempts in hand unless configured.
const DEFAULT_SLOTS: u32 = 1_000;
/// How long queued work may wait before people are told that nobody claims it.
const QUEUE_STALLED_AFTER: Duration = Duration::from_secs(600);
/// How long to wait for a database that does not answer yet.
const DATABASE_WAIT: Duration = Duration::from_secs(60);

/// What a node is given.
#[derive(Debug)]
pub struct NodeConfig {
    /// The Postgres that all nodes share.
    pub database_url: String,
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// The same, bound already.
    pub listener: TcpListener,
    /// For compiled scripts and the node's identity.
    pub data_dir: PathBuf,
    /// Loopback only, without tokens.
    pub dev: bool,
    /// Puts the demo in.
    pub demo: bool,
    /// This node's name; `None`: kept in the data directory.
    pub node_id: Option<String>,
    /// The rest of what can be configured.
    pub options: NodeOptions,
    /// Cancelled when the node is to drain and end.
    pub shutdown: CancellationToken,
}

/// Runs a node until `shutdown` is cancelled; tells `ready` the address once migrations and the demo are in.
pub async fn run_node(config: NodeConfig, ready: oneshot::Sender<SocketAddr>) -> Result<()> {
    let address = config.listener.local_addr().context("the listener has no address")?;
    let data_dir = &config.data_dir;
    std::fs::create_dir_all(data_dir).with_context(|| format!("cannot make {}", data_dir.display()))?;
    let chance: Arc<dyn Chance> = Arc::new(SystemChance);
    let clock = Arc::new(NodeClock::default());
    let _lock = lock_identity(data_dir, config.node_id.as_deref())?;
    let node = identity(data_dir, config.node_id.as_deref(), chance.as_ref())?;
    let keys = SecretKeys::new(secret_key(&config, chance.as_ref())?, Vec::new());
    let store = connect(&config.database_url).await?;
    store
        .migrate()
        .await
        .context("the schema cannot be brought up to date")?;
    let private_hosts = config.options.allow_private.as_deref().unwrap_or_default();
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let compiler = CompilerCommand {
        program,
        args: vec!["compile-wasm".into()],
        env: Vec::new(),
    };
    let slots = config.options.slots.unwrap_or(DEFAULT_SLOTS);
    let mut sandbox_config = SandboxConfig::new(data_dir.join("artefacts"), compiler);
    sandbox_config.max_instances = slots.max(1);
    sandbox_config.private_hosts = private_hosts
        .split(',')
        .map(str::trim)
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect();
    let threads = sandbox_config.threads;
    let sandbox = Sandbox::new(sandbox_config, clock.clone()).context("the sandbox does not start")?;
    let engine = Engine::start(
        EngineConfig {
            node,
            name: config.node_id.clone().unwrap_or_else(host_name),
            address: address.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease_for: LEASE_FOR,
            slots: slots as usize,
            threads,
            data_dir: data_dir.clone(),
            drain_for: DRAIN_FOR,
            dispatch: dispatch_config(&config.options)?,
            notify: notify_config(&config, address)?,
        },
        store.clone(),
        sandbox,
        Arc::new(keys.clone()),
        clock.clone(),
        chance.clone(),
    )
    .await
    .context("the node cannot be registered")?;
    let counters = engine.clone();
    let app = App::new(AppParts {
        store: store.clone(),
        engine: Arc::new(engine.clone()),
        clock,
        chance,
        secret_keys: keys,
        metrics: Arc::new(move || metrics(counters.counters())),
        config: http_config(&config),
    });
    engine.show_runs_with(heddle_http::shown_runs(&engine));
    engine.on_change({
        let app = app.clone();
        move |kind, _| {
            if kind == "token" {
                app.forget_tokens();
            }
        }
    });
    let router = heddle_http::router(app);
    let closing = CancellationToken::new();
    let server = tokio::spawn(heddle_http::serve(
        config.listener,
        router,
        ServeLimits::default(),
        closing.clone().cancelled_owned(),
    ));
    engine.warm().await;
    if config.demo {
        demo::install(&format!("http://{address}"), &config.database_url)
            .await
            .context("the demo cannot be put in")?;
    }
    engine.set_ready(true);
    let _ = ready.send(address);
    config.shutdown.cancelled().await;
    engine.set_ready(false);
    engine.drain().await;
    closing.cancel();
    let _ = server.await;
    store.close().await;
    Ok(())
}

/// How offers are given out.
fn dispatch_config(options: &NodeOptions) -> Result<DispatchConfig> {
    let mut dispatch = DispatchConfig::default();
    if let Some(text) = &options.dispatch_horizon {
        dispatch.horizon = text
            .parse()
            .map_err(|error| usage(format!("--dispatch-horizon: {error}")))?;
        if dispatch.horizon.is_zero() || dispatch.horizon >= HORIZON_MAX {
            bail!(usage(format!(
                "--dispatch-horizon is longer than zero and less than a day, not {text}"
            )));
        }
    }
    dispatch.offers_max = options.max_offers.unwrap_or(dispatch.offers_max);
    Ok(dispatch)
}

/// How people are told.
fn notify_config(config: &NodeConfig, address: SocketAddr) -> Result<NotifyConfig> {
    let public_url = match &config.options.public_url {
        Some(text) => {
            let good =
                (text.starts_with("http://") || text.starts_with("https://")) && !text.contains(char::is_whitespace);
            if !good {
                bail!(usage(format!("--public-url is an http or https URL, not `{text}`")));
            }
            text.trim_end_matches('/').to_owned()
        }
        None => format!("http://{address}"),
    };
    let stalled_after = match &config.options.queue_stalled_after {
        Some(text) => text
            .parse::<heddle_domain::Span>()
            .map_err(|error| usage(format!("--queue-stalled-after: {error}")))?
            .std(),
        None => QUEUE_STALLED_AFTER,
    };
    if stalled_after.is_zero() {
        bail!(usage("--queue-stalled-after is longer than zero"));
    }
    Ok(NotifyConfig {
        public_url,
        mail_dir: config.dev.then(|| config.data_dir.join("mails")),
        stalled_after,
    })
}

fn http_config(config: &NodeConfig) -> HttpConfig {
    HttpConfig {
        dev: config.dev,
        uid_token_key: config.options.device_key.as_ref().map(|key| key.clone().into_bytes()),
        ..HttpConfig::default()
    }
}

/// Connects, waiting a while for a database that is still starting.
async fn connect(url: &str) -> Result<Store> {
    let until = tokio::time::Instant::now() + DATABASE_WAIT;
    loop {
        match Store::connect(url, heddle_store::DEFAULT_CONNECTIONS_MAX).await {
            Ok(store) => return Ok(store),
            Err(heddle_store::StoreError::Unavailable(error)) if tokio::time::Instant::now() < until => {
                tracing::warn!(%error, "the database does not answer yet");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error).context("cannot connect to the database"),
        }
    }
}

/// Prometheus text.
fn metrics(counters: Counters) -> String {
    format!(
        "# HELP heddle_runs_ended_total Runs that this node has ended.\n\
         # TYPE heddle_runs_ended_total counter\n\
         heddle_runs_ended_total {}\n\
         # HELP heddle_attempts_ended_total Attempts whose outcome this node has recorded.\n\
         # TYPE heddle_attempts_ended_total counter\n\
         heddle_attempts_ended_total {}\n\
         # HELP heddle_attempts_in_hand Attempts that this node is working on.\n\
         # TYPE heddle_attempts_in_hand gauge\n\
         heddle_attempts_in_hand {}\n",
        counters.runs_ended, counters.attempts_ended, counters.in_hand
    )
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Two processes with one identity would take each other's lease away, over and over.
fn lock_identity(data_dir: &Path, node_id: Option<&str>) -> Result<std::fs::File> {
    let path = data_dir.join(match node_id {
        Some(name) => format!("node-{}.lock", Uuid::from_bytes(digest16(name))),
        None => "node.lock".to_owned(),
    });
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(usage(format!(
            "another heddle runs with the data directory {}; give this one its own with --data-dir",
            data_dir.display()
        ))),
    }
}

fn digest16(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(text)[..16]);
    bytes
}

/// Who this node is, over restarts.
fn identity(data_dir: &Path, given: Option<&str>, chance: &dyn Chance) -> Result<Uuid> {
    if let Some(given) = given {
        let named = || uuid::Builder::from_custom_bytes(digest16(given)).into_uuid();
        return Ok(given.parse().unwrap_or_else(|_| named()));
    }
    let path = data_dir.join("node-id");
    if let Ok(text) = std::fs::read_to_string(&path) {
        return text
            .trim()
            .parse()
            .with_context(|| format!("{} holds no UUID", path.display()));
    }
    let id = uuid::Builder::from_random_bytes(chance.bits().to_be_bytes()).into_uuid();
    write_private(&path, &id.to_string())?;
    Ok(id)
}

/// What secrets are sealed with: as configured, else kept in the data directory.
fn secret_key(config: &NodeConfig, chance: &dyn Chance) -> Result<SecretKey> {
    if let Some(text) = &config.options.secrets_key {
        if text.len() < 16 {
            bail!(usage(
                "the key of HEDDLE_SECRETS_KEY has to have at least 16 characters"
            ));
        }
        return Ok(SecretKey::new(Sha256::digest(text).into()));
    }
    let path = config.data_dir.join("secrets.key");
    if !path.exists() {
        if !config.dev {
            tracing::warn!(
                path = %path.display(),
                "no HEDDLE_SECRETS_KEY: secrets are sealed with a key of this node's own, which other nodes do not have"
            );
        }
        write_private(&path, &format!("{:032x}{:032x}", chance.bits(), chance.bits()))?;
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(SecretKey::new(Sha256::digest(text.trim()).into()))
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let temporary = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Brings a database's schema up to date.
pub async fn migrate(database_url: &str) -> Result<()> {
    let store = Store::connect(database_url, 1)
        .await
        .context("cannot connect to the database")?;
    store
        .migrate()
        .await
        .context("the schema cannot be brought up to date")?;
    store.close().await;
    Ok(())
}

/// Makes a token directly in the database; how the first one comes to be. Answers the token.
pub async fn create_token(database_url: &str, token: &heddle_client::NewToken) -> Result<String> {
    let store = Store::connect(database_url, 1)
        .await
        .context("cannot connect to the database")?;
    store
        .migrate()
        .await
        .context("the schema cannot be brought up to date")?;
    let text = heddle_http::access::new_token(&SystemChance);
    let now = NodeClock::own();
    let write = heddle_store::token::TokenWrite {
        id: heddle_domain::id::uuid_v7(now, SystemChance.bits()),
        name: &token.name,
        hash: heddle_http::access::token_hash(&text),
        role: &token.role,
        queues: token.queues.as_deref().unwrap_or_default(),
        uids: token.uids.as_deref().unwrap_or_default(),
        expires_at: token.expires_at,
    };
    let by = heddle_store::change::By {
        actor: "command line",
        at: now,
    };
    let made = store
        .create_token(by, write)
        .await
        .context("the token cannot be made")?;
    store.close().await;
    match made {
        Some(_) => Ok(text),
        None => bail!(usage(format!(
            "there is a token named `{}` already; revoke it first",
            token.name
        ))),
    }
}
