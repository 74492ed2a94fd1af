//! Copy of the state directory's records on the flash devices, and the rebuild of the directory from it.
//!
//! The copy lists the volumes, their backings, and the flash stores that may hold dirty data of each. It contains no
//! secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use engine::VolumeId;
use flash::{MembershipGeneration, Ownership};
use serde::{Deserialize, Serialize};

use super::content::ContentRecord;
use super::fields::show_volume_id;
use super::record::{State, VolumeRecord};
use super::store_record::StoreRecord;
use super::stores::{FoundStore, show_uuid, uuid_of};
use super::trust::{Refusal, Sabotage};

/// The copy, as compressed JSON.
#[derive(Serialize, Deserialize)]
struct Manifest {
    #[serde(default)]
    revision: u64,
    volumes: Vec<VolumeRecord>,
    #[serde(default)]
    displaced: Vec<VolumeRecord>,
    stores: Vec<StoreRecord>,
    removed: BTreeMap<String, String>,
    retired_luns: BTreeSet<u16>,
    #[serde(rename = "host")]
    host_id: u64,
}

/// Compression level: high, because space is small and copies are rare.
const LEVEL: i32 = 12;
/// Maximum size of an unpacked copy.
const BYTES_MAX: usize = 64 << 20;

/// Findings on the devices of one store.
#[derive(Clone, Debug)]
pub struct StoreInventory {
    /// Its identity, 32 hexadecimal digits.
    pub store: String,
    /// Owner of the last opening.
    pub ownership: Ownership,
    /// The generation of its members.
    pub generation: MembershipGeneration,
    /// The owner's copy of the records, if one was found.
    pub manifest: Option<Vec<u8>>,
    /// Dirty blocks in its log, by volume ID.
    pub dirty_blocks: BTreeMap<VolumeId, u64>,
}

/// Dirty data of one volume in the flash log, as a rebuild reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The volume's name; `None` if no copy of the records lists it.
    pub volume: Option<String>,
    /// Its volume ID, 16 hexadecimal digits.
    pub volume_id: String,
    /// Identity of its backing.
    pub backing: String,
    /// Dirty blocks in the log.
    pub blocks: u64,
}

/// Reason why the records cannot be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// The devices name no owner.
    #[error("the flash devices name no owner: they were never opened by a version that keeps records on flash")]
    NoOwner,
    /// No device has a valid copy of the records.
    #[error(
        "no flash device has a valid copy of the records; `hotset flash rescue` extracts the dirty data into files"
    )]
    NoManifest,
    /// Existing records know of a later use.
    #[error(
        "these devices are not the ones used last: they name start {found} of flash store {store}, but {newer}. Attach \
         the devices used last, or specify them: --device PATH"
    )]
    Older {
        /// The store.
        store: String,
        /// The start that its devices name.
        found: u64,
        /// Description of the later use.
        newer: String,
    },
    /// The copy is in a format that this version does not read, or damaged.
    #[error("the copy of the records on the flash devices cannot be read: {0}")]
    Unreadable(String),
}

impl State {
    /// The copy for the flash devices; `None` if it is larger than `bytes_max`.
    pub fn manifest(&self, bytes_max: usize) -> Option<Vec<u8>> {
        // Samples are long, and a backing with any destaged blocks is proven without them. Paths are only for messages.
        let shortened = |record: &VolumeRecord| {
            let content = record.content.clone();
            let content = content.map(|content| ContentRecord { samples: String::new(), instance: None, ..content });
            VolumeRecord { content, configured: None, ..record.clone() }
        };
        let manifest = Manifest {
            revision: self.revision,
            volumes: self.volumes.iter().map(shortened).collect(),
            displaced: self.displaced.iter().map(shortened).collect(),
            stores: self.stores.clone(),
            removed: self.removed.clone(),
            retired_luns: self.retired_luns.clone(),
            host_id: self.host_id,
        };
        let bytes = serde_json::to_vec(&manifest).expect("a manifest has only text keys");
        let packed = zstd::bulk::compress(&bytes, LEVEL).ok()?;
        (packed.len() <= bytes_max).then_some(packed)
    }

    /// Checks the copy on a store that this directory's daemon used last. A newer copy means that the directory was
    /// restored from before its last change. An unreadable copy proves nothing.
    pub fn check_manifest(&self, found_store: &FoundStore, packed: &[u8]) -> Result<(), Refusal> {
        let is_own =
            uuid_of(&self.identity) == Some(found_store.ownership.owner) && !self.sabotage.is(Sabotage::AnyState);
        match unpack(packed).ok().filter(|manifest| is_own && manifest.revision > self.revision) {
            None => Ok(()),
            Some(_) => {
                let known = self.store(&found_store.store).map_or(0, |record| record.epoch);
                Err(Refusal::StateOlder { store: found_store.store.clone(), epoch: found_store.ownership.epoch, known })
            }
        }
    }
}

/// Decompresses and parses a copy.
fn unpack(packed: &[u8]) -> Result<Manifest, String> {
    let bytes = zstd::bulk::decompress(packed, BYTES_MAX).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

/// Paths of a store's devices by a copy of the records on them. Empty if the copy names none, or cannot be read.
pub fn devices_in_copy(packed: &[u8], store: &str) -> BTreeSet<PathBuf> {
    let stores = unpack(packed).map(|manifest| manifest.stores).unwrap_or_default();
    stores.into_iter().find(|record| record.store == store).map(|record| record.devices).unwrap_or_default()
}

/// The volume on this backing whose dirty data the store may have, by a copy of the records on its devices. `None` if
/// the copy is older than the data: it does not know all volumes that have data `in_log`.
pub fn volume_in_copy(
    packed: &[u8],
    store: &str,
    backing_identity: &str,
    in_log: &BTreeSet<VolumeId>,
) -> Option<VolumeId> {
    let Manifest { volumes, stores, .. } = unpack(packed).ok()?;
    let is_given_up = |volume_id: VolumeId| {
        stores.iter().any(|record| record.store == store && record.given_up.contains(&show_volume_id(volume_id)))
    };
    let is_listed = |volume_id: VolumeId| volumes.iter().any(|record| record.volume_id == volume_id);
    if !in_log.iter().all(|volume_id| is_listed(*volume_id) || is_given_up(*volume_id)) {
        return None;
    }
    let has_data = |record: &VolumeRecord| {
        let is_elsewhere = record.dirty_on_flash.as_deref().is_some_and(|known| known != store);
        record.backing_identity == backing_identity && !is_elsewhere
    };
    volumes.iter().find(|record| has_data(record)).map(|record| record.volume_id)
}

/// Refuses devices that were last used before a known later use.
fn check_age(current: &State, inventory: &StoreInventory) -> Result<(), RebuildError> {
    let is_own = uuid_of(&current.identity) == Some(inventory.ownership.owner);
    let older_than = current.older_than.as_ref().filter(|newer| is_own && newer.epoch > inventory.ownership.epoch);
    let seen = current.newer_copy_seen(&inventory.store, &inventory.ownership);
    let known = current
        .store(&inventory.store)
        .filter(|known| is_own && (known.epoch > inventory.ownership.epoch || known.generation > inventory.generation));
    let newer = if let Some(newer) = older_than {
        format!("flash store {} was used in start {}", newer.store, newer.epoch)
    } else if let Some(epoch) = seen {
        format!("this store was seen here after start {epoch}")
    } else if let Some(known) = known {
        format!("the records have start {}, with the devices in generation {}", known.epoch, known.generation)
    } else {
        return Ok(());
    };
    Err(RebuildError::Older { store: inventory.store.clone(), found: inventory.ownership.epoch, newer })
}

/// Rebuilds the records from the findings on a store's devices. Fields of `current` that no device can know (tokens,
/// wear) stay. Every volume counts as not cleanly stopped. Clean pages are trusted only for volumes with dirty data in
/// the store, which are served with that store or not at all. A volume that was served without the store's data since,
/// by another directory or by this one, keeps its present record: its data in the log is older than its backing.
pub fn rebuild(current: State, inventory: &StoreInventory) -> Result<(State, Vec<Holding>), RebuildError> {
    if inventory.ownership.is_none() {
        return Err(RebuildError::NoOwner);
    }
    let packed = inventory.manifest.as_ref().ok_or(RebuildError::NoManifest)?;
    let manifest = unpack(packed).map_err(RebuildError::Unreadable)?;
    check_age(&current, inventory)?;
    let Ownership { owner, epoch, life } = inventory.ownership;
    let is_own = uuid_of(&current.identity) == Some(owner);
    // The store's copy is written at the next start with it, so this directory's records may be newer.
    let directory_is_newer = is_own && current.revision > manifest.revision;
    // An ID that was given up is never used again, so both lists count.
    let records = manifest.stores.iter().chain(&current.stores).filter(|record| record.store == inventory.store);
    let given_up: BTreeSet<String> = records.flat_map(|record| record.given_up.iter().cloned()).collect();
    let mut volumes = manifest.volumes.clone();
    volumes.retain(|volume| {
        let is_match =
            |record: &VolumeRecord| record.backing_identity == volume.backing_identity || record.name == volume.name;
        let was_served_since =
            current.served_beside.contains(&volume.backing_identity) || !is_own && current.volumes.iter().any(is_match);
        !was_served_since && !given_up.contains(&show_volume_id(volume.volume_id))
    });
    for volume in &mut volumes {
        volume.clean = false;
        let mut cached_on = volume.cached_on.take().unwrap_or_default();
        cached_on.retain(|store| *store == inventory.store && inventory.dirty_blocks.contains_key(&volume.volume_id));
        let is_trusted = !cached_on.is_empty();
        volume.cached_on = Some(cached_on);
        if inventory.dirty_blocks.contains_key(&volume.volume_id) {
            volume.dirty_on_flash = Some(inventory.store.clone());
            // Without trusted checksums of destaged blocks, an administrator has to confirm the backing.
            let content = volume.content.get_or_insert_default();
            content.destaged = content.destaged.max(u64::from(!is_trusted));
        }
    }
    let is_restored = |record: &VolumeRecord| {
        volumes.iter().any(|volume| {
            volume.volume_id == record.volume_id
                || volume.name == record.name
                || volume.backing_identity == record.backing_identity
        })
    };
    // An older copy of this directory may list volumes that were removed since.
    let is_present = |record: &VolumeRecord| {
        !is_own || directory_is_newer || current.served_beside.contains(&record.backing_identity)
    };
    let kept = current.volumes.iter().filter(|record| is_present(record) && !is_restored(record));
    let kept: Vec<VolumeRecord> = kept.cloned().collect();
    volumes.extend(kept);
    // An older copy of the log, or of the map, that was refused before stays so.
    let own_record = current.store(&inventory.store).filter(|_| is_own);
    let (sequence, map_unusable) = own_record.map_or_else(Default::default, |own| (own.sequence, own.map_unusable));
    let manifest = match directory_is_newer {
        false => manifest,
        true => Manifest {
            stores: current.stores,
            displaced: current.displaced,
            removed: current.removed,
            retired_luns: current.retired_luns,
            host_id: current.host_id,
            ..manifest
        },
    };
    let mut state = State {
        identity: show_uuid(&owner),
        revision: 1 + manifest.revision.max(if is_own { current.revision } else { 0 }),
        generation: epoch.max(if is_own { current.generation } else { 0 }),
        stores: manifest.stores,
        volumes,
        displaced: manifest.displaced,
        removed: manifest.removed,
        retired_luns: manifest.retired_luns,
        host_id: manifest.host_id,
        older_than: None,
        unclaimed: current.unclaimed.iter().filter(|store| **store != inventory.store).cloned().collect(),
        unclaimed_seen: current
            .unclaimed_seen
            .iter()
            .filter(|(store, _)| **store != inventory.store)
            .map(|(store, seen)| (store.clone(), seen.clone()))
            .collect(),
        ..current
    };
    let record = state.store_mut(&inventory.store);
    *record = StoreRecord {
        devices: std::mem::take(&mut record.devices),
        sequence,
        map_unusable,
        generation: inventory.generation,
        epoch,
        life,
        given_up: given_up.clone(),
        ..StoreRecord::new(&inventory.store)
    };
    let holding = |(volume_id, blocks): (&VolumeId, &u64)| {
        let volume = state.by_id(*volume_id);
        Holding {
            volume: volume.map(|volume| volume.name.clone()),
            volume_id: show_volume_id(*volume_id),
            backing: volume.map(|volume| volume.backing_identity.clone()).unwrap_or_default(),
            blocks: *blocks,
        }
    };
    let holdings =
        inventory.dirty_blocks.iter().map(holding).filter(|holding| !given_up.contains(&holding.volume_id)).collect();
    Ok((state, holdings))
}

#[cfg(test)]
mod tests {
    use flash::Sequence;

    use super::*;
    use crate::{Acceptance, Claim, OlderThan};

    #[test]
    fn copy_names_the_devices_of_its_own_store_alone() {
        let mut state = State::default();
        for (store, device) in [("ab", "/dev/a"), ("cd", "/dev/c")] {
            state.store_mut(store).devices.insert(device.into());
        }
        let copy = state.manifest(usize::MAX).expect("no limit");
        assert_eq!(devices_in_copy(&copy, "cd"), BTreeSet::from([PathBuf::from("/dev/c")]));
        assert_eq!(devices_in_copy(&copy, "ef"), BTreeSet::new());
        assert_eq!(devices_in_copy(b"damaged", "ab"), BTreeSet::new());
    }

    #[test]
    fn volume_is_found_by_its_backing_unless_its_data_is_in_another_store() {
        let mut state = State::default();
        for (name, disk, number) in [("web", "disk-1", 7), ("db", "disk-2", 8)] {
            state.identify(&Claim::plain(name, disk), || VolumeId(number)).expect("new");
        }
        state.mark_on_flash(VolumeId(7), Some("ab"));
        state.store_mut("ab").given_up.insert(show_volume_id(VolumeId(6)));
        let copy = state.manifest(usize::MAX).expect("no limit");
        let in_log = BTreeSet::from([6, 7].map(VolumeId));
        let find = |store, disk| volume_in_copy(&copy, store, disk, &in_log);
        assert_eq!([find("ab", "disk-1"), find("cd", "disk-1")], [Some(VolumeId(7)), None]);
        let newer = BTreeSet::from([7, 9].map(VolumeId));
        assert_eq!(volume_in_copy(&copy, "ab", "disk-1", &newer), None, "the log has data of a volume that is newer");
        assert_eq!([find("ab", "disk-2"), find("ab", "disk-3")], [Some(VolumeId(8)), None]);
        assert_eq!(volume_in_copy(b"damaged", "ab", "disk-1", &in_log), None);
    }

    #[test]
    fn rebuilt_records_keep_fields_that_devices_cannot_know() {
        let mut state = State::default();
        state.begin_life(5, 50);
        state.store_mut("ab").life = 50;
        let id = state.identify(&Claim::plain("web", "disk-1"), || VolumeId(7)).expect("new").volume_id;
        state.mark_on_flash(id, Some("ab"));
        state.identify(&Claim::plain("db", "disk-2"), || VolumeId(8)).expect("new");
        let manifest = state.manifest(60_000);
        assert!(manifest.is_some() && state.manifest(10).is_none(), "a copy that does not fit is not written in part");
        let inventory = StoreInventory {
            store: "ab".into(),
            ownership: Ownership { owner: uuid_of(&state.identity).expect("digits"), epoch: 9, life: 60 },
            generation: MembershipGeneration(3),
            manifest,
            dirty_blocks: BTreeMap::from([(VolumeId(7), 12), (VolumeId(99), 4)]),
        };
        let current = State { flash_devices: None, generation: 2, ..State::default() };
        let (rebuilt, holdings) = rebuild(current, &inventory).expect("the records are complete");
        assert_eq!((rebuilt.identity.as_str(), rebuilt.generation), (state.identity.as_str(), 9));
        assert_eq!(rebuilt.store("ab").map(|store| (store.epoch, store.life)), Some((9, 60)));
        assert_eq!(rebuilt.by_name("web").and_then(|record| record.dirty_on_flash.as_deref()), Some("ab"));
        assert_eq!(rebuilt.by_name("db").and_then(|record| record.dirty_on_flash.as_deref()), None);
        let names: Vec<_> = holdings.iter().map(|holding| (holding.volume.as_deref(), holding.blocks)).collect();
        assert_eq!(names, [(Some("web"), 12), (None, 4)]);
        let mut since = State::default();
        since.begin_life(8, 80);
        let newer = since.identify(&Claim::plain("web", "disk-1"), || VolumeId(70)).expect("new to it").volume_id;
        let (rebuilt, holdings) = rebuild(since, &inventory).expect("the records are complete");
        let web = rebuilt.by_name("web").expect("the volume has one record");
        assert_eq!((web.volume_id, &web.dirty_on_flash), (newer, &None), "another directory has served it since");
        assert!(
            holdings.iter().all(|holding| holding.volume.is_none()),
            "no volume owns the data in the log: {holdings:?}"
        );
        let older_than = OlderThan { store: "cd".into(), epoch: 11, known: 9 };
        let stale = State { older_than: Some(older_than), ..state.clone() };
        let refused = rebuild(stale, &inventory);
        assert!(matches!(refused, Err(RebuildError::Older { .. })), "another store was used later: {refused:?}");
        let mut known = state.clone();
        known.store_mut("ab").generation = MembershipGeneration(4);
        assert!(
            matches!(rebuild(known, &inventory), Err(RebuildError::Older { .. })),
            "a device that was taken out since"
        );
        let mut removed = State { unclaimed: ["ab".to_owned()].into(), ..State::default() };
        removed.begin_life(9, 90);
        let accept = Acceptance { adopt: true, give_up: Some("ab".into()), ..Acceptance::default() };
        let claim = Claim { accept: &accept, ..Claim::plain("web", "disk-1") };
        let served = removed.identify(&claim, || VolumeId(71)).expect("the data in question is given up").volume_id;
        removed.forget(served);
        let (rebuilt, _) = rebuild(removed, &inventory).expect("the records are complete");
        assert_eq!(rebuilt.by_name("web"), None, "it was served without that data, and removed since");
        let mut discarded = rebuilt.clone();
        discarded.identify(&Claim::plain("web", "disk-3"), || VolumeId(72)).expect("new");
        discarded.store_mut("ab").given_up.insert(show_volume_id(VolumeId(7)));
        discarded.served_beside.clear();
        let (kept, holdings) = rebuild(discarded, &inventory).expect("the records are complete");
        assert_eq!(kept.by_name("web").map(|web| web.volume_id), Some(VolumeId(72)), "the old data was given up");
        assert!(holdings.iter().all(|holding| holding.volume_id != show_volume_id(VolumeId(7))));
        let (again, _) = rebuild(rebuilt, &inventory).expect("the records are complete");
        assert_eq!(again.by_name("web"), None, "a second rebuild takes no more than the first one");
        let mut beside = state.clone();
        beside.served_beside.insert("disk-1".to_owned());
        (beside.store_mut("ab").sequence, beside.store_mut("ab").map_unusable) = (Sequence(40), true);
        let own = StoreInventory { manifest: beside.manifest(60_000), ..inventory.clone() };
        let (kept, _) = rebuild(beside, &own).expect("the records are complete");
        let web = kept.by_name("web").expect("the directory's own record stays");
        assert_eq!((web.volume_id, web.dirty_on_flash.as_deref()), (id, Some("ab")));
        let store = kept.store("ab").map(|store| (store.sequence, store.map_unusable));
        assert_eq!(store, Some((Sequence(40), true)), "an older copy of the log or of the map stays refused");
        let nameless = StoreInventory { ownership: Ownership::default(), ..inventory.clone() };
        assert_eq!(rebuild(State::default(), &nameless).err(), Some(RebuildError::NoOwner));
        let damaged = StoreInventory { manifest: Some(vec![1, 2, 3]), ..inventory };
        assert!(matches!(rebuild(State::default(), &damaged), Err(RebuildError::Unreadable(_))));
    }

    #[test]
    fn older_directory_is_recognised_by_the_copy_of_records_on_flash() {
        let mut state = State::default();
        state.begin_life(5, 50);
        state.store_mut("ab").life = 50;
        state.identify(&Claim::plain("web", "disk-1"), || VolumeId(7)).expect("new");
        let mut copy = state.clone();
        state.identify(&Claim::plain("db", "disk-2"), || VolumeId(8)).expect("new");
        let manifest = state.manifest(60_000).expect("the manifest fits");
        let store_of = |ownership| FoundStore { store: "ab".into(), ownership, devices: Vec::new(), holds_data: true };
        let own = store_of(state.ownership());
        assert_eq!(state.check_manifest(&own, &manifest), Ok(()));
        copy.begin_life(0, 60);
        assert!(matches!(copy.check_manifest(&own, &manifest), Err(Refusal::StateOlder { .. })));
        let foreign = store_of(Ownership { owner: [3; 16], ..state.ownership() });
        assert_eq!(copy.check_manifest(&foreign, &manifest), Ok(()), "another directory counts by itself");
        assert_eq!(copy.check_manifest(&own, &[1, 2, 3]), Ok(()), "a damaged copy proves nothing");
    }

    #[test]
    fn records_of_a_thousand_volumes_fit_on_flash() {
        let mut state = State::default();
        let mut random = 1_u64;
        for number in 0..1000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let identity = format!("device:naa.{:016x}", random);
            state
                .identify(&Claim::plain(&format!("vm-{number}-disk-0"), &identity), || VolumeId(random | 1))
                .expect("new");
        }
        let bytes = state.manifest(usize::MAX).expect("unbounded").len();
        assert!(bytes <= 61_376, "{bytes} bytes");
    }
}
