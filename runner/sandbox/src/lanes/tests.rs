use super::*;
use crate::config::{CompilerCommand, SandboxConfig};
use crate::rehearsal::StageClock;
use crate::sandbox::Sandbox;
use tokio::sync::oneshot;

/// Twenty slices of 10 ms: with work, or with waits as on a processor that others use.
async fn slices(lanes: &Arc<Lanes>, worked: bool) -> bool {
    const SLICE: Duration = Duration::from_millis(10);
    let limits = Limits {
        cpu: Some(Duration::from_millis(50)),
        ..Limits::default()
    };
    let signals = Arc::new(Signals::default());
    let (send, receive) = oneshot::channel();
    let looked_at = Arc::clone(&signals);
    let mut slices = 20;
    let mut send = Some(send);
    let job = std::future::poll_fn(move |cx| {
        if slices == 0 || looked_at.stopped() {
            let _ = send.take().map(|send| send.send(looked_at.exceeds(limits.cpu)));
            return Poll::Ready(());
        }
        slices -= 1;
        let until = thread_cpu_nanos() + SLICE.as_nanos() as u64;
        while worked && thread_cpu_nanos() < until {}
        if !worked {
            std::thread::sleep(SLICE);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    lanes.spawn(SlotKind::Runs, signals, &limits, Box::pin(job));
    receive.await.unwrap()
}

#[tokio::test]
async fn a_busy_processor_uses_nobodys_time_up() {
    let ticker = Ticker::start(wasmtime::Engine::default()).unwrap();
    let runtime = tokio::runtime::Handle::current();
    let lanes = Lanes::start(1, 1, 4, ticker, &runtime, &runtime).unwrap();
    assert!(!slices(&lanes, false).await);
    assert!(slices(&lanes, true).await);
    lanes.close();
}

/// Host functions can keep the threads of their I/O busy. An attempt ends at its timeout all the same.
#[tokio::test]
async fn a_timeout_does_not_wait_for_the_io_of_scripts() {
    let directory = tempfile::tempdir().unwrap();
    let unused = CompilerCommand {
        program: "unused".into(),
        args: Vec::new(),
        env: Vec::new(),
    };
    let config = SandboxConfig {
        max_instances: 4,
        ..SandboxConfig::new(directory.path().to_owned(), unused)
    };
    let clock = StageClock::new(heddle_domain::Time::UNIX_EPOCH, false, None);
    let sandbox = Sandbox::new(config, Arc::new(clock)).unwrap();
    let io = sandbox.inner.runner.io.clone();
    let mut held_until_dropped = Vec::new();
    for _ in 0..io.metrics().num_workers() {
        let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
        let (send, busy) = oneshot::channel();
        io.spawn(async move {
            let _ = send.send(());
            let _ = held.recv();
        });
        busy.await.unwrap();
        held_until_dropped.push(release);
    }
    let limits = Limits {
        timeout: Some(Duration::from_millis(1)),
        ..Limits::default()
    };
    let signals = Arc::new(Signals::default());
    let looked_at = Arc::clone(&signals);
    let (send, receive) = oneshot::channel();
    let mut send = Some(send);
    let job = std::future::poll_fn(move |_| {
        if !looked_at.stopped() {
            return Poll::Pending;
        }
        let _ = send.take().map(|send| send.send(looked_at.expired.load(Acquire)));
        Poll::Ready(())
    });
    let lanes = &sandbox.inner.lanes;
    // As the engine does: nothing else keeps a job that waits.
    let task = lanes.spawn(SlotKind::Runs, signals, &limits, Box::pin(job));
    // Without a bound, this test would not fail, but wait for ever.
    let expired = tokio::time::timeout(Duration::from_secs(60), receive).await;
    drop((held_until_dropped, task));
    assert_eq!(expired.expect("the attempt ends"), Ok(true));
}
