//! Named objects with one value: categories (a description), pools (slots), templates (a schema).
//!
//! Their rows, their PUT and their reads differ only in names and in the type of the value, so the macro [`one_value!`]
//! writes them once. Each has its own deletion, because different objects may still use it.

/// Declares a row (`name`, the value, `created_at`, `updated_at`) and the three calls of the store that write one, read
/// one, and list them by name.
macro_rules! one_value {
    (
        lifetime: $life:lifetime, table: $table:literal, noun: $noun:ident, transaction: $transaction:literal,
        $(#[$row_doc:meta])*
        row: $Row:ident, write: $Write:ident,
        $(#[$value_doc:meta])*
        value: $value:ident ($column:literal): $Kept:ty, given: $Given:ty,
        same: |$kept:ident, $given:ident| $same:expr,
        shown: |$shown_row:ident| $shown:expr,
        $(#[$put_doc:meta])*
        put: $put:ident,
        $(#[$get_doc:meta])*
        get: $get:ident,
        $(#[$list_doc:meta])*
        list: $list:ident $(,)?
    ) => {
        $(#[$row_doc])*
        pub struct $Row {
            pub name: String,
            $(#[$value_doc])*
            pub $value: $Kept,
            pub created_at: heddle_domain::Time,
            pub updated_at: heddle_domain::Time,
        }

        struct $Write<$life> {
            name: &$life str,
            value: $Given,
        }

        impl crate::config::named::Named for $Write<'_> {
            const PUT: &'static str = $transaction;
            const NOUN: crate::change::Noun = crate::change::Noun::$noun;
            type Kept = $Row;
            type Row = $Row;
            type Answer = crate::change::Put<$Row>;

            fn name(&self) -> &str {
                self.name
            }

            /// Locking: the same lock as `Named::locked` describes.
            async fn locked(&self, tx: &mut crate::database::PgSession) -> Result<Option<$Row>, crate::StoreError> {
                Ok(sqlx::query_as!(
                    $Row,
                    "SELECT name, " + $column + ", created_at, updated_at FROM heddle." + $table
                        + " WHERE name = $1 FOR UPDATE",
                    self.name,
                )
                .fetch_optional(tx)
                .await?)
            }

            fn is_same(&self, kept: &$Row) -> bool {
                let ($kept, $given) = (&kept.$value, &self.value);
                $same
            }

            async fn write(
                &self,
                tx: &mut crate::database::PgSession,
                at: heddle_domain::Time,
                _kept: Option<&$Row>,
            ) -> Result<$Row, crate::config::named::Stop<Self::Answer>> {
                Ok(sqlx::query_as!(
                    $Row,
                    "INSERT INTO heddle." + $table + " (name, " + $column + ", created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (name) DO UPDATE SET " + $column + " = excluded." + $column + ", updated_at = excluded.updated_at
             RETURNING name, " + $column + ", created_at, updated_at",
                    self.name,
                    self.value,
                    at,
                )
                .fetch_one(tx)
                .await?)
            }

            fn shown($shown_row: &$Row) -> Result<serde_json::Value, crate::StoreError> {
                Ok($shown)
            }
        }

        impl crate::Store {
            $(#[$put_doc])*
            pub async fn $put<$life>(
                &self,
                by: crate::change::By<'_>,
                name: &$life str,
                value: $Given,
            ) -> Result<crate::change::Put<$Row>, crate::StoreError> {
                self.put(by, &$Write { name, value }).await
            }

            $(#[$get_doc])*
            pub async fn $get(&self, name: &str) -> Result<Option<$Row>, crate::StoreError> {
                Ok(sqlx::query_as!(
                    $Row,
                    "SELECT name, " + $column + ", created_at, updated_at FROM heddle." + $table + " WHERE name = $1",
                    name,
                )
                .fetch_optional(&self.control)
                .await?)
            }

            $(#[$list_doc])*
            pub async fn $list(
                &self,
                cursor: Option<&str>,
                limit: i64,
            ) -> Result<crate::change::Page<$Row>, crate::StoreError> {
                let rows = sqlx::query_as!(
                    $Row,
                    "SELECT name, " + $column + ", created_at, updated_at FROM heddle." + $table + "
             WHERE ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2",
                    cursor,
                    limit + 1,
                )
                .fetch_all(&self.control)
                .await?;
                Ok(crate::change::Page::of(rows, limit, |row| row.name.clone()))
            }
        }
    };
}

pub(crate) use one_value;
