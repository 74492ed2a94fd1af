//! Keeps all processors awake during a measurement.
//!
//! A processor of a virtual machine that sleeps until a device answers may take milliseconds to wake up, because the
//! host has to schedule it first. Measured for a flush: 0.05 ms awake, 0.1 to 3 ms asleep. A server with one request in
//! flight then looks many times slower than a client with eight, which leave no time to sleep. The same processes
//! run beside all servers that are compared, and get only time that nothing else needs (SCHED_IDLE).

use std::io;
use std::process::{Child, Command, Stdio};

use crate::machine;

/// Busy processes of the lowest priority, one for each processor, until dropped.
pub struct AwakeProcessors(Vec<Child>);

impl AwakeProcessors {
    /// Starts the processes.
    pub fn start() -> io::Result<AwakeProcessors> {
        let mut awake = AwakeProcessors(Vec::new());
        for processor in 0..machine::processors() {
            let mut command = Command::new("taskset");
            command.args(["-c", &processor.to_string(), "chrt", "--idle", "0", "sh", "-c", "while :; do :; done"]);
            awake.0.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        }
        Ok(awake)
    }
}

impl Drop for AwakeProcessors {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A failure only slows later measurements down.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}
