//! The `hotset` command: nothing but the way in.

use std::process::ExitCode;

fn main() -> ExitCode {
    hotset::cli::main()
}
