//! The stream to a page without parts that change, such as a form: it hears only that its session has ended.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;

use super::pulse::{KEEP_ALIVE, Open};
use super::said::{SIGNED_OUT, events, greeting, here};
use crate::Ctx;

/// How often a stream looks whether its node is leaving.
const LEAVING_EVERY: Duration = Duration::from_secs(1);

struct Session {
    open: Open,
    /// Completes when the viewer is not admitted any more.
    left: BoxFuture<'static, ()>,
    /// What is said first.
    greeting: Option<Bytes>,
    /// The greeting is the whole answer: the browser asks again soon, and is admitted or not.
    brief: bool,
}

pub(super) fn stream(ctx: &Ctx, open: Open, brief: bool) -> Response {
    let session = Session {
        open,
        left: ctx.ui.host.left(ctx.head()),
        greeting: Some(greeting(brief)),
        brief,
    };
    events(futures::stream::unfold(Some(session), |session| async move {
        let (event, rest) = session?.next().await?;
        Some((Ok(event), rest))
    }))
}

impl Session {
    /// The next event, and what follows it.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        if let Some(greeting) = self.greeting.take() {
            let rest = (!self.brief).then_some(self);
            return Some((greeting, rest));
        }
        for _ in 0..KEEP_ALIVE.as_secs() {
            tokio::select! {
                biased;
                () = &mut self.left => return Some((Bytes::from_static(SIGNED_OUT), None)),
                () = tokio::time::sleep(LEAVING_EVERY) => {}
            }
            if self.open.0.engine.is_leaving() {
                return None;
            }
        }
        Some((here(), Some(self)))
    }
}
