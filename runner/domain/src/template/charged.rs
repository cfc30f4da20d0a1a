//! minijinja's own filters, tests and functions, each with the charge before it is applied. `map` and the like apply
//! filters by name, and so are charged here too.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, functions, tests};

use super::budget::Budget;

/// How much longer `&quot;` is than its character.
const ESCAPED_TIMES: usize = 6;
/// A letter may take three times its bytes in the other case.
const CASE_TIMES: usize = 3;

/// The cost of a filter.
#[derive(Clone, Copy)]
enum Cost {
    /// Text that is so many times as long at most.
    Text(usize),
    /// A list with an entry for each item.
    Entries,
    /// A copy: a string, or a list with an entry for each item.
    Copy,
    /// Pieces of a string: all of them together are the string.
    Pieces,
    /// Compares items with one another.
    Sorts,
    /// Adds items up, from left to right.
    Sums,
    /// Reads it, or counts what knows its length no better.
    Reads,
    /// Lists of what it and the other arguments have.
    Joins,
    /// Looks at all of its arguments.
    Examines,
}

impl Cost {
    fn charge(self, budget: &Budget, args: &[Value]) -> Result<(), Error> {
        let Some(value) = args.first() else { return Ok(()) };
        match self {
            Self::Text(times) => budget.text(value, times),
            Self::Entries => budget.entries(value).map(drop),
            Self::Copy => budget.copied(value),
            Self::Pieces => {
                if let Some(text) = value.as_str() {
                    budget.make(text.len())?;
                    if let Some(pieces) = pieces(text, args.get(1)) {
                        budget.make(pieces.saturating_mul(super::budget::ENTRY_BYTES))?;
                    }
                    budget.read(text)?;
                }
                Ok(())
            }
            Self::Sorts => {
                let items = budget.entries(value)?;
                // Each is compared some log(n) times.
                for _ in 0..=items.checked_ilog2().unwrap_or(0) {
                    budget.examine_value(value)?;
                }
                Ok(())
            }
            Self::Sums => {
                let items = budget.count(value)?;
                // Numbers make nothing; of texts and lists each sum is a copy of the one before.
                if start(args)
                    .or(args.get(2).cloned())
                    .is_some_and(|start| !start.is_number() && !start.is_kwargs())
                {
                    let bytes = budget.walk(value, usize::MAX)?;
                    budget.make(bytes)?;
                    budget.examine((bytes / 512).saturating_mul(items))?;
                }
                Ok(())
            }
            Self::Reads => match value.kind() {
                ValueKind::String => budget.read(value.as_str().unwrap_or_default()),
                ValueKind::Iterable => budget.count(value).map(drop),
                _ => Ok(()),
            },
            Self::Joins => args.iter().try_for_each(|arg| match arg.kind() {
                ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::String => {
                    budget.entries(arg).map(drop)
                }
                _ => Ok(()),
            }),
            Self::Examines => args.iter().try_for_each(|arg| budget.examine_value(arg)),
        }
    }
}

/// The start value of `sum`, if one is given.
fn start(args: &[Value]) -> Option<Value> {
    let last = args.last().filter(|last| last.is_kwargs())?;
    let named = Kwargs::try_from(last.clone()).ok()?;
    named.get::<Option<Value>>("start").ok().flatten()
}

/// How many pieces `split` makes of a text at most; `None`: it refuses to.
fn pieces(text: &str, separator: Option<&Value>) -> Option<usize> {
    match separator.filter(|separator| !separator.is_none()) {
        None => Some(text.split_whitespace().count().max(text.lines().count())),
        Some(separator) => separator.as_str().map(|separator| text.matches(separator).count() + 1),
    }
}

pub(super) fn install(env: &mut Environment<'_>) {
    macro_rules! charged {
        ($add:ident: $($cost:expr => $($name:literal $function:path),+;)+) => {
            $($({
                let original = Value::from_function($function);
                env.$add($name, move |state: &mut State, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
                    let args = args.into_values();
                    $cost.charge(&Budget::of(state), &args)?;
                    original.call(state, &args)
                });
            })+)+
        };
    }
    charged! { add_filter:
        Cost::Text(ESCAPED_TIMES) => "escape" filters::escape, "e" filters::escape;
        Cost::Text(CASE_TIMES) => "upper" filters::upper, "lower" filters::lower, "title" filters::title,
            "capitalize" filters::capitalize;
        Cost::Text(1) => "trim" filters::trim, "string" filters::string, "safe" filters::safe;
        Cost::Copy => "reverse" filters::reverse;
        Cost::Pieces => "split" filters::split, "lines" filters::lines;
        Cost::Entries => "list" filters::list, "items" filters::items, "map" filters::map, "select" filters::select,
            "reject" filters::reject, "selectattr" filters::selectattr, "rejectattr" filters::rejectattr;
        Cost::Joins => "chain" filters::chain, "zip" filters::zip;
        Cost::Sorts => "sort" filters::sort, "dictsort" filters::dictsort, "unique" filters::unique,
            "groupby" filters::groupby, "min" filters::min, "max" filters::max;
        Cost::Sums => "sum" filters::sum;
        Cost::Reads => "length" filters::length, "count" filters::length, "first" filters::first,
            "last" filters::last, "int" filters::int, "float" filters::float;
        Cost::Examines => "attr" filters::attr;
    }
    charged! { add_test:
        Cost::Reads => "lower" tests::is_lower, "upper" tests::is_upper, "startingwith" tests::is_startingwith,
            "endingwith" tests::is_endingwith;
    }
    charged! { add_function:
        Cost::Joins => "dict" functions::dict;
    }
}
