//! Evidence about each volume before its admission: undestaged blocks in the flash log and in persisted memory, and the
//! content of the backing. The data cores read it for many volumes concurrently; nothing is written.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use engine::evidence::{DestagedComparison, WaitingBlocks, content_ids, samples_at, waiting_in_memory};
use engine::{Backing, BlockNo, VolumeId};
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;
use seam::{Disk, Nanos, Seam};
use state::{
    ContentRecord, Evidence, UndestagedBlocks, end_block, is_partial_block_dirty, sampled_blocks, show_samples,
};

use super::data_core::CoreLocal;
use super::hang::wait_for_hang;
use super::{Cores, core_ended};

/// Maximum of volumes that a core examines concurrently.
const EXAMINED_MAX: usize = 32;
/// Time-out for reading a backing and the map of clean pages.
const TIMEOUT: Nanos = Nanos::from_secs(60);

/// Reason why a backing was not examined.
#[derive(Clone, Debug)]
pub enum ExaminationError {
    /// It does not answer.
    Hung,
    /// Any other reason.
    Failed(Failure),
}

/// The content of a backing, or the reason why it is not known.
pub type ExaminationResult = Result<Evidence, ExaminationError>;

/// A volume whose backing is open.
#[derive(Clone, Copy, Debug)]
pub struct ExaminedVolume {
    /// The core that opened it.
    pub core: usize,
    /// Its key in the core's map of open backings.
    pub backing_key: u64,
    /// The volume ID that the backing has had so far; `None` for a new backing.
    pub volume_id: Option<VolumeId>,
    /// The backing's size when it was served last, where that is known.
    pub size_before: Option<u64>,
    /// The store's record of destaged blocks is valid: the store was open whenever the volume was served.
    pub trusts_store: bool,
}

impl Cores {
    /// The undestaged blocks of every volume that is not served yet.
    pub async fn undestaged_blocks(&self) -> Result<BTreeMap<VolumeId, UndestagedBlocks>, Failure> {
        let mut undestaged: BTreeMap<VolumeId, UndestagedBlocks> = BTreeMap::new();
        for core in self.iter() {
            let collect = async |local: Rc<CoreLocal>| {
                let in_log = local.engine.unclaimed().into_iter();
                let in_log: Vec<_> = in_log
                    .map(|volume_id| (volume_id, local.engine.waiting_in_log(volume_id, BlockNo::MAX).total_blocks))
                    .collect();
                let images = local.memory_images.borrow();
                let volume_ids = images.iter().flat_map(|image| image.tagged_volumes());
                let in_memory: Vec<_> = volume_ids
                    .map(VolumeId)
                    .map(|volume_id| (volume_id, in_memory(&local, volume_id, BlockNo::MAX).total_blocks))
                    .collect();
                (in_log, in_memory)
            };
            let (in_log, in_memory) = core.call(collect).await.map_err(core_ended)?;
            in_log.into_iter().for_each(|(volume_id, blocks)| undestaged.entry(volume_id).or_default().in_log = blocks);
            in_memory
                .into_iter()
                .for_each(|(volume_id, blocks)| undestaged.entry(volume_id).or_default().in_memory = blocks);
        }
        undestaged.retain(|_, blocks| *blocks != UndestagedBlocks::default());
        Ok(undestaged)
    }

    /// Discards the data in the flash log past the end of a volume's backing before the volume is attached.
    pub async fn discard_past_end(
        &self,
        name: &str,
        core: usize,
        volume_id: VolumeId,
        size_bytes: u64,
    ) -> Result<(), Failure> {
        let (name, end) = (name.to_owned(), end_block(size_bytes, None));
        let discard = async move |local: Rc<CoreLocal>| local.engine.discard_unclaimed(&name, volume_id, end).await;
        let discarded = self[core].call(discard).await.map_err(core_ended)?;
        discarded.map_err(|error| Failure::new(ErrorKind::Conflict, error.to_string()))
    }

    /// Examines the content of these backings, in their order. A backing that leaves a read unanswered for `limit`
    /// counts as hung.
    pub async fn examine_all(
        &self,
        volumes: &[Option<ExaminedVolume>],
        limit: Duration,
    ) -> Vec<Option<ExaminationResult>> {
        let limit = Nanos(limit.as_nanos() as u64);
        let mut results: Vec<Option<ExaminationResult>> = volumes.iter().map(|_| None).collect();
        for core in self.iter() {
            let on_core = volumes.iter().enumerate().filter_map(|(index, volume)| Some((index, (*volume)?)));
            let (indices, on_core): (Vec<usize>, Vec<ExaminedVolume>) =
                on_core.filter(|(_, volume)| volume.core == core.index()).unzip();
            if on_core.is_empty() {
                continue;
            }
            let examine_all = async move |local: Rc<CoreLocal>| {
                let results = on_core.into_iter().map(|volume| examine_within(local.clone(), volume, limit));
                stream::iter(results).buffered(EXAMINED_MAX).collect::<Vec<_>>().await
            };
            match core.call(examine_all).await {
                Ok(examined) => {
                    indices.into_iter().zip(examined).for_each(|(index, result)| results[index] = Some(result))
                }
                Err(error) => {
                    let failure = core_ended(error);
                    indices
                        .into_iter()
                        .for_each(|index| results[index] = Some(Err(ExaminationError::Failed(failure.clone()))));
                }
            }
        }
        results
    }
}

/// A volume's undestaged blocks in persisted memory, from the oldest memory image that contains the volume.
fn in_memory(local: &CoreLocal, volume_id: VolumeId, end: BlockNo) -> WaitingBlocks {
    let images = local.memory_images.borrow();
    let shm_image = images.iter().find_map(|image| image.image_of(volume_id.0));
    shm_image.map_or_else(WaitingBlocks::default, |shm_image| waiting_in_memory(&shm_image, end))
}

async fn examine_within(local: Rc<CoreLocal>, volume: ExaminedVolume, limit: Nanos) -> ExaminationResult {
    let Some(backing) =
        local.opened.borrow().get(&volume.backing_key).map(|backing| Backing { disk: backing.disk.clone() })
    else {
        let text = "the backing was closed meanwhile";
        return Err(ExaminationError::Failed(Failure::new(ErrorKind::Failed, text)));
    };
    let disk = backing.disk.clone();
    let examining = pin!(examine(&local, backing, volume));
    let hang_or_timeout = pin!(async {
        let (hang, timeout) = (pin!(wait_for_hang(&local.seam, &disk, limit)), pin!(local.seam.sleep(TIMEOUT)));
        match select(hang, timeout).await {
            Either::Left(_) => ExaminationError::Hung,
            Either::Right(_) => {
                let text = format!("its backing ({}) could not be examined within {TIMEOUT}", disk.identity());
                ExaminationError::Failed(Failure::new(ErrorKind::Failed, text))
            }
        }
    });
    match select(examining, hang_or_timeout).await {
        Either::Left((evidence, _)) => Ok(evidence),
        Either::Right((reason, _)) => Err(reason),
    }
}

async fn examine(local: &CoreLocal, backing: Backing<RealSeam>, volume: ExaminedVolume) -> Evidence {
    let size_bytes = backing.disk.geometry().size_bytes;
    let end = end_block(size_bytes, volume.size_before);
    let (in_log, in_image) = match volume.volume_id {
        Some(volume_id) => (local.engine.waiting_in_log(volume_id, end), in_memory(local, volume_id, end)),
        None => Default::default(),
    };
    let has_dirty = in_log.total_blocks + in_image.total_blocks > 0;
    let dirty_from = |block| {
        volume.volume_id.map_or(0, |volume_id| {
            local.engine.waiting_in_log(volume_id, block).past_end_blocks
                + in_memory(local, volume_id, block).past_end_blocks
        })
    };
    let is_partial_block_dirty = is_partial_block_dirty(size_bytes, volume.size_before, dirty_from);
    let destaged = match volume.volume_id.filter(|_| has_dirty && volume.trusts_store) {
        Some(volume_id) => local.engine.compare_destaged(volume_id, &backing).await,
        None => DestagedComparison::default(),
    };
    let size_before = volume.size_before.filter(|before| *before != size_bytes && has_dirty);
    let samples_before = match size_before {
        Some(before) => Some(samples(local, &backing, before).await),
        None => None,
    };
    let lineage = backing.disk.lineage();
    Evidence {
        lineage_reason: lineage.as_ref().map(|lineage| lineage.reason.clone()).unwrap_or_default(),
        has_stored_identity: backing.disk.is_identity_unique(),
        content: ContentRecord {
            size_bytes,
            instance: backing.disk.instance(),
            ids: content_ids(&local.seam, &backing).await,
            samples: samples(local, &backing, size_bytes).await,
            lineage: lineage.map(|lineage| lineage.id),
            destaged: 0,
        },
        samples_before,
        blocks_in_log: in_log.total_blocks,
        blocks_in_memory: in_image.total_blocks,
        blocks_past_end: in_log.past_end_blocks + in_image.past_end_blocks,
        is_partial_block_dirty,
        destaged_unchanged: destaged.matching_blocks,
        destaged_changed: destaged.different_blocks,
        destaged_past_end: destaged.past_end_blocks,
        matches_unproven: destaged.matches_unproven,
    }
}

/// Reads the blocks that are sampled of a backing of `size_bytes`; returns their samples in the form that the state
/// directory stores.
async fn samples(local: &CoreLocal, backing: &Backing<RealSeam>, size_bytes: u64) -> String {
    show_samples(&samples_at(&local.seam, backing, &sampled_blocks(size_bytes)).await)
}
