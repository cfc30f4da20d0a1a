//! The calls of the host: imports of the component, or doubles in a native build. Both have the same functions.

#[cfg(target_arch = "wasm32")]
mod component;
#[cfg(target_arch = "wasm32")]
mod outgoing;
#[cfg(target_arch = "wasm32")]
pub(crate) use component::*;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::testing::host::*;
