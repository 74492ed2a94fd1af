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
                let unclean = if record.clean { "" } else { ", and the old one was not cleanly stopped" };
                let (known, found) = (record.backing_identity.clone(), identity.to_owned());
                Err(IdentityError::Changed { name: name.to_owned(), known, found, unclean })
            }
            (named, Some(found)) => {
                let generation = self.generation;
                let record = &mut self.volumes[found];
                record.name = name.to_owned();
                record.clean = false;
                record.generation = generation;
                let incarnation = record.incarnation;
                // An adopted name's former holder is forgotten: its backing, if it comes back, is a stranger.
                if named.is_some_and(|named| named != found) {
                    self.volumes.retain(|record| record.name != name || record.incarnation == incarnation);
                }
                Ok(incarnation)
            }
            (named, None) => {
                if let Some(named) = named {
                    self.volumes.remove(named);
                }
                let incarnation = draw();
                self.volumes.push(VolumeRecord {
                    incarnation,
                    name: name.to_owned(),
                    backing_identity: identity.to_owned(),
                    clean: false,
                    generation: self.generation,
                    overrides: Default::default(),
                    added: None,
                });
                Ok(incarnation)
            }
        }
    }

    /// Notes that the volume was cleanly stopped: everything acknowledged is on its backing.
    pub fn mark_clean(&mut self, incarnation: u64) {
        if let Some(record) = self.by_incarnation_mut(incarnation) {
            record.clean = true;
        }
    }

    /// Forgets a removed volume; its incarnation is never used again.
    pub fn forget(&mut self, incarnation: u64) {
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
