//! What a service is, and the loop that drives it.
//!
//! A service is a `tick` that gets the time: it does what there is to do, and returns when to come back. The loop is
//! the same for all services: it waits for that instant or for the service's signal, starts nothing on a node that may
//! not work, and tries again after a failure. A test with its own clock drives a service without this loop: `simulation/`
//! has at least one for each service, and some go through a month.
//!
//! Usually a service waits for the time and for one signal. A service that waits for something else does so in
//! [`Service::woken`], which stores what it has received; the next tick handles it.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use heddle_domain::{Chain, Clock, Time};
use tokio_util::sync::CancellationToken;

use super::Node;
use super::clock::NodeClock;
use super::group_commit::is_passing;
use super::seldom;
use super::signals::Signal;
use super::state::{NodeState, State};
use crate::EngineError;

/// The time until the next tick of a service that waits only for its signal: practically never.
pub(crate) const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What a node needs for a service to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// It needs nothing of its node.
    Nothing,
    /// It needs the lease of its node.
    Lease,
    /// It needs the lease of its node, and the node must not be stopping.
    Active,
}

impl Needs {
    fn are_met(self, state: &NodeState) -> bool {
        match self {
            Self::Nothing => true,
            Self::Lease => !state.fenced,
            Self::Active => state.is_active(),
        }
    }
}

/// Work that a node does again and again.
pub(crate) trait Service: Send + 'static {
    /// The message of the log when a tick fails.
    const FAILED: &'static str;
    const NEEDS: Needs;
    /// How long to wait after a tick that failed.
    const AGAIN_AFTER: Duration;
    /// The signal that starts a tick before its time.
    const WOKEN_BY: Option<Signal> = None;
    /// The node that it works for.
    fn node(&self) -> &Arc<Node>;

    /// How long to wait for the first tick.
    fn first_after(&self) -> Duration {
        Duration::ZERO
    }

    /// Waits for the event that starts a tick before its time: the service's signal, unless it waits for something
    /// else. If the time comes first, this future is dropped, so it must not lose what it has received.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        let node = Arc::clone(self.node());
        async move {
            match Self::WOKEN_BY {
                Some(signal) => node.signals.raised(signal).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Does what there is to do; returns the time until the next tick unless there is a signal before.
    fn tick(&mut self, now: Time) -> impl Future<Output = Result<Duration, EngineError>> + Send;

    /// The node stops: completes the work that a tick has begun and left for the next one.
    fn finish(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Drives a service until its node stops. A tick that is running at that moment is completed. The future is boxed, so that
/// the code that spawns it is compiled once, and not once for each service.
pub(crate) fn drive(mut service: impl Service) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let node = service.node().clone();
        go_on(&mut service, &node.state, &node.stop, || node.now()).await;
        service.finish().await;
    })
}

async fn go_on<S: Service>(service: &mut S, state: &State, stop: &CancellationToken, now: impl Fn() -> Time) {
    let mut wait = service.first_after();
    let mut failed = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            // After a failure, a signal does not shorten the pause.
            () = service.woken(), if !failed => {}
            () = tokio::time::sleep(wait) => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = state.wait_for(|state| S::NEEDS.are_met(state)) => {}
        }
        let ticked = service.tick(now()).await;
        failed = ticked.is_err();
        wait = ticked.unwrap_or_else(|error| {
            log_failure(S::FAILED, &error);
            S::AGAIN_AFTER
        });
    }
}

fn log_failure(failed: &'static str, error: &EngineError) {
    let error_chain = Chain(error);
    // What passes by itself fails until then at each tick.
    let due = match is_passing(error) {
        true => seldom::line_due(failed),
        false => Some(0),
    };
    match due {
        Some(0) => tracing::warn!(error = %error_chain, "{failed}"),
        Some(omitted) => tracing::warn!(error = %error_chain, omitted, "{failed}"),
        None => tracing::debug!(error = %error_chain, "{failed}"),
    }
}

/// Something that a tick does only once per period, by the time that the tick gets, or by a clock that is never
/// corrected. After a backward correction, the time of a node stands still or goes back, perhaps by minutes
/// ([`NodeClock`]), and this work must continue meanwhile.
#[derive(Debug)]
pub(crate) struct Every {
    period: TimeDelta,
    clock: Arc<NodeClock>,
    /// When it was last done: the time that the tick got, and [`NodeClock::elapsed`]. `None`: never.
    done: Option<(Time, Duration)>,
}

impl Every {
    /// Due at once, and then one period after it was done.
    pub(crate) fn at_once(period: TimeDelta, clock: &Arc<NodeClock>) -> Self {
        Self {
            period,
            clock: clock.clone(),
            done: None,
        }
    }

    /// Due for the first time one period from now.
    pub(crate) fn later(period: TimeDelta, clock: &Arc<NodeClock>) -> Self {
        let mut every = Self::at_once(period, clock);
        every.done(clock.now());
        every
    }

    /// How long until it is due; zero: it is.
    pub(crate) fn rest(&self, now: Time) -> Duration {
        let (Some((done, since)), Ok(period)) = (self.done, self.period.to_std()) else {
            return Duration::ZERO;
        };
        let elapsed = (now - done).to_std().unwrap_or_default();
        period.saturating_sub(elapsed.max(self.clock.elapsed().saturating_sub(since)))
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.rest(now).is_zero()
    }

    pub(crate) fn done(&mut self, now: Time) {
        self.done = Some((now, self.clock.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::node::signals::Signals;

    /// Returns the scripted results, and stops its node when there are none left.
    struct Scripted {
        answers: VecDeque<Result<Duration, EngineError>>,
        ticks: Vec<Time>,
        signals: Arc<Signals>,
        stop: CancellationToken,
    }

    impl Service for Scripted {
        const FAILED: &'static str = "on purpose";
        const NEEDS: Needs = Needs::Active;
        const AGAIN_AFTER: Duration = Duration::from_millis(1);

        fn node(&self) -> &Arc<Node> {
            unreachable!("no node is needed")
        }

        async fn woken(&mut self) {
            self.signals.raised(Signal::Notices).await;
        }

        async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
            self.ticks.push(now);
            let answer = self.answers.pop_front();
            if self.answers.is_empty() {
                self.stop.cancel();
            }
            // What is raised while it works is not missed.
            self.signals.raise(Signal::Notices);
            answer.expect("it has stopped")
        }
    }

    fn scripted(answers: impl IntoIterator<Item = Result<Duration, EngineError>>) -> Scripted {
        Scripted {
            answers: answers.into_iter().collect(),
            ticks: Vec::new(),
            signals: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    async fn go(service: &mut Scripted, state: &State) {
        let stop = service.stop.clone();
        let seconds = std::cell::Cell::new(0);
        let now = || {
            seconds.set(seconds.get() + 1);
            at(seconds.get())
        };
        go_on(service, state, &stop, now).await;
    }

    fn at(seconds: i64) -> Time {
        Time::default() + TimeDelta::seconds(seconds)
    }

    #[tokio::test]
    async fn it_ticks_until_its_node_stops_whatever_a_tick_comes_to() {
        // Nobody waits for an hour, since it is woken.
        let hour = Duration::from_secs(3_600);
        let mut service = scripted([Ok(hour), Err(EngineError::Unavailable), Ok(hour)]);
        go(&mut service, &State::default()).await;
        assert_eq!(service.ticks, [at(1), at(2), at(3)]);
    }

    #[tokio::test]
    async fn nothing_begins_on_a_node_that_may_not_work() {
        let state = State::default();
        state.fence();
        let mut service = scripted([Ok(Duration::ZERO)]);
        let stop = service.stop.clone();
        tokio::join!(go(&mut service, &state), async {
            tokio::task::yield_now().await;
            stop.cancel();
        });
        assert!(service.ticks.is_empty());
        // It goes on as soon as the node may.
        let mut service = scripted([Ok(Duration::ZERO)]);
        tokio::join!(go(&mut service, &state), async { state.hold(2) });
        assert_eq!(service.ticks, [at(1)]);
    }

    #[test]
    fn needs_are_what_they_say() {
        let state = State::default();
        let met =
            |state: &State| [Needs::Nothing, Needs::Lease, Needs::Active].map(|needs| needs.are_met(&state.now()));
        assert_eq!(met(&state), [true, true, true]);
        state.drain();
        assert_eq!(met(&state), [true, true, false]);
        state.fence();
        assert_eq!(met(&state), [true, false, false]);
    }

    #[test]
    fn a_period_goes_by_the_time_that_is_passed_in() {
        let clock = Arc::new(NodeClock::manual(at(0)));
        let mut every = Every::at_once(TimeDelta::seconds(10), &clock);
        assert!(every.is_due(at(0)));
        assert!(every.is_due(at(5)), "until it is done");
        every.done(at(5));
        assert!(!every.is_due(at(14)) && every.is_due(at(15)));
        assert!(!Every::later(TimeDelta::seconds(10), &clock).is_due(at(9)));
        assert_eq!(every.rest(at(15)), Duration::ZERO);
        assert_eq!(every.rest(at(12)), Duration::from_secs(3));
    }

    #[test]
    fn once_in_a_while_comes_although_time_stands_still() {
        let clock = Arc::new(NodeClock::manual(at(7)));
        let mut every = Every::later(TimeDelta::seconds(10), &clock);
        for ten in [17, 27] {
            // The time was corrected backwards: it repeats a value, and was later before.
            clock.set(at(ten) - TimeDelta::microseconds(1));
            assert_eq!(every.rest(at(6)), Duration::from_micros(1));
            clock.set(at(ten));
            assert!(every.is_due(at(7)));
            every.done(at(7));
        }
    }
}
