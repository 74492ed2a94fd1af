//! Stops one thread of another process while its other threads run, as if the scheduler never ran it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A stopped thread; dropping this resumes it.
pub struct StoppedThread {
    /// The script that traces the thread and thereby keeps it stopped.
    holder: Child,
    stat: PathBuf,
}

impl StoppedThread {
    /// Stops `thread` of `process`; the first thread has the process's ID. Fails with `PermissionDenied` where threads
    /// of other processes may not be stopped; the script has printed the reason.
    pub fn stop(process: u32, thread: u32) -> io::Result<StoppedThread> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hold-thread");
        let mut command = Command::new(script);
        let mut holder = command.arg(thread.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut output = [0; 5];
        let read = holder.stdout.take().map(|mut out| out.read_exact(&mut output));
        if !matches!(read, Some(Ok(()))) || output != *b"held\n" {
            holder.wait()?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(StoppedThread { holder, stat: format!("/proc/{process}/task/{thread}/stat").into() })
    }

    /// True while the thread is stopped; false after its end.
    pub fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(&self.stat).unwrap_or_default();
        // The state follows the name, which may hold any characters.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('t'))
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // Without the holder the thread resumes by itself.
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that ends at the end of its input.
    struct WaitingProcess(Child);

    impl WaitingProcess {
        fn start() -> WaitingProcess {
            WaitingProcess(Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is installed"))
        }

        fn stop_thread(&self) -> Option<StoppedThread> {
            let stopped = StoppedThread::stop(self.0.id(), self.0.id());
            match stopped {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("SKIPPED: threads of other processes may not be stopped here");
                    None
                }
                stopped => Some(stopped.expect("python3 is installed")),
            }
        }
    }

    impl Drop for WaitingProcess {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    #[test]
    fn thread_resumes_after_its_holder_ends() {
        let waiting = WaitingProcess::start();
        let Some(mut stopped) = waiting.stop_thread() else { return };
        assert!(stopped.is_stopped());
        stopped.holder.kill().expect("the holder is a child of this test");
        stopped.holder.wait().expect("the holder is a child of this test");
        assert!(!stopped.is_stopped());
    }

    #[test]
    fn ended_process_has_no_stopped_thread() {
        let waiting = WaitingProcess::start();
        let Some(stopped) = waiting.stop_thread() else { return };
        drop(stopped);
        let pid = waiting.0.id();
        drop(waiting);
        let error = StoppedThread::stop(pid, pid).err().expect("no process has that ID");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
