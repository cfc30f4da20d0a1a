//! What is known of the room on the server's disk.
//!
//! A server whose disk is full goes on answering. What it can write into pages that have room succeeds, and a heartbeat
//! is such a write, so a node keeps its lease. But it refuses what needs a new page (SQLSTATE 53100): new runs, and
//! outcomes. So neither the lease nor an answer says that a node can write.
//!
//! The first statement that is refused for this reason begins a *lack*. `keep_room.rs` finds out when it is over.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A time during which the server refuses writes because its disk is full, in the watch's milliseconds.
#[derive(Clone, Copy, Debug)]
struct Lack {
    since: u64,
    /// When a statement of the data plane was last refused, or the first one of any kind.
    refused: u64,
}

/// What the watch knows of the room on the server's disk.
#[derive(Debug, Default)]
pub(super) struct DiskSpace {
    lack: Mutex<Option<Lack>>,
    began: Notify,
}

impl DiskSpace {
    /// A statement was refused because the disk is full; of the data plane, or another one. The latter begins a lack, but
    /// does not prolong it: a list that finds no room to sort says nothing about writes.
    pub(super) fn refused(&self, at: u64, of_data_plane: bool) {
        let mut lack = self.lack.lock();
        let since = match *lack {
            Some(_) if !of_data_plane => return,
            Some(known) => known.since,
            None => {
                self.began.notify_one();
                at
            }
        };
        *lack = Some(Lack { since, refused: at });
    }

    /// Since when there is a lack.
    pub(super) fn lacks_since(&self) -> Option<u64> {
        self.lack.lock().map(|lack| lack.since)
    }

    /// Waits for the begin of a lack.
    pub(super) async fn begins(&self) {
        self.began.notified().await;
    }

    /// A test has found room; the test before it ended at `before`. The lack is over unless another statement was refused
    /// in between: tables may be on several disks, and the test knows only one of them. Returns whether it is over.
    pub(super) fn found(&self, before: Option<u64>) -> bool {
        let mut lack = self.lack.lock();
        if let (Some(last), Some(before)) = (*lack, before)
            && last.refused <= before
        {
            *lack = None;
        }
        lack.is_none()
    }
}

/// Whether the server refused a statement because its disk is full.
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.code().as_deref() == Some("53100"))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_lack_ends_when_nothing_is_refused_between_two_tests() {
        let room = DiskSpace::default();
        assert_eq!(room.lacks_since(), None);
        assert!(room.begins().now_or_never().is_none());
        room.refused(100, true);
        room.refused(110, true);
        assert_eq!(room.lacks_since(), Some(100));
        assert!(room.begins().now_or_never().is_some());
        assert!(room.begins().now_or_never().is_none(), "it has begun once");
        assert!(!room.found(None), "one test says nothing about other disks");
        // Another table is on a disk that is full.
        room.refused(300, true);
        assert!(!room.found(Some(200)));
        assert_eq!(room.lacks_since(), Some(100));
        assert!(room.found(Some(400)));
        assert_eq!(room.lacks_since(), None);
        // The next lack is another one. What is refused besides the data plane does not prolong it.
        room.refused(500, false);
        assert_eq!(room.lacks_since(), Some(500));
        assert!(!room.found(None));
        room.refused(700, false);
        assert!(room.found(Some(600)));
    }
}
