//! Compiles the crate again when a migration is added: `sqlx::migrate!` embeds the files that it finds, but a new file
//! changes none that the compiler has read.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
