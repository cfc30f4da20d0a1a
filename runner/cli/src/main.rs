//! The `heddle` binary.

fn main() -> std::process::ExitCode {
    heddle_cli::main()
}
