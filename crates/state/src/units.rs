//! Identity of volumes for initiators: LUNs and serial numbers that stay with a volume for its life and are not reused
//! after it.

use std::collections::{BTreeMap, BTreeSet};

use engine::VolumeId;
use serde::{Deserialize, Serialize};

use super::fields::hex;
use super::record::{State, VolumeRecord};

/// A volume's identity for initiators, and its persistent reservations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitRecord {
    /// Number of the LUN.
    pub lun: u16,
    /// Distinguishes the volume from all other volumes of this daemon, 16 hexadecimal digits.
    #[serde(with = "hex")]
    pub serial: u64,
    /// Persistent reservations (docs/design/format.md), in hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reservations: String,
}

/// Reason why a volume gets no LUN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The LUN belongs to another volume.
    #[error(
        "LUN {lun} belongs to volume {other}; configure another number for this volume, or another one for {other}"
    )]
    Taken {
        /// The LUN.
        lun: u16,
        /// Its owner.
        other: String,
    },
    /// Every LUN is or was in use.
    #[error("every LUN is or was in use; configure one for this volume: lun = N")]
    Full,
}

impl State {
    /// Assigns LUNs. Each entry of `requests` has a volume ID, the LUN fixed in the configuration file, and a serial
    /// number for a volume without one. Volumes without a LUN get one, and volumes whose fixed LUN has changed get the
    /// new one. A LUN in `fixed`, or one that any volume has had, is never assigned automatically. A volume whose name
    /// is not in `known_names` any more loses its LUN to a volume for which the file fixes it; if it returns, it is a
    /// new unit to initiators.
    pub fn assign_luns(
        &mut self,
        requests: &[(VolumeId, Option<u16>, u64)],
        fixed: &BTreeSet<u16>,
        known_names: &BTreeSet<&str>,
    ) -> Vec<Result<(), UnitError>> {
        for record in self.volumes.iter_mut().filter(|record| !known_names.contains(record.name.as_str())) {
            let is_requested = |lun: u16| requests.iter().any(|(_, fixed_lun, _)| *fixed_lun == Some(lun));
            record.unit = record.unit.take().filter(|unit| !is_requested(unit.lun));
        }
        let current = |state: &State, volume_id: VolumeId| {
            let record = state.volumes.iter().find(|record| record.volume_id == volume_id);
            record.and_then(|record| record.unit.as_ref()).map(|unit| unit.lun)
        };
        let mut moves: BTreeMap<VolumeId, u16> = BTreeMap::new();
        for (volume_id, fixed_lun, _) in requests {
            let new_lun = fixed_lun.filter(|lun| current(self, *volume_id) != Some(*lun));
            moves.extend(new_lun.map(|lun| (*volume_id, lun)));
        }
        // Volumes may exchange LUNs: a LUN given up is free for the next volume. A volume that cannot move keeps its
        // LUN, and may block another one.
        let mut refused = BTreeMap::new();
        loop {
            let keeps_lun = |record: &&VolumeRecord| !moves.contains_key(&record.volume_id);
            let in_use = self
                .volumes
                .iter()
                .filter(keeps_lun)
                .filter_map(|record| Some((record.unit.as_ref()?.lun, &record.name)));
            let in_use: BTreeMap<u16, &String> = in_use.collect();
            let blocked =
                moves.iter().find_map(|(volume_id, lun)| Some((*volume_id, *lun, (*in_use.get(lun)?).clone())));
            let Some((volume_id, lun, other)) = blocked else { break };
            moves.remove(&volume_id);
            refused.insert(volume_id, UnitError::Taken { lun, other });
        }
        let released: Vec<u16> = moves.keys().filter_map(|volume_id| current(self, *volume_id)).collect();
        let mut results = Vec::with_capacity(requests.len());
        for (volume_id, _, serial) in requests {
            if let Some(error) = refused.remove(volume_id) {
                results.push(Err(error));
                continue;
            }
            let lun = match (moves.get(volume_id), current(self, *volume_id)) {
                (Some(fixed_lun), _) => Some(*fixed_lun),
                (None, Some(lun)) => Some(lun),
                (None, None) => self.free_lun(fixed, &released),
            };
            results.push(lun.map(|_| ()).ok_or(UnitError::Full));
            if let (Some(lun), Some(record)) = (lun, self.by_id_mut(*volume_id)) {
                let unit = UnitRecord { lun, serial: *serial, reservations: String::new() };
                record.unit = Some(record.unit.take().map_or(unit, |unit| UnitRecord { lun, ..unit }));
            }
        }
        self.retired_luns.extend(released);
        let used = self.volumes.iter().filter_map(|record| Some(record.unit.as_ref()?.lun));
        let used: BTreeSet<u16> = used.collect();
        self.retired_luns.retain(|lun| !used.contains(lun));
        results
    }

    /// The lowest LUN that no volume has or has had.
    fn free_lun(&self, fixed: &BTreeSet<u16>, released: &[u16]) -> Option<u16> {
        let is_used =
            |lun: &u16| self.volumes.iter().any(|record| record.unit.as_ref().is_some_and(|unit| unit.lun == *lun));
        let is_excluded = |lun: &u16| fixed.contains(lun) || self.retired_luns.contains(lun) || released.contains(lun);
        (0..=scsi::Lun::MAX).find(|lun| !is_excluded(lun) && !is_used(lun))
    }

    /// Records a volume's persistent reservations; false if there is no such volume.
    pub fn record_reservations(&mut self, volume_id: VolumeId, reservations: &[u8]) -> bool {
        let unit = self.by_id_mut(volume_id).and_then(|record| record.unit.as_mut());
        unit.map(|unit| unit.reservations = reservations.iter().map(|byte| format!("{byte:02x}")).collect()).is_some()
    }
}

impl UnitRecord {
    /// The recorded persistent reservations; `None` if they are damaged.
    pub fn reservation_bytes(&self) -> Option<Vec<u8>> {
        let digits = self.reservations.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acceptance, Claim};

    const ADOPT: Acceptance = Acceptance { adopt: true, give_up: None, discard_past_end: false };

    fn state(names: &[&str]) -> State {
        let mut state = State::default();
        for (index, name) in names.iter().enumerate() {
            state.identify(&Claim::plain(name, &format!("disk-{index}")), || VolumeId(index as u64 + 1)).expect("new");
        }
        state
    }

    fn luns(state: &State) -> Vec<Option<u16>> {
        state.volumes.iter().map(|record| record.unit.as_ref().map(|unit| unit.lun)).collect()
    }

    fn assign(state: &mut State, requests: &[(u64, Option<u16>)]) -> Vec<Result<(), UnitError>> {
        let fixed = requests.iter().filter_map(|(_, lun)| *lun).collect();
        let requests: Vec<_> =
            requests.iter().map(|(volume_id, lun)| (VolumeId(*volume_id), *lun, volume_id + 100)).collect();
        let names: Vec<String> = state.volumes.iter().map(|record| record.name.clone()).collect();
        let known = names.iter().map(String::as_str).filter(|name| *name != "orphan").collect();
        state.assign_luns(&requests, &fixed, &known)
    }

    #[test]
    fn luns_are_assigned_once_and_not_reused() {
        let mut state = state(&["a", "b", "c"]);
        assert_eq!(assign(&mut state, &[(1, None), (2, Some(1)), (3, None)]), [Ok(()), Ok(()), Ok(())]);
        assert_eq!(luns(&state), [Some(0), Some(1), Some(2)]);
        assign(&mut state, &[(3, None), (1, None)]);
        assert_eq!(luns(&state), [Some(0), Some(1), Some(2)]);
        state.forget(VolumeId(1));
        state.identify(&Claim::plain("d", "disk-9"), || VolumeId(4)).expect("new");
        assign(&mut state, &[(4, None)]);
        assert_eq!(luns(&state), [Some(1), Some(2), Some(3)], "LUN 0 belonged to another volume");
        assert_eq!(assign(&mut state, &[(4, Some(0))]), [Ok(())], "unless the file assigns it");
        assert_eq!(
            (luns(&state)[2], state.volumes[2].unit.as_ref().expect("the volume has a unit").serial),
            (Some(0), 104)
        );
        assert_eq!(state.retired_luns, BTreeSet::from([3]));
    }

    #[test]
    fn configuration_moves_luns_but_takes_none_in_use() {
        let mut state = state(&["a", "b"]);
        assign(&mut state, &[(1, None), (2, None)]);
        assert_eq!(assign(&mut state, &[(1, Some(1)), (2, Some(0))]), [Ok(()), Ok(())]);
        assert_eq!((luns(&state), state.retired_luns.len()), (vec![Some(1), Some(0)], 0));
        let taken = |lun, other: &str| Err(UnitError::Taken { lun, other: other.to_owned() });
        assert_eq!(assign(&mut state, &[(1, Some(0))]), [taken(0, "b")]);
        assert_eq!((luns(&state), state.retired_luns.len()), (vec![Some(1), Some(0)], 0));
        // A volume that cannot move blocks the volume that wants its LUN.
        state.identify(&Claim::plain("c", "disk-c"), || VolumeId(3)).expect("new");
        assign(&mut state, &[(3, None)]);
        assert_eq!(assign(&mut state, &[(2, Some(1)), (1, Some(2))]), [taken(1, "a"), taken(2, "c")]);
        assert_eq!(luns(&state), [Some(1), Some(0), Some(2)]);
    }

    #[test]
    fn unknown_volume_loses_its_lun_to_a_fixed_one() {
        let mut state = state(&["orphan", "b"]);
        assign(&mut state, &[(1, None)]);
        assign(&mut state, &[(2, None)]);
        assert_eq!(luns(&state), [Some(0), Some(1)], "it is not reassigned without a fixed LUN");
        assert_eq!(assign(&mut state, &[(2, Some(0))]), [Ok(())]);
        assert_eq!(luns(&state), [None, Some(0)]);
    }

    #[test]
    fn adopted_backing_keeps_the_unit_of_the_name() {
        let mut state = state(&["a", "b"]);
        assign(&mut state, &[(1, None), (2, None)]);
        assert!(state.record_reservations(VolumeId(1), &[0xab, 0]) && !state.record_reservations(VolumeId(9), &[]));
        let before = state.volumes[0].unit.clone();
        state.identify(&Claim { accept: &ADOPT, ..Claim::plain("a", "disk-7") }, || VolumeId(7)).expect("adopted");
        assert_eq!(state.by_name("a").expect("known").unit, before);
        assert_eq!(before.expect("the volume has a unit").reservation_bytes(), Some(vec![0xab, 0]));
        // A backing with a unit keeps it; the other LUN is retired.
        state.identify(&Claim { accept: &ADOPT, ..Claim::plain("b", "disk-7") }, || VolumeId(8)).expect("adopted");
        assert_eq!((luns(&state), state.retired_luns.clone()), (vec![Some(0)], BTreeSet::from([1])));
    }
}
