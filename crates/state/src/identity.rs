//! Which volume a backing is: decided by the backing's identity, never by a name.

use std::io::{self, Read};

use super::record::{State, VolumeRecord};

/// Why a backing is not taken as a volume's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The name had another backing before: a clone, an older snapshot, a swapped disk.
    #[error(
        "its backing is another one than before (was {known}, is {found}){unclean}; put the old one back, give this one \
         another name, or, if this is really the volume's data now, say so: hotset volume adopt {name}"
    )]
    Changed {
        /// The volume.
        name: String,
        /// What was served by that name.
        known: String,
        /// What is there now.
        found: String,
        /// What is known of how the old one was stopped, as a half sentence; empty where it was clean.
        unclean: &'static str,
    },
    /// Data of the volume lies in a flash log that is not there.
    #[error(
        "data that its clients had flushed may lie in the flash log alone, which is not in use: {why}. Bring its devices back and start \
         again; or, accepting that this data is lost, say so: hotset volume adopt {name}"
    )]
    OnFlash {
        /// The volume.
        name: String,
        /// Why that log is not in use.
        why: String,
    },
    /// The backing belongs to a volume that is served under another name right now.
    #[error("its backing is that of volume {other}, which is served already; give it a backing of its own")]
    Taken {
        /// Who has the backing.
        other: String,
    },
}

impl State {
    /// The incarnation of the volume `name` on the backing `identity`: the one that this backing has always had, else a new one.
    /// The record is marked as not cleanly stopped. `adopt` forgets what the name stood for before. `served` names the volumes
    /// in service.
    pub fn identify(
        &mut self,
        name: &str,
        identity: &str,
        adopt: bool,
        served: &[String],
        draw: impl FnOnce() -> u64,
    ) -> Result<u64, IdentityError> {
        let by_backing = self.volumes.iter().position(|record| record.backing_identity == identity);
        if let Some(at) = by_backing
            && self.volumes[at].name != name
            && served.contains(&self.volumes[at].name)
        {
            return Err(IdentityError::Taken { other: self.volumes[at].name.clone() });
        }
        let by_name = self.volumes.iter().position(|record| record.name == name);
        match (by_name, by_backing) {
            (Some(named), found) if found != Some(named) && !adopt => {
                let record = &self.volumes[named];
                let unclean = match (&record.dirty_on_flash, record.clean) {
                    (Some(_), _) => ", and data of the old one may lie in the flash log",
                    (None, false) => ", and the old one was not cleanly stopped",
                    (None, true) => "",
                };
                let (known, found) = (record.backing_identity.clone(), identity.to_owned());
                Err(IdentityError::Changed { name: name.to_owned(), known, found, unclean })
            }
            (named, Some(found)) => {
                // An adopted name's former holder is forgotten: its backing, if it comes back, is a stranger.
                let former = named.filter(|named| *named != found).map(|named| self.volumes[named].clone());
                let generation = self.generation;
                let record = &mut self.volumes[found];
                record.name = name.to_owned();
                record.clean = false;
                record.generation = generation;
                let incarnation = record.incarnation;
                if let Some(former) = former {
                    match record.unit {
                        Some(_) => self.retired_luns.extend(former.unit.map(|unit| unit.lun)),
                        None => record.unit = former.unit,
                    }
                    self.volumes.retain(|record| record.name != name || record.incarnation == incarnation);
                }
                Ok(incarnation)
            }
            (named, None) => {
                // Initiators know the data by its name: it is the same to them on whatever it was restored to.
                let unit = named.and_then(|named| self.volumes.remove(named).unit);
                let incarnation = draw();
                self.volumes.push(VolumeRecord {
                    incarnation,
                    name: name.to_owned(),
                    backing_identity: identity.to_owned(),
                    clean: false,
                    dirty_on_flash: None,
                    generation: self.generation,
                    lost_before: 0,
                    overrides: Default::default(),
                    added: None,
                    unit,
                });
                Ok(incarnation)
            }
        }
    }

    /// A backing that is noted under a name which earlier versions gave it goes by its present one.
    pub fn rename_backing(&mut self, former: &[String], identity: &str) {
        if self.volumes.iter().any(|record| record.backing_identity == identity) {
            return;
        }
        // Names are tried the newest first; of two records of one name the first was always the one that counted.
        let places = former.iter().filter_map(|name| self.volumes.iter().position(|one| one.backing_identity == *name));
        if let Some(at) = places.into_iter().next() {
            self.volumes[at].backing_identity = identity.to_owned();
        }
    }

    /// Notes that the volume was cleanly stopped: everything acknowledged is on its backing.
    pub fn mark_clean(&mut self, incarnation: u64) {
        if let Some(record) = self.by_incarnation_mut(incarnation) {
            record.clean = true;
            record.dirty_on_flash = None;
        }
    }

    /// Notes that the volume was cleanly stopped: everything acknowledged is on its backing or in the flash log.
    pub fn mark_parked(&mut self, incarnation: u64) {
        if let Some(record) = self.by_incarnation_mut(incarnation) {
            record.clean = true;
        }
    }

    /// Notes in which flash store data of the volume may lie from now on.
    pub fn mark_on_flash(&mut self, incarnation: u64, store: Option<&str>) {
        if let Some(record) = self.by_incarnation_mut(incarnation) {
            record.dirty_on_flash = store.map(str::to_owned);
        }
    }

    /// The volume becomes another one to every flash store: what one holds of it, old by now, never comes back.
    pub fn give_up_flash(&mut self, incarnation: u64, drawn: u64) {
        if let Some(record) = self.by_incarnation_mut(incarnation) {
            record.incarnation = drawn;
            record.dirty_on_flash = None;
        }
    }

    /// The flash store in which data of the volume on this backing may lie.
    pub fn store_of(&self, backing_identity: &str) -> Option<&str> {
        let record = self.volumes.iter().find(|record| record.backing_identity == backing_identity);
        record?.dirty_on_flash.as_deref()
    }

    /// Forgets a removed volume; its incarnation is never used again.
    pub fn forget(&mut self, incarnation: u64) {
        let unit = self.by_incarnation_mut(incarnation).and_then(|record| record.unit.take());
        self.retired_luns.extend(unit.map(|unit| unit.lun));
        self.volumes.retain(|record| record.incarnation != incarnation);
    }
}

/// A number from the operating system's randomness, never 0.
pub fn draw_incarnation() -> io::Result<u64> {
    let mut random = std::fs::File::open("/dev/urandom")?;
    loop {
        let mut bytes = [0; 8];
        random.read_exact(&mut bytes)?;
        let drawn = u64::from_le_bytes(bytes);
        if drawn != 0 {
            return Ok(drawn);
        }
    }
}
