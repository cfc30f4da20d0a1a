//! A runtime, whatever its language.

use std::sync::Arc;

use super::python::Python;
use super::runtime::Runtime;

/// A linked runtime, ready for any text.
#[derive(Clone)]
pub(crate) enum Interpreter {
    JavaScript(Arc<Runtime>),
    Python(Arc<Python>),
}
