//! Behaviour of commands when the reader of their output closes the pipe.

use std::process::{Command, Stdio};

#[test]
fn closed_output_pipe_ends_a_command_without_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotset"));
    let mut child =
        command.arg("man").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
}
