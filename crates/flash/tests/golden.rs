//! Flash stores that earlier releases wrote, and the treatment of stores of a later format.

#![allow(clippy::disallowed_methods, reason = "golden files are read through the operating system")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use flash::{
    BlockAddress, BlockNo, Content, Epoch, FormatOptions, MapLoadOutcome, MemberDisk, MembershipGeneration,
    OpenOptions, Ownership, PageNo, Pages, Record, RecoveredContent, RecoveredRecord, Store, StoreError, VolumeId,
    identify, inspect, read_manifest,
};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BLOCK_BYTES, Block, BlockMut, DiskOpen, Nanos, Seam};

const DEVICES: [&str; 2] = ["flash-0", "flash-1"];
const SEGMENT_BYTES: u64 = 256 << 10;
const DEVICE_BYTES: u64 = (1 << 20) + 10 * SEGMENT_BYTES;
const POOL_BYTES: usize = 16 << 20;
const OWNERSHIP: Ownership = Ownership { owner: [4; 16], epoch: 6, life: 77 };
/// The manifest that the owner has saved.
const MANIFEST: &[u8] = b"what the owner wants to find again";
/// The volume with dirty blocks, the volume with a zero-range, and the volumes with clean pages.
const DIRTY: VolumeId = VolumeId(5);
const ZEROED: VolumeId = VolumeId(6);
const CACHED: VolumeId = VolumeId(7);
const IN_DIRTY_REGION: VolumeId = VolumeId(8);

/// The content of both devices after a kill.
static NEW_STORE: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder for the test");
    on_devices(folder.path(), async |seam, disks| {
        let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        Store::format(&seam, &disks, options).await.expect("empty files");
        let options = OpenOptions { ownership: Some(OWNERSHIP), ..OpenOptions::default() };
        let (store, _) = Store::open(&seam, &disks, options).await.expect("a new store");
        write_store(&seam, &store).await;
    });
    DEVICES.map(|name| fs::read(folder.path().join(name)).expect("the device file exists"))
});

type Disks = Vec<MemberDisk<RealSeam>>;

/// Runs `work` on the devices in a folder. Missing devices are created.
fn on_devices<T: Send + 'static>(folder: &Path, work: impl AsyncFnOnce(RealSeam, Disks) -> T + Send + 'static) -> T {
    let paths = DEVICES.map(|name| folder.join(name));
    let run = run_core(RealCoreSpec::new(POOL_BYTES), |seam| async move {
        let mut disks = Vec::new();
        for path in paths {
            let options = DiskOpen { path, create_bytes: Some(DEVICE_BYTES), read_only: false, lock_wait_ms: 1_000 };
            disks.push(MemberDisk::Local(seam.open_disk(&options).await.expect("a file")));
        }
        work(seam, disks).await
    });
    run.expect("io_uring is allowed here")
}

fn block(seam: &RealSeam, byte: u8) -> <RealSeam as Seam>::Block {
    let mut block = seam.alloc().expect("the pool has a free buffer");
    block.write_bytes(0, &[byte; BLOCK_BYTES]);
    block.freeze()
}

fn byte(block: &impl Block) -> u8 {
    let mut bytes = [0; BLOCK_BYTES];
    block.read_bytes(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block of one byte");
    bytes[0]
}

async fn append(store: &Store<RealSeam>, volume_id: VolumeId, block: u64, content: Content<RealSeam>) {
    let address = BlockAddress { volume_id, block: BlockNo(block) };
    store.append(vec![Record { address, epoch: Epoch(block + 1), content }]).await.expect("healthy files");
}

/// Writes the store's content. Dirty blocks 0 to 5 have bytes 100 to 105, then block 0 has byte 200. Further content: a
/// block with a tombstone, zeroes, three clean pages, one of them in a dirty region, a destaged block, and the owner's
/// manifest.
async fn write_store(seam: &RealSeam, store: &Store<RealSeam>) {
    let pages = store.pages();
    pages.load().await;
    for (volume, page, first) in [(CACHED, 3, 10), (CACHED, 4, 30), (IN_DIRTY_REGION, 500, 50)] {
        let blocks = || (0..16).map(|number| (number, block(seam, first + number as u8))).collect();
        while pages.volume(volume).put(PageNo(page), blocks()).await != Ok(u16::MAX) {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }
    pages.volume(CACHED).record_destaged(BlockNo(77), &block(seam, 9));
    for number in 0..6 {
        append(store, DIRTY, number, Content::Data(block(seam, 100 + number as u8))).await;
    }
    append(store, DIRTY, 0, Content::Data(block(seam, 200))).await;
    append(store, ZEROED, 9, Content::Data(block(seam, 1))).await;
    append(store, ZEROED, 9, Content::Tombstone { blocks: 1 }).await;
    append(store, ZEROED, 1_000, Content::Zero { blocks: 100, may_unmap: true }).await;
    store.save_manifest(MANIFEST.to_vec()).await.expect("healthy files");
    // When this returns, the region is durably dirty, and all earlier records of the map are durable. The write never
    // ends.
    let _never_ended = pages.volume(IN_DIRTY_REGION).begin_write(BlockNo(8_001)..BlockNo(8_002)).await;
}

fn put_files(folder: &Path, contents: [&[u8]; 2]) {
    for (name, content) in DEVICES.iter().zip(contents) {
        fs::write(folder.join(name), content).expect("the folder can be written");
    }
}

/// The bytes of a page's valid blocks.
async fn page_bytes(seam: &RealSeam, pages: &Pages<RealSeam>, volume: VolumeId, page: u64) -> Vec<Option<u8>> {
    let buffers = (0..16).map(|_| seam.alloc().expect("the pool has a free buffer")).collect();
    let read = pages.volume(volume).read(PageNo(page), 0..16, buffers).await;
    read.into_iter().map(|block| block.ok().map(|block| byte(&block))).collect()
}

async fn check_log(seam: &RealSeam, store: &Store<RealSeam>, mut recovered: Vec<RecoveredRecord>) {
    recovered.sort_by_key(|record| record.address);
    let shown: Vec<_> = recovered.iter().map(|record| (record.address, record.epoch.0, record.content)).collect();
    let data = |block| (BlockAddress { volume_id: DIRTY, block: BlockNo(block) }, block + 1, RecoveredContent::Data);
    let zeroes = BlockAddress { volume_id: ZEROED, block: BlockNo(1_000) };
    let mut expected: Vec<_> = (0..6).map(data).collect();
    expected.push((zeroes, 1_001, RecoveredContent::Zero { blocks: 100, may_unmap: true }));
    assert_eq!(shown, expected);
    for (record, expected) in recovered.iter().zip([200, 101, 102, 103, 104, 105]) {
        let buffer = seam.alloc().expect("the pool has a free buffer");
        let read = store.read(record.address, record.position, buffer).await.expect("a good copy");
        assert_eq!(byte(&read), expected, "{:?}", record.address);
    }
}

async fn check_pages(seam: &RealSeam, pages: &Pages<RealSeam>) {
    let loaded = pages.load().await;
    assert_eq!(loaded, MapLoadOutcome { pages: 3, suspect_pages: 1, drop_reason: None });
    for (page, first) in [(3, 10), (4, 30)] {
        let expected: Vec<_> = (0..16).map(|number| Some(first + number)).collect();
        assert_eq!(page_bytes(seam, pages, CACHED, page).await, expected);
    }
    assert_eq!(pages.volume(IN_DIRTY_REGION).valid_blocks(PageNo(500)), 0, "its region was dirty");
    assert_eq!(pages.volume(CACHED).recent_writes(), [(BlockNo(77), block(seam, 9).checksum(0))]);
}

#[test]
fn golden_stores_yield_their_log_pages_and_manifest() {
    let [first, second] = [0, 1].map(|at| golden::files(&format!("flash-{at}.zst"), || NEW_STORE[at].clone()));
    for (first, second) in first.into_iter().zip(second) {
        println!("written by {}", first.release);
        assert_eq!(first.release, second.release);
        let folder = tempfile::tempdir().expect("a folder for the test");
        put_files(folder.path(), [&first.bytes, &second.bytes]);
        on_devices(folder.path(), async |seam, disks| {
            let identity = identify(&seam, &disks, OpenOptions::default()).await.expect("a store");
            assert_eq!(
                (identity.ownership, identity.generation, identity.devices.len()),
                (OWNERSHIP, MembershipGeneration(1), 2)
            );
            let manifest = read_manifest(&seam, &disks, identity.store).await.expect("of a known format");
            assert_eq!(manifest.expect("it was saved").payload, MANIFEST);
            let (store, recovered) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("the store opens");
            check_log(&seam, &store, recovered).await;
            check_pages(&seam, &store.pages()).await;
        });
    }
}

/// The byte offsets of a device's blocks that begin with `magic`.
fn find_metadata(device: &[u8], magic: &[u8; 8]) -> Vec<usize> {
    (0..device.len()).step_by(BLOCK_BYTES).filter(|at| device[*at..].starts_with(magic)).collect()
}

fn set(device: &mut [u8], at: usize, bytes: &[u8]) {
    device[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Changes bytes of a metadata block, each at an offset in the block, and corrects its checksum.
fn reseal(device: &mut [u8], at: usize, changes: &[(usize, &[u8])]) {
    changes.iter().for_each(|(offset, bytes)| set(device, at + offset, bytes));
    let end = at + BLOCK_BYTES - 4;
    let checksum = crc32c::crc32c(&device[at..end]);
    set(device, end, &checksum.to_le_bytes());
}

/// Raises the version of a metadata block to 2.
const LATER_FORMAT: (usize, &[u8]) = (8, &2_u32.to_le_bytes());
/// Names release 1.4.2 as the first that reads the format.
const NEEDED_RELEASE: (usize, &[u8]) = (424, &0x0001_0004_0002_u64.to_le_bytes());

/// Opens the store in every way; each must fail and change nothing. Returns the message.
fn expect_refusal(contents: [&[u8]; 2]) -> String {
    let folder = tempfile::tempdir().expect("a folder for the test");
    put_files(folder.path(), contents);
    let message = on_devices(folder.path(), async |seam, disks| {
        let mut messages = Vec::new();
        for accept_missing in [false, true] {
            let options = OpenOptions { accept_missing, ownership: Some(OWNERSHIP), ..OpenOptions::default() };
            let error = Store::open(&seam, &disks, options).await.err().expect("a later format");
            assert!(matches!(error, StoreError::Newer { .. }), "{error}");
            messages.push(error.to_string());
        }
        assert_eq!(messages[0], messages[1]);
        messages.remove(0)
    });
    for (name, content) in DEVICES.iter().zip(contents) {
        assert!(fs::read(folder.path().join(name)).expect("it is there") == content, "{name} was changed");
    }
    message
}

#[test]
fn device_with_a_newer_superblock_is_refused_and_left_unchanged() {
    let [first, second] = &*NEW_STORE;
    let superblocks = find_metadata(first, b"HOTSETFL");
    assert_eq!(superblocks.len(), 2);
    for places in [&superblocks[..], &superblocks[..1], &superblocks[1..]] {
        let mut newer = first.clone();
        places.iter().for_each(|at| reseal(&mut newer, *at, &[LATER_FORMAT, NEEDED_RELEASE, (128, &[0xff; 256])]));
        for contents in [[&newer[..], second], [second, &newer[..]]] {
            let message = expect_refusal(contents);
            let expected = "holds a flash store that was written by a newer version of Hotset (format 2, \
                            this one reads up to 1); needs at least Hotset 1.4.2; start that version: \
                            this one changes nothing on it";
            assert!(message.ends_with(expected), "{message}");
        }
    }
    let mut newer = first.clone();
    superblocks.iter().for_each(|at| reseal(&mut newer, *at, &[(24, &[1])]));
    let message = expect_refusal([&newer, second]);
    assert!(
        message.contains("(features 0x1 that this one lacks); needs at least a version that has them"),
        "{message}"
    );
}

#[test]
fn newer_store_is_reported_by_an_inspection_and_not_formatted() {
    let mut newer = NEW_STORE[0].clone();
    find_metadata(&newer, b"HOTSETFL").into_iter().for_each(|at| reseal(&mut newer, at, &[LATER_FORMAT]));
    let folder = tempfile::tempdir().expect("a folder for the test");
    put_files(folder.path(), [&newer, &newer]);
    on_devices(folder.path(), async |seam, disks| {
        let (devices, inspection) = inspect(&seam, &disks).await;
        assert!(matches!(inspection.err(), Some(StoreError::Newer { .. })));
        for device in devices {
            let reason = device.superblock.expect_err("a later format");
            assert!(reason.contains("needs at least a version that reads format 2"), "{reason}");
        }
        let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        let error = Store::format(&seam, &disks, options).await.expect_err("it holds something");
        let expected =
            "holds a flash store that was written by a newer version of Hotset (format 2, this one reads up to 1)";
        assert!(matches!(error, StoreError::NotEmpty { .. }) && error.to_string().contains(expected), "{error}");
    });
    assert!(fs::read(folder.path().join(DEVICES[0])).expect("it is there") == newer);
}

#[test]
fn newer_metadata_behind_a_known_superblock_is_refused() {
    let [first, second] = &*NEW_STORE;
    let batches = find_metadata(first, b"HOTSETLB");
    assert!(batches.len() > 5);
    let places = [
        batches[0],
        batches[3],
        *batches.last().expect("there are some"),
        find_metadata(first, b"HOTSETPG")[0],
        find_metadata(first, b"HOTSETMJ")[0],
    ];
    for at in places {
        let mut newer = [first.clone(), second.clone()];
        // A mirror has the same block there; another device has its own pages.
        let is_metadata = |device: &&mut Vec<u8>| device[at..].starts_with(&first[at..at + 8]);
        newer.iter_mut().filter(is_metadata).for_each(|device| reseal(device, at, &[LATER_FORMAT]));
        let message = expect_refusal([&newer[0], &newer[1]]);
        assert!(message.contains("needs at least a version that reads format 2"), "byte {at}: {message}");
        // Metadata of another store has no effect.
        reseal(&mut newer[0], at, &[(16, &[0xee; 16])]);
        let folder = tempfile::tempdir().expect("a folder for the test");
        put_files(folder.path(), [&newer[0], second]);
        let open = async |seam, disks: Disks| Store::open(&seam, &disks, OpenOptions::default()).await.err();
        assert_eq!(on_devices(folder.path(), open), None, "byte {at}: the mirror has it");
    }
}

#[test]
fn newer_manifest_is_refused_and_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut newer = NEW_STORE.clone();
    let at = find_metadata(&newer[0], b"HOTSETMF")[0];
    for device in &mut newer {
        set(device, at + 8, &2_u32.to_le_bytes());
        set(device, at + 40, NEEDED_RELEASE.1);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&device[at..at + 60]), MANIFEST);
        set(device, at + 60, &checksum.to_le_bytes());
    }
    put_files(folder.path(), [&newer[0], &newer[1]]);
    on_devices(folder.path(), async |seam, disks| {
        let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("its superblock is known");
        let errors = [
            read_manifest(&seam, &disks, store.uuid()).await.err(),
            store.save_manifest(b"of an older version".to_vec()).await.err(),
        ];
        for error in errors {
            let message = error.expect("a later format").to_string();
            assert!(message.contains("needs at least Hotset 1.4.2"), "{message}");
        }
        let other = read_manifest(&seam, &disks, [0xee; 16]).await;
        assert_eq!(other, Ok(None), "another store has no manifest here");
    });
    let after = fs::read(folder.path().join(DEVICES[0])).expect("it is there");
    let place = at..at + 15 * BLOCK_BYTES;
    assert!(after[place.clone()] == newer[0][place], "the manifest was overwritten");
}
