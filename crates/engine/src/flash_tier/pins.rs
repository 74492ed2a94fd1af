//! State of a volume's pins.

use std::cell::Cell;

use super::counters::RejectReason;

/// Progress of a volume's pins.
#[derive(Default)]
pub struct Pins {
    /// True if pages are pinned.
    pub has_pins: Cell<bool>,
    /// True while the task runs.
    pub is_running: Cell<bool>,
    /// Number of changes of the pins.
    pub change_count: Cell<u64>,
    /// True if pages that were already checked may lack blocks again.
    pub needs_recheck: Cell<bool>,
    /// Number of pinned pages.
    pub pinned_pages: Cell<u64>,
    /// Number of pinned pages that were complete on flash when last checked.
    pub complete_pages: Cell<u64>,
    /// Reason why the last page could not be filled.
    pub wait_reason: Cell<Option<RejectReason>>,
}

impl Pins {
    /// Number of pinned pages, number of these that are complete on flash, and the reason why the others are not, as
    /// its code in reports.
    pub fn stats(&self) -> (u64, u64, Option<&'static str>) {
        let (pinned, complete) = (self.pinned_pages.get(), self.complete_pages.get());
        let name = |reason: RejectReason| RejectReason::ALL[reason as usize].0;
        (pinned, complete, self.wait_reason.get().filter(|_| complete < pinned).map(name))
    }

    /// Records why a page could not be put on flash.
    pub fn set_wait_reason(&self, reason: RejectReason) {
        self.wait_reason.set(Some(reason));
    }
}
