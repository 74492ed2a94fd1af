//! Records of all flash stores that daemons on this directory have used, and the check of a store against its record.
//!
//! 1. Before a store is written, its next *life*, a random number, is recorded here (`opening`); every superblock names
//!    it from then on. If a store's life is neither the last one nor the one about to begin, either the store was used
//!    without this directory, or this directory is an older copy.
//! 2. The *epoch* tells which of the two is older. It is the directory's generation, which grows with each start and is
//!    recorded in both.
//! 3. A store is never written before it was checked.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use flash::{MembershipGeneration, Ownership, Sequence};

use super::fields::show_number;
use super::record::State;
use super::store_record::StoreRecord;
use super::trust::{OlderThan, Refusal, Sabotage, SeenStore};

/// Maximum number of recorded lives of consecutive interrupted openings.
const OPENINGS_MAX: usize = 64;
/// Maximum number of recorded stores. The oldest store that no volume needs is forgotten first; it is accepted again
/// only if it is empty.
const STORES_MAX: usize = 256;

/// A store as found on its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundStore {
    /// Its identity, 32 hexadecimal digits.
    pub store: String,
    /// Owner of the last opening.
    pub ownership: Ownership,
    /// Each device in service with the owner that it names.
    pub devices: Vec<(String, Ownership)>,
    /// True if its log holds data of any volume.
    pub holds_data: bool,
}

impl FoundStore {
    /// Refuses the store if a device names a life for which `is_known` is false. `epoch` is that of the last opening.
    fn refuse_unknown_lives(&self, epoch: u64, is_known: impl Fn(u64) -> bool) -> Result<(), Refusal> {
        match self.devices.iter().find(|(_, ownership)| !is_known(ownership.life)) {
            None => Ok(()),
            Some((device, ownership)) => Err(Refusal::DeviceOlder {
                device: device.clone(),
                store: self.store.clone(),
                epoch: ownership.epoch,
                known: epoch,
            }),
        }
    }
}

/// Permitted use of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreUse {
    /// It is exactly the store that this directory used last.
    Known,
    /// It holds no dirty data; its clean pages are not trusted.
    New,
}

/// A flash store that has, or may have, a device at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOfStore {
    /// The store.
    pub store: String,
    /// False if its record names no devices, and a volume may have dirty data in it.
    pub is_recorded: bool,
}

impl fmt::Display for DeviceOfStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.is_recorded { "is" } else { "may be" };
        write!(f, "{verb} a device of flash store {}", self.store)
    }
}

/// Parses the identity of a store or directory, as an owner field holds it.
pub fn uuid_of(text: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// An identity as 32 hexadecimal digits.
pub fn show_uuid(uuid: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*uuid))
}

impl State {
    /// Begins a daemon's life: records of earlier lives become distinguishable from those of this one.
    pub fn begin_life(&mut self, drawn_identity: u128, drawn_life: u64) {
        self.generation += 1;
        self.life = drawn_life;
        if self.identity.is_empty() {
            self.identity = format!("{drawn_identity:032x}");
        }
    }

    /// Like [`State::store`], mutable; adds a record if there is none.
    pub fn store_mut(&mut self, store: &str) -> &mut StoreRecord {
        let index = self.stores.iter().position(|record| record.store == store);
        let index = index.unwrap_or_else(|| {
            if self.stores.len() >= STORES_MAX {
                let is_needed = |record: &StoreRecord| {
                    self.volumes.iter().any(|volume| volume.dirty_on_flash.as_deref() == Some(&record.store))
                };
                if let Some(oldest) = self.stores.iter().position(|record| !is_needed(record)) {
                    self.stores.remove(oldest);
                }
            }
            self.stores.push(StoreRecord::new(store));
            self.stores.len() - 1
        });
        &mut self.stores[index]
    }

    /// The owner that this directory's daemon writes to the superblocks of a store that it opens now.
    pub fn ownership(&self) -> Ownership {
        let owner = uuid_of(&self.identity).expect("an identity was drawn when the life began");
        Ownership { owner, epoch: self.generation, life: self.life }
    }

    /// Checks a store before it is written. The call changes nothing.
    pub fn check_store(&self, found_store: &FoundStore) -> Result<StoreUse, Refusal> {
        let FoundStore { store, ownership, holds_data, .. } = found_store;
        let is_needed = self.volumes.iter().any(|volume| volume.dirty_on_flash.as_ref() == Some(store));
        let is_own = Some(ownership.owner) == uuid_of(&self.identity);
        let record = self.store(store);
        if self.sabotage.is(Sabotage::AnyStore) {
            return Ok(StoreUse::Known);
        }
        if let Some(OlderThan { store, epoch, known }) =
            self.older_than.clone().filter(|_| !self.sabotage.is(Sabotage::AnyState))
        {
            // Opening a store would make it look newer than the state that the directory lacks.
            return Err(Refusal::StateOlder { store, epoch, known });
        }
        if let Some(known) = self.newer_copy_seen(store, ownership) {
            return Err(Refusal::StoreOlder { store: store.clone(), epoch: ownership.epoch, known });
        }
        if let Some(record) = record {
            let legacy = ownership.is_none() && record.life == 0;
            let known = is_own && record.may_have_life(ownership.life) && ownership.life != 0;
            if legacy || known {
                // An interrupted opening leaves some devices in the life before it.
                let is_known = |life| legacy || record.may_have_life(life);
                return found_store.refuse_unknown_lives(record.epoch, is_known).map(|()| StoreUse::Known);
            }
        }
        let epoch = record.map_or(0, |record| record.epoch);
        // Two lives with one start number descend from one copy of the directory, and neither is older.
        let is_fork = record.is_some() && ownership.epoch == epoch && epoch > 0;
        if is_own && (ownership.epoch > epoch || is_fork) && !self.sabotage.is(Sabotage::AnyState) {
            return Err(Refusal::StateOlder { store: store.clone(), epoch: ownership.epoch, known: epoch });
        }
        if record.is_some() && (is_own || ownership.is_none()) {
            // A store without data is refused, too: another mirror may have continued from this life, and would look
            // newer than the data written now.
            return Err(Refusal::StoreOlder { store: store.clone(), epoch: ownership.epoch, known: epoch });
        }
        if !holds_data && !is_needed {
            return found_store
                .refuse_unknown_lives(ownership.epoch, |life| life == ownership.life)
                .map(|()| StoreUse::New);
        }
        if self.sabotage.is(Sabotage::AnyState) {
            return Ok(StoreUse::Known);
        }
        Err(Refusal::StoreForeign {
            store: store.clone(),
            owner: show_uuid(&ownership.owner),
            epoch: ownership.epoch,
            own: self.identity.clone(),
            directory: None,
        })
    }

    /// The later start at which this foreign store was seen, if the copy found now is older.
    pub(crate) fn newer_copy_seen(&self, store: &str, ownership: &Ownership) -> Option<u64> {
        let seen = self.unclaimed_seen.get(store)?;
        let is_owner = ownership.is_none() || Some(ownership.owner) == uuid_of(&seen.owner);
        (is_owner && seen.epoch > ownership.epoch).then_some(seen.epoch)
    }

    /// Records a refusal that persists while the store is absent: either this directory is an older copy until its
    /// records are rebuilt, or the store holds data of unknown volumes.
    pub fn record_store_refusal(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::StateOlder { store, epoch, known } => {
                self.older_than = Some(OlderThan { store: store.clone(), epoch: *epoch, known: *known });
            }
            Refusal::StoreForeign { store, owner, epoch, .. } => {
                self.unclaimed.insert(store.clone());
                self.unclaimed_seen.insert(store.clone(), SeenStore { owner: owner.clone(), epoch: *epoch });
            }
            _ => {}
        }
    }

    /// Records that a checked store is about to be written.
    pub fn record_store_use(&mut self, found_store: &FoundStore, used: StoreUse) {
        let life = self.life;
        if used == StoreUse::New {
            // None of the store's recorded state is valid any more.
            self.distrust_pages_on(&found_store.store);
            *self.store_mut(&found_store.store) =
                StoreRecord { map_unusable: true, ..StoreRecord::new(&found_store.store) };
        }
        let record = self.store_mut(&found_store.store);
        if used == StoreUse::New {
            record.life = found_store.ownership.life;
        }
        record.openings.push(show_number(life));
        if record.openings.len() > OPENINGS_MAX {
            record.openings.remove(0);
        }
        record.sequence = if found_store.ownership.life == 0 { Sequence(0) } else { record.sequence };
    }

    /// Records that a store was opened in this life, which all its superblocks name now.
    pub fn record_store_opened(&mut self, store: &str, generation: MembershipGeneration) {
        let (epoch, life) = (self.generation, self.life);
        let record = self.store_mut(store);
        (record.epoch, record.life, record.generation) = (epoch, life, generation);
        record.openings.clear();
    }

    /// The flash devices as changed by commands; `None` if the list in the file, `file`, is in force.
    pub fn flash_devices_by_command(&self, file: &[PathBuf]) -> Option<&[PathBuf]> {
        let saved = self.flash_devices.as_ref().filter(|saved| saved.is_valid_for(file))?;
        Some(&saved.devices)
    }

    /// Records the devices of a store: the `added` ones and those recorded before, as far as `configured` names them.
    /// Each path belongs to the store that was seen there last.
    pub fn record_store_devices(&mut self, store: &str, added: &[PathBuf], configured: &[PathBuf]) {
        let added: BTreeSet<PathBuf> = added.iter().map(|path| absolute_device(path)).collect();
        let configured: BTreeSet<PathBuf> = configured.iter().map(|path| absolute_device(path)).collect();
        for record in &mut self.stores {
            record.devices.retain(|path| !added.contains(path));
        }
        let record = self.store_mut(store);
        record.devices.extend(added);
        record.devices.retain(|path| configured.contains(path));
    }

    /// The store that has, or may have, a device at `path`.
    pub fn store_of_device(&self, path: &Path) -> Option<DeviceOfStore> {
        let path = absolute_device(path);
        if let Some(record) = self.stores.iter().find(|record| record.devices.contains(&path)) {
            return Some(DeviceOfStore { store: record.store.clone(), is_recorded: true });
        }
        let names_devices = |store: &str| self.store(store).is_some_and(|record| !record.devices.is_empty());
        let mut needed = self.volumes.iter().filter_map(|volume| volume.dirty_on_flash.as_deref());
        let store = needed.find(|store| !names_devices(store))?;
        Some(DeviceOfStore { store: store.to_owned(), is_recorded: false })
    }

    /// Marks all volumes' clean pages on that store as untrusted.
    fn distrust_pages_on(&mut self, store: &str) {
        for volume in &mut self.volumes {
            if let Some(cached_on) = &mut volume.cached_on {
                cached_on.remove(store);
            }
        }
    }
}

/// The absolute path of a device; symbolic links are not resolved. The address of an image is no path, and stays.
pub fn absolute_device(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) if rbd::is_image_address(text) => path.to_owned(),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use engine::VolumeId;

    use super::*;
    use crate::{FlashDevices, VolumeRecord};

    #[test]
    fn device_belongs_to_the_store_seen_there_last() {
        let mut state = State::default();
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let (first, all) = (paths(&["/f0", "/f1"]), paths(&["/f0", "/f1", "/f2"]));
        let store_at = |state: &State, path: &str| state.store_of_device(Path::new(path)).map(|device| device.store);
        state.record_store_devices("aa", &first, &all);
        assert_eq!(store_at(&state, "/f1"), Some("aa".to_owned()));
        assert_eq!(store_at(&state, "/f2"), None);
        state.record_store_devices("aa", &paths(&["/f2"]), &paths(&["/f0", "/f2"]));
        assert_eq!(store_at(&state, "/f1"), None, "it was removed from the list");
        assert_eq!(store_at(&state, "/f2"), Some("aa".to_owned()));
        state.record_store_devices("bb", &paths(&["/f2"]), &all);
        assert_eq!(store_at(&state, "/f2"), Some("bb".to_owned()));
    }

    #[test]
    fn any_file_may_be_a_device_of_a_needed_store_without_recorded_devices() {
        let volume = VolumeRecord { dirty_on_flash: Some("aa".to_owned()), ..VolumeRecord::default() };
        let mut state = State { volumes: vec![volume], ..State::default() };
        let expected = Some(DeviceOfStore { store: "aa".to_owned(), is_recorded: false });
        assert_eq!(state.store_of_device(Path::new("/f0")), expected);
        state.record_store_devices("aa", &[PathBuf::from("/f1")], &[PathBuf::from("/f1")]);
        assert_eq!(state.store_of_device(Path::new("/f0")), None);
    }

    fn state() -> State {
        let mut state = State::default();
        state.begin_life(5, 50);
        state
    }

    fn found(ownership: Ownership, holds_data: bool) -> FoundStore {
        FoundStore { store: "ab".into(), ownership, devices: vec![("d0".into(), ownership)], holds_data }
    }

    /// Opens a store with `state` and returns the ownership in its superblocks.
    fn opened(state: &mut State, before: Ownership, holds_data: bool) -> Ownership {
        let found = found(before, holds_data);
        let used = state.check_store(&found).expect("the store may be used");
        state.record_store_use(&found, used);
        state.record_store_opened("ab", MembershipGeneration(1));
        state.ownership()
    }

    #[test]
    fn store_is_known_in_its_last_life_and_in_the_next() {
        let mut state = state();
        let first = opened(&mut state, Ownership::default(), false);
        state.begin_life(9, 60);
        assert_eq!(state.identity, format!("{:032x}", 5), "an identity is drawn once");
        assert_eq!(state.check_store(&found(first, true)), Ok(StoreUse::Known));
        state.record_store_use(&found(first, true), StoreUse::Known);
        let second = state.ownership();
        // Killed before it could record that the store is open: superblocks may name the new life or the old one.
        state.begin_life(9, 70);
        for ownership in [first, second] {
            assert_eq!(state.check_store(&found(ownership, true)), Ok(StoreUse::Known), "{ownership:?}");
        }
        let second = opened(&mut state, second, true);
        for holds_data in [true, false] {
            assert!(matches!(state.check_store(&found(first, holds_data)), Err(Refusal::StoreOlder { .. })));
        }
        assert_eq!(state.check_store(&found(second, true)), Ok(StoreUse::Known));
    }

    #[test]
    fn device_from_a_copy_is_refused_but_not_one_missed_by_an_opening() {
        let mut state = state();
        let first = opened(&mut state, Ownership::default(), false);
        state.begin_life(0, 60);
        let both = |newest: Ownership, other| FoundStore {
            devices: vec![("d0".into(), newest), ("d1".into(), other)],
            ..found(newest, true)
        };
        state.record_store_use(&found(first, true), StoreUse::Known);
        let second = state.ownership();
        assert_eq!(state.check_store(&both(second, first)), Ok(StoreUse::Known), "killed while it opened them");
        state.begin_life(0, 70);
        state.record_store_use(&both(second, first), StoreUse::Known);
        assert_eq!(
            state.check_store(&both(second, first)),
            Ok(StoreUse::Known),
            "killed again, before any was written"
        );
        let second = state.ownership();
        state.record_store_opened("ab", MembershipGeneration(1));
        let refused = state.check_store(&both(second, first));
        assert!(matches!(&refused, Err(Refusal::DeviceOlder { device, .. }) if device == "d1"), "{refused:?}");
        let mut foreign = State::default();
        foreign.begin_life(8, 80);
        let emptied = FoundStore { holds_data: false, ..both(second, first) };
        assert!(foreign.check_store(&emptied).is_err(), "one mirror is older, whatever it holds");
    }

    #[test]
    fn older_copy_of_the_directory_is_recognised_after_many_starts() {
        let mut state = state();
        let first = opened(&mut state, Ownership::default(), false);
        let mut copy = state.clone();
        state.begin_life(0, 60);
        let second = opened(&mut state, first, true);
        for life in 100..110 {
            copy.begin_life(0, life);
            for holds_data in [true, false] {
                let refused = copy.check_store(&found(second, holds_data));
                assert!(matches!(refused, Err(Refusal::StateOlder { .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn foreign_store_is_accepted_only_without_data() {
        let mut other = State::default();
        other.begin_life(6, 61);
        let foreign = opened(&mut other, Ownership::default(), false);
        let state = state();
        for ownership in [foreign, Ownership::default()] {
            assert!(matches!(state.check_store(&found(ownership, true)), Err(Refusal::StoreForeign { .. })));
            assert_eq!(state.check_store(&found(ownership, false)), Ok(StoreUse::New));
        }
    }

    #[test]
    fn older_copy_of_a_refused_foreign_store_is_not_taken_over() {
        let mut other = State::default();
        other.begin_life(6, 61);
        let older = opened(&mut other, Ownership::default(), false);
        other.begin_life(6, 62);
        let newer = opened(&mut other, older, true);
        let mut state = state();
        let refused = state.check_store(&found(newer, true)).expect_err("it holds data of another directory");
        state.record_store_refusal(&refused);
        for ownership in [older, Ownership::default()] {
            let refused = state.check_store(&found(ownership, false));
            assert!(matches!(refused, Err(Refusal::StoreOlder { .. })), "{refused:?}");
        }
        assert_eq!(state.check_store(&found(newer, false)), Ok(StoreUse::New), "its data was destaged elsewhere");
    }

    #[test]
    fn older_state_directory_opens_no_store_until_it_is_rebuilt() {
        let mut state = state();
        let mut copy = state.clone();
        state.begin_life(5, 52);
        let second = opened(&mut state, Ownership::default(), false);
        copy.begin_life(5, 53);
        let refused = copy.check_store(&found(second, true)).expect_err("the directory is older");
        copy.record_store_refusal(&refused);
        for (ownership, holds_data) in [(second, true), (Ownership::default(), false)] {
            assert_eq!(copy.check_store(&found(ownership, holds_data)), Err(refused.clone()));
        }
    }

    #[test]
    fn store_of_the_same_start_in_another_life_is_not_opened() {
        let mut state = state();
        let before = opened(&mut state, Ownership::default(), false);
        let mut copy = state.clone();
        state.begin_life(5, 52);
        copy.begin_life(5, 53);
        let (foreign, _) = (opened(&mut state, before, true), opened(&mut copy, before, true));
        copy.begin_life(5, 54);
        let refused = copy.check_store(&found(foreign, true));
        assert!(matches!(refused, Err(Refusal::StateOlder { epoch: 2, known: 2, .. })), "{refused:?}");
    }

    #[test]
    fn list_by_command_is_in_force_for_the_file_that_it_changed() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let (at_start, reloaded, devices) = (paths(&["/a", "/b"]), paths(&["/a", "/c"]), paths(&["/d", "/c"]));
        let saved = FlashDevices { file: at_start.clone(), reloaded: Some(reloaded.clone()), devices };
        let state = State { flash_devices: Some(saved), ..State::default() };
        for file in [&at_start, &reloaded] {
            assert_eq!(state.flash_devices_by_command(file), Some(paths(&["/d", "/c"]).as_slice()));
        }
        assert_eq!(state.flash_devices_by_command(&paths(&["/d", "/c"])), None, "the file names them itself");
    }

    #[test]
    fn store_needed_by_a_volume_never_counts_as_new() {
        let mut state = state();
        opened(&mut state, Ownership::default(), false);
        let id = state.identify(&crate::Claim::plain("v", "disk"), || VolumeId(7)).expect("new").volume_id;
        state.mark_on_flash(id, Some("ab"));
        let emptied = Ownership { owner: [9; 16], epoch: 1, life: 1 };
        assert!(state.check_store(&found(emptied, false)).is_err());
        state.mark_clean(id);
        assert_eq!(state.check_store(&found(emptied, false)), Ok(StoreUse::New));
    }

    #[test]
    fn store_records_are_bounded_and_needed_ones_stay() {
        let mut state = state();
        let id = state.identify(&crate::Claim::plain("v", "disk"), || VolumeId(7)).expect("new").volume_id;
        state.mark_on_flash(id, Some("0"));
        for number in 0..2 * STORES_MAX {
            state.store_mut(&number.to_string());
        }
        assert_eq!(state.stores.len(), STORES_MAX);
        assert!(state.store("0").is_some() && state.store("1").is_none());
    }
}
