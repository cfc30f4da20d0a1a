//! The threads that run guests.
//!
//! Guests share a few threads of their own, with a higher niceness than everything that answers people. A guest yields
//! whenever the epoch ticks (about every millisecond) and goes to the end of its queue, so that all runnable guests get
//! the processor in turn. There are two lanes. Every attempt begins in the short lane. One that has used more than
//! [`SHORT_LANE_CPU`] moves to the long lane for good, whose threads get what the others leave. So a light attempt
//! never queues behind spinning ones, neither here nor in the kernel's scheduler.
//!
//! The others leave less than niceness promises. An attempt needs some ten wake-ups on its way through the node and the
//! database. Niceness has no effect between the sessions that the kernel schedules as groups (the database server is
//! one), and the kernel decides again only every few milliseconds. So the long lane's threads ask for long slices,
//! which lets all other threads preempt them; and the last of them, the *spare* one, rests while light attempts keep
//! ending ([`SPARE_RESTS_TICKS`]): with all cores spinning, a light run took 2.8 times as long; with one core left
//! free, 1.1 times. If there are only heavy attempts, they have every core.
//!
//! A [`Task`] is an attempt's future with the flags that stop it. Its waker puts it into its lane's queue. Stopping it
//! (a cancel, a timeout) puts it into the short lane's urgent queue, ahead of all others, because the poll that follows
//! only drops it. The same task may then be in two queues: the thread that takes it first runs it, and the other entry
//! is stale.
//!
//! The task's cell (waker, states, the future) is our own, and not `async-task`'s, because of stops. There, a scheduled
//! task is one `Runnable`, owned by its queue: a stop could not move it ahead, and would wait behind a thousand
//! spinning ones. To be found, the `Runnable` would have to be in a cell next to the task, from which the first entry
//! takes it. That needs the mutex, the flag for its end and the waker that the library was meant to provide, and two
//! reference cycles that have to be broken. The library also schedules a task that is woken within a poll before that
//! poll has returned, so another thread would run the task while this one still counts its processor time. Measured
//! alone (release, two threads): for an attempt of one poll, cell and queue cost 0.3 us here, 0.7 us with `async-task`
//! in such a cell, 0.2 us with `async-task` and no stop that overtakes.
//!
//! I/O of host functions runs elsewhere (on the sandbox's I/O runtime), and wakes the task when it is done. The timeouts
//! wait on a thread of their own, which does nothing else: what scripts let the I/O runtime do must not hold up a stop.

use crate::attempt::Limits;
use crate::engine::{CHECKS_MAX, Ticker};
use crate::thread::{lengthen_slice, lower_priority, thread_cpu_nanos};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// After this much processor time, an attempt belongs to the long lane.
const SHORT_LANE_CPU: Duration = Duration::from_millis(8);
/// The short lane's niceness: below the node's own threads and the database's.
const SHORT_LANE_NICE: libc::c_int = 10;
/// The long lane's niceness.
const LONG_LANE_NICE: libc::c_int = 19;
/// The time slice that the long lane's threads ask for, the longest there is (sched_setattr(2); used by Linux 6.12 and
/// later).
const LONG_LANE_SLICE: Duration = Duration::from_millis(100);
/// For how many ticks after the end of a light attempt the long lane leaves a core free.
const SPARE_RESTS_TICKS: u64 = 1_000;
/// How often the spare thread checks whether it may go on.
const SPARE_POLL: Duration = Duration::from_millis(50);
/// How many attempts may wait for an instance. If the caller checks the load, none ever waits.
const MAX_WAITING: usize = 10_000;
/// A guest thread's stack. Guests have their own stacks; this one is for host code.
const THREAD_STACK_BYTES: usize = 2 << 20;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why a task should stop.
#[derive(Default)]
pub(crate) struct Signals {
    pub cancelled: AtomicBool,
    pub expired: AtomicBool,
    /// Set if the attempt never got an instance, because the node ends or too many wait.
    pub refused: AtomicBool,
    /// Processor time of all polls that ended.
    cpu_nanos: AtomicU64,
    /// The thread's processor time at the beginning of the current poll.
    poll_began_nanos: AtomicU64,
}

impl Signals {
    pub fn stopped(&self) -> bool {
        self.cancelled.load(Acquire) || self.expired.load(Acquire) || self.refused.load(Acquire)
    }

    /// Whether this much processor time, if it is limited, was used up. Call it only within a poll.
    pub fn exceeds(&self, max: Option<Duration>) -> bool {
        max.is_some_and(|max| self.cpu() > max)
    }

    /// Processor time used so far. Call it only within a poll.
    pub fn cpu(&self) -> Duration {
        let now = thread_cpu_nanos().saturating_sub(self.poll_began_nanos.load(Relaxed));
        Duration::from_nanos(self.cpu_nanos.load(Relaxed) + now)
    }
}

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const WOKEN: u8 = 3;
const DONE: u8 = 4;

/// Which slots a task takes. Uploaded texts are checked even if scripts that sleep hold all slots of runs.
#[derive(Clone, Copy)]
pub(crate) enum SlotKind {
    Runs,
    Checks,
}

/// An attempt's future in the lanes.
pub(crate) struct Task {
    job: Mutex<Option<Job>>,
    state: AtomicU8,
    /// It belongs to the long lane.
    long: AtomicBool,
    slot_kind: SlotKind,
    /// It holds a slot.
    admitted: AtomicBool,
    timeout: Option<Duration>,
    cpu_max: Option<Duration>,
    timer: Mutex<Option<tokio::task::AbortHandle>>,
    signals: Arc<Signals>,
    lanes: Arc<Lanes>,
}

impl Task {
    /// Stops the task at its next poll, which comes at once.
    pub fn cancel(self: &Arc<Self>) {
        self.signals.cancelled.store(true, Release);
        self.hurry();
    }

    fn expire(self: &Arc<Self>) {
        self.signals.expired.store(true, Release);
        self.hurry();
    }

    fn hurry(self: &Arc<Self>) {
        if self.state.load(Acquire) == QUEUED {
            self.lanes.push(self);
        } else {
            self.wake_by_ref();
        }
    }

    /// Polls the task, unless it is done.
    fn run(self: Arc<Self>) {
        if self.state.compare_exchange(QUEUED, RUNNING, AcqRel, Acquire).is_err() {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut job = self.job.lock();
        let before = thread_cpu_nanos();
        self.signals.poll_began_nanos.store(before, Relaxed);
        self.lanes.ticker.enter();
        let polled = match job.as_mut() {
            // A panic in host code ends that attempt, not the thread: dropping the job reports it.
            Some(future) => std::panic::catch_unwind(AssertUnwindSafe(|| {
                future.as_mut().poll(&mut Context::from_waker(&waker))
            }))
            .unwrap_or(Poll::Ready(())),
            None => Poll::Ready(()),
        };
        self.lanes.ticker.leave();
        let used = thread_cpu_nanos().saturating_sub(before);
        let total = self.signals.cpu_nanos.fetch_add(used, Relaxed) + used;
        if polled.is_ready() {
            self.state.store(DONE, Release);
            let finished = job.take();
            drop(job);
            drop(finished);
            if let Some(timer) = self.timer.lock().take() {
                timer.abort();
            }
            self.lanes.runnable.fetch_sub(1, Relaxed);
            if self.long.load(Relaxed) {
                self.lanes.long_live.fetch_sub(1, Relaxed);
            } else {
                self.lanes
                    .spare_rests_until
                    .store(self.lanes.ticker.ticks() + SPARE_RESTS_TICKS, Relaxed);
            }
            self.lanes.finished(&self);
            return;
        }
        drop(job);
        self.arm();
        if self.cpu_max.is_some_and(|max| Duration::from_nanos(total) > max) {
            self.signals.expired.store(true, Release);
        }
        if total > SHORT_LANE_CPU.as_nanos() as u64 && !self.long.swap(true, Relaxed) {
            self.lanes.long_live.fetch_add(1, Relaxed);
        }
        if self.state.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_ok() {
            self.lanes.runnable.fetch_sub(1, Relaxed);
            // A stop that came during the poll found the task running, and could not wake it.
            if self.signals.stopped() {
                self.wake_by_ref();
            }
        } else {
            self.state.store(QUEUED, Release);
            self.lanes.push(&self);
        }
    }

    /// Starts the timeout. Most attempts end within their first poll and never get a timer.
    fn arm(self: &Arc<Self>) {
        let Some(timeout) = self.timeout else { return };
        let mut timer = self.timer.lock();
        if timer.is_none() {
            let task = Arc::downgrade(self);
            let expires = self.lanes.timers.spawn(async move {
                tokio::time::sleep(timeout).await;
                if let Some(task) = task.upgrade() {
                    task.expire();
                }
            });
            *timer = Some(expires.abort_handle());
        }
    }
}

/// A started attempt. Dropping it does not cancel.
#[derive(Clone)]
pub struct AttemptHandle {
    pub(crate) task: Arc<Task>,
}

impl AttemptHandle {
    /// Stops the attempt within milliseconds, whether it runs, waits or has not begun. Its `done` is still called: with
    /// [`crate::Outcome::Cancelled`], unless it had ended before.
    pub fn cancel(&self) {
        self.task.cancel();
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        loop {
            match self.state.load(Acquire) {
                IDLE => {
                    if self.state.compare_exchange(IDLE, QUEUED, AcqRel, Acquire).is_ok() {
                        self.lanes.runnable.fetch_add(1, Relaxed);
                        self.lanes.push(self);
                        return;
                    }
                }
                RUNNING => {
                    if self.state.compare_exchange(RUNNING, WOKEN, AcqRel, Acquire).is_ok() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }
}

/// Both lanes with their threads.
pub(crate) struct Lanes {
    short: Lane,
    long: Lane,
    ticker: Ticker,
    runnable: AtomicU32,
    /// Live tasks in the long lane.
    long_live: AtomicU32,
    /// The tick before which the long lane's spare thread takes nothing.
    spare_rests_until: AtomicU64,
    runs: Slots,
    checks: Slots,
    /// The runtime of the timeouts.
    timers: tokio::runtime::Handle,
}

/// The slots of one kind, with the tasks that wait for one.
struct Slots {
    most: u32,
    holders: Mutex<Holders>,
}

#[derive(Default)]
struct Holders {
    live: u32,
    waiting: VecDeque<Arc<Task>>,
}

#[derive(Default)]
struct Lane {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Ends the spare thread's rest when the lane closes.
    wake_spare: Condvar,
}

#[derive(Default)]
struct Queue {
    urgent: VecDeque<Arc<Task>>,
    ready: VecDeque<Arc<Task>>,
    idle: u32,
    closed: bool,
}

/// How busy the lanes are.
#[derive(Clone, Copy)]
pub(crate) struct Busy {
    pub live: u32,
    pub waiting: u32,
    pub runnable: u32,
    pub long: u32,
}

impl Lanes {
    /// Starts the threads. They end when [`Self::close`] is called. `io` is the runtime of host functions, `timers` that
    /// of the timeouts.
    pub fn start(
        threads: usize,
        long_threads: usize,
        slots: u32,
        ticker: Ticker,
        io: &tokio::runtime::Handle,
        timers: &tokio::runtime::Handle,
    ) -> std::io::Result<Arc<Self>> {
        let lanes = Arc::new(Self {
            short: Lane::default(),
            long: Lane::default(),
            ticker,
            runnable: AtomicU32::new(0),
            long_live: AtomicU32::new(0),
            spare_rests_until: AtomicU64::new(0),
            runs: Slots::of(slots.max(1)),
            checks: Slots::of(CHECKS_MAX),
            timers: timers.clone(),
        });
        let short = (0..threads.max(1)).map(|index| ("short", index, SHORT_LANE_NICE));
        let long = (0..long_threads.max(1)).map(|index| ("long", index, LONG_LANE_NICE));
        // A lane's only thread is never the spare one.
        let spare = long_threads.checked_sub(1).filter(|index| *index > 0);
        for (name, index, nice) in short.chain(long) {
            let serving = Arc::clone(&lanes);
            let io = io.clone();
            let started = std::thread::Builder::new()
                .name(format!("guest-{name}-{index}"))
                .stack_size(THREAD_STACK_BYTES)
                .spawn(move || {
                    let long = name == "long";
                    lower_priority(nice);
                    if long {
                        lengthen_slice(nice, LONG_LANE_SLICE);
                    }
                    // Timers and sockets of host functions belong to the I/O runtime.
                    let _entered = io.enter();
                    let lane = if long { &serving.long } else { &serving.short };
                    let spare = long && spare == Some(index);
                    while let Some(task) = lane.pop(|| spare && serving.spare_rests()) {
                        task.run();
                    }
                });
            if let Err(error) = started {
                lanes.close();
                return Err(error);
            }
        }
        Ok(lanes)
    }

    /// Begins a job as soon as there is a slot. The job checks `signals` in order to stop; of `limits`, only the times
    /// are used here.
    pub fn spawn(self: &Arc<Self>, slot_kind: SlotKind, signals: Arc<Signals>, limits: &Limits, job: Job) -> Arc<Task> {
        let task = Arc::new(Task {
            job: Mutex::new(Some(job)),
            state: AtomicU8::new(IDLE),
            long: AtomicBool::new(false),
            slot_kind,
            admitted: AtomicBool::new(false),
            timeout: limits.timeout,
            cpu_max: limits.cpu,
            timer: Mutex::new(None),
            signals,
            lanes: Arc::clone(self),
        });
        let slots = self.slots_of(slot_kind);
        let mut holders = slots.holders.lock();
        if holders.live < slots.most {
            holders.live += 1;
            task.admitted.store(true, Relaxed);
        } else if holders.waiting.len() < MAX_WAITING {
            holders.waiting.push_back(Arc::clone(&task));
            return task;
        } else {
            task.signals.refused.store(true, Release);
        }
        drop(holders);
        task.wake_by_ref();
        task
    }

    /// How busy the lanes are with runs.
    pub fn busy(&self) -> Busy {
        let holders = self.runs.holders.lock();
        Busy {
            live: holders.live,
            waiting: holders.waiting.len() as u32,
            runnable: self.runnable.load(Relaxed).min(holders.live),
            long: self.long_live.load(Relaxed).min(holders.live),
        }
    }

    /// How many runs may be live at once.
    pub fn slots(&self) -> u32 {
        self.runs.most
    }

    const fn slots_of(&self, kind: SlotKind) -> &Slots {
        match kind {
            SlotKind::Runs => &self.runs,
            SlotKind::Checks => &self.checks,
        }
    }

    /// Ends the threads, and drops the tasks that have not ended.
    pub fn close(&self) {
        self.ticker.stop();
        let mut dropped: Vec<Arc<Task>> = Vec::new();
        for slots in [&self.runs, &self.checks] {
            dropped.extend(slots.holders.lock().waiting.drain(..));
        }
        for lane in [&self.short, &self.long] {
            let mut queue = lane.queue.lock();
            queue.closed = true;
            dropped.extend(queue.urgent.drain(..));
            dropped.extend(queue.ready.drain(..));
            lane.wake.notify_all();
            lane.wake_spare.notify_all();
        }
        for task in dropped {
            task.signals.refused.store(true, Release);
            if let Some(mut job) = task.job.try_lock() {
                let unfinished = job.take();
                drop(job);
                drop(unfinished);
            }
        }
    }

    fn spare_rests(&self) -> bool {
        self.ticker.ticks() < self.spare_rests_until.load(Relaxed)
    }

    fn push(&self, task: &Arc<Task>) {
        let urgent = task.signals.stopped();
        let lane = if task.long.load(Relaxed) && !urgent {
            &self.long
        } else {
            &self.short
        };
        let mut queue = lane.queue.lock();
        if queue.closed {
            return;
        }
        if urgent {
            queue.urgent.push_back(Arc::clone(task));
        } else {
            queue.ready.push_back(Arc::clone(task));
        }
        if queue.idle > 0 {
            lane.wake.notify_one();
        }
    }

    /// Gives a finished task's slot to the next one.
    fn finished(&self, task: &Task) {
        if !task.admitted.load(Relaxed) {
            return;
        }
        let mut holders = self.slots_of(task.slot_kind).holders.lock();
        let next = loop {
            match holders.waiting.pop_front() {
                // A task that was cancelled while it waited is done already.
                Some(next) if next.state.load(Acquire) != IDLE => {}
                Some(next) => break Some(next),
                None => break None,
            }
        };
        match next {
            Some(next) => {
                next.admitted.store(true, Relaxed);
                drop(holders);
                next.wake_by_ref();
            }
            None => holders.live -= 1,
        }
    }
}

impl Slots {
    fn of(most: u32) -> Self {
        Self {
            most,
            holders: Mutex::default(),
        }
    }
}

impl Lane {
    /// The next task; `None` when the lane has closed. A resting thread takes nothing, and a push does not wake it.
    fn pop(&self, rests: impl Fn() -> bool) -> Option<Arc<Task>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            // Without a task, it waits like the others: there are ticks only while a guest runs.
            if !queue.ready.is_empty() && rests() {
                // This thread may be the one that was woken for the task.
                if queue.idle > 0 {
                    self.wake.notify_one();
                }
                self.wake_spare.wait_for(&mut queue, SPARE_POLL);
                continue;
            }
            if let Some(task) = queue.urgent.pop_front() {
                return Some(task);
            }
            if let Some(task) = queue.ready.pop_front() {
                return Some(task);
            }
            queue.idle += 1;
            self.wake.wait(&mut queue);
            queue.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
