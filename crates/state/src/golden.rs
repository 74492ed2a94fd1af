//! Golden files: state files and copies of the records on flash from earlier releases.

use std::collections::{BTreeMap, BTreeSet};

use engine::VolumeId;
use flash::{MembershipGeneration, Ownership, Sequence};

use super::*;

const STORE: &str = "00112233445566778899aabbccddeeff";
const OTHER_STORE: &str = "ffeeddccbbaa99887766554433221100";

/// A state with a value in every field.
fn sample() -> State {
    let dirty = VolumeRecord {
        volume_id: VolumeId(0x1111_2222_3333_4444),
        name: "database".to_owned(),
        backing_identity: "device:naa.5000c500a1b2c3d4".to_owned(),
        configured: None,
        clean: false,
        dirty_on_flash: Some(STORE.to_owned()),
        cached_on: Some(BTreeSet::from([STORE.to_owned(), OTHER_STORE.to_owned()])),
        content: Some(ContentRecord {
            size_bytes: 1 << 40,
            instance: Some("259:3-77".to_owned()),
            ids: vec!["ext4:0c1d".to_owned()],
            samples: "0000000012345678".to_owned(),
            lineage: None,
            destaged: 32,
        }),
        generation: 41,
        lost_before: 40,
        loss: Some(LossRecord { generation: 41, remote_clients: true }),
        durable_writes: false,
        overrides: BTreeMap::from([(
            POLICY.to_owned(),
            Override { value: "write-through".to_owned(), file: "write-back".to_owned() },
        )]),
        added: None,
        unit: Some(UnitRecord { lun: 3, serial: 0xabcd, reservations: "48535052".to_owned() }),
        newer: serde_json::Map::new(),
    };
    let added = VolumeRecord {
        volume_id: VolumeId(0x5555_6666_7777_8888),
        name: "scratch".to_owned(),
        backing_identity: "file:9f3a:1234".to_owned(),
        clean: true,
        generation: 42,
        durable_writes: true,
        added: Some(AddedVolume {
            backing: "/srv/scratch.img".to_owned(),
            size_bytes: Some(4 << 20),
            policy: "write-back".to_owned(),
            read_only: true,
        }),
        ..VolumeRecord::default()
    };
    State {
        identity: "0123456789abcdef0123456789abcdef".to_owned(),
        generation: 42,
        life: 0xfeed,
        revision: 17,
        stores: vec![
            StoreRecord {
                generation: MembershipGeneration(5),
                epoch: 42,
                life: 0xfeed,
                openings: vec!["000000000000beef".to_owned()],
                sequence: Sequence(9_001),
                map_unusable: true,
                given_up: BTreeSet::from(["9999aaaabbbbcccc".to_owned()]),
                ..StoreRecord::new(STORE)
            },
            StoreRecord { generation: MembershipGeneration(1), epoch: 7, life: 1, ..StoreRecord::new(OTHER_STORE) },
        ],
        older_than: Some(OlderThan { store: OTHER_STORE.to_owned(), epoch: 44, known: 42 }),
        unclaimed: BTreeSet::from([OTHER_STORE.to_owned()]),
        unclaimed_seen: BTreeMap::new(),
        served_beside: BTreeSet::from(["file:9f3a:1234".to_owned()]),
        wear: BTreeMap::from([(
            "nvme:serial".to_owned(),
            DeviceWear { since: 1_700_000_000, promotion_bytes: 1, dirty_bytes: 2, journal_bytes: 3 },
        )]),
        flash_devices: Some(FlashDevices {
            file: vec!["/dev/a".into()],
            reloaded: None,
            devices: vec!["/dev/b".into()],
        }),
        memory_images: vec![MemoryImageRecord { path: "/dev/shm/hotset-07".into(), id: 7, generation: 41 }],
        boot: Some(BootRecord { id: "0c9b".to_owned(), generation: 40 }),
        volumes: vec![dirty, added],
        removed: BTreeMap::from([("old".to_owned(), "backing = \"/dev/c\"".to_owned())]),
        tokens: vec![TokenRecord {
            name: "exporter".to_owned(),
            role: messages::Role::Read,
            hash: "ab".repeat(32),
            created: 1_700_000_001,
        }],
        host_id: 0xcafe,
        retired_luns: BTreeSet::from([9]),
        ..State::default()
    }
}

#[test]
fn golden_state_files_are_read_in_every_field() {
    for golden in ::golden::files("state.json", || sample().to_bytes()) {
        let folder = tempfile::tempdir().expect("a folder for the test");
        std::fs::write(folder.path().join(FILE), &golden.bytes).expect("written");
        let directory = StateDir::open(folder.path()).expect("readable");
        assert_eq!(directory.state(), &sample(), "written by {}", golden.release);
    }
}

#[test]
fn golden_copies_of_the_records_on_flash_are_recovered() {
    let make = || sample().manifest(flash::MANIFEST_BYTES_MAX).expect("the manifest fits");
    for golden in ::golden::files("records-on-flash", make) {
        let owner = uuid_of(&sample().identity).expect("32 digits");
        let inventory = StoreInventory {
            store: STORE.to_owned(),
            ownership: Ownership { owner, epoch: 42, life: 0xfeed },
            generation: MembershipGeneration(5),
            manifest: Some(golden.bytes),
            dirty_blocks: BTreeMap::from([(VolumeId(0x1111_2222_3333_4444), 6)]),
        };
        let (rebuilt, holdings) = rebuild(State::default(), &inventory).expect("readable");
        let sample = sample();
        assert_eq!(
            (rebuilt.identity, rebuilt.generation, rebuilt.revision),
            (sample.identity, 42, 18),
            "{}",
            golden.release
        );
        assert_eq!(
            (rebuilt.removed, rebuilt.retired_luns, rebuilt.host_id),
            (sample.removed, sample.retired_luns, sample.host_id)
        );
        assert_eq!(rebuilt.stores[0].given_up, sample.stores[0].given_up);
        assert_eq!(rebuilt.stores[1], sample.stores[1]);
        let [mut dirty, added] = <[VolumeRecord; 2]>::try_from(sample.volumes).expect("two");
        dirty.cached_on = Some(BTreeSet::from([STORE.to_owned()]));
        let content = dirty.content.take().expect("the volume has content");
        dirty.content = Some(ContentRecord { samples: String::new(), instance: None, ..content });
        let added = VolumeRecord { clean: false, cached_on: Some(BTreeSet::new()), ..added };
        assert_eq!(rebuilt.volumes, [dirty, added]);
        let names: Vec<_> = holdings.iter().map(|holding| (holding.volume.as_deref(), holding.blocks)).collect();
        assert_eq!(names, [(Some("database"), 6)]);
    }
}

#[test]
fn newer_state_file_is_refused_by_its_format_and_stays_unchanged() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let path = folder.path().join(FILE);
    let mut newer: serde_json::Value = serde_json::from_slice(&sample().to_bytes()).expect("JSON");
    newer["version"] = 2.into();
    newer["volumes"] = "in another file".into();
    let shown = path.display();
    for (needs, required) in [(None, "a version that reads format 2"), (Some("1.4.0"), "Hotset 1.4.0")] {
        newer["needs"] = needs.into();
        let bytes = serde_json::to_vec(&newer).expect("JSON");
        std::fs::write(&path, &bytes).expect("written");
        let refusals = [
            StateDir::open(folder.path()).err(),
            StateDir::open_for_rebuild(folder.path()).err(),
            StateDir::peek(folder.path()).err(),
        ];
        for refused in refusals {
            let expected = format!(
                "{shown} was written by a newer version of Hotset (format 2, this one reads up to 1); needs at least \
                 {required}; start that version, or restore a copy of the file that this version has written"
            );
            assert_eq!(refused.expect("a later format").to_string(), expected);
        }
        assert_eq!(std::fs::read(&path).expect("the file exists"), bytes);
        let files = std::fs::read_dir(folder.path()).expect("the file exists").count();
        assert_eq!(files, 2, "the file and the lock, and no backup");
    }
}
