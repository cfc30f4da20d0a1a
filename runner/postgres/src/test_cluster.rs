//! Databases for tests: one cluster for each test process, one migrated template, a copy of it for each test.
//!
//! Clusters are in numbered slots below a scratch directory and are used again by later processes, so that neither
//! creating them nor their data adds up; a process takes the first slot that no other one holds. Scratch is in memory
//! if there is enough of it: while a build writes gigabytes, the kernel delays all others that write to the disk, for
//! longer than a node's lease.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use tokio_postgres::NoTls;

use crate::{EmbeddedPostgres, InUse, Options, execute, quoted};

/// How many test processes may run at once.
const MAX_SLOTS: u32 = 64;
/// What `shm_overview(7)` promises on Linux; elsewhere there is no such directory.
const IN_MEMORY: &str = "/dev/shm";
/// A cluster takes half a gigabyte; several test processes may have one each, and the machine needs memory besides.
const MIN_FREE_BYTES: u64 = 4 << 30;
/// The prefix of the names of tests' databases.
const PREFIX: &str = "test_";

/// A cluster without durability, with templates and copies of them.
#[derive(Debug)]
pub struct TestCluster {
    postgres: EmbeddedPostgres,
    janitor: mpsc::SyncSender<String>,
    made: AtomicU64,
}

impl TestCluster {
    /// Starts the cluster of this process; keep one for all of its tests (`tokio::sync::OnceCell`).
    pub async fn start() -> Result<Self> {
        Self::start_as(false).await
    }

    /// The same with settings as Debian ships them, durable and with JIT.
    pub async fn start_stock() -> Result<Self> {
        Self::start_as(true).await
    }

    async fn start_as(stock: bool) -> Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let kind = if stock { "-stock" } else { "" };
        let base = if stock { std::env::temp_dir() } else { scratch() };
        let base = base.join(format!("heddle-tests-{user}{kind}"));
        for slot in 0..MAX_SLOTS {
            let data_dir = base.join(slot.to_string());
            match Self::start_in(data_dir, stock).await {
                Err(error) if error.is::<InUse>() => continue,
                other => return other,
            }
        }
        bail!("all of the {MAX_SLOTS} test clusters in {} are in use", base.display())
    }

    async fn start_in(data_dir: PathBuf, stock: bool) -> Result<Self> {
        let options = Options {
            for_tests: !stock,
            stock,
            ..Options::new(&data_dir)
        };
        let postgres = match EmbeddedPostgres::start(options.clone()).await {
            Ok(postgres) => postgres,
            Err(error) if error.is::<InUse>() => return Err(error),
            Err(error) => {
                // It does without fsync, so a power cut may have broken it; nothing in it is of value.
                tracing::warn!("a test cluster does not start and is made anew: {error:#}");
                let _ = std::fs::remove_dir_all(data_dir.join("postgres").join("data"));
                EmbeddedPostgres::start(options).await?
            }
        };
        let cluster = Self {
            janitor: start_janitor(postgres.url("postgres"))?,
            postgres,
            made: AtomicU64::new(0),
        };
        for leftover in cluster
            .databases(&format!("datname LIKE '{}%'", PREFIX.replace('_', "\\_")))
            .await?
        {
            cluster.drop_database(&leftover).await?;
        }
        Ok(cluster)
    }

    pub fn postgres(&self) -> &EmbeddedPostgres {
        &self.postgres
    }

    /// Makes a template named `name` with `migrate` (given its URL), unless there is one already: put what the
    /// migrations hash to into the name. Templates with the same beginning up to the last `_` are dropped.
    pub async fn template<M>(&self, name: &str, migrate: M) -> Result<()>
    where
        M: AsyncFnOnce(String) -> Result<()>,
    {
        let known = self.databases("datistemplate").await?;
        if known.iter().any(|known| known == name) {
            return Ok(());
        }
        let family = name.rsplit_once('_').map_or(name, |(family, _)| family);
        for old in known {
            if old.rsplit_once('_').is_some_and(|(of, _)| of == family) {
                self.postgres
                    .execute(&format!("ALTER DATABASE {} IS_TEMPLATE false", quoted(&old)))
                    .await?;
                self.drop_database(&old).await?;
            }
        }
        // One that was not finished is not marked as a template.
        self.drop_database(name).await?;
        self.postgres.create_database(name).await?;
        migrate(self.postgres.url(name)).await?;
        let finish = format!(
            "ALTER DATABASE {} WITH ALLOW_CONNECTIONS false IS_TEMPLATE true",
            quoted(name)
        );
        self.postgres.execute(&finish).await.context("cannot mark the template")
    }

    /// A new database, a copy of a template.
    pub async fn database(&self, template: &str) -> Result<TestDatabase> {
        let name = format!("{PREFIX}{}", self.made.fetch_add(1, Ordering::Relaxed));
        let statement = format!("CREATE DATABASE {} TEMPLATE {}", quoted(&name), quoted(template));
        self.postgres
            .execute(&statement)
            .await
            .with_context(|| format!("cannot copy the template `{template}`"))?;
        Ok(TestDatabase {
            url: self.postgres.url(&name),
            name,
            janitor: self.janitor.clone(),
        })
    }

    async fn drop_database(&self, name: &str) -> Result<()> {
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quoted(name));
        self.postgres
            .execute(&statement)
            .await
            .with_context(|| format!("cannot drop the database `{name}`"))
    }

    async fn databases(&self, condition: &str) -> Result<Vec<String>> {
        let (client, connection) = tokio_postgres::connect(&self.postgres.url("postgres"), NoTls).await?;
        let connection = tokio::spawn(connection);
        let query = format!("SELECT datname FROM pg_database WHERE datname NOT LIKE 'template_' AND {condition}");
        let rows = client.query(&query, &[]).await?;
        drop(client);
        let _ = connection.await;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// The suffix of the names of templates that a program fills: a different one for each build, because the program
/// contains the migrations and other data for them.
pub fn stamp(program: &Path) -> Result<String> {
    let facts = std::fs::metadata(program).with_context(|| format!("there is no {}", program.display()))?;
    let digest = Sha256::digest(format!("{:?} {}", facts.modified()?, facts.len()));
    Ok(digest[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Linux' file system in memory, if it has room; else the temporary directory.
fn scratch() -> PathBuf {
    let free = rustix::fs::statvfs(IN_MEMORY).map_or(0, |facts| facts.f_bavail.saturating_mul(facts.f_frsize));
    if free >= MIN_FREE_BYTES {
        PathBuf::from(IN_MEMORY)
    } else {
        std::env::temp_dir()
    }
}

/// A database of one test, dropped with this (also while connections to it are open).
#[derive(Debug)]
pub struct TestDatabase {
    url: String,
    name: String,
    janitor: mpsc::SyncSender<String>,
}

impl TestDatabase {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // If the janitor is gone, the next process that takes the slot sweeps.
        let _ = self.janitor.send(std::mem::take(&mut self.name));
    }
}

/// How many databases may wait to be dropped; beyond that, the caller waits until one is gone.
const JANITOR_MAX: usize = 1_024;

/// A thread that drops databases, since `Drop` cannot wait and a test's own runtime may be gone by then.
fn start_janitor(url: String) -> Result<mpsc::SyncSender<String>> {
    let (sender, receiver) = mpsc::sync_channel::<String>(JANITOR_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("test-janitor".into()).spawn(move || {
        for name in receiver {
            let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quoted(&name));
            if let Err(error) = runtime.block_on(execute(&url, &statement)) {
                tracing::warn!(database = name, "cannot drop a test's database: {error}");
            }
        }
    })?;
    Ok(sender)
}
