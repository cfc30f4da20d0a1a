//! With real servers: each test has its own data directory.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::time::Duration;

use super::*;

async fn count(url: &str) -> Result<i64> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client.query_one("SELECT count(*) FROM kept", &[]).await?.get(0))
}

async fn write_one(postgres: &EmbeddedPostgres) -> Result<()> {
    postgres.create_database("heddle").await?;
    let statement = "CREATE TABLE IF NOT EXISTS kept (a int); INSERT INTO kept VALUES (1)";
    execute(&postgres.url("heddle"), statement).await?;
    Ok(())
}

fn kill(process: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("a live process");
}

fn is_alive(process: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
    // A dead one whose parent does not ask for its status still has its number, but runs no program.
    let runs = !cfg!(target_os = "linux") || std::fs::read_link(format!("/proc/{process}/exe")).is_ok();
    rustix::process::test_kill_process(pid).is_ok() && runs
}

#[tokio::test]
async fn a_cluster_is_made_kept_and_found_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = Options::new(dir.path().join("data"));
    let postgres = EmbeddedPostgres::start(options.clone()).await?;
    assert!(postgres.create_database("heddle").await?);
    assert!(!postgres.create_database("heddle").await?, "the second time it exists");
    write_one(&postgres).await?;
    let process = postgres.process_id().expect("a server");
    postgres.stop().await?;
    assert!(!is_alive(process), "the server stops with us");

    let postgres = EmbeddedPostgres::start(options).await?;
    assert_eq!(count(&postgres.url("heddle")).await?, 1);
    let mode = postgres.socket_dir().metadata()?.permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "nobody else gets at the socket");
    Ok(())
}

#[tokio::test]
async fn a_second_start_says_who_holds_the_directory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = Options::new(dir.path());
    let _first = EmbeddedPostgres::start(options.clone()).await?;
    let error = EmbeddedPostgres::start(options).await.expect_err("in use");
    let in_use = error.downcast_ref::<InUse>().expect("InUse");
    assert_eq!(in_use.holder, Some(std::process::id()));
    Ok(())
}

#[tokio::test]
async fn a_killed_server_is_started_again_and_has_lost_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let postgres = EmbeddedPostgres::start(Options::new(dir.path())).await?;
    write_one(&postgres).await?;
    let first = postgres.process_id().expect("a server");
    kill(first, rustix::process::Signal::KILL);
    for _ in 0..1_000 {
        if postgres.process_id().is_some_and(|process| process != first)
            && let Ok(count) = count(&postgres.url("heddle")).await
        {
            assert_eq!(count, 1);
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the server did not come back");
}

#[tokio::test]
async fn a_stale_pid_file_with_a_strangers_number_is_no_obstacle() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = Options::new(dir.path());
    EmbeddedPostgres::start(options.clone()).await?.stop().await?;
    let file = dir.path().join("postgres/data/postmaster.pid");
    std::fs::write(
        &file,
        format!("{}\n/somewhere\n1\n5432\n/tmp\n\n 1 1\nready\n", std::process::id()),
    )?;
    EmbeddedPostgres::start(options).await?;
    Ok(())
}

#[tokio::test]
async fn a_cluster_half_made_is_made_anew() -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir_all(dir.path().join("postgres/data.new/base"))?;
    EmbeddedPostgres::start(Options::new(dir.path())).await?;
    Ok(())
}

#[tokio::test]
async fn a_long_path_does_not_matter() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let postgres = EmbeddedPostgres::start(Options::new(dir.path().join("d".repeat(150)))).await?;
    write_one(&postgres).await?;
    assert_eq!(postgres.socket_dir().metadata()?.permissions().mode() & 0o777, 0o700);
    let socket_dir = postgres.socket_dir().to_owned();
    postgres.stop().await?;
    std::fs::remove_dir(socket_dir)?;
    Ok(())
}

/// As root the server runs as another user, who cannot reach a directory below one that only root may enter.
#[tokio::test]
async fn a_data_directory_that_only_we_can_reach_will_do() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let private = dir.path().join("private");
    std::fs::DirBuilder::new().mode(0o700).create(&private)?;
    let postgres = EmbeddedPostgres::start(Options::new(private.join("x"))).await?;
    write_one(&postgres).await?;
    assert_eq!(postgres.server_user().is_some(), rustix::process::geteuid().is_root());
    Ok(())
}

/// The node of this test is this test's own program, run again as a child that is killed.
#[tokio::test]
async fn a_killed_node_takes_its_server_along() -> Result<()> {
    const CHILD: &str = "HEDDLE_TEST_CHILD_DATA_DIR";
    const SELF: &str = "tests::a_killed_node_takes_its_server_along";
    if let Some(data_dir) = std::env::var_os(CHILD) {
        let postgres = EmbeddedPostgres::start(Options::new(PathBuf::from(data_dir))).await?;
        write_one(&postgres).await?;
        println!("server={}", postgres.process_id().expect("a server"));
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir()?;
    let mut server = 0;
    for round in 0..2 {
        let mut node = std::process::Command::new(std::env::current_exe()?)
            .args([SELF, "--exact", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let lines = std::io::BufRead::lines(std::io::BufReader::new(node.stdout.take().expect("piped")));
        let said = lines
            .map_while(|line| line.ok())
            .find_map(|line| line.split_once("server=").map(|s| s.1.to_owned()));
        server = said
            .with_context(|| format!("the node of round {round} did not start"))?
            .parse()?;
        node.kill()?;
        node.wait()?;
    }
    let postgres = EmbeddedPostgres::start(Options::new(dir.path())).await?;
    assert_eq!(count(&postgres.url("heddle")).await?, 2);
    assert!(!is_alive(server) || postgres.process_id() == Some(server));
    Ok(())
}

#[tokio::test]
async fn tests_get_copies_of_a_template() -> Result<()> {
    let cluster = TestCluster::start().await?;
    let migrate =
        async |url: String| Ok(execute(&url, "CREATE TABLE kept (a int); INSERT INTO kept VALUES (1)").await?);
    cluster.template("template_of_postgres_1", migrate).await?;
    cluster
        .template("template_of_postgres_1", async |_| bail!("made already"))
        .await?;
    let (one, other) = (
        cluster.database("template_of_postgres_1").await?,
        cluster.database("template_of_postgres_1").await?,
    );
    execute(one.url(), "INSERT INTO kept VALUES (2)").await?;
    assert_eq!((count(one.url()).await?, count(other.url()).await?), (2, 1));
    let url = one.url().to_owned();
    drop(one);
    for _ in 0..500 {
        if tokio_postgres::connect(&url, NoTls).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the database was not dropped");
}

#[test]
fn urls_escape_what_a_path_may_hold() {
    assert_eq!(percent_encoded("/tmp/a b/\u{5668}"), "%2Ftmp%2Fa%20b%2F%E5%99%A8");
    let config: tokio_postgres::Config = "postgres://heddle@%2Ftmp%2Fa%20b%2Fs/heddle".parse().expect("a URL");
    assert_eq!(
        config.get_hosts(),
        [tokio_postgres::config::Host::Unix("/tmp/a b/s".into())]
    );
}
