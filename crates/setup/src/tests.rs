//! Proposals for invented machines, and the disks they skip.

use super::machine::{Contents, Sources};
use super::plan::{Plan, Volume, plan};
use super::*;

const STORAGE_SERVER: &str = include_str!("fixtures/storage-server.json");
const HYPERVISOR: &str = include_str!("fixtures/hypervisor.json");
const SMALL_BOX: &str = include_str!("fixtures/small-box.json");
const GIB: u64 = 1 << 30;

/// A machine with `gib` of memory. Devices without content in lsblk's output are blank, except for `overrides`.
fn machine(lsblk: &str, gib: u64, hypervisor_sign: Option<&'static str>, overrides: &[(&str, Contents)]) -> Machine {
    let kib = gib << 20;
    let meminfo = format!("MemTotal: {kib} kB\nMemFree: 1 kB\nMemAvailable: {} kB\n", kib / 16 * 15);
    let links = ["sdb", "sdc", "sdd", "sde", "sdf"]
        .map(|disk| (PathBuf::from(format!("/dev/disk/by-id/ata-DISK_{disk}")), PathBuf::from(format!("/dev/{disk}"))));
    let probe = |path: &Path| {
        let contents = overrides.iter().find(|(device, _)| Path::new(device) == path);
        contents.map_or(Contents::Blank, |(_, contents)| contents.clone())
    };
    let sources = Sources { lsblk, meminfo: &meminfo, links: &links, probe: &probe, hypervisor_sign };
    Machine::of(&sources).expect("the output of lsblk is valid")
}

fn choices(volumes: &[&str], flash: &[&str]) -> UserChoices {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
    UserChoices { volumes: paths(volumes), flash: paths(flash), ..UserChoices::default() }
}

/// Makes a proposal and checks that the configuration parses. Memory and disks of the invented machine are replaced by
/// real ones.
fn propose(machine: &Machine, choices: &UserChoices) -> (Plan, String) {
    let plan = plan(machine, choices).expect("there is a proposal");
    let text = text::text(&plan);
    let size = units::exact_bytes(plan.memory.size_bytes);
    let mut local_text = text.replace(&format!("size = \"{size}\""), "size = \"64 MiB\"");
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    for Volume { name, backing } in &plan.volumes {
        let disk = folder.path().join(name);
        std::fs::write(&disk, [0; 4096]).expect("the folder can be written");
        local_text =
            local_text.replace(&format!("\"{}\"", backing.device.display()), &format!("\"{}\"", disk.display()));
    }
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), &local_text);
    let config = config.unwrap_or_else(|problems| panic!("{problems}\n{local_text}"));
    assert_eq!(config.volumes.len(), plan.volumes.len());
    assert_eq!(config.flash.map_or(0, |flash| flash.devices.len()), plan.flash.len());
    (plan, text)
}

fn refused(machine: &Machine, choices: &UserChoices) -> String {
    plan(machine, choices).expect_err("the plan is refused").message
}

fn nodes<'a>(devices: impl IntoIterator<Item = &'a Path>) -> Vec<String> {
    devices.into_iter().map(|device| device.display().to_string()).collect()
}

#[test]
fn storage_server_serves_blank_disks_behind_mirrored_flash() {
    let machine = machine(STORAGE_SERVER, 64, None, &[]);
    let (plan, text) = propose(&machine, &UserChoices::default());
    assert_eq!(nodes(plan.flash.iter().map(|device| &*device.node)), ["/dev/nvme0n1", "/dev/nvme1n1"]);
    assert_eq!(
        nodes(plan.volumes.iter().map(|volume| &*volume.backing.device)),
        ["sdb", "sdc", "sdd", "sde"].map(|disk| format!("/dev/disk/by-id/ata-DISK_{disk}"))
    );
    assert_eq!(plan.memory.size_bytes, 48 * GIB);
    assert_eq!(nodes(plan.skipped.iter().map(|device| device.path())), ["/dev/sda"]);
    insta::assert_snapshot!(text);
}

#[test]
fn memory_is_in_proportion_to_the_cached_disks() {
    let small = STORAGE_SERVER.replace("8001563222016", "10737418240").replace("1920383410176", "0");
    let (plan, text) = propose(&machine(&small, 64, None, &[]), &UserChoices::default());
    assert_eq!(plan.volumes.iter().map(|volume| volume.backing.size_bytes).sum::<u64>(), 40 * GIB);
    assert_eq!(plan.memory.size_bytes, 10 * GIB);
    assert!(text.contains("quarter of the 40 GiB that are cached"), "{text}");
    let tiny = small.replace("10737418240", "107374182");
    let choices = UserChoices { examined_by_name: true, ..UserChoices::default() };
    let (plan, _) = propose(&machine(&tiny, 64, None, &[]), &choices);
    assert_eq!(plan.memory.size_bytes, 256 << 20, "the minimum");
}

#[test]
fn hypervisor_keeps_its_disks_and_most_of_its_memory() {
    let sign = Some("Proxmox VE is here");
    let in_use = [("/dev/sdc1", Contents::InUse), ("/dev/sdd1", Contents::InUse)];
    let machine = machine(HYPERVISOR, 128, sign, &in_use);
    let (plan, text) = propose(&machine, &UserChoices::default());
    assert!(plan.flash.is_empty() && plan.volumes.is_empty(), "{plan:?}");
    assert_eq!(plan.single_flash.as_ref().map(|device| &*device.node), Some(Path::new("/dev/sdb")));
    assert_eq!(plan.memory.size_bytes, GIB, "nothing is cached yet");
    insta::assert_snapshot!(text);
    // An unused disk with data may be named, and is served as it is.
    let (plan, text) = propose(&machine, &choices(&["/dev/sdf"], &[]));
    assert_eq!(plan.volumes[0].backing.carries.as_deref(), Some("ext4"));
    assert!(
        text.contains("is served as it is") && text.contains("backing = \"/dev/disk/by-id/ata-DISK_sdf\""),
        "{text}"
    );
    // A used disk may not be named, under any of its names.
    assert!(refused(&machine, &choices(&["/dev/sde"], &[])).contains("mounted at /mnt/backup"));
    assert!(refused(&machine, &choices(&["/dev/sdc"], &[])).contains("the kernel uses /dev/sdc1"));
    assert!(refused(&machine, &choices(&[], &["/dev/sda3"])).contains("is built on /dev/sda3"));
    assert!(refused(&machine, &choices(&[], &["/dev/sdz"])).contains("lsblk --paths"));
    assert!(refused(&machine, &choices(&["/dev/sdf"], &["/dev/disk/by-id/ata-DISK_sdf"])).contains("more than once"));
    assert!(refused(&machine, &choices(&["/dev/sdf", "/dev/sdf"], &[])).contains("specified twice"));
}

#[test]
fn small_box_without_free_disks_gets_remedies() {
    let machine = machine(SMALL_BOX, 4, None, &[]);
    let (plan, text) = propose(&machine, &UserChoices::default());
    assert!(plan.flash.is_empty() && plan.single_flash.is_none() && plan.volumes.is_empty(), "{plan:?}");
    assert_eq!(plan.memory.size_bytes, GIB);
    insta::assert_snapshot!(text);
}

#[test]
fn disk_with_data_that_lsblk_misses_is_skipped() {
    let signatures = Contents::Signatures(vec!["LVM2_member".to_owned()]);
    let unreadable = Contents::Unreadable("Permission denied (os error 13)".to_owned());
    let overrides = [
        ("/dev/sdb", signatures),
        ("/dev/sdc", Contents::Unrecognised),
        ("/dev/sdd", Contents::InUse),
        ("/dev/sde", unreadable),
        ("/dev/nvme1n1", Contents::Unrecognised),
    ];
    let machine = machine(STORAGE_SERVER, 64, None, &overrides);
    let (plan, text) = propose(&machine, &UserChoices::default());
    assert!(plan.volumes.is_empty() && plan.flash.is_empty(), "{plan:?}");
    for phrase in ["LVM2_member", "unrecognised data", "in exclusive use by the kernel", "run this as root"] {
        assert!(
            text.split_whitespace().collect::<Vec<_>>().join(" ").replace("# ", "").contains(phrase),
            "{phrase}\n{text}"
        );
    }
    // Named flash is used in spite of its content, and the file says how to erase it.
    let (plan, text) = propose(&machine, &choices(&[], &["/dev/nvme0n1", "/dev/nvme1n1"]));
    assert_eq!(plan.flash.len(), 2);
    assert!(text.contains("blkdiscard -z /dev/nvme1n1") && !text.contains("blkdiscard -z /dev/nvme0n1"), "{text}");
    // An unreadable disk is refused, not taken for blank.
    assert!(refused(&machine, &choices(&["/dev/sde"], &[])).contains("run this as root"));
}

#[test]
fn file_appears_complete_and_is_never_overwritten() {
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    let out = folder.path().join("hotset.toml");
    create(&out, "one").expect("it is not there");
    let refused = create(&out, "two").expect_err("it is there").message;
    assert!(refused.contains("not overwritten"), "{refused}");
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).expect("a link can be made");
    assert!(create(&folder.path().join("link"), "two").is_err());
    assert_eq!(std::fs::read(&out).expect("it is there"), b"one");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2, "the directory has no other files");
    let refused = create(&folder.path().join("none/hotset.toml"), "one").expect_err("no folder").message;
    assert!(refused.contains("mkdir -p"), "{refused}");
}

#[test]
fn named_devices_form_a_pool_with_a_tier_for_each_kind() {
    let machine = machine(STORAGE_SERVER, 64, None, &[("/dev/sdc", Contents::Unrecognised)]);
    let pool = ["/dev/sdb", "/dev/nvme0n1", "/dev/sdc"].map(PathBuf::from).to_vec();
    let (plan, text) = propose(&machine, &UserChoices { pool, ..UserChoices::default() });
    let tiers: Vec<_> = plan.tiers.iter().map(|tier| (tier.name, tier.devices.len())).collect();
    assert_eq!(tiers, [("nvme", 1), ("hdd", 2)]);
    // One flash device is left, which alone holds no mirrored log.
    assert!(plan.flash.is_empty() && plan.single_flash.is_some());
    insta::assert_snapshot!(text);
    let twice = UserChoices { pool: vec!["/dev/sdb".into()], ..choices(&["/dev/sdb"], &[]) };
    assert!(refused(&machine, &twice).contains("more than once"));
}
