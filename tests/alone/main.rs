//! What looks at seconds: how soon a node notices that its way to Postgres is broken, and how soon it is back. In a program
//! of its own, so that Cargo runs it when nothing else runs.

mod clocks;
mod faults;
mod heals;

use heddle_tests::{one, sleeps, with};
