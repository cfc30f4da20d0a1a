//! The `heddle` binary: the command line and the node in one program.

fn main() -> std::process::ExitCode {
    heddle_cli::main()
}
