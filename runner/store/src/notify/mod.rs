//! Who is told of what: notices, the notifications made of them, and the channels that these go to.

pub mod channel;
pub mod notice;
pub mod notification;
pub mod outbox;
