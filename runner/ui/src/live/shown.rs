//! Pages that viewers see, each made once for all who see the same.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono_tz::Tz;
use tokio::time::Instant;

use super::part::{event, hash};
use crate::ctx::{Beat, Part, Theme};
use crate::words::Lang;
use crate::{Ctx, Role, Viewer, pages};

/// The properties that make a page the same for two viewers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Looks {
    target: String,
    role: Role,
    dev: bool,
    lang: Lang,
    zone: Tz,
    theme: Theme,
}

/// A page that one or several viewers see. For several, the last made page is kept.
#[derive(Default)]
pub(super) struct Shown(tokio::sync::Mutex<Option<Arc<Made>>>);

/// A page as it was made.
pub(super) struct Made {
    /// When making it began. It contains everything that had changed before.
    pub(super) begun: Instant,
    pub(super) what: What,
}

pub(super) enum What {
    /// Its parts, when they change, and how often they do so with time alone.
    Parts(Vec<Ready>, Beat, Option<Duration>),
    /// The page does not exist.
    Gone,
    /// The page cannot be made at present.
    Away,
}

/// A part as it is sent.
pub(super) struct Ready {
    pub(super) name: &'static str,
    pub(super) hash: String,
    /// The event without its id.
    pub(super) event: Bytes,
}

impl Ready {
    fn of(part: &Part) -> Self {
        Self {
            name: part.name,
            hash: hash(&part.html),
            event: event(part.name, &part.html),
        }
    }
}

impl Shown {
    /// The page as of `due` or later; it is made only if nobody else has made it since. An error counts for all who
    /// waited, too: otherwise each of them would wait for the database in turn.
    pub(super) async fn since(self: &Arc<Self>, due: Instant, make: impl Future<Output = What>) -> Arc<Made> {
        let mut last = self.0.lock().await;
        if let Some(made) = last.as_ref().filter(|made| made.begun >= due) {
            return made.clone();
        }
        let begun = Instant::now();
        let made = Arc::new(Made {
            begun,
            what: make.await,
        });
        // Each viewer holds one reference. So it is kept only if there are several viewers.
        *last = (Arc::strong_count(self) > 1).then(|| made.clone());
        made
    }
}

pub(super) fn looks_of(ctx: &Ctx, target: &str) -> Looks {
    let Viewer { role, dev, .. } = ctx.viewer;
    Looks {
        target: target.to_owned(),
        role,
        dev,
        lang: ctx.lang,
        zone: ctx.zone,
        theme: ctx.theme,
    }
}

/// Makes a page, for its parts.
pub(super) async fn parts_of(ctx: &Ctx) -> What {
    match pages::page(ctx).await {
        Ok(_) => {
            let parts = ctx.take_parts();
            What::Parts(parts.iter().map(Ready::of).collect(), ctx.beat(), ctx.pace())
        }
        Err(trouble) if trouble.status == 404 => What::Gone,
        Err(_) => What::Away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_is_made_once_for_all_who_look_at_the_same() {
        let shown = Arc::new(Shown::default());
        let another = shown.clone();
        let made = std::cell::Cell::new(0);
        let make = || async {
            made.set(made.get() + 1);
            tokio::time::sleep(Duration::from_millis(50)).await;
            What::Parts(Vec::new(), Beat::Cluster, None)
        };
        let changed = Instant::now();
        // Five hundred pages are signalled by one change.
        let all = futures::future::join_all((0..500).map(|_| shown.since(changed, make()))).await;
        assert_eq!(made.get(), 1);
        assert!(all.iter().all(|one| one.begun >= changed));
        // A change while a page is being made is not in it.
        let later = Instant::now();
        assert!(shown.since(later, make()).await.begun >= later);
        assert_eq!(made.get(), 2);
        // And a page that only knew of the first change gets the newer one.
        assert!(shown.since(changed, make()).await.begun >= later);
        assert_eq!(made.get(), 2);
        // Nothing is kept for the one who is left.
        drop(another);
        shown.since(Instant::now(), make()).await;
        assert!(shown.0.lock().await.is_none());
    }

    #[tokio::test]
    async fn that_a_page_cannot_be_made_is_found_once_for_all_who_wait() {
        let shown = Arc::new(Shown::default());
        let _another = shown.clone();
        let tried = std::cell::Cell::new(0);
        let fail = || async {
            tried.set(tried.get() + 1);
            tokio::time::sleep(Duration::from_millis(50)).await;
            What::Away
        };
        let due = Instant::now();
        let all = futures::future::join_all((0..500).map(|_| shown.since(due, fail()))).await;
        assert!(tried.get() == 1 && all.iter().all(|one| matches!(one.what, What::Away)));
        // A later request tries again.
        let now = shown.since(Instant::now(), async { What::Gone }).await;
        assert!(matches!(now.what, What::Gone));
    }
}
