//! `hotset pool export-map --volume`: a shell script that rebuilds a volume of a pool as a plain disk.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use config::PoolConfig;
use flash::{DeviceContent, MemberDisk};
use pool::{ExportPlan, GroupContent, MetadataRange, Pool, PoolError, read_group_content};
use seam::real::RealSeam;
use seam::{Disk, DiskOpen, Seam};
use state::StateDir;
use terminal::Failure;

use super::flash::absolute_path;
use super::pool::{on_disks, paths_with_added};
use super::undestaged::undestaged;

/// The script for a volume of a pool that no daemon uses. Nothing is written.
pub fn export_script((config, directory): (PoolConfig, PathBuf), volume: &str, to: &Path) -> Result<String, Failure> {
    let target = absolute_path(to)?;
    let (pool, name) = (config.name.clone(), volume.to_owned());
    let state = StateDir::peek(&directory).map_err(|error| Failure::failed(error.to_string()))?;
    if state.as_ref().is_some_and(|state| undestaged(state, &[]).contains(volume)) {
        let text = format!(
            "the flash log or persisted memory has dirty data of volume {volume}: start the daemon, and remove \
             the volume with `hotset volume remove {volume}`, which destages"
        );
        return Err(Failure::failed(text));
    }
    let devices = paths_with_added(&config, state.as_ref());
    let to_find = PathBuf::from(&target);
    let (plan, paths, is_in_place) = on_disks(devices, true, async move |seam, devices| {
        let of_pool = devices.paths.iter().find(|(_, path)| is_same_file(path, &to_find));
        let identity = of_pool.map(|(identity, _)| identity.clone());
        let plan = Pool::export_plan(&seam, &devices.disks, &name, identity.as_deref()).await?;
        if identity.is_none() && to_find.exists() {
            check_other_target(&seam, &to_find, plan.size_bytes).await?;
        }
        Ok((plan, devices.paths, identity.is_some()))
    })?;
    let path_of = |identity: &str| paths.get(identity).map_or(identity.to_owned(), |path| path.display().to_string());
    Ok(render(&pool, volume, &target, &plan, is_in_place, path_of))
}

/// Refuses an existing target that is in use, is a device of a pool or has a flash store, or is a device without room
/// for the volume.
async fn check_other_target(seam: &RealSeam, target: &Path, size_bytes: u64) -> Result<(), PoolError> {
    let refused = |text: String| Err(PoolError::Refused(format!("{}: {text}", target.display())));
    let open = DiskOpen { path: target.into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let disk = match seam.open_disk(&open).await {
        Ok(disk) => disk,
        Err(error) => return refused(error.to_string()),
    };
    let is_device = target.metadata().is_ok_and(|metadata| !metadata.is_file());
    if is_device && disk.geometry().size_bytes < size_bytes {
        return refused(format!("it has less than the {size_bytes} bytes of the volume"));
    }
    if read_group_content(seam, &disk).await != GroupContent::NoGroup {
        return refused("it is a device of a pool; name all devices of this pool in the configuration".to_owned());
    }
    match flash::read_device_content(seam, &MemberDisk::Local(disk)).await {
        DeviceContent::NoStore => Ok(()),
        DeviceContent::Store(..) => refused("it has a flash store".to_owned()),
        DeviceContent::Unknown(reason) => refused(reason),
    }
}

/// True if both paths lead to one file or device.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

fn render(
    pool: &str,
    volume: &str,
    target: &str,
    plan: &ExportPlan,
    is_in_place: bool,
    path_of: impl Fn(&str) -> String,
) -> String {
    let to = quoted(target);
    let mut text = format!(
        "#!/bin/sh\n\
         # Rebuilds volume {volume:?} ({} bytes) of pool {pool} on {target:?}.\n\
         # It ends without a copy if the pool has changed since: make a new one then. It can be run again after an\n\
         # interruption.\n",
        plan.size_bytes
    );
    if let Some(warning) = &plan.warning {
        writeln!(text, "# WARNING: {warning}").expect("a string takes any text");
    }
    if is_in_place {
        text += "# The target is a device of the pool. The slices without a command are in place. Save this script\n\
                 # before it runs: the last commands overwrite the superblocks of the pool on the target.\n";
    }
    text += "set -eu\n";
    text += &unchanged_function(plan, &path_of);
    text += "unchanged\n";
    if !is_in_place {
        writeln!(text, "[ -b {to} ] || truncate -s {} {to}", plan.size_bytes).expect("a string takes any text");
    }
    for step in &plan.steps {
        if is_in_place && step.at == 0 {
            writeln!(text, "unchanged\nsync {to}").expect("a string takes any text");
        }
        let (from, skip) = match &step.source {
            Some((device, at)) => (quoted(&path_of(device)), *at),
            None => ("/dev/zero".to_owned(), 0),
        };
        writeln!(
            text,
            "dd if={from} of={to} bs=1M iflag=fullblock,skip_bytes,count_bytes oflag=seek_bytes skip={skip} seek={} \
             count={} conv=notrunc status=none",
            step.at, step.len_bytes
        )
        .expect("a string takes any text");
    }
    text + &format!("unchanged\nsync {to}\n")
}

/// A shell function that ends the script if the pool's metadata has changed since it was made.
fn unchanged_function(plan: &ExportPlan, path_of: impl Fn(&str) -> String) -> String {
    let mut text = "check() {\n\
                    \x20   found=$(dd if=\"$1\" bs=4096 skip=\"$2\" count=\"$3\" status=none | md5sum)\n\
                    \x20   [ \"$found\" = \"$4\" ] && return\n\
                    \x20   echo \"$1: the pool has changed since this script was made; the target is no copy of the \
                    volume: make a new script while no daemon runs\" >&2\n\
                    \x20   exit 1\n\
                    }\n\
                    unchanged() {\n"
        .to_owned();
    for MetadataRange { device, at, len_bytes, md5 } in &plan.metadata {
        let (device, first, count) = (quoted(&path_of(device)), at / 4096, len_bytes / 4096);
        writeln!(text, "    check {device} {first} {count} '{md5}  -'").expect("a string takes any text");
    }
    text + "}\n"
}

/// The text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::ExportStep;

    #[test]
    fn script_quotes_its_paths_and_syncs_before_the_superblocks_go() {
        let step = |source: Option<(&str, u64)>, at, len_bytes| ExportStep {
            source: source.map(|(device, at)| (device.to_owned(), at)),
            at,
            len_bytes,
        };
        let steps = vec![step(None, 8192, 4096), step(Some(("disk-1", 512)), 0, 8192)];
        let plan = ExportPlan { size_bytes: 12_288, metadata: Vec::new(), steps, warning: None };
        let path = |_: &str| "/dev/it's".to_owned();
        let script = render("tank", "web", "/tmp/a b", &plan, true, path);
        let lines: Vec<_> = script.lines().skip_while(|line| *line != "unchanged").collect();
        assert!(lines[1].starts_with("dd if=/dev/zero of='/tmp/a b' "), "{script}");
        assert_eq!(lines[2..4], ["unchanged", "sync '/tmp/a b'"]);
        assert!(lines[4].starts_with("dd if='/dev/it'\\''s' ") && lines[4].contains("skip=512 seek=0 count=8192"));
        assert_eq!(lines[5..], ["unchanged", "sync '/tmp/a b'"]);
        let script = render("tank", "web", "/tmp/new", &plan, false, path);
        assert!(script.contains("truncate -s 12288 '/tmp/new'"), "{script}");
    }

    #[test]
    fn script_copies_nothing_once_the_metadata_has_changed() {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let (device, target) = (folder.path().join("it's a device"), folder.path().join("target"));
        std::fs::write(&device, [&[0; 4096][..], b"123456789".repeat(911).as_slice()].concat()).expect("room");
        // The output of `md5sum` for a block of zeroes.
        let md5 = "620f0b67a91f7f74151bc5be745b7110".to_owned();
        let metadata = vec![MetadataRange { device: "a".to_owned(), at: 0, len_bytes: 4096, md5 }];
        let steps = vec![ExportStep { source: Some(("a".to_owned(), 4096)), at: 0, len_bytes: 4096 }];
        let plan = ExportPlan { size_bytes: 4096, metadata, steps, warning: None };
        let path_of = |_: &str| device.display().to_string();
        let script = render("tank", "web", &target.display().to_string(), &plan, false, path_of);
        let run = || std::process::Command::new("sh").arg("-c").arg(&script).output().expect("sh runs");
        let output = run();
        assert!(output.status.success(), "{output:?}");
        assert!(std::fs::read(&target).expect("it was written").starts_with(b"123456789"));
        std::fs::remove_file(&target).expect("it was written");
        let mut bytes = std::fs::read(&device).expect("it was written");
        bytes[4095] = 1;
        std::fs::write(&device, bytes).expect("room");
        let output = run();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("the pool has changed"), "{output:?}");
        assert!(!target.exists(), "nothing was copied");
    }
}
