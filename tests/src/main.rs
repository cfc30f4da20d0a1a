//! The `heddle` binary, for the tests of this package.

fn main() -> std::process::ExitCode {
    heddle_cli::main()
}
