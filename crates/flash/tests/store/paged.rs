//! A workload of clean pages, with a model of the backing. It puts and reads pages, writes to the backing with and
//! without flushes, and destages blocks. Its log takes segments and returns them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use flash::{
    BlockAddress, BlockNo, CompletionNo, Content, Epoch, PageNo, Pages, Position, Record, Store, StoreError, VolumeId,
    VolumePages,
};
use seam::sim::{Rng, SimBlock, SimSeam};
use seam::{Block, Nanos, Seam};

use crate::pages::block_with_tag;

/// Volumes that have pages.
pub const VOLUMES: u64 = 2;
/// Number of pages of each volume: the first few of two regions.
const PAGES: u64 = 6;
/// The volume whose blocks are in the log.
const LOGGED: u64 = 99;

/// The number in the volume of one of the test's pages.
fn page_number(page: u64) -> PageNo {
    PageNo(page % 3 + page / 3 * 64)
}

/// One block of a backing.
#[derive(Clone, Debug, Default)]
pub struct BackingBlock {
    durable: u64,
    /// Writes that no flush has covered, in order, with their completion number, or `None` while they are in flight.
    unflushed: Vec<(u64, Option<u64>)>,
    /// The newest content is only in the cache's memory.
    dirty: bool,
}

impl BackingBlock {
    fn is_clean(&self) -> bool {
        !self.dirty && self.unflushed.is_empty()
    }

    /// Every content that the block may have after a crash at this moment.
    fn possible(&self) -> Vec<u64> {
        std::iter::once(self.durable).chain(self.unflushed.iter().map(|(tag, _)| *tag)).collect()
    }
}

/// The backings' content, by volume and block.
#[derive(Clone, Debug, Default)]
pub struct Backing {
    blocks: BTreeMap<(u64, u64), BackingBlock>,
    tags: u64,
    sequences: BTreeMap<u64, u64>,
}

impl Backing {
    fn get(&self, volume: u64, block: u64) -> BackingBlock {
        self.blocks.get(&(volume, block)).cloned().unwrap_or_default()
    }

    fn get_mut(&mut self, volume: u64, block: u64) -> &mut BackingBlock {
        self.blocks.entry((volume, block)).or_default()
    }

    fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags << 20 | 0x9a6
    }

    fn next_sequence(&mut self, volume: u64) -> u64 {
        let sequence = self.sequences.entry(volume).or_insert(1);
        *sequence += 1;
        *sequence - 1
    }

    /// After a crash each block has one of its possible contents, and the owner has flushed it.
    pub fn decide_contents(&mut self, rng: &Rng) {
        for held in self.blocks.values_mut() {
            let possible = held.possible();
            *held = BackingBlock {
                durable: possible[rng.below(possible.len() as u64) as usize],
                ..BackingBlock::default()
            };
        }
    }

    /// Checks that the content of a served block is the only possible content of the backing.
    fn check(&self, volume: u64, number: u64, tag: u64, context: &str) -> Result<(), String> {
        let held = self.get(volume, number);
        let same = held.possible().iter().all(|possible| *possible == tag);
        let text = || format!("{context}: block {number} of volume {volume} is {tag:x}, the backing has {held:x?}");
        if same { Ok(()) } else { Err(text()) }
    }
}

/// The clients of an open store with pages, and the model of their backings.
#[derive(Clone)]
pub struct PagedWorkload {
    pub seam: SimSeam,
    pub store: Store<SimSeam>,
    pub pages: Pages<SimSeam>,
    pub backing: Rc<RefCell<Backing>>,
    pub first_error: Rc<RefCell<Option<String>>>,
    /// Positions of the records in the log.
    pub logged: Rc<RefCell<Vec<Position>>>,
}

impl PagedWorkload {
    /// Runs `workers` clients with `steps` each, and returns when all are done.
    pub async fn run(&self, seed: u64, workers: u64, steps: u64) {
        let running = Rc::new(Cell::new(workers));
        for worker in 0..workers {
            let (workload, running) = (self.clone(), Rc::clone(&running));
            self.seam.spawn(async move {
                let rng = Rng::new(seed, 300 + worker);
                for _ in 0..steps {
                    workload.step(&rng).await;
                }
                running.set(running.get() - 1);
            });
        }
        while running.get() > 0 {
            self.seam.sleep(Nanos::from_micros(100)).await;
        }
    }

    async fn step(&self, rng: &Rng) {
        let volume = 1 + rng.below(VOLUMES);
        let volume_pages = self.pages.volume(VolumeId(volume));
        match rng.below(32) {
            0..9 => self.put(&volume_pages, volume, rng).await,
            9..17 => self.read(&volume_pages, volume, rng).await,
            17..25 => self.write(&volume_pages, volume, rng).await,
            25..28 => self.flush(&volume_pages, volume).await,
            28..30 => self.log(rng).await,
            30 => self.pause(rng).await,
            _ if rng.below(6) == 0 => drop(self.pages.remove_volume(VolumeId(volume)).await),
            _ => self.resolve_suspects(&volume_pages, volume).await.unwrap_or_else(|error| self.report(error)),
        }
    }

    async fn pause(&self, rng: &Rng) {
        let times = [Nanos::from_millis(5), Nanos::from_millis(1_100), Nanos::from_millis(11_000)];
        self.seam.sleep(times[rng.below(3) as usize]).await;
    }

    /// Puts some of a page's blocks, those that are clean.
    async fn put(&self, volume_pages: &VolumePages<SimSeam>, volume: u64, rng: &Rng) {
        let page = page_number(rng.below(PAGES));
        let requested = if rng.coin() { 0xffff } else { rng.next() as u16 };
        let mut blocks = Vec::new();
        for number in (0..16).filter(|number| requested >> number & 1 == 1) {
            let held = self.backing.borrow().get(volume, page.first_block().0 + u64::from(number));
            if held.is_clean() {
                blocks.push((number, block_with_tag(&self.seam, held.durable)));
            }
        }
        if blocks.is_empty() {
            return;
        }
        let before = blocks.iter().fold(0, |mask, (number, _)| mask | 1 << number);
        if let Ok(mask) = volume_pages.put(page, blocks).await
            && mask & !before != 0
        {
            self.report(format!("{mask:x} of {before:x} were put"));
        }
        if rng.coin() {
            volume_pages.touch(page);
        }
    }

    /// Reads trusted blocks, which must equal the backing.
    async fn read(&self, volume_pages: &VolumePages<SimSeam>, volume: u64, rng: &Rng) {
        let page = page_number(rng.below(PAGES));
        let start = rng.below(16) as u32;
        let run = start..start + 1 + rng.below(u64::from(16 - start)) as u32;
        for (number, found) in read_run(&self.seam, volume_pages, page, run, false).await {
            let number = page.first_block().0 + u64::from(number);
            let held = self.backing.borrow().get(volume, number);
            if held.dirty {
                self.report(format!("block {number} of volume {volume} is served although it was written"));
            }
            if let Err(error) = self.backing.borrow().check(volume, number, found, "read") {
                self.report(error);
            }
        }
    }

    /// A client's write, and its destage to the backing.
    async fn write(&self, volume_pages: &VolumePages<SimSeam>, volume: u64, rng: &Rng) {
        let first = page_number(rng.below(PAGES)).first_block().0 + rng.below(16);
        let blocks = first..first + 1 + rng.below(4);
        {
            let mut backing = self.backing.borrow_mut();
            let busy = |block: u64| {
                let held = backing.get(volume, block);
                held.dirty || held.unflushed.iter().any(|(_, number)| number.is_none())
            };
            if blocks.clone().any(busy) {
                return;
            }
            blocks.clone().for_each(|block| backing.get_mut(volume, block).dirty = true);
        }
        let range = BlockNo(blocks.start)..BlockNo(blocks.end);
        volume_pages.invalidate(range.clone());
        if rng.coin() {
            self.seam.sleep(Nanos::from_micros(rng.below(3_000))).await;
        }
        let intent = volume_pages.begin_write(range).await;
        let tag = self.backing.borrow_mut().tag();
        for block in blocks.clone() {
            let mut backing = self.backing.borrow_mut();
            let held = backing.get_mut(volume, block);
            held.dirty = false;
            held.unflushed.push((tag, None));
        }
        self.seam.sleep(Nanos::from_micros(rng.below(2_000))).await;
        let sequence = self.backing.borrow_mut().next_sequence(volume);
        for block in blocks {
            let mut backing = self.backing.borrow_mut();
            let held = backing.get_mut(volume, block);
            let written = held.unflushed.iter_mut().find(|(other, _)| *other == tag);
            written.expect("a write ends once").1 = Some(sequence);
        }
        volume_pages.end_write(intent, CompletionNo(sequence));
    }

    /// Flushes a backing.
    async fn flush(&self, volume_pages: &VolumePages<SimSeam>, volume: u64) {
        let covered = *self.backing.borrow_mut().sequences.entry(volume).or_insert(1);
        self.seam.sleep(Nanos::from_micros(300)).await;
        let mut destaged = Vec::new();
        for ((_, block), held) in self.backing.borrow_mut().blocks.range_mut((volume, 0)..(volume + 1, 0)) {
            let durable = |sequence: &Option<u64>| sequence.is_some_and(|sequence| sequence < covered);
            for (tag, _) in held.unflushed.extract_if(.., |(_, sequence)| durable(sequence)) {
                held.durable = tag;
                destaged.push(*block);
            }
        }
        volume_pages.record_flush(CompletionNo(covered));
        for number in destaged {
            let held = self.backing.borrow().get(volume, number);
            if held.is_clean() {
                volume_pages.record_destaged(BlockNo(number), &block_with_tag(&self.seam, held.durable));
            }
        }
    }

    /// Fills the log, or empties it.
    async fn log(&self, rng: &Rng) {
        if rng.below(4) == 0 {
            let positions = std::mem::take(&mut *self.logged.borrow_mut());
            return self.store.retire(&positions);
        }
        for _ in 0..1 + rng.below(6) {
            let record = |number: u64| Record {
                address: BlockAddress { volume_id: VolumeId(LOGGED), block: BlockNo(rng.below(1 << 20)) },
                epoch: Epoch(1),
                content: Content::Data(block_with_tag(&self.seam, number)),
            };
            let records = (0..1 + rng.below(20)).map(record).collect();
            match self.store.append(records).await {
                Ok(positions) => self.logged.borrow_mut().extend(positions),
                Err(StoreError::Full) => {
                    let positions = std::mem::take(&mut *self.logged.borrow_mut());
                    self.store.retire(&positions);
                }
                Err(_) => return,
            }
        }
    }

    /// Compares suspect pages with the backing.
    async fn resolve_suspects(&self, volume_pages: &VolumePages<SimSeam>, volume: u64) -> Result<(), String> {
        for page in (0..PAGES).map(page_number) {
            resolve_suspect_page(&self.seam, volume_pages, volume, page, &self.backing).await;
        }
        Ok(())
    }

    fn report(&self, error: String) {
        self.first_error.borrow_mut().get_or_insert(error);
    }
}

/// Reads a run of blocks of a page. Returns the good ones.
async fn read_run(
    seam: &SimSeam,
    volume_pages: &VolumePages<SimSeam>,
    page: PageNo,
    run: Range<u32>,
    suspect: bool,
) -> Vec<(u32, u64)> {
    let buffers = run.clone().map(|_| seam.alloc().expect("the pool has a free buffer")).collect();
    let read = if suspect {
        volume_pages.read_suspect(page, run.clone(), buffers).await
    } else {
        volume_pages.read(page, run.clone(), buffers).await
    };
    let tag = |block: SimBlock| block.tags();
    let whole = |tags: [u64; 8]| if tags == [tags[0]; 8] { tags[0] } else { u64::MAX };
    run.zip(read).filter_map(|(number, block)| Some((number, whole(tag(block.ok()?))))).collect()
}

async fn resolve_suspect_page(
    seam: &SimSeam,
    volume_pages: &VolumePages<SimSeam>,
    volume: u64,
    page: PageNo,
    backing: &RefCell<Backing>,
) {
    let suspect = volume_pages.suspect_blocks(page);
    if suspect == 0 {
        return;
    }
    let mut good = 0;
    for (number, tag) in read_run(seam, volume_pages, page, 0..16, true).await {
        let held = backing.borrow().get(volume, page.first_block().0 + u64::from(number));
        if held.is_clean() && held.durable == tag {
            good |= 1 << number;
        }
    }
    volume_pages.resolve_suspect(page, good);
}

/// Checks after a restart that all served blocks equal the backing, for each of its possible contents. With
/// `is_undamaged` no device has had a silent fault, so every block in the map must be readable. Returns the numbers of
/// served and of suspect blocks.
pub async fn check_all(
    seam: &SimSeam,
    pages: &Pages<SimSeam>,
    backing: &Backing,
    rng: &Rng,
    is_undamaged: bool,
) -> Result<(u64, u64), String> {
    let (mut served, mut suspects) = (0, 0);
    for volume in 1..=VOLUMES {
        let volume_pages = pages.volume(VolumeId(volume));
        for page in (0..PAGES).map(page_number) {
            suspects += u64::from(volume_pages.suspect_blocks(page).count_ones());
            let valid = volume_pages.valid_blocks(page);
            let read = read_run(seam, &volume_pages, page, 0..16, false).await;
            if is_undamaged && read.len() as u32 != valid.count_ones() {
                return Err(format!(
                    "of page {page} of volume {volume} {valid:x} is valid, and only {read:x?} can be read"
                ));
            }
            for (number, tag) in read {
                served += 1;
                backing.check(volume, page.first_block().0 + u64::from(number), tag, "after a restart")?;
            }
        }
        for (number, checksum) in volume_pages.recent_writes() {
            let possible = backing.get(volume, number.0).possible();
            let same = possible.iter().all(|tag| block_with_tag(seam, *tag).checksum(0) == checksum);
            if !same {
                return Err(format!(
                    "block {number} of volume {volume} is recorded as destaged, the backing may have {possible:x?}"
                ));
            }
        }
    }
    // Once the content of the backing is decided, suspect pages can be compared with it.
    let decided = RefCell::new(backing.clone());
    decided.borrow_mut().decide_contents(rng);
    for volume in 1..=VOLUMES {
        let volume_pages = pages.volume(VolumeId(volume));
        for page in (0..PAGES).map(page_number) {
            resolve_suspect_page(seam, &volume_pages, volume, page, &decided).await;
            for (number, tag) in read_run(seam, &volume_pages, page, 0..16, false).await {
                decided.borrow().check(
                    volume,
                    page.first_block().0 + u64::from(number),
                    tag,
                    "after suspects were resolved",
                )?;
            }
        }
    }
    Ok((served, suspects))
}
