//! Keeping open pages up to date.
//!
//! A page with parts that may change opens `/live?at=<its address>&has=<what it has>`. There the page's function runs
//! again, for the same viewer, whenever something may have changed, and the changed parts are sent, each as an event
//! with the part's name. A browser's parts are identified by short hashes, first in its address, later in the `id` of
//! events, so that one that returns gets only what it missed.
//!
//! One watcher per node checks whether something may have changed, as long as any page is open:
//!
//! * twice a second by a fingerprint of the cluster: the newest change and run, and how often the tables that work passes
//!   through have been written to. Pages about what people change are signalled only by new entries of the audit, so that
//!   they are not made again for each run;
//! * for pages about runs, by one statement a second over all runs that are shown somewhere. It also finds that a run has
//!   been removed. A run that changes on this node is signalled at once.
//!
//! What changes with time alone, such as the end of the axis of a run that goes on, is made again from time to time
//! (`Ctx::goes_on_each`).
//!
//! A page is made once for all viewers with the same address, language, zone, theme and role. Their names are in the
//! frame, which is not part of this. So five hundred open pages cost as much as there are different ones, and nothing
//! while nothing changes. Nobody gets a page that was made before the one that they have.
//!
//! Between two updates of a page is a quarter of a second at least, and after a large one so much more that a page is sent
//! 64 KiB a second: five hundred pages of which each has a large part that changes all the time are no load for a network.
//!
//! A proxy that buffers answers passes on nothing of an answer that does not end. A page that gets nothing asks for
//! answers that do end (`&brief=1`): the changes until now, and when to ask again, which browsers do by themselves.
//!
//! A proxy may keep a connection open that forwards nothing any more, and then no error tells a browser of it. So each
//! page hears at least every 15 seconds that its stream goes on (`here`), and is told this time. After two and a half
//! times as long without an event, the page says that it is out of date, and opens another stream.
//!
//! A database that does not answer the watcher for some seconds is away. Pages say so without waiting for their own
//! statements, which may hang for longer, and say since when they are out of date.
//!
//! A page ends with its viewer's token or session: the log of changes reports a revoked token or an ended session, on
//! any node ([`crate::Host::left`]). The browser then loads the page again, has to sign in, and is led back to it. If
//! somebody has typed something there, the page stays instead, and says so. Pages without parts, such as forms, open
//! `/live?session=1`, which tells them only of that end.

pub(crate) mod part;
mod pulse;
mod said;
mod session;
mod shown;
mod stream;

pub(crate) use pulse::Pulse;
pub(crate) use said::signed_out;
pub(crate) use stream::stream;
