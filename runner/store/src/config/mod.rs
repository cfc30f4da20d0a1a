//! What people configure, one file per noun. Objects that people put under a name are written as `named.rs` describes.

pub mod blob;
pub mod category;
pub mod connection;
pub mod forget;
pub(crate) mod named;
mod one_value;
pub mod pool;
pub mod rotate;
pub mod runtime;
pub mod script;
pub mod secret;
pub mod session;
pub mod setting;
pub mod template;
pub mod timer_task;
pub mod token;
pub mod usage;
