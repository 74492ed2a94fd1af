//! QEMU's iSCSI initiator behind an NBD server, so that NBD test tools can drive iSCSI.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::client::{Client, Endpoint};
use crate::daemon::wait_for;

/// A running qemu-nbd, killed when dropped.
pub struct Bridge {
    child: Child,
    socket: PathBuf,
}

impl Bridge {
    /// Opens `uri` and serves it on `socket`.
    pub fn start(socket: &Path, uri: &str) -> Bridge {
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new("qemu-nbd");
        command
            .args("--format=raw --cache=none --discard=unmap --persistent --shared=8 --socket".split(' '))
            .arg(socket);
        let child = command.arg(uri).stdin(Stdio::null()).spawn().expect("qemu-nbd runs");
        let bridge = Bridge { child, socket: socket.to_owned() };
        wait_for("qemu-nbd", || Client::connect(&bridge.endpoint(), "").ok());
        bridge
    }

    /// Endpoint of the NBD server.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
