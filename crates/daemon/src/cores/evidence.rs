//! Evidence about each volume before its admission: blocks that wait for its backing in the flash log and in memory,
//! and the content of the backing. The data cores read it for many volumes concurrently; nothing is written.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use engine::evidence::{DestagedComparison, WaitingBlocks, content_ids, samples_at, waiting_in_memory};
use engine::{Backing, BlockNo, VolumeId};
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;
use seam::{Disk, Nanos, Seam};
use state::{ContentRecord, Evidence, UndestagedBlocks, end_block, sampled_blocks, show_samples};

use super::data_core::Local;
use super::{Cores, core_ended};

/// Volumes that a core examines concurrently.
const EXAMINED_MAX: usize = 32;
/// Time-out for reading a backing and the map of clean pages.
const TIMEOUT: Nanos = Nanos::from_secs(60);

/// A volume whose backing is open.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The core that opened it.
    pub core: usize,
    /// Its key in the core's map of open backings.
    pub number: u64,
    /// The incarnation that the backing has had so far; `None` for a new backing.
    pub incarnation: Option<VolumeId>,
    /// The backing's size when it was served last, where that is known.
    pub size_before: Option<u64>,
    /// The store's record of destaged blocks is valid: the store was open whenever the volume was served.
    pub trusts_store: bool,
}

impl Cores {
    /// Blocks that wait to be destaged, of every volume that is not served yet.
    pub async fn waiting(&self) -> Result<BTreeMap<VolumeId, UndestagedBlocks>, Failure> {
        let mut all: BTreeMap<VolumeId, UndestagedBlocks> = BTreeMap::new();
        for core in self.iter() {
            let collect = async |local: Rc<Local>| {
                let in_log = local.engine.unclaimed().into_iter();
                let in_log: Vec<_> =
                    in_log.map(|one| (one, local.engine.waiting_in_log(one, BlockNo::MAX).blocks)).collect();
                let files = local.memory_images.borrow();
                let owners = files.iter().flat_map(|file| file.owners());
                let in_memory: Vec<_> =
                    owners.map(VolumeId).map(|one| (one, in_memory(&local, one, BlockNo::MAX).blocks)).collect();
                (in_log, in_memory)
            };
            let (in_log, in_memory) = core.call(collect).await.map_err(core_ended)?;
            in_log.into_iter().for_each(|(one, blocks)| all.entry(one).or_default().in_log = blocks);
            in_memory.into_iter().for_each(|(one, blocks)| all.entry(one).or_default().in_memory = blocks);
        }
        all.retain(|_, waiting| *waiting != UndestagedBlocks::default());
        Ok(all)
    }

    /// Examines the content of these backings, in their order.
    pub async fn evidence(&self, subjects: &[Option<Subject>]) -> Vec<Option<Result<Evidence, Failure>>> {
        let mut results: Vec<Option<Result<Evidence, Failure>>> = subjects.iter().map(|_| None).collect();
        for core in self.iter() {
            let on_core = subjects.iter().enumerate().filter_map(|(at, subject)| Some((at, (*subject)?)));
            let (places, on_core): (Vec<usize>, Vec<Subject>) =
                on_core.filter(|(_, subject)| subject.core == core.index()).unzip();
            if on_core.is_empty() {
                continue;
            }
            let examine_all = async move |local: Rc<Local>| {
                let each = on_core.into_iter().map(|subject| examine_with_timeout(local.clone(), subject));
                stream::iter(each).buffered(EXAMINED_MAX).collect::<Vec<_>>().await
            };
            match core.call(examine_all).await {
                Ok(each) => places.into_iter().zip(each).for_each(|(at, one)| results[at] = Some(one)),
                Err(error) => {
                    let failure = core_ended(error);
                    places.into_iter().for_each(|at| results[at] = Some(Err(failure.clone())));
                }
            }
        }
        results
    }
}

/// A volume's blocks in persisted memory, from the oldest file that has any.
fn in_memory(local: &Local, incarnation: VolumeId, end: BlockNo) -> WaitingBlocks {
    let files = local.memory_images.borrow();
    let left = files.iter().find_map(|file| file.image_of(incarnation.0));
    left.map_or_else(WaitingBlocks::default, |left| waiting_in_memory(&left, end))
}

async fn examine_with_timeout(local: Rc<Local>, subject: Subject) -> Result<Evidence, Failure> {
    let Some(backing) =
        local.opened.borrow().get(&subject.number).map(|backing| Backing { disk: backing.disk.clone() })
    else {
        return Err(Failure::new(ErrorKind::Failed, "the backing was closed meanwhile"));
    };
    let name = backing.disk.identity();
    let examining = pin!(examine(&local, backing, subject));
    let timeout = pin!(local.seam.sleep(TIMEOUT));
    match select(examining, timeout).await {
        Either::Left((evidence, _)) => Ok(evidence),
        Either::Right(_) => {
            let text = format!("its backing ({name}) does not answer: its content could not be read within {TIMEOUT}");
            Err(Failure::new(ErrorKind::Failed, text))
        }
    }
}

async fn examine(local: &Local, backing: Backing<RealSeam>, subject: Subject) -> Evidence {
    let size_bytes = backing.disk.geometry().size_bytes;
    let end = end_block(size_bytes, subject.size_before);
    let (in_log, in_memory) = match subject.incarnation {
        Some(incarnation) => (local.engine.waiting_in_log(incarnation, end), in_memory(local, incarnation, end)),
        None => Default::default(),
    };
    let has_dirty = in_log.blocks + in_memory.blocks > 0;
    let destaged = match subject.incarnation.filter(|_| has_dirty && subject.trusts_store) {
        Some(incarnation) => local.engine.compare_destaged(incarnation, &backing).await,
        None => DestagedComparison::default(),
    };
    let size_before = subject.size_before.filter(|before| *before != size_bytes && has_dirty);
    let samples_before = match size_before {
        Some(before) => Some(samples(local, &backing, before).await),
        None => None,
    };
    Evidence {
        is_unique: backing.disk.is_identity_unique(),
        content: ContentRecord {
            size_bytes,
            instance: backing.disk.instance(),
            ids: content_ids(&local.seam, &backing).await,
            samples: samples(local, &backing, size_bytes).await,
            destaged: 0,
        },
        samples_before,
        blocks_in_log: in_log.blocks,
        blocks_in_memory: in_memory.blocks,
        blocks_past_end: in_log.past_end + in_memory.past_end,
        destaged_found: destaged.matching,
        destaged_missing: destaged.different,
    }
}

/// Samples at the places for a backing of `size_bytes`, as the state directory stores them.
async fn samples(local: &Local, backing: &Backing<RealSeam>, size_bytes: u64) -> String {
    show_samples(&samples_at(&local.seam, backing, &sampled_blocks(size_bytes)).await)
}
