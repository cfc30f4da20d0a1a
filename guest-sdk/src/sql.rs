//! Named external Postgres databases that the task was granted (`sql: [warehouse]` in the group's spec).
//!
//! ```no_run
//! #[heddle::data]
//! struct Order { id: i64, total: f64 }
//!
//! # fn run() -> Result<(), heddle::Failure> {
//! let warehouse = heddle::sql::connection("warehouse");
//! let orders: Vec<Order> = warehouse.query("select id, total::float8 from orders where day = $1::date", ("2013-07-01",))?;
//! warehouse.execute("update days set orders = $1 where day = $2::date", (orders.len(), "2013-07-01"))?;
//! # Ok(())
//! # }
//! ```
//!
//! Parameters are a tuple, an array or anything that serialises to a JSON array, for `$1`, `$2`, …; `()` for none. Each
//! statement is a separate transaction, independent of Heddle's: an attempt may be repeated after its statements took
//! effect, so write them to be repeatable (`on conflict … do update`).

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, host};

/// A connection by its name; nothing happens before the first statement.
pub fn connection(name: &str) -> Connection<'_> {
    Connection { name }
}

/// A connection that operators have configured under a name, and that the task is granted.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    name: &'a str,
}

impl Connection<'_> {
    /// The rows, each read by column name. At most 10,000 rows and 8 MiB: more is an error, ask for less.
    pub fn query<Row: DeserializeOwned>(&self, statement: &str, params: impl Serialize) -> Result<Vec<Row>, Error> {
        let rows = host::sql_query(self.name, statement, &to_array(&params)?).map_err(Error::sql)?;
        serde_json::from_str(&rows)
            .map_err(|error| Error::fatal("sql", format!("the rows of `{}`: {error}", self.name)))
    }

    /// The first row, if there is one.
    pub fn query_first<Row: DeserializeOwned>(
        &self,
        statement: &str,
        params: impl Serialize,
    ) -> Result<Option<Row>, Error> {
        Ok(self.query(statement, params)?.into_iter().next())
    }

    /// The number of rows that the statement changed.
    pub fn execute(&self, statement: &str, params: impl Serialize) -> Result<u64, Error> {
        host::sql_execute(self.name, statement, &to_array(&params)?).map_err(Error::sql)
    }
}

fn to_array(params: &impl Serialize) -> Result<String, Error> {
    match serde_json::to_value(params) {
        Ok(Value::Null) => Ok("[]".to_owned()),
        Ok(params @ Value::Array(_)) => Ok(params.to_string()),
        Ok(_) => Err(Error::fatal(
            "sql",
            "parameters are a tuple or an array; one alone is `(value,)`",
        )),
        Err(error) => Err(Error::fatal("sql", format!("parameters: {error}"))),
    }
}
