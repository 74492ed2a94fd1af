//! What commands print goes to whoever reads it, for as long as somebody does.

use std::process::{Command, Stdio};

#[test]
fn a_reader_who_has_seen_enough_ends_a_command_without_a_word() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotset"));
    let mut child = command.arg("man").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
}
