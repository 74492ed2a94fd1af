//! A foreign NBD server, nbdkit: as a backing, and as the sound or unsound daemon that the checkers are tried on.

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
    /// Starts it on `socket` with these arguments, split at spaces.
    pub fn start(socket: &Path, args: &str) -> Nbdkit {
        // A killed predecessor leaves its socket behind, and nbdkit does not bind over it.
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).args(args.split_whitespace());
        let child = command.stdin(Stdio::null()).spawn().expect("nbdkit runs");
        let server = Nbdkit { child, socket: socket.to_owned() };
        // That it has no export without a name is an answer, too.
        wait_for("nbdkit", || match Client::connect(&server.endpoint(), "") {
            Ok(_) => Some(()),
            Err(error) => (error.kind() == std::io::ErrorKind::InvalidData).then_some(()),
        });
        server
    }

    /// Where it listens.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Its process id.
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
