//! Patience with a server that goes away for a while: a node is restarted, or the connection breaks.
//!
//! Commands that follow something have it. The first answer must come as it does for any other command, so that a wrong
//! address is noticed at once. From then on, they try again and continue where they were. A refusal that another try does
//! not change (the token has ended, the object was deleted) ends the command.

use std::time::Duration;

use anyhow::Result;
use heddle_client::Error;
use tokio::time::Instant;

use crate::exit::BrokenOff;
use crate::terminal::tell;

/// How long the server may be away.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// The pause before the second try; each further one is twice as long, up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest pause that a server can ask for, with `Retry-After`.
const ASKED_MAX: Duration = Duration::from_secs(30);

/// What a command that follows something knows about its server.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Whether the server has answered this command at all.
    has_answered: bool,
    /// Since when there has been a stream from which nothing has come yet.
    opened: Option<Instant>,
    away: Option<Away>,
    losses: u32,
}

/// A server that is away.
#[derive(Debug)]
struct Away {
    since: Instant,
    pause: Duration,
    is_told: bool,
}

impl Patience {
    /// The server has given what was wanted.
    pub(super) fn answered(&mut self) {
        self.has_answered = true;
        self.opened = None;
        self.away = None;
    }

    /// The server has begun a stream. If the stream ends at once, the server is as good as away: otherwise, a node that is
    /// stopping would be called again and again without a pause.
    pub(super) fn opened(&mut self) {
        self.has_answered = true;
        self.opened = Some(Instant::now());
    }

    /// How often the server has gone away. Each time, a line on stderr says so.
    pub(super) fn losses(&self) -> u32 {
        self.losses
    }

    /// Waits until it is time to try again after an error. Gives the error back if trying again is of no use.
    pub(super) async fn wait(&mut self, error: anyhow::Error) -> Result<()> {
        let Some(pause) = self.pause(&error, Instant::now()) else {
            return Err(error);
        };
        if let Some(away) = &mut self.away
            && !std::mem::replace(&mut away.is_told, true)
        {
            self.losses += 1;
            tell!(
                "the connection is lost ({error}); trying again for up to {} s",
                AWAY_MAX.as_secs()
            );
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Reads something, again while the server is away.
    pub(super) async fn read<T>(&mut self, read: impl AsyncFn() -> heddle_client::Result<T>) -> Result<T> {
        loop {
            match read().await {
                Ok(found) => {
                    self.answered();
                    return Ok(found);
                }
                Err(error) => self.wait(error.into()).await?,
            }
        }
    }

    /// The pause before the next try; `None`: there is none.
    fn pause(&mut self, error: &anyhow::Error, now: Instant) -> Option<Duration> {
        // A stream that has stood for some time was an answer, even if there was nothing to say.
        let stood = self.opened.take().map(|opened| now.duration_since(opened));
        if stood.is_some_and(|stood| stood >= PAUSE_MAX) {
            self.away = None;
        }
        if !self.has_answered || !is_away(error) {
            return None;
        }
        let away = self.away.get_or_insert(Away {
            since: now,
            pause: PAUSE_MIN,
            is_told: false,
        });
        let left = AWAY_MAX.saturating_sub(now.duration_since(away.since));
        let pause = asked(error).min(ASKED_MAX).max(away.pause);
        away.pause = (away.pause * 2).min(PAUSE_MAX);
        (!left.is_zero()).then_some(pause.min(left))
    }
}

/// Whether the server, or the way to it, may be better a little later.
fn is_away(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Error>() {
        Some(Error::Unreachable { .. }) => true,
        Some(refused) => matches!(refused.status(), Some(429 | 502 | 503 | 504)),
        None => error.is::<BrokenOff>(),
    }
}

/// The pause that the server has asked for.
fn asked(error: &anyhow::Error) -> Duration {
    match error.downcast_ref::<Error>() {
        Some(Error::Refused {
            retry_after: Some(seconds),
            ..
        }) => Duration::from_secs(*seconds),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use heddle_client::Problem;

    use super::*;

    fn refused(status: u16, retry_after: Option<u64>) -> anyhow::Error {
        let problem = Box::new(Problem {
            status,
            ..Problem::default()
        });
        Error::Refused { problem, retry_after }.into()
    }

    fn broken_off() -> anyhow::Error {
        BrokenOff.into()
    }

    /// One that has been answered.
    fn answered() -> Patience {
        let mut patience = Patience::default();
        patience.answered();
        patience
    }

    fn millis(count: u64) -> Option<Duration> {
        Some(Duration::from_millis(count))
    }

    #[test]
    fn the_first_answer_has_to_come() {
        let mut patience = Patience::default();
        assert_eq!(patience.pause(&broken_off(), Instant::now()), None);
        assert_eq!(patience.pause(&refused(503, Some(1)), Instant::now()), None);
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for status in [429, 502, 503, 504] {
            let pause = answered().pause(&refused(status, None), Instant::now());
            assert_eq!(pause, millis(100), "{status}");
        }
        for status in [400, 401, 403, 404, 409, 500] {
            assert_eq!(
                answered().pause(&refused(status, Some(1)), Instant::now()),
                None,
                "{status}"
            );
        }
        let invalid = Error::Invalid("no".into()).into();
        assert_eq!(answered().pause(&invalid, Instant::now()), None);
        assert_eq!(
            answered().pause(&anyhow::anyhow!("another error"), Instant::now()),
            None
        );
    }

    #[test]
    fn pauses_grow_until_a_minute_is_over() {
        let mut patience = answered();
        let (begin, mut now) = (Instant::now(), Instant::now());
        let mut pauses = Vec::new();
        while let Some(pause) = patience.pause(&broken_off(), now) {
            pauses.push(pause);
            now += pause;
            assert!(pauses.len() < 100, "it has no end");
        }
        let first: Vec<_> = [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
            .map(Duration::from_millis)
            .into();
        assert_eq!(pauses[..8], first);
        assert!(now.duration_since(begin) >= AWAY_MAX && pauses.iter().sum::<Duration>() == AWAY_MAX);
        // An answer makes everything good.
        patience.answered();
        assert_eq!(patience.pause(&broken_off(), now), millis(100));
    }

    #[test]
    fn a_server_can_ask_for_longer_pauses() {
        let mut patience = answered();
        let now = Instant::now();
        assert_eq!(patience.pause(&refused(503, Some(7)), now), millis(7_000));
        assert_eq!(patience.pause(&refused(503, Some(3_600)), now), Some(ASKED_MAX));
        // Its own pauses have grown in the meantime.
        assert_eq!(patience.pause(&refused(503, Some(0)), now), millis(400));
        let late = now + Duration::from_secs(59);
        assert_eq!(patience.pause(&refused(503, Some(7)), late), millis(1_000));
    }

    #[test]
    fn a_stream_is_an_answer_when_it_has_stood_for_some_time() {
        let mut patience = Patience::default();
        patience.opened();
        let now = Instant::now();
        assert_eq!(patience.pause(&broken_off(), now), millis(100));
        patience.opened();
        assert_eq!(patience.pause(&broken_off(), now), millis(200));
        patience.opened();
        let later = Instant::now() + PAUSE_MAX;
        assert_eq!(patience.pause(&broken_off(), later), millis(100));
    }
}
