//! One thread of another process that is stopped while all others run, as if the scheduler had forgotten it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A stopped thread; it resumes when this is dropped.
pub struct Held {
    holder: Child,
    stat: PathBuf,
}

impl Held {
    /// Stops `thread` of `process`; the first thread has the process's number. `PermissionDenied` where threads of
    /// other processes may not be stopped; the script has printed the reason.
    pub fn thread(process: u32, thread: u32) -> io::Result<Held> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hold-thread");
        let mut command = Command::new(script);
        let mut holder = command.arg(thread.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = [0; 5];
        let says = holder.stdout.take().map(|mut out| out.read_exact(&mut said));
        if !matches!(says, Some(Ok(()))) || said != *b"held\n" {
            holder.wait()?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Held { holder, stat: format!("/proc/{process}/task/{thread}/stat").into() })
    }

    /// Whether the thread is stopped; false too once it has ended.
    pub fn stands_still(&self) -> bool {
        let stat = fs::read_to_string(&self.stat).unwrap_or_default();
        // The state follows the name, which may hold any characters.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('t'))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // Without the holder the thread resumes by itself.
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that waits for its input to end, and ends with it.
    struct Waiting(Child);

    impl Waiting {
        fn start() -> Waiting {
            Waiting(Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is there"))
        }

        fn hold(&self) -> Option<Held> {
            let held = Held::thread(self.0.id(), self.0.id());
            match held {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("SKIPPED: threads of other processes may not be held here");
                    None
                }
                held => Some(held.expect("python3 is there")),
            }
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    #[test]
    fn thread_resumes_after_its_holder_ends() {
        let waiting = Waiting::start();
        let Some(mut held) = waiting.hold() else { return };
        assert!(held.stands_still());
        held.holder.kill().expect("it is our child");
        held.holder.wait().expect("it is our child");
        assert!(!held.stands_still());
    }

    #[test]
    fn ended_process_has_no_stopped_thread() {
        let waiting = Waiting::start();
        let Some(held) = waiting.hold() else { return };
        drop(held);
        let number = waiting.0.id();
        drop(waiting);
        let error = Held::thread(number, number).err().expect("no process has that number");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
