//! Notices, the notifications made of them, and their channels.

pub mod channel;
pub mod notice;
pub mod notification;
pub mod outbox;
