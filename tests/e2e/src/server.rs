//! nbdkit as a backing, and as a correct or faulty server to test the checkers with.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::client::{Client, Endpoint};
use crate::daemon::wait_for;

/// A running nbdkit, killed when dropped.
pub struct Nbdkit {
    child: Child,
    socket: PathBuf,
}

impl Nbdkit {
    /// Starts nbdkit on `socket` with these arguments, split at spaces.
    pub fn start(socket: &Path, args: &str) -> Nbdkit {
        // A killed predecessor leaves its socket behind, and nbdkit does not bind over it.
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).args(args.split_whitespace());
        let child = command.stdin(Stdio::null()).spawn().expect("nbdkit runs");
        let server = Nbdkit { child, socket: socket.to_owned() };
        // An error about the empty export name also proves that the server answers.
        wait_for("nbdkit", || match Client::connect(&server.endpoint(), "") {
            Ok(_) => Some(()),
            Err(error) => (error.kind() == std::io::ErrorKind::InvalidData).then_some(()),
        });
        server
    }

    /// Endpoint of the server.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }

    /// URI of the server.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
