//! Clients of a store: writers with overwrites, zeroes, tombstones, reads, and destage when the log is full.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::{BlockAddress, BlockNo, Content, Epoch, Record, Store, StoreError, VolumeId};
use seam::sim::{Rng, SimSeam};
use seam::{BlockMut, Nanos, Seam};

use crate::model::{BlockContent, LogModel};

/// Number of blocks in each volume.
const BLOCKS: u64 = 8;

/// The clients of an open store, and their model.
#[derive(Clone)]
pub struct Workload {
    pub seam: SimSeam,
    pub store: Store<SimSeam>,
    pub model: Rc<RefCell<LogModel>>,
    /// The first error.
    pub first_error: Rc<RefCell<Option<String>>>,
    /// Consecutive appends that found the log full although no record is live. A few are normal while a read or another
    /// append is in flight.
    pub full_without_live_record: Rc<Cell<u32>>,
}

/// More consecutive full appends without a live record than this are an error.
const FULL_WITHOUT_LIVE_RECORD_MAX: u32 = 20;

impl Workload {
    /// Runs `writers` clients with `steps` each, and returns when all are done.
    pub async fn run(&self, seed: u64, writers: u64, steps: u64) {
        let running = Rc::new(Cell::new(writers));
        for writer in 0..writers {
            let (workload, running) = (self.clone(), Rc::clone(&running));
            self.seam.spawn(async move {
                let rng = Rng::new(seed, 100 + writer);
                for _ in 0..steps {
                    if workload.step(writer, &rng).await.is_err() {
                        break;
                    }
                }
                running.set(running.get() - 1);
            });
        }
        while running.get() > 0 {
            self.seam.sleep(Nanos::from_micros(50)).await;
        }
    }

    async fn step(&self, writer: u64, rng: &Rng) -> Result<(), StoreError> {
        match rng.below(10) {
            0 => self.read(rng).await,
            1 => {
                self.destage();
                Ok(())
            }
            _ => self.write(writer, rng).await,
        }
    }

    /// Retires the oldest live record.
    pub fn destage(&self) {
        let position = self.model.borrow_mut().destage_oldest();
        self.store.retire(position.as_slice());
    }

    async fn write(&self, writer: u64, rng: &Rng) -> Result<(), StoreError> {
        let mut records = Vec::new();
        let mut numbers = Vec::new();
        for _ in 0..1 + rng.below(3) {
            // A quarter of the records go to volume 7, which all writers share.
            let volume_id = VolumeId(if rng.below(4) == 0 { 7 } else { 1 + writer });
            let address = BlockAddress { volume_id, block: BlockNo(rng.below(BLOCKS)) };
            let blocks = (1 + rng.below(BLOCKS - address.block.0)) as u32;
            let (content, blocks, expected) = match rng.below(8) {
                0 => (Content::Zero { blocks, may_unmap: true }, blocks, BlockContent::Zero),
                1 => (Content::Tombstone { blocks }, blocks, BlockContent::Absent),
                _ => {
                    let tag = self.model.borrow_mut().tag();
                    let mut block = self.seam.alloc().expect("the pool has a free buffer");
                    (0..8).for_each(|sector| block.set_tag(sector, tag));
                    (Content::Data(block.freeze()), 1, BlockContent::Data(tag))
                }
            };
            numbers.push(self.model.borrow_mut().submit(address, blocks, expected));
            records.push(Record { address, epoch: Epoch(1), content });
        }
        match self.store.append(records).await {
            Ok(positions) => {
                self.full_without_live_record.set(0);
                for (number, position) in numbers.into_iter().zip(positions) {
                    let dead = self.model.borrow_mut().ack(number, position);
                    self.store.retire(&dead);
                }
                Ok(())
            }
            Err(StoreError::Full) => {
                numbers.into_iter().for_each(|number| self.model.borrow_mut().mark_unwritten(number));
                if self.model.borrow().live() == 0 {
                    self.full_without_live_record.set(self.full_without_live_record.get() + 1);
                    if self.full_without_live_record.get() > FULL_WITHOUT_LIVE_RECORD_MAX {
                        self.report("the log is full without a live record".to_owned());
                    }
                    self.seam.sleep(Nanos::from_millis(1)).await;
                }
                self.destage();
                self.destage();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn read(&self, rng: &Rng) -> Result<(), StoreError> {
        let Some((address, position, tag)) = self.model.borrow().readable(rng.next()) else { return Ok(()) };
        let buffer = self.seam.alloc().expect("the pool has a free buffer");
        let read = self.store.read(address, position, buffer).await;
        // A block that was retired meanwhile may read as anything.
        if self.model.borrow().is_current(address, tag) {
            match read {
                Ok(block) if block.tags() != [tag; 8] => {
                    self.report(format!("{address:?} reads as {:x?}", block.tags()))
                }
                Err(error) => self.report(error.to_string()),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    fn report(&self, error: String) {
        self.first_error.borrow_mut().get_or_insert(error);
    }
}
