//! End to end: the real program, over HTTP, on a real Postgres. One noun per module.

mod dag;
mod dispatch;
