//! Tests: files and stacked devices are resolved to disks, on made-up sysfs trees.

use std::os::unix::fs::symlink;

use super::*;

const MIB: u64 = 1 << 20;

/// A directory that looks like `/sys`.
struct FakeSysfs {
    folder: tempfile::TempDir,
}

impl FakeSysfs {
    fn new() -> FakeSysfs {
        let tree = FakeSysfs { folder: tempfile::tempdir().expect("a temporary directory") };
        fs::create_dir_all(tree.folder.path().join("sys/dev/block")).expect("the folder can be written");
        tree
    }

    fn kernel(&self) -> KernelPaths {
        let path = |name: &str| self.folder.path().join(name);
        KernelPaths { sys: path("sys"), dev: path("dev"), mounts: path("mountinfo") }
    }

    /// Adds a device of `bytes`; `path` is its directory below `block`, whose parent is the disk of a partition.
    fn device(&self, path: &str, number: (u32, u32), bytes: u64, files: &[(&str, &str)]) -> Range<u64> {
        let folder = self.folder.path().join("sys/block").join(path);
        fs::create_dir_all(&folder).expect("the folder can be written");
        let text = format!("{}:{}", number.0, number.1);
        symlink(&folder, self.folder.path().join("sys/dev/block").join(&text)).expect("the folder can be written");
        let size = (bytes / SYSFS_SECTOR_BYTES).to_string();
        for (name, content) in [("dev", text.as_str()), ("size", size.as_str())].iter().chain(files) {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().expect("a file lies in a folder")).expect("the folder can be written");
            fs::write(file, content).expect("the folder can be written");
        }
        0..bytes
    }

    /// Makes `lower` a device below `upper`.
    fn slave(&self, upper: &str, lower: &str) {
        let block = self.folder.path().join("sys/block");
        let slaves = block.join(upper).join("slaves");
        fs::create_dir_all(&slaves).expect("the folder can be written");
        symlink(block.join(lower), slaves.join(lower.replace('/', "-"))).expect("the folder can be written");
    }

    /// Adds a file of 1 MiB.
    fn file(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        File::create(&path).and_then(|file| file.set_len(MIB)).expect("the folder can be written");
        path
    }

    fn of_device(&self, number: (u32, u32)) -> StorageFootprint {
        let mut footprint = StorageFootprint::default();
        self.kernel().add_device(number, 0..u64::MAX, true, &mut footprint, 0);
        footprint
    }

    fn of_file(&self, path: &Path) -> StorageFootprint {
        self.kernel().footprint(&fs::metadata(path).expect("the file exists"), None)
    }

    /// The footprint of a file of the file system on `device`.
    fn on_file_system(&self, device: (u32, u32), inode: u64) -> StorageFootprint {
        let mut footprint = StorageFootprint::default();
        self.kernel().add_file(FileLocation { device, inode, mount: None }, 0..MIB, true, &mut footprint, 0);
        footprint
    }
}

/// True if the two overlap; checks that the relation is symmetric.
fn overlap(a: &StorageFootprint, b: &StorageFootprint) -> bool {
    assert_eq!(a.overlap(b).is_some(), b.overlap(a).is_some(), "overlap must be symmetric: {a:?} {b:?}");
    a.overlap(b).is_some()
}

#[test]
fn partitions_overlap_their_disk_and_not_each_other() {
    let tree = FakeSysfs::new();
    tree.device("sda", (8, 0), 100 * MIB, &[]);
    tree.device("sda/sda1", (8, 1), 10 * MIB, &[("partition", "1"), ("start", "2048")]);
    tree.device("sda/sda2", (8, 2), 89 * MIB, &[("partition", "2"), ("start", "22528")]);
    tree.device("sdb", (8, 16), 100 * MIB, &[]);
    let [disk, first, second, other] = [(8, 0), (8, 1), (8, 2), (8, 16)].map(|number| tree.of_device(number));
    assert!(overlap(&disk, &first) && overlap(&disk, &second) && overlap(&first, &first));
    assert!(!overlap(&first, &second) && !overlap(&disk, &other));
    assert_eq!(second.overlap(&disk), Some("/dev/sda"));
}

#[test]
fn loop_device_overlaps_its_file_only_in_its_mapped_bytes() {
    let tree = FakeSysfs::new();
    let file = tree.file("a.img");
    let path = file.to_str().expect("a plain name");
    tree.device("loop0", (7, 0), MIB, &[("loop/backing_file", path), ("loop/offset", "0"), ("loop/sizelimit", "0")]);
    let half = (MIB / 2).to_string();
    let parts = [("loop/offset", "0", 1), ("loop/offset", half.as_str(), 2)];
    for (key, offset, minor) in parts {
        let files = [("loop/backing_file", path), (key, offset), ("loop/sizelimit", half.as_str())];
        tree.device(&format!("loop{minor}"), (7, minor), MIB / 2, &files);
    }
    let [whole, low, high] = [0, 1, 2].map(|minor| tree.of_device((7, minor)));
    let file = tree.of_file(&file);
    for device in [&whole, &low, &high] {
        assert!(overlap(device, &file), "{device:?}");
    }
    assert!(overlap(&whole, &low) && overlap(&whole, &high) && !overlap(&low, &high));
    assert!(!overlap(&whole, &tree.of_file(&tree.file("b.img"))));
}

#[test]
fn two_logical_volumes_of_one_disk_are_two_disks() {
    let tree = FakeSysfs::new();
    tree.device("sda", (8, 0), 100 * MIB, &[("device/wwid", "naa.5000")]);
    tree.device("dm-0", (253, 0), 10 * MIB, &[("dm/name", "vg-a")]);
    tree.device("dm-1", (253, 1), 10 * MIB, &[("dm/name", "vg-b")]);
    tree.device("dm-2", (253, 2), 10 * MIB, &[("dm/name", "crypt-a")]);
    [("dm-0", "sda"), ("dm-1", "sda"), ("dm-2", "dm-0")].iter().for_each(|(upper, lower)| tree.slave(upper, lower));
    let [disk, a, b, crypt] = [(8, 0), (253, 0), (253, 1), (253, 2)].map(|number| tree.of_device(number));
    assert!(!overlap(&a, &b) && !overlap(&crypt, &b));
    assert!(overlap(&a, &disk) && overlap(&crypt, &disk) && overlap(&crypt, &a));
    // A file of the file system on one volume behaves like that volume.
    let file = tree.on_file_system((253, 0), 12);
    assert!(overlap(&file, &a) && overlap(&file, &disk) && !overlap(&file, &b));
    assert!(!overlap(&file, &tree.on_file_system((253, 0), 13)), "two files of one file system");
}

#[test]
fn array_members_and_multipath_paths_overlap_their_upper_device() {
    let tree = FakeSysfs::new();
    for (disk, minor, wwid) in [("sda", 0, "naa.1"), ("sdb", 16, "naa.2"), ("sdc", 32, "naa.3"), ("sdd", 48, "naa.3")] {
        tree.device(disk, (8, minor), 100 * MIB, &[("device/wwid", wwid)]);
    }
    tree.device("md0", (9, 0), 100 * MIB, &[("md/uuid", "1")]);
    tree.device("md0/md0p1", (259, 0), 10 * MIB, &[("partition", "1"), ("start", "2048")]);
    tree.device("dm-0", (253, 0), 100 * MIB, &[("dm/name", "mpatha")]);
    for (upper, lower) in [("md0", "sda"), ("md0", "sdb"), ("dm-0", "sdc"), ("dm-0", "sdd")] {
        tree.slave(upper, lower);
    }
    let [a, b, c, d] = [0, 16, 32, 48].map(|minor| tree.of_device((8, minor)));
    let [array, part, multipath] = [(9, 0), (259, 0), (253, 0)].map(|number| tree.of_device(number));
    assert!([&a, &b].iter().all(|member| overlap(member, &array) && overlap(member, &part)));
    assert!([&c, &d].iter().all(|path| overlap(path, &multipath)) && overlap(&c, &d));
    assert!(!overlap(&a, &b) && !overlap(&array, &multipath) && !overlap(&a, &c));
}

#[test]
fn loop_device_of_a_file_overlaps_the_device_under_its_file_system() {
    let tree = FakeSysfs::new();
    let file = tree.file("a.img");
    let device = split_device_number(fs::metadata(&file).expect("the file exists").dev());
    // The file system of the test's directory, placed on an invented partition.
    tree.device("sda", (8, 0), 100 * MIB, &[]);
    tree.device("sda/sda1", (8, 1), 50 * MIB, &[("partition", "1"), ("start", "0")]);
    tree.device("sda/sda2", (8, 2), 50 * MIB, &[("partition", "2"), ("start", "102400")]);
    let (sda1, mounts) = (tree.folder.path().join("sys/block/sda/sda1"), tree.folder.path().join("mountinfo"));
    if device.0 != 0 {
        let text = format!("{}:{}", device.0, device.1);
        symlink(&sda1, tree.folder.path().join("sys/dev/block").join(&text)).expect("the folder can be written");
    } else {
        fs::write(mounts, format!("9 1 {}:{} / / rw - btrfs none rw\n", device.0, device.1))
            .expect("the file can be written");
    }
    let backing = [("loop/backing_file", file.to_str().expect("a plain name"))];
    tree.device("loop0", (7, 0), MIB, &backing);
    let (mapped, disk, other) = (tree.of_device((7, 0)), tree.of_device((8, 0)), tree.of_device((8, 2)));
    assert_eq!(overlap(&mapped, &disk), device.0 != 0, "tmpfs has no block device");
    assert!(!overlap(&mapped, &other));
}

#[test]
fn mounted_partition_is_found_under_its_disk_and_not_above_it() {
    let tree = FakeSysfs::new();
    tree.device("sda", (8, 0), 100 * MIB, &[]);
    tree.device("sda/sda1", (8, 1), 50 * MIB, &[("partition", "1"), ("start", "0")]);
    tree.device("sda/sda2", (8, 2), 50 * MIB, &[("partition", "2"), ("start", "102400")]);
    tree.device("dm-0", (253, 0), MIB, &[]);
    tree.slave("dm-0", "sda/sda1");
    let mounts = "24 1 0:22 / /proc rw - proc proc rw\n25 1 8:1 / /mnt/a\\040b rw - ext4 /dev/sda1 rw\n";
    fs::write(tree.folder.path().join("mountinfo"), mounts).expect("the file can be written");
    let mount_point = |number| tree.kernel().mount_point_on(&tree.of_device(number));
    let mounted = Some(PathBuf::from("/mnt/a b"));
    assert_eq!([(8, 0), (8, 1)].map(mount_point), [mounted.clone(), mounted]);
    assert_eq!([(8, 2), (253, 0)].map(mount_point), [None, None]);
}

#[test]
fn nbd_devices_below_a_disk_are_reported_with_their_client() {
    let tree = FakeSysfs::new();
    let files = [("pid", "4242"), ("backend", "hotset:00000000000000ab/vm1\n")];
    tree.device("nbd3", (43, 3), MIB, &files);
    tree.device("nbd4", (43, 4), 0, &[]);
    tree.device("dm-0", (253, 0), MIB, &[]);
    tree.slave("dm-0", "nbd3");
    let backend = Some("hotset:00000000000000ab/vm1".to_owned());
    assert_eq!(tree.of_device((253, 0)).nbd, [KernelNbdDevice { name: "nbd3".to_owned(), backend, pid: Some(4242) }]);
    assert_eq!(tree.of_device((43, 4)).nbd, [], "it is not connected");
}

#[test]
fn cyclic_devices_are_resolved_up_to_a_limit() {
    let tree = FakeSysfs::new();
    tree.device("dm-0", (253, 0), MIB, &[]);
    tree.device("dm-1", (253, 1), MIB, &[]);
    tree.slave("dm-0", "dm-1");
    tree.slave("dm-1", "dm-0");
    let footprint = tree.of_device((253, 0));
    assert!(footprint.parts.len() <= PARTS_MAX && overlap(&footprint, &tree.of_device((253, 1))));
}
