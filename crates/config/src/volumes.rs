//! The repeated tables: arrays and volumes, and the checks across them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{DatastoreSpec, WritePolicy};
use rbd::ImageSpec;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::real::PathTarget;
use toml::de::DeValue;

use super::array::default_array;
use super::fleet::read_take_over;
use super::iscsi::read_acl;
use super::look_up::LookUps;
use super::names::{read_name, report_error};
use super::nearest::nearest;
use super::pools::{PoolConfig, read_placement};
use super::problem::Source;
use super::qos::{QosRule, read_qos};
use super::read::{Located, Section, Setting, Size, ValueError, split_message};
use super::{ArrayConfig, BackingSpec, VolumeConfig};
use crate::quota::{Ceiling, SizeOrPercent};
use units::show_bytes;

/// Default of `defer`.
pub(super) const DEFER_DEFAULT: Duration = Duration::from_secs(10);

impl Setting for WritePolicy {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a policy's name in quotes"))?;
        text.parse().map_err(|error: String| split_message(&error))
    }
}

impl Setting for DiskType {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a disk's name in quotes"))?;
        text.parse().map_err(|error: String| split_message(&error))
    }
}

impl Setting for RaidLevel {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let number = u32::read(value)?;
        RaidLevel::from_number(number)
            .ok_or_else(|| split_message(&format!("RAID {number} is not modelled; use 0, 1, 5, 6 or 10")))
    }
}

/// Reads the `[[array]]` tables.
pub(super) fn read_arrays(sections: &[Section<'_>], source: &mut Source<'_>) -> Vec<ArrayConfig> {
    let mut names = Vec::new();
    let mut arrays = Vec::new();
    for section in sections {
        let name = read_name(section, &names, source);
        let defaults = default_array();
        let spec = ArraySpec {
            level: section.get("raid", source).map_or(defaults.level, |raid| raid.value),
            disks: section.get("disks", source).map_or(defaults.disks, |disks: Located<u32>| disks.value as usize),
            disk: section.get("disk", source).map_or(defaults.disk, |disk| disk.value),
            stripe_unit_bytes: section
                .get("stripe", source)
                .map_or(defaults.stripe_unit_bytes, |size: Located<Size>| size.value.0),
            ..defaults
        };
        if let Err(error) = spec.check() {
            report_error(source, &section.span, &error.to_string());
        }
        if let Some(name) = name {
            arrays.push(ArrayConfig { name: name.value.clone(), spec });
            names.push(name);
        }
    }
    arrays
}

/// The backing of an earlier volume in the file.
struct EarlierBacking {
    /// The path as written.
    written: PathBuf,
    /// Target of the path.
    target: PathTarget,
    line: usize,
}

/// Reads the `[[volume]]` tables, and checks each against the earlier ones.
pub(super) fn read_volumes(
    sections: &[Section<'_>],
    (folder, look_ups): (&Path, &LookUps),
    (arrays, pools): (&[ArrayConfig], &[PoolConfig]),
    (datastores, rules): (&[DatastoreSpec], &[QosRule]),
    memory_bytes: u64,
    source: &mut Source<'_>,
) -> Vec<VolumeConfig> {
    let mut names: Vec<Located<String>> = Vec::new();
    let mut luns: BTreeMap<u16, usize> = BTreeMap::new();
    let mut guaranteed = 0;
    let mut earlier: Vec<EarlierBacking> = Vec::new();
    let mut volumes = Vec::new();
    for section in sections {
        let name = read_name(section, &names, source);
        let backing = read_backing(section, folder, (arrays, pools), source);
        let pool = backing.as_ref().and_then(|backing| backing.value.pool());
        let pool = pools.iter().find(|known| pool == Some(known.name.as_str()));
        let (tier_policy, provisioning) = read_placement(section, pool, source);
        let take_over = read_take_over(section, backing.as_ref().map(|backing| &backing.value), source);
        let size = read_size(section, backing.as_ref(), look_ups, source);
        if let Some(backing) = &backing {
            check_backing_unused(backing, look_ups, &mut earlier, source);
        }
        let policy = section.get::<WritePolicy>("policy", source);
        let defer = section.get::<Duration>("defer", source);
        let policy = policy.map_or(WritePolicy::default(), |policy| policy.value);
        if let Some(defer) = &defer {
            check_defer(defer, policy, source);
        }
        let datastore = read_datastore(section, datastores, source);
        let labels = section.get::<BTreeMap<_, _>>("labels", source).map_or(BTreeMap::new(), |labels| labels.value);
        let volume_name = name.as_ref().map_or("", |name| name.value.as_str());
        let qos = read_qos(section, rules, (volume_name, &labels), !datastore.is_empty(), source);
        let read_only = section.get("read_only", source).is_some_and(|read_only| read_only.value);
        let flash = section.get("flash", source).is_none_or(|flash| flash.value);
        let lun = read_lun(section, &mut luns, source);
        let acl = read_acl(section, source);
        let declared_lost = section.get("declared_lost", source).is_some_and(|lost| lost.value);
        let memory_min = section.get::<SizeOrPercent>("memory_min", source);
        let memory_max = section.get::<Ceiling>("memory_max", source);
        check_memory(memory_min.as_ref(), memory_max.as_ref(), memory_bytes, &mut guaranteed, source);
        let flash_min = section.get::<SizeOrPercent>("flash_min", source);
        let flash_max = section.get::<Ceiling>("flash_max", source);
        check_flash_quota(flash_min.as_ref(), flash_max.as_ref(), source);
        names.extend(name.clone());
        if let (Some(name), Some(backing)) = (name, backing) {
            volumes.push(VolumeConfig {
                name: name.value,
                backing: backing.value,
                size_bytes: size,
                policy,
                defer: defer.map_or(DEFER_DEFAULT, |defer| defer.value),
                datastore,
                labels,
                read_only,
                flash,
                lun,
                acl,
                declared_lost,
                memory_min: memory_min.map_or(SizeOrPercent::ZERO, |min| min.value),
                memory_max: memory_max.map_or(Ceiling::default(), |max| max.value),
                flash_min: flash_min.map_or(SizeOrPercent::ZERO, |min| min.value),
                flash_max: flash_max.map_or(Ceiling::default(), |max| max.value),
                tier_policy,
                provisioning,
                take_over,
                qos,
            });
        }
    }
    volumes
}

/// Reads a volume's LUN number, which must be unique in the file; `taken` has the earlier ones with their lines.
fn read_lun(section: &Section<'_>, taken: &mut BTreeMap<u16, usize>, source: &mut Source<'_>) -> Option<u16> {
    let Located { value, span } = section.get::<u32>("lun", source)?;
    let Some(lun) = u16::try_from(value).ok().filter(|lun| *lun <= scsi::Lun::MAX) else {
        source.add_problem(&span, format!("there is no LUN {value}"), format!("specify 0 to {}", scsi::Lun::MAX));
        return None;
    };
    let line = source.line_of(span.start);
    match taken.get(&lun) {
        Some(first) => {
            let fault = format!("LUN {lun} is used by the volume at line {first}");
            source.add_problem(&span, fault, "specify a different number for each volume, or omit it: one is assigned");
        }
        None => drop(taken.insert(lun, line)),
    }
    Some(lun)
}

impl Setting for SizeOrPercent {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a size with its unit or percent, in quotes"))?;
        text.parse().map_err(|error: String| split_message(&error))
    }
}

impl Setting for Ceiling {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a size with its unit, percent or \"none\", in quotes"))?;
        text.parse().map_err(|error: String| split_message(&error))
    }
}

/// Reports a minimum above its maximum, or minima whose sum exceeds the memory; `guaranteed` is the sum of the earlier
/// volumes.
fn check_memory(
    min: Option<&Located<SizeOrPercent>>,
    max: Option<&Located<Ceiling>>,
    memory_bytes: u64,
    guaranteed: &mut u64,
    source: &mut Source<'_>,
) {
    let Some(min) = min else { return };
    let bytes = min.value.bytes_of(memory_bytes);
    if let Some(Ceiling(Some(max))) = max.map(|max| max.value)
        && bytes > max.bytes_of(memory_bytes)
    {
        let fault = format!("memory_min {} is above memory_max {max}", min.value);
        source.add_problem(&min.span, fault, "lower the one or raise the other");
    }
    let guaranteed_before = std::mem::replace(guaranteed, guaranteed.saturating_add(bytes));
    if guaranteed_before <= memory_bytes && *guaranteed > memory_bytes {
        let fault = format!(
            "the sum of the volumes' memory_min up to here is {}, and memory is {}",
            show_bytes(*guaranteed),
            show_bytes(memory_bytes)
        );
        source.add_problem(&min.span, fault, "lower some, or raise [memory] size");
    }
}

/// Reports a minimum above its maximum, if they can be compared without the size of the devices.
fn check_flash_quota(min: Option<&Located<SizeOrPercent>>, max: Option<&Located<Ceiling>>, source: &mut Source<'_>) {
    let (Some(min), Some(Ceiling(Some(max)))) = (min, max.map(|max| max.value)) else { return };
    let is_above = match (min.value, max) {
        (SizeOrPercent::Bytes(min), SizeOrPercent::Bytes(max)) => min > max,
        (SizeOrPercent::PerMille(min), SizeOrPercent::PerMille(max)) => min > max,
        _ => false,
    };
    if is_above {
        let fault = format!("flash_min {} is above flash_max {max}", min.value);
        source.add_problem(&min.span, fault, "lower the one or raise the other");
    }
}

fn read_backing(
    section: &Section<'_>,
    folder: &Path,
    (arrays, pools): (&[ArrayConfig], &[PoolConfig]),
    source: &mut Source<'_>,
) -> Option<Located<BackingSpec>> {
    let text = section.require::<String>("backing", source)?;
    let backing = match BackingSpec::parse(&text.value, folder) {
        Ok(backing) => backing,
        Err(error) => {
            report_error(source, &text.span, &error);
            return None;
        }
    };
    if let BackingSpec::SimArray(name) = &backing
        && !arrays.iter().any(|array| array.name == *name)
    {
        let remedy = match nearest(name, arrays.iter().map(|array| array.name.as_str())) {
            Some(near) => format!("did you mean sim://{near}?"),
            None => format!(
                "add [[array]] with name = \"{name}\", or describe one: sim://raid5?disks=5&type=sas15k&size=100GiB"
            ),
        };
        source.add_problem(&text.span, format!("there is no [[array]] named \"{name}\""), remedy);
    }
    if let Some(name) = backing.pool()
        && !pools.iter().any(|pool| pool.name == *name)
    {
        let remedy = match nearest(name, pools.iter().map(|pool| pool.name.as_str())) {
            Some(near) => format!("did you mean pool://{near}?"),
            None => format!("add [[pool]] with name = \"{name}\""),
        };
        source.add_problem(&text.span, format!("there is no [[pool]] named \"{name}\""), remedy);
    }
    Some(Located { value: backing, span: text.span })
}

/// Reads the size of a volume, and reports a backing that lacks a size or cannot be opened.
fn read_size(
    section: &Section<'_>,
    backing: Option<&Located<BackingSpec>>,
    look_ups: &LookUps,
    source: &mut Source<'_>,
) -> Option<u64> {
    let size = section.get::<Size>("size", source);
    if let Some(Located { value: Size(bytes), span }) = &size
        && (*bytes == 0 || !bytes.is_multiple_of(seam::SECTOR_BYTES as u64))
    {
        let fault = format!("a volume of {} cannot be", show_bytes(*bytes));
        source.add_problem(span, fault, "specify a multiple of 512 bytes, above 0");
    }
    let backing = backing?;
    let needs_size = backing.value.needs_size(|path| look_ups.exists(path));
    match (&backing.value, &size) {
        (BackingSpec::Path(path), _) if look_ups.is_hung(path) => {
            let fault = format!("{} does not answer: its file system or device hangs", path.display());
            source.add_backing_problem(
                &backing.span,
                fault,
                "check the file server, the connection to the disk and dmesg",
            );
        }
        (BackingSpec::Path(path), _) if look_ups.is_missing_device(path) => {
            let fault = format!("the device {} does not exist", path.display());
            source.add_backing_problem(&backing.span, fault, "attach the disk, or correct the path");
        }
        (BackingSpec::Path(path), None) if needs_size => {
            let fault = format!("{} does not exist, and no size is given", path.display());
            source.add_backing_problem(
                &backing.span,
                fault,
                "correct the path, or add size = \"100 GiB\" to have a file created",
            );
        }
        (BackingSpec::Path(path), _) => {
            if let Some((fault, remedy)) = look_ups.path_fault(path, size.is_some()) {
                source.add_backing_problem(&backing.span, fault, remedy);
            }
        }
        (_, None) if needs_size && !section.has("size") => {
            let fault = format!("{} has no size of its own", backing.value);
            source.add_problem(&backing.span, fault, "add size = \"100 GiB\"");
        }
        (BackingSpec::Nbd(_), Some(size)) => {
            source.add_problem(&size.span, "an NBD export has a size of its own", "remove the key \"size\"");
        }
        (BackingSpec::Rbd(_), Some(size)) => {
            source.add_problem(&size.span, "an RBD image has a size of its own", "remove the key \"size\"");
        }
        (BackingSpec::Sim(_, Some(_)), Some(size)) => {
            source.add_problem(&size.span, "the size is given twice, here and in the URI", "remove one of them");
        }
        _ => {}
    }
    match &backing.value {
        BackingSpec::Sim(_, Some(bytes)) => Some(*bytes),
        _ => size.map(|size| size.value.0),
    }
}

/// Reports a backing that an earlier volume has: two volumes would overwrite each other's data. If the paths differ and
/// only resolve to the same backing, the problem depends on the machine's present state. A daemon then refuses the
/// second volume alone, by the backing's identity.
fn check_backing_unused(
    backing: &Located<BackingSpec>,
    look_ups: &LookUps,
    earlier: &mut Vec<EarlierBacking>,
    source: &mut Source<'_>,
) {
    let (written, target) = match &backing.value {
        BackingSpec::Path(path) => (path.clone(), look_ups.target(path)),
        BackingSpec::Nbd(_) => {
            let uri = PathBuf::from(backing.value.to_string());
            (uri.clone(), PathTarget::Unresolved(uri))
        }
        // Another user reaches the same image; another cluster may have one of the same name.
        BackingSpec::Rbd(image) => {
            let address = ImageSpec { ceph_user: None, ..image.clone() }.to_string();
            (PathBuf::from(&address), PathTarget::Unresolved(PathBuf::from(address)))
        }
        BackingSpec::Sim(..) | BackingSpec::SimArray(_) | BackingSpec::Pool(_) => return,
    };
    let line = source.line_of(backing.span.start);
    let remedy = "give each volume a backing of its own; two on one destroy its data";
    let taken = |first: &EarlierBacking| {
        format!("{} is the backing of the volume at line {} already", backing.value, first.line)
    };
    if let Some(first) = earlier.iter().find(|other| other.written == written) {
        source.add_problem(&backing.span, taken(first), remedy);
    } else if let Some(first) = earlier.iter().find(|other| other.target == target) {
        source.add_backing_problem(&backing.span, taken(first), remedy);
    } else {
        earlier.push(EarlierBacking { written, target, line });
    }
}

fn check_defer(defer: &Located<Duration>, policy: WritePolicy, source: &mut Source<'_>) {
    if policy != WritePolicy::WriteBackVolatile {
        let remedy = "remove it, or ask for policy = \"write-back-volatile\"";
        source.add_problem(&defer.span, format!("\"defer\" means nothing with the policy {policy}"), remedy);
    } else if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&defer.value) {
        source.add_problem(&defer.span, "writes cannot be deferred for that long or short", "give 100ms to 1h");
    }
}

fn read_datastore(section: &Section<'_>, datastores: &[DatastoreSpec], source: &mut Source<'_>) -> String {
    let Some(name) = section.get::<String>("datastore", source) else { return String::new() };
    if !datastores.iter().any(|other| other.name == name.value) {
        let remedy = match nearest(&name.value, datastores.iter().map(|other| other.name.as_str())) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("add [[datastore]] with name = \"{}\"", name.value),
        };
        source.add_problem(&name.span, format!("there is no [[datastore]] named \"{}\"", name.value), remedy);
    }
    name.value
}
