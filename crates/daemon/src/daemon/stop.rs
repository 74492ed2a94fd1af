//! `stop`, and the drain of the volumes at its start.

use std::rc::Rc;

use control::ProgressSender;
use messages::{Answer, ErrorKind, Failure};

use super::super::handover::store_clients;
use super::super::stop::{Clients, Drain, DrainFault, DrainResult, PROGRESS_INTERVAL, Phase, activity};
use super::Daemon;
use logging::{self as log, DAEMON};
use state::may_lack_marks;
use units::show_bytes;

/// Message of a stop that did not wait for an unresponsive backing.
const HUNG_MESSAGE: &str = "stopped, but a backing did not answer: its volume was not destaged, and the next start \
                            recovers it as after a crash";
/// Message of a stop that failed because a data core had ended.
const INCOMPLETE_MESSAGE: &str = "stopped, but a data core had ended before its volumes were destaged: flushed \
                                  data is on the backings, unflushed data is lost";

impl Daemon {
    /// `stop`: requests a stop, and replies when the backings are complete or all dirty data is on flash.
    pub async fn stop_and_wait(&self, destage: bool, progress: &ProgressSender) -> Result<Answer, Failure> {
        log::info!(target: DAEMON, "stop requested by command");
        self.stop.request(destage, Clients::Disconnect);
        let mut tick = tokio::time::interval(PROGRESS_INTERVAL);
        let finished = self.stop.wait_for_phase(|phase| matches!(phase, Phase::Stopped | Phase::Failed));
        let mut finished = std::pin::pin!(finished);
        loop {
            tokio::select! {
                phase = &mut finished => return match phase {
                    Phase::Failed => Err(Failure::new(ErrorKind::Failed, self.stop.message())),
                    // The command promises complete backings.
                    _ if destage && self.stop.is_incomplete() => {
                        Err(Failure::new(ErrorKind::Failed, self.stop.message()))
                    }
                    _ => Ok(Answer::Said(vec![self.stop.message()])),
                },
                _ = tick.tick() => {
                    if let Some(undestaged_bytes) = self.cores.undestaged_bytes().await.filter(|bytes| *bytes > 0) {
                        progress.report(activity(self.uses_flash_log()), undestaged_bytes);
                    }
                }
            }
        }
    }

    /// True if the stop leaves dirty data in the flash log.
    fn uses_flash_log(&self) -> bool {
        self.flash.store().is_some() && !self.stop.destages()
    }

    /// Disconnects all clients, leaves the dirty data of each volume in the flash log, and records the volume as clean
    /// or as left on flash. Without a log, or if requested, the volumes are destaged instead, however long that takes.
    /// Returns false if a data core ended before that, or a backing did not answer.
    pub async fn drain(&self) -> bool {
        let uses_flash_log = self.uses_flash_log();
        self.notifier.notify("STOPPING=1\nSTATUS=waiting for outstanding requests");
        let (records, cores) = (self.records.clone(), self.cores.clone());
        let (flash, notifier) = (self.flash.clone(), self.notifier.clone());
        let drain = Rc::new(Drain::new(records, cores, flash, notifier, self.memory.survives_restart()));
        self.cores.stop_moves().await;
        self.save_pool_heat_at_stop().await;
        self.forwarding.remove_all().await;
        let stored = drain.disconnect_clients(self.stop.clients()).await;
        // The drain does not see a volume before its attach has ended, and dirty data of the volume may be in this
        // daemon's memory alone.
        self.volumes.end_attaches().await;
        let had_late_attach = self.volumes.has_late_attach();
        // The records of such volumes may lack marks of dirty data.
        let is_unmarked = |failure: &Failure| failure.refusal.as_deref().is_some_and(may_lack_marks);
        let unmarked =
            self.volumes.map(|known| known.refusal().filter(|f| is_unmarked(f)).map(|_| known.config.name.clone()));
        let DrainResult { fault, is_recorded, left, mut unserved } = drain.run(uses_flash_log).await;
        unserved.extend(unmarked.into_iter().flatten());
        let is_hung = had_late_attach || self.volumes.has_late_attach();
        let fault = fault.or(is_hung.then_some(DrainFault::BackingHung));
        let unserved: Vec<String> = unserved.into_iter().collect();
        if !(left.is_empty() && unserved.is_empty()) {
            self.stop.set_incomplete();
        }
        match (left.is_empty(), unserved.is_empty()) {
            (true, true) => {}
            (true, false) => self.stop.set_message(describe_incomplete(&unserved)),
            (false, _) => self.stop.set_message(left_on_flash(&left, &unserved)),
        }
        for core in self.cores.iter() {
            core.join().await;
        }
        match fault {
            None => {
                // If the records could not be saved, the persisted memory stays: it proves to the next start that
                // nothing was lost.
                if is_recorded {
                    self.memory.delete_own_image();
                }
                store_clients(&self.notifier, stored).await;
            }
            Some(DrainFault::CoreEnded) => self.stop.set_message(INCOMPLETE_MESSAGE.to_owned()),
            Some(DrainFault::BackingHung) => self.stop.set_message(HUNG_MESSAGE.to_owned()),
        }
        self.stop.finish(fault.is_none());
        fault.is_none()
    }

    /// Records how the daemon ended, and flushes the event log.
    pub fn end_events(&self) {
        self.journal.end(&self.stop.message());
    }
}

/// Message of a stop that leaves data in the flash log.
fn left_on_flash(volumes: &[(String, u64)], unserved: &[String]) -> String {
    let bytes = volumes.iter().map(|(_, bytes)| bytes).sum();
    let names: Vec<_> = volumes.iter().map(|(name, _)| name.as_str()).collect();
    let data = if bytes == 0 { "discarded ranges".to_owned() } else { show_bytes(bytes) };
    format!(
        "stopped; {data} of {} are in the flash log and not on the backing; the next start recovers them from there. \
         `hotset flash check` may count more: also blocks destaged lately, until the log reuses their space. `hotset \
         stop --destage` destages everything first{}",
        names.join(", "),
        if unserved.is_empty() {
            String::new()
        } else {
            format!(", except the dirty data of {}, not served", unserved.join(", "))
        }
    )
}

/// Message of a stop without dirty data of a served volume.
fn describe_incomplete(names: &[String]) -> String {
    format!(
        "stopped; the backings of all served volumes are complete, but not those of volumes that are not served: {}. \
         Their dirty data may be in the flash log or in persisted memory: keep the flash devices, the state directory \
         and the files of persisted memory. `hotset undestaged` tells what to do",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_names_the_difference_from_the_check_of_the_flash_devices() {
        let text = left_on_flash(&[("a".to_owned(), 8 << 20), ("b".to_owned(), 4 << 20)], &["c".to_owned()]);
        let expected = "stopped; 12 MiB of a, b are in the flash log and not on the backing; the next start recovers \
                        them from there. `hotset flash check` may count more: also blocks destaged lately, until the \
                        log reuses their space. `hotset stop --destage` destages everything first, except the dirty \
                        data of c, not served";
        assert_eq!(text, expected);
    }
}
