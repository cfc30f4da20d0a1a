//! The inputs of a template, as they are sent to bounded work.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono_tz::Tz;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Given, Scope, Source, Templates, UpstreamNames};
use crate::plain::Plain;
use crate::{Name, Time};

/// The values of the names in a template.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Seen {
    Task {
        logical_time: Time,
        data_interval: (Time, Time),
        zone: Option<Tz>,
        run: Plain,
        upstream: Vec<(Name, Plain)>,
        item: Option<(Plain, u32, u32)>,
        params: Plain,
    },
    Names {
        names: Vec<(String, Plain)>,
        params: Plain,
    },
}

fn fields(plain: Plain) -> serde_json::Map<String, Value> {
    match Value::from(plain) {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    }
}

impl Seen {
    /// The part of a scope that a template uses: of other tasks' outputs only those that it names.
    pub(super) fn of(scope: &Scope, template: &str) -> Self {
        let params = Plain::Map(
            scope
                .own
                .iter()
                .map(|(key, value)| (key.clone(), value.into()))
                .collect(),
        );
        match &*scope.source {
            Source::Task(given) => {
                let mut wanted = UpstreamNames::default();
                wanted.add(template);
                let upstream = given.upstream.iter();
                Self::Task {
                    logical_time: given.logical_time,
                    data_interval: given.data_interval,
                    zone: given.zone,
                    run: (&given.run).into(),
                    upstream: upstream
                        .filter(|(name, _)| wanted.all || wanted.names.contains(*name))
                        .map(|(name, output)| (name.clone(), (&**output).into()))
                        .collect(),
                    item: given
                        .item
                        .as_ref()
                        .map(|(item, index, count)| (item.into(), *index, *count)),
                    params,
                }
            }
            Source::Names(names) => Self::Names {
                names: names
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.into()))
                    .collect(),
                params,
            },
        }
    }

    fn scope(self) -> Scope {
        match self {
            Self::Task {
                logical_time,
                data_interval,
                zone,
                run,
                upstream,
                item,
                params,
            } => Scope::new(Given {
                logical_time,
                data_interval,
                zone,
                run: run.into(),
                upstream: upstream
                    .into_iter()
                    .map(|(name, output)| (name, Arc::new(Value::from(output))))
                    .collect(),
                item: item.map(|(item, index, count)| (item.into(), index, count)),
            })
            .with_params(&fields(params)),
            Self::Names { names, params } => {
                let names: BTreeMap<_, _> = names
                    .into_iter()
                    .map(|(name, value)| (name.into(), Value::from(value)))
                    .collect();
                Scope::named(names).with_params(&fields(params))
            }
        }
    }
}

/// Bounded work: renders, however much it takes.
pub(crate) fn rendered(template: &str, condition: bool, seen: Seen) -> Result<Plain, String> {
    let (templates, scope) = (Templates::new(), seen.scope());
    let rendered = match condition {
        true => templates.condition_here(template, &scope).map(Value::Bool),
        false => templates.render_here(template, &scope),
    };
    rendered.map(|value| Plain::from(&value)).map_err(|error| error.0)
}
