//! The program without a cluster: its messages to the daemon, and its end.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use rbd::Status;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hotset-rbd");

#[test]
fn program_started_by_hand_names_the_configuration() {
    let output = Command::new(PROGRAM).stdin(Stdio::null()).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("backing = \"rbd:POOL/IMAGE\""));
}

#[test]
fn image_that_cannot_be_opened_is_reported_on_the_control_channel() {
    for (image, word) in [("rbd:web", "rbd:POOL/IMAGE"), ("rbd:vms/web?ceph_conf=/nonexistent/ceph.conf", "librbd1")] {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("the folder can be written");
        let (control, its_end) = UnixStream::pair().expect("a descriptor is free");
        let mut command = Command::new(PROGRAM);
        command.arg(image).stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(its_end));
        let mut child = command.spawn().expect("the program runs");
        drop(command);
        let lines: Vec<String> = BufReader::new(control).lines().map_while(Result::ok).collect();
        let Some(Status::Failed(text)) = lines.last().and_then(|line| Status::parse(line)) else { panic!("{lines:?}") };
        assert!(text.contains(word) || text.contains("rados_conf_read_file"), "{text}");
        assert!(!child.wait().expect("the program is a child process").success());
    }
}
