//! Start of a daemon after an administrator's actions: applies the state rules to the store and to each volume, and
//! serves the admitted volumes.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::evidence::{DestagedComparison, content_ids, samples_at};
use engine::{Backing, BlockNo, Core, UnflushedLoss, VolumeId, VolumeSpec, WritePolicy};
use flash::{FormatOptions, MemberDisk, MembershipGeneration, OpenOptions, Ownership, Sequence, Store, StoreError};
use seam::sim::{SimDisk, SimSeam, World};
use seam::{Disk, DiskOpen, SECTOR_BYTES, SECTORS_PER_BLOCK, Seam};
use state::{
    Acceptance, Admission, Claim, ContentRecord, Evidence, FoundStore, Refusal, State, StoreInventory, StoreUse,
    UndestagedBlocks, UnusedStore, end_block, is_partial_block_dirty, loss_to_report, sampled_blocks, show_samples,
    show_uuid, unflushed_loss,
};

use super::super::run::{Run, disk_name};
use super::super::session::{Session, TestVolume, TestVolumeParts};
use super::actions::{Plan, Response, acceptance};
use super::{AttachedVolume, Deployment};
use crate::content::Tag;
use crate::fixture::write;

/// Starts a daemon and returns the session and its volumes.
pub(super) async fn start_daemon(
    deployment: &mut Deployment,
    run: &mut Run,
    world: &World,
    plan: &Plan,
    operations: u64,
) -> Result<(Session, Vec<AttachedVolume>), String> {
    let options = Rc::clone(&run.options);
    deployment.served.clear();
    let seam = world.seam();
    let core = Core::new(seam.clone(), run.core_spec());
    let without_volumes = |core| Ok((Session::new(core, Vec::new(), Rc::clone(&options), 0), Vec::new()));
    if !plan.is_state_readable {
        if plan.response == Response::Rebuild {
            rebuild(deployment, &seam, plan).await?;
        }
        run.report.refusals += options.volumes.len() as u64;
        return without_volumes(core);
    }
    let (identity, session) = (u128::from(deployment.draw_identity()), deployment.draw_identity());
    deployment.state.begin_life(identity, session);
    let store = open_store(deployment, &seam, &core, plan).await?;
    let (mut test_volumes, mut attached, mut served) = (Vec::new(), Vec::new(), Vec::new());
    let mut rebuilds = false;
    for (index, volume) in options.volumes.iter().enumerate() {
        let path = disk_name(index);
        let open = DiskOpen { path: path.clone(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
        let disk: SimDisk = seam.open_disk(&open).await.map_err(|error| format!("disk {}: {error}", index + 1))?;
        disk.flush().await.map_err(|error| format!("disk {}: {error}", index + 1))?;
        let name = format!("volume{}", index + 1);
        let policy = plan.policies.get(index).copied().flatten().unwrap_or(volume.policy);
        let claim = VolumeClaim { name: &name, identity: deployment.backings[index].identity.clone() };
        let mut collected = collect_evidence(deployment, &seam, &core, &disk, &claim, store.as_deref()).await;
        let record_of_disk = deployment.state.volumes.iter().find(|record| record.backing_identity == claim.identity);
        let other_volume = record_of_disk.filter(|record| record.name != name).map(|record| record.volume_id);
        let loss = {
            let mut records = deployment.state.records_of(&name, &claim.identity);
            records.find_map(|record| loss_to_report(&deployment.state, record, !record.clean))
        };
        let mut admission =
            identify_volume(deployment, &claim, &collected, &served, store.as_deref(), &Acceptance::default());
        let (mut gives_up, mut discards, mut takes_other_disk) = (false, false, false);
        if let Err(refusal) = admission.clone() {
            // A disk identified by its path cannot always be proven after a crash.
            let may_be_unproven =
                !deployment.options.has_stored_identity && matches!(refusal, Refusal::ContentUnproven { .. });
            if !deployment.has_acted && !may_be_unproven {
                return Err(format!("{name} is refused without an action of the administrator: {refusal}"));
            }
            rebuilds |= plan.response == Response::Rebuild
                && matches!(refusal, Refusal::StateOlder { .. } | Refusal::Unclaimed { .. });
            let loss = loss_of(&refusal);
            if let Some(accept) = acceptance(plan.response, &refusal, loss) {
                (gives_up, discards) = (accept.give_up.is_some(), accept.discard_past_end);
                let accepted_claim = state_claim(&claim, &collected, &served, store.as_deref(), &accept);
                if discards && deployment.state.check(&accepted_claim).is_ok() {
                    let size_bytes = collected.evidence.content.size_bytes;
                    let record =
                        deployment.state.volumes.iter().find(|record| record.backing_identity == claim.identity);
                    let volume_id = record.expect("the refused volume has a record").volume_id;
                    if core.discard_unclaimed(&name, volume_id, end_block(size_bytes, None)).await.is_err() {
                        // The log is full.
                        run.report.refusals += 1;
                        continue;
                    }
                    // The data is given up, whether or not the volume is served now.
                    let sectors = size_bytes / SECTOR_BYTES as u64;
                    let unwritten_end = &mut deployment.backings[index].unwritten_end;
                    *unwritten_end = (*unwritten_end).min(sectors);
                    let kept_sectors = run.models[index].borrow().sectors().min(sectors);
                    run.models[index].borrow_mut().resize(kept_sectors, seam.now());
                    deployment.undo = None;
                    collected = collect_evidence(deployment, &seam, &core, &disk, &claim, store.as_deref()).await;
                }
                admission = identify_volume(deployment, &claim, &collected, &served, store.as_deref(), &accept);
                let accepts_unproven = matches!(refusal, Refusal::ContentUnproven { .. }) && !gives_up;
                takes_other_disk = matches!(refusal, Refusal::BackingChanged { loss: None, .. });
                if accepts_unproven && admission.is_ok() && deployment.backings[index].is_changed {
                    // The administrator accepted that dirty data is destaged to a changed disk.
                    deployment.is_over = true;
                    return without_volumes(core);
                }
            }
        }
        let Ok(Admission { volume_id, drops_pages }) = admission else {
            run.report.refusals += 1;
            continue;
        };
        if other_volume == Some(volume_id) && collected.evidence.blocks_in_log > 0 {
            // This name now has another volume's disk and dirty data, which this volume's model does not describe.
            deployment.is_over = true;
            return without_volumes(core);
        }
        if store.is_some() && policy == WritePolicy::WriteBack {
            deployment.state.mark_on_flash(volume_id, store.as_deref());
        }
        let sectors = disk.geometry().size_bytes / SECTOR_BYTES as u64;
        let unwritten_end = deployment.backings[index].unwritten_end;
        if unwritten_end > sectors && !gives_up && !discards {
            return Err(format!(
                "{name} is served on a backing of {sectors} sectors, but data that it lacks up to sector \
                 {unwritten_end} was dropped silently"
            ));
        }
        let generation = deployment.state.generation;
        let record = deployment.state.by_id_mut(volume_id).expect("an admitted volume has a record");
        (record.loss, record.durable_writes) = (loss, !policy.defers_writes());
        let unflushed_loss = unflushed_loss(deployment.state.by_id(volume_id), generation);
        if deployment.backings[index].is_loss_unreported && unflushed_loss == UnflushedLoss::None {
            return Err(format!("clients of {name} are not notified that unflushed writes may be lost"));
        }
        // If dirty data waits and the volume is served anyway, log and backing together must be complete.
        let is_restored = collected.evidence.blocks_in_log == 0 && unwritten_end == 0;
        let is_changed = deployment.backings[index].is_changed;
        let defines_content = gives_up || is_changed && (is_restored || takes_other_disk);
        if is_changed && !defines_content && sectors > run.models[index].borrow().sectors() {
            // A copy from before a shrink: the model does not know the content past the old end.
            deployment.is_over = true;
            return without_volumes(core);
        }
        run.models[index].borrow_mut().resize(sectors, seam.now());
        if defines_content {
            let mut model = run.models[index].borrow_mut();
            let control = world.disk(&path).expect("an open disk belongs to the world");
            if !model.reset_to_backing(|sector| Tag(control.tag(sector)), seam.now()) {
                deployment.is_over = true;
                return without_volumes(core);
            }
        }
        (deployment.backings[index].is_changed, deployment.backings[index].is_shrunk) = (false, false);
        let mut spec = VolumeSpec::new(&name, volume_id);
        (spec.policy, spec.deferral_age, spec.drops_pages) = (policy, volume.defer, drops_pages);
        spec.unflushed_loss = unflushed_loss;
        let backing = Backing::plain(disk.clone());
        let Ok(served_volume) = core.attach_recovered(spec, backing).await else {
            // The log holds data, and the policy does not use the log.
            run.report.refusals += 1;
            continue;
        };
        served.push(name.clone());
        deployment.served.insert(index);
        let control = world.disk(&path).expect("an open disk belongs to the world");
        let parts = TestVolumeParts { number: index as u16 + 1, volume: served_volume, disk: disk.clone(), control };
        test_volumes.push(TestVolume::new(parts, volume.clone(), Rc::clone(&run.models[index])));
        attached.push(AttachedVolume { volume_id, drops_pages });
        if plan.second_path == Some(index) {
            attach_second_volume(deployment, &core, &disk, index, &served).await?;
        }
    }
    if rebuilds {
        // A rebuild requires a stopped daemon, so this session ends at once.
        drop(test_volumes);
        rebuild(deployment, &seam, plan).await?;
        return without_volumes(core);
    }
    if let (Some(log), Some(manifest)) = (core.log(), deployment.state.manifest(flash::MANIFEST_BYTES_MAX)) {
        log.save_manifest(manifest).await.map_err(|error| error.to_string())?;
    }
    let operations = if test_volumes.is_empty() { 0 } else { operations };
    Ok((Session::new(core, test_volumes, options, operations), attached))
}

/// Number of blocks that a second volume writes to another volume's disk.
const FOREIGN_BLOCKS: u64 = 8;
/// Tag of these blocks.
const FOREIGN_TAG: u64 = 77;

/// A volume of the configuration and the identity of its disk.
struct VolumeClaim<'a> {
    name: &'a str,
    identity: String,
}

/// Evidence from the store, the log and the disk about a volume.
struct CollectedEvidence {
    /// Undestaged blocks of the unclaimed volumes.
    undestaged: BTreeMap<VolumeId, UndestagedBlocks>,
    evidence: Evidence,
}

/// Opens the store of the configured devices unless a rule refuses it; returns its UUID as text.
async fn open_store(
    deployment: &mut Deployment,
    seam: &SimSeam,
    core: &Core<SimSeam>,
    plan: &Plan,
) -> Result<Option<String>, String> {
    let mut disks = Vec::new();
    for name in &plan.devices {
        let open = DiskOpen { path: (*name).into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
        disks.push(MemberDisk::Local(seam.open_disk(&open).await.map_err(|error| error.to_string())?));
    }
    let options = OpenOptions { accept_missing: disks.len() == 1, ..OpenOptions::default() };
    if disks.is_empty() {
        return Ok(None);
    }
    let identity = match flash::identify(seam, &disks, options).await {
        Err(StoreError::NoStore { .. }) => {
            let format =
                FormatOptions { segment_bytes: Some(deployment.options.segment_bytes()), ..FormatOptions::default() };
            match Store::format(seam, &disks, format).await {
                Ok(()) => flash::identify(seam, &disks, options).await,
                Err(error) => Err(error),
            }
        }
        other => other,
    };
    // The daemon continues without devices that do not belong together or are incomplete.
    let Ok(identity) = identity else { return Ok(None) };
    let holds_data = match flash::inspect(seam, &disks).await.1 {
        Ok(inspection) => !inspection.dirty_blocks.is_empty() || !inspection.lost_batches.is_empty(),
        Err(_) => true,
    };
    let (store, ownership, devices) = (show_uuid(&identity.store), identity.ownership, identity.devices.clone());
    let found_store = FoundStore { store, ownership, devices, holds_data };
    let manifest = flash::read_manifest(seam, &disks, identity.store).await.map_err(|error| error.to_string())?;
    let store_use = deployment.state.check_store(&found_store).and_then(|used| {
        let manifest = manifest.filter(|_| used == StoreUse::Known);
        manifest
            .map_or(Ok(()), |manifest| deployment.state.check_manifest(&found_store, &manifest.payload))
            .map(|()| used)
    });
    let used = match store_use {
        Ok(used) => used,
        Err(refusal) => {
            if !deployment.has_acted {
                return Err(format!("the store is refused without an action of the administrator: {refusal}"));
            }
            deployment.state.record_store_refusal(&refusal);
            return Ok(None);
        }
    };
    deployment.state.record_store_use(&found_store, used);
    let record = deployment.state.store_mut(&found_store.store).clone();
    let options = OpenOptions {
        ownership: Some(deployment.state.ownership()),
        known_generation: Some((identity.store, record.generation)),
        sequence_min: if deployment.options.sabotage == state::Sabotage::AnyStore {
            Sequence(0)
        } else {
            record.sequence
        },
        ..options
    };
    let Ok((store, recovered)) = Store::open(seam, &disks, options).await else { return Ok(None) };
    deployment.state.record_store_opened(&found_store.store, store.generation());
    if record.map_unusable {
        store.pages().ignore_persisted_map();
        deployment.state.store_mut(&found_store.store).map_unusable = false;
    }
    core.open_log(store, recovered);
    deployment.state.record_unclaimed(&found_store.store, core.unclaimed());
    Ok(Some(found_store.store))
}

/// Collects the evidence on which the state rules decide whether a volume may be served on `disk`.
async fn collect_evidence(
    deployment: &Deployment,
    seam: &SimSeam,
    core: &Core<SimSeam>,
    disk: &SimDisk,
    claim: &VolumeClaim<'_>,
    store: Option<&str>,
) -> CollectedEvidence {
    let backing = Backing::plain(disk.clone());
    let size_bytes = disk.geometry().size_bytes;
    let record = deployment.state.record_to_compare(claim.name, |identity| *identity == claim.identity);
    let volume_id = record.map(|record| record.volume_id);
    let size_before = record.and_then(|record| record.content.as_ref()).map(|content| content.size_bytes);
    let end = end_block(size_bytes, size_before);
    let in_log = volume_id.map(|volume_id| core.waiting_in_log(volume_id, end)).unwrap_or_default();
    let dirty_from = |block| volume_id.map_or(0, |volume_id| core.waiting_in_log(volume_id, block).past_end_blocks);
    let is_partial_block_dirty = is_partial_block_dirty(size_bytes, size_before, dirty_from);
    let cached_on = record.and_then(|record| record.cached_on.as_ref());
    let is_cached_here = cached_on.is_some_and(|stores| store.is_some_and(|store| stores.contains(store)));
    let destaged = match volume_id.filter(|_| in_log.total_blocks > 0 && is_cached_here) {
        Some(volume_id) => core.compare_destaged(volume_id, &backing).await,
        None => DestagedComparison::default(),
    };
    let samples_before = match size_before.filter(|size_before| *size_before != size_bytes) {
        Some(size_before) => Some(show_samples(&samples_at(seam, &backing, &sampled_blocks(size_before)).await)),
        None => None,
    };
    let unclaimed = core.unclaimed().into_iter();
    let undestaged = unclaimed.map(|volume| {
        (volume, UndestagedBlocks { in_log: core.waiting_in_log(volume, BlockNo::MAX).total_blocks, in_memory: 0 })
    });
    CollectedEvidence {
        undestaged: undestaged.collect(),
        evidence: Evidence {
            lineage_reason: String::new(),
            has_stored_identity: deployment.options.has_stored_identity,
            content: ContentRecord {
                lineage: None,
                size_bytes,
                instance: None,
                ids: content_ids(seam, &backing).await,
                samples: show_samples(&samples_at(seam, &backing, &sampled_blocks(size_bytes)).await),
                destaged: 0,
            },
            samples_before,
            blocks_in_log: in_log.total_blocks,
            blocks_in_memory: 0,
            blocks_past_end: in_log.past_end_blocks,
            is_partial_block_dirty,
            destaged_unchanged: destaged.matching_blocks,
            destaged_changed: destaged.different_blocks,
            destaged_past_end: destaged.past_end_blocks,
            matches_unproven: destaged.matches_unproven,
        },
    }
}

/// The claim of a volume to be served.
fn state_claim<'a>(
    claim: &'a VolumeClaim<'_>,
    collected: &'a CollectedEvidence,
    served: &'a [String],
    store: Option<&'a str>,
    accept: &'a Acceptance,
) -> Claim<'a> {
    Claim {
        name: claim.name,
        identity: &claim.identity,
        path: "",
        aliases: &[],
        served,
        configured: &[],
        store,
        unread_flash: &[],
        why_unused: &|_| UnusedStore { reason: "it is not in use".to_owned(), has_whole_log: false },
        undestaged: &collected.undestaged,
        evidence: Some(&collected.evidence),
        writes: true,
        accept,
        is_destaged: false,
    }
}

/// Applies the state rules to a volume; returns its admission or the refusal.
fn identify_volume(
    deployment: &mut Deployment,
    claim: &VolumeClaim<'_>,
    collected: &CollectedEvidence,
    served: &[String],
    store: Option<&str>,
    accept: &Acceptance,
) -> Result<Admission, Refusal> {
    let new_volume_id = VolumeId(deployment.draw_identity());
    deployment.state.identify(&state_claim(claim, collected, served, store, accept), || new_volume_id)
}

/// Identifier of the data that a refusal says may be lost.
fn loss_of(refusal: &Refusal) -> Option<String> {
    match refusal {
        Refusal::BackingChanged { loss, .. } => loss.as_ref().map(|loss| loss.volume_id.clone()),
        Refusal::DirtyElsewhere { loss, .. }
        | Refusal::LogUnexpected { loss, .. }
        | Refusal::ContentDiffers { loss, .. }
        | Refusal::OwnerChanged { loss, .. }
        | Refusal::ContentUnproven { loss, .. }
        | Refusal::BackingGrew { loss, .. } => Some(loss.volume_id.clone()),
        Refusal::Unclaimed { store, .. } => Some(store.clone()),
        _ => None,
    }
}

/// Rebuilds the records from the store's devices.
async fn rebuild(deployment: &mut Deployment, seam: &SimSeam, plan: &Plan) -> Result<(), String> {
    let mut disks = Vec::new();
    for name in &plan.devices {
        let open = DiskOpen { path: (*name).into(), create_bytes: None, read_only: true, lock_wait_ms: 1_000 };
        disks.push(MemberDisk::Local(seam.open_disk(&open).await.map_err(|error| error.to_string())?));
    }
    let (devices, Ok(inspection)) = flash::inspect(seam, &disks).await else { return Ok(()) };
    let superblocks = devices.iter().filter_map(|device| device.superblock.as_ref().ok());
    let newest = superblocks.max_by_key(|superblock| (superblock.generation, superblock.ownership.epoch));
    let (ownership, generation) = newest.map_or((Ownership::default(), MembershipGeneration(0)), |superblock| {
        (superblock.ownership, superblock.generation)
    });
    let mut dirty_blocks: BTreeMap<VolumeId, u64> = BTreeMap::new();
    inspection.dirty_blocks.iter().for_each(|record| *dirty_blocks.entry(record.address.volume_id).or_default() += 1);
    let manifest = flash::read_manifest(seam, &disks, inspection.store).await.map_err(|error| error.to_string())?;
    let inventory = StoreInventory {
        store: show_uuid(&inspection.store),
        ownership,
        generation,
        manifest: manifest.map(|manifest| manifest.payload),
        dirty_blocks,
    };
    let empty = State { sabotage: deployment.options.sabotage, ..State::default() };
    let current = if plan.is_state_readable { deployment.state.clone() } else { empty };
    if let Ok((rebuilt, _)) = state::rebuild(current, &inventory) {
        deployment.state = rebuilt;
    }
    Ok(())
}

/// Configures a second volume on the same disk; if the daemon admits it, it writes there.
async fn attach_second_volume(
    deployment: &mut Deployment,
    core: &Core<SimSeam>,
    disk: &SimDisk,
    index: usize,
    served: &[String],
) -> Result<(), String> {
    let claim = VolumeClaim { name: "second", identity: deployment.backings[index].identity.clone() };
    let collected = CollectedEvidence { undestaged: BTreeMap::new(), evidence: Evidence::default() };
    let Ok(admission) = identify_volume(deployment, &claim, &collected, served, None, &Acceptance::default()) else {
        return Ok(());
    };
    let volume =
        core.attach_recovered(VolumeSpec::new("second", admission.volume_id), Backing::plain(disk.clone())).await;
    let volume = volume.map_err(|error| error.to_string())?;
    for block in 0..FOREIGN_BLOCKS {
        let written = write(&volume, block * SECTORS_PER_BLOCK as u64, SECTORS_PER_BLOCK as u64, FOREIGN_TAG).await;
        written.map_err(|error| error.to_string())?;
    }
    volume.flush().await.map_err(|error| error.to_string())
}
