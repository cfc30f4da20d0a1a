//! `heddle dev`: an embedded Postgres, a node, and the demo.
