//! Volumes whose images other hosts own: the claims that are ordered, and what was found out about the owners.

use std::cell::RefCell;
use std::collections::BTreeMap;

use messages::{ErrorKind, Failure};
use rbd::{Claim, Mark, StandbyReport};
use state::UNDESTAGED_ELSEWHERE;

use super::{KnownVolume, VolumeStatus, Volumes};

/// The code of a volume on standby, where a refused one has that of its refusal.
pub const STANDBY: &str = "standby";

/// Notes between the parts of an attach.
#[derive(Default)]
pub struct StandbyNotes {
    /// Claims for the next attach of a volume, by its name.
    claims: RefCell<BTreeMap<String, Claim>>,
    /// The owners that the last attach has found.
    owners: RefCell<BTreeMap<String, StandbyReport>>,
    /// The marks of undestaged data for which volumes were refused that have not been served since.
    marks: RefCell<BTreeMap<String, Mark>>,
}

impl StandbyNotes {
    /// Forgets the mark of a volume that is served.
    pub fn forget_mark(&self, name: &str) {
        self.marks.borrow_mut().remove(name);
    }

    /// The status of a volume that was not attached.
    pub fn status_of(&self, name: &str, failure: Failure) -> VolumeStatus {
        // The next attempts claim the image too, until the owner is back or its data is complete.
        if failure.refusal.as_deref() != Some(UNDESTAGED_ELSEWHERE) {
            self.claims.borrow_mut().remove(name);
        }
        match self.owners.borrow_mut().remove(name) {
            Some(report) if failure.refusal.as_deref() == Some(STANDBY) => {
                VolumeStatus::Standby(failure, Box::new(report))
            }
            _ => VolumeStatus::Refused(failure),
        }
    }
}

impl Volumes {
    /// Permits the next attach of a volume to claim its image.
    pub fn order_claim(&self, name: &str, claim: Claim) {
        self.standby.claims.borrow_mut().insert(name.to_owned(), claim);
    }

    /// The claim for this attach of a volume.
    pub fn claim_of(&self, name: &str) -> Option<Claim> {
        self.standby.claims.borrow().get(name).cloned()
    }

    /// Ends the permission to claim the image of a volume.
    pub fn end_claim(&self, name: &str) {
        self.standby.claims.borrow_mut().remove(name);
    }

    /// Notes the owner of the image of a volume that is being attached.
    pub fn note_owner(&self, name: &str, report: StandbyReport) {
        self.standby.owners.borrow_mut().insert(name.to_owned(), report);
    }

    /// Notes the mark of undestaged data for which a volume is refused.
    pub fn note_mark(&self, name: &str, mark: Mark) {
        self.standby.marks.borrow_mut().insert(name.to_owned(), mark);
    }

    /// The mark for which a volume was refused, unless it has been served since.
    pub fn mark_of(&self, name: &str) -> Option<Mark> {
        self.standby.marks.borrow().get(name).cloned()
    }

    /// Replaces what is known of the owner of a volume on standby.
    pub fn update_owner(&self, name: &str, report: StandbyReport) {
        if let Some(KnownVolume { status: VolumeStatus::Standby(failure, known), .. }) =
            self.known.borrow_mut().get_mut(name)
        {
            failure.message = standby_text(&report);
            **known = report;
        }
    }

    /// Ends a claim of a volume on standby, whose status was `before`, that has not reached its image.
    pub fn stay_on_standby(&self, name: &str, failure: &Failure, before: VolumeStatus) {
        if failure.kind == ErrorKind::Unavailable && matches!(before, VolumeStatus::Standby(..)) {
            self.attempts.borrow_mut().cancel(name);
            self.set_status(name, before);
        }
    }

    /// The volumes on standby.
    pub fn on_standby(&self) -> Vec<KnownVolume> {
        self.known.borrow().values().filter(|known| known.standby().is_some()).cloned().collect()
    }
}

/// The reason why a volume is on standby.
pub fn standby_text(report: &StandbyReport) -> String {
    let StandbyReport { owner, release, .. } = report;
    match release {
        None => format!("host {owner} owns its image"),
        Some(release) => match release.host() {
            Some(host) => format!("host {owner} has released its image for host {host}"),
            None => format!("host {owner} has released its image"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_is_on_standby_only_with_a_known_owner() {
        let notes = StandbyNotes::default();
        let failure = Failure { refusal: Some(STANDBY.to_owned()), ..Failure::new(ErrorKind::Conflict, "x") };
        assert!(matches!(notes.status_of("v", failure.clone()), VolumeStatus::Refused(_)));
        let report = StandbyReport::parse("3 true - - image alpha -").expect("a report");
        notes.owners.borrow_mut().insert("v".to_owned(), report.clone());
        let VolumeStatus::Standby(_, known) = notes.status_of("v", failure) else { panic!("its owner is known") };
        assert_eq!(*known, report);
        assert_eq!(standby_text(&report), "host alpha owns its image");
        let released = StandbyReport::parse("3 true to:beta - image alpha -").expect("a report");
        assert_eq!(standby_text(&released), "host alpha has released its image for host beta");
    }
}
