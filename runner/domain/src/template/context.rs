//! The names that a template can use.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::Object;

/// The names that a template can use.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) fixed: Arc<BTreeMap<Cow<'static, str>, Value>>,
    pub(super) params: Value,
}

impl Object for Context {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "params" => Some(self.params.clone()),
            name => self.fixed.get(name).cloned(),
        }
    }
}
