//! The looks at the images of volumes on standby, and the claims that they lead to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use config::BackingSpec;
use rbd::Claim;

use super::attachments::Attachments;
use super::rbd_helper::StandbyWatch;
use super::volumes::{KnownVolume, Volumes};
use logging::{self as log, VOLUME};

/// Pause between the starts of two processes for one volume.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// The processes that look at images, by volume.
#[derive(Default)]
pub struct Standbys {
    watches: RefCell<BTreeMap<String, StandbyWatch>>,
    /// When the last start of a process has failed.
    failed_at: Cell<Option<Instant>>,
}

impl Standbys {
    /// Looks at the image of each volume on standby, and ends the looks at others. Returns the volumes whose images may
    /// be claimed now, with the claims.
    pub fn take_claims(&self, volumes: &Volumes, attachments: &Attachments) -> Vec<(KnownVolume, Claim)> {
        let mut on_standby = volumes.on_standby();
        let mut watches = self.watches.borrow_mut();
        // The watches of changing volumes stay, because they measure the owner's absence.
        watches.retain(|name, _| on_standby.iter().any(|known| known.config.name == *name));
        // During a take-over this host may own the image already.
        on_standby.retain(|known| !volumes.is_changing(&known.config.name));
        let mut claims = Vec::new();
        for known in on_standby {
            let name = known.config.name.clone();
            let BackingSpec::Rbd(image) = &known.config.backing else { continue };
            let plan = attachments.helper_plan(&known.config, image);
            let is_outdated =
                |watch: &StandbyWatch| !watch.is_by(&plan) || watch.has_ended() && watch.age() >= RESTART_PAUSE;
            let may_start = self.failed_at.get().is_none_or(|at| at.elapsed() >= RESTART_PAUSE);
            if may_start && watches.get(&name).is_none_or(is_outdated) {
                match StandbyWatch::start(&plan) {
                    Ok(watch) => drop(watches.insert(name.clone(), watch)),
                    Err(error) => {
                        log::warn!(
                            target: VOLUME, volume = name,
                            "volume {name}: the owner of its image cannot be watched: {error}"
                        );
                        self.failed_at.set(Some(Instant::now()));
                    }
                }
            }
            let Some(report) = watches.get(&name).and_then(StandbyWatch::report) else { continue };
            volumes.update_owner(&name, report.clone());
            claims.extend(report.claim.map(|claim| (known, claim)));
        }
        claims
    }

    /// Ends all looks.
    pub fn end(&self) {
        self.watches.borrow_mut().clear();
    }

    /// Begins the looks at a volume's image anew: the last report is outdated.
    pub fn forget(&self, name: &str) {
        self.watches.borrow_mut().remove(name);
    }
}
