//! Commands that are, or prepare, a node.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use heddle_postgres::{EmbeddedPostgres, Options};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::{self, DevOptions, NodeOptions, ServeOptions};
use crate::exit::{INTERRUPTED, done, usage};
use crate::node::{self, NodeConfig};
use crate::output::Format;
use crate::{logging, output};

/// The embedded server's database.
const DATABASE: &str = "heddle";

/// The options of `heddle dev`.
#[derive(clap::Args, Debug)]
pub struct Dev {
    #[command(flatten)]
    pub options: NodeOptions,
    /// What only `dev` takes.
    #[command(flatten)]
    pub dev: DevOptions,
    /// A TOML file with options: the names of the options, with `_` instead of `-`
    #[arg(long, env = "HEDDLE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The options of `heddle serve`.
#[derive(clap::Args, Debug)]
pub struct Serve {
    /// What only `serve` takes.
    #[command(flatten)]
    pub serve: ServeOptions,
    #[command(flatten)]
    pub options: NodeOptions,
    /// A TOML file with options: the names of the options, with `_` instead of `-`
    #[arg(long, env = "HEDDLE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The options of `heddle migrate`.
#[derive(clap::Args, Debug)]
pub struct Migrate {
    /// The Postgres of the cluster: postgres://user:password@host/database
    #[arg(long, env = "HEDDLE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: String,
}

pub(crate) fn dev(dev: Dev) -> Result<ExitCode> {
    let (node_file, dev_file) = config::read_file(dev.config.as_deref())?;
    let (options, dev) = (dev.options.or(node_file), dev.dev.or(dev_file));
    let listen = options.listen_address()?;
    config::require_loopback(listen)?;
    node::check(&options)?;
    start_logging(&options)?;
    on_all_threads(async move {
        // The address is bound before the database is started, because this fails most often.
        let listener = bind(listen).await?;
        let data_dir = options.data_directory();
        let postgres = Options {
            binaries: dev.postgres_bin,
            ..Options::new(&data_dir)
        };
        let postgres = EmbeddedPostgres::start(postgres)
            .await
            .context("cannot start the embedded Postgres")?;
        postgres.create_database(DATABASE).await?;
        tracing::info!(data_dir = %data_dir.display(), "the embedded Postgres is running");
        let config = NodeConfig {
            database_url: postgres.url(DATABASE),
            listen,
            data_dir,
            dev: true,
            demo: !dev.no_demo.unwrap_or(false),
            node_id: None,
            provider: None,
            options,
            shutdown: stop_on_signal()?,
        };
        let ended = run(config, listener).await;
        postgres.stop().await?;
        ended
    })
}

pub(crate) fn serve(serve: Serve) -> Result<ExitCode> {
    let (node_file, serve_file) = config::read_file(serve.config.as_deref())?;
    let (options, serve) = (serve.options.or(node_file), serve.serve.or(serve_file));
    let Some(database_url) = serve.database_url.clone() else {
        return Err(usage(
            "the database is missing; give its URL with --database-url, HEDDLE_DATABASE_URL or `database_url` in the \
            file of --config, or use `heddle dev`, which has an embedded database",
        ));
    };
    let listen = options.listen_address()?;
    let provider = config::provider(&serve, options.public_url.as_deref())?;
    node::check(&options)?;
    start_logging(&options)?;
    on_all_threads(async move {
        let listener = bind(listen).await?;
        let config = NodeConfig {
            database_url,
            listen,
            data_dir: options.data_directory(),
            dev: false,
            demo: false,
            node_id: serve.node_id,
            provider,
            options,
            shutdown: stop_on_signal()?,
        };
        run(config, listener).await
    })
}

pub(crate) fn migrate(migrate: Migrate, format: Format) -> Result<ExitCode> {
    logging::start(None, Some("warn"))?;
    wait_for(async move {
        node::migrate(&migrate.database_url).await?;
        format.print(&json!({"migrated": true}), |_| {
            "the database schema is up to date".to_owned()
        })?;
        done()
    })
}

/// Runs a node and prints its address when it is ready.
async fn run(config: NodeConfig, listener: TcpListener) -> Result<ExitCode> {
    let (sender, receiver) = oneshot::channel();
    let announce = async {
        match receiver.await {
            Ok(address) => output::print(&format!("Heddle is ready at http://{address}")),
            Err(_) => Ok(()), // it ended before; its own error says why
        }
    };
    let (ended, announced) = tokio::join!(node::run_node(config, listener, sender), announce);
    ended?;
    announced?;
    done()
}

/// How long the killed predecessor of this process may take to release the address.
const BIND_WAIT: std::time::Duration = std::time::Duration::from_secs(2);

async fn bind(listen: std::net::SocketAddr) -> Result<TcpListener> {
    let until = tokio::time::Instant::now() + BIND_WAIT;
    loop {
        match TcpListener::bind(listen).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tokio::time::Instant::now() < until => {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            bound => {
                return bound
                    .with_context(|| format!("cannot listen on {listen}; choose another address with --listen"));
            }
        }
    }
}

fn start_logging(options: &NodeOptions) -> Result<()> {
    logging::start(options.log_format, options.log.as_deref())
}

/// Cancelled by the first SIGTERM or SIGINT; the second one ends the process at once.
fn stop_on_signal() -> Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate()).context("no SIGTERM")?,
        signal(SignalKind::interrupt()).context("no SIGINT")?,
    );
    let token = shutdown.clone();
    tokio::spawn(async move {
        for again in [false, true] {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            if again {
                // The kernel signals the end of this process to the embedded server.
                std::process::exit(INTERRUPTED.into());
            }
            token.cancel();
            tracing::info!(
                "stopping: running attempts may finish for 20 s; a second signal ends the process \
                immediately"
            );
        }
    });
    Ok(shutdown)
}

/// Runs a command that only talks to a server: one thread is enough.
pub(super) fn wait_for(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(command)
}

fn on_all_threads(node: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("heddle")
        .max_blocking_threads(heddle_sandbox::BLOCKED_THREADS_MAX)
        .build()
        .context("cannot start the runtime")?
        .block_on(node)
}
