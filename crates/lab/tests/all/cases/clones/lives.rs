//! Random lives of a master and three clones, held against a model: concurrent reads, writes, discards, snapshots, roll
//! backs, new clones, moves and crashes, with memory for a small part of the volumes.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::spec::Sabotage;
use engine::{AdmissionRule, ByteOffset, CoreSpec, Volume, WriteFlags, ZeroFlags};
use lab::content::tags;
use lab::fixture::{read, write};
use lab::random::Random;
use pool::{GroupNo, SliceAddress, SliceNo, unpaced};
use seam::sim::{SimBlock, SimSeam};
use seam::{Disk, Nanos, Piece, Seam};

use super::{BLOCK_SECTORS, Family, SLICE_BLOCKS, Work};

const SLICES: u64 = 4;
const BLOCKS: u64 = SLICES * SLICE_BLOCKS;
const SECTORS: u64 = BLOCKS * BLOCK_SECTORS;
const NAMES: [&str; 4] = ["master", "c1", "c2", "c3"];
/// Steps of a life.
const STEPS: u64 = 60;
const SNAPSHOTS_MAX: usize = 6;
/// Lives of a run, and lives within which a sabotage must be caught.
const SEEDS: u64 = 24;

/// Expected content of a volume.
#[derive(Clone)]
struct Model {
    /// Tag of each sector.
    now: Vec<u64>,
    /// Tags of each sector since the last flush, the flushed one first: a crash may leave any of them.
    since_flush: Vec<Vec<u64>>,
}

impl Model {
    fn new(now: Vec<u64>) -> Model {
        let since_flush = now.iter().map(|tag| vec![*tag]).collect();
        Model { now, since_flush }
    }

    fn set(&mut self, first: u64, count: u64, tag: u64) {
        for sector in first as usize..(first + count) as usize {
            self.now[sector] = tag;
            self.since_flush[sector].push(tag);
        }
    }

    fn flush(&mut self) {
        *self = Model::new(std::mem::take(&mut self.now));
    }
}

struct Snapshot {
    id: pool::VolumeId,
    of: &'static str,
    content: Vec<u64>,
}

struct Life {
    family: Family,
    random: Random,
    volumes: BTreeMap<&'static str, (Volume<SimSeam>, Model)>,
    snapshots: Vec<Snapshot>,
    next_tag: u64,
    seed: u64,
    memory: usize,
    /// Bytes that siblings served, of volumes that are detached.
    sibling_read_bytes: u64,
}

/// A failed expectation; a sabotage is caught by one.
type Checked = Result<(), String>;

/// Reads a range and compares it with the model's content.
async fn check(volume: &Volume<SimSeam>, expected: &[u64], first: u64, count: u64) -> Checked {
    let found = read(volume, first, count).await.map_err(|error| error.to_string())?;
    let expected = &expected[first as usize..(first + count) as usize];
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!(
            "sector {} of {} has the tag {}, not {}",
            first + at as u64,
            volume.name(),
            found[at],
            expected[at]
        )),
    }
}

impl Life {
    fn new(seed: u64, sabotage: Sabotage) -> Life {
        let mut random = Random::new(seed, 1);
        let memory = random.pick(&[160, 400, 4_096]);
        let readahead_max_bytes = random.pick(&[0, 64 << 10]);
        let core =
            CoreSpec { sabotage, readahead_max_bytes, admission: AdmissionRule::ThirdTouch, ..CoreSpec::default() };
        let family = Family::new(seed, core, memory, SLICES);
        let mut life = Life {
            family,
            random,
            volumes: BTreeMap::new(),
            snapshots: Vec::new(),
            next_tag: 1,
            seed,
            memory,
            sibling_read_bytes: 0,
        };
        let master = life.family.run(life.family.attach("master"));
        life.volumes.insert("master", (master, Model::new(vec![0; SECTORS as usize])));
        for _ in 0..12 {
            life.write("master", 64).expect("the pool has room");
        }
        for name in &NAMES[1..] {
            life.snapshot("master", false).expect("sound disks");
            life.clone_from(life.snapshots.len() - 1, name).expect("sound disks");
        }
        life
    }

    fn range(&mut self, blocks_max: u64) -> (u64, u64) {
        let count = self.random.between(1, blocks_max * BLOCK_SECTORS);
        let whole = self.random.percent(70);
        let first = self.random.between(0, SECTORS - count);
        if whole && first / 8 * 8 + count.next_multiple_of(8) <= SECTORS {
            return (first / 8 * 8, count.next_multiple_of(8));
        }
        (first, count)
    }

    /// Reads of all volumes but one, which run beside a change of that one.
    fn readers(&mut self, changed: &str, failures: &Rc<std::cell::RefCell<Vec<String>>>) -> Vec<Work> {
        let mut works: Vec<Work> = Vec::new();
        for name in NAMES.into_iter().filter(|name| *name != changed) {
            let ranges: Vec<(u64, u64)> = (0..4).map(|_| self.range(24)).collect();
            let Some((volume, model)) = self.volumes.get(name) else { continue };
            let (volume, content, failures) = (volume.clone(), model.now.clone(), Rc::clone(failures));
            works.push(Box::pin(async move {
                for (first, count) in ranges {
                    if let Err(failure) = check(&volume, &content, first, count).await {
                        failures.borrow_mut().push(failure);
                    }
                }
            }));
        }
        works
    }

    /// Runs a change of a volume beside reads of the others.
    fn beside_reads(&mut self, changed: &str, change: Work) -> Checked {
        let failures = Rc::default();
        let mut works = self.readers(changed, &failures);
        works.push(change);
        self.family.run(self.family.at_once(works));
        failures.borrow().first().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn write(&mut self, name: &'static str, blocks_max: u64) -> Checked {
        let ((first, count), tag) = (self.range(blocks_max), self.next_tag);
        self.next_tag += 1;
        let (destages, seam) = (self.random.percent(40), self.family.fixture.seam.clone());
        let pause = Nanos::from_micros(self.random.between(0, 600));
        let (volume, model) = self.volumes.get_mut(name).expect("it is attached");
        model.set(first, count, tag);
        if destages {
            model.flush();
        }
        let volume = volume.clone();
        self.beside_reads(
            name,
            Box::pin(async move {
                seam.sleep(pause).await;
                write(&volume, first, count, tag).await.expect("the pool has room");
                if destages {
                    volume.destage_all().await.expect("the pool has room");
                }
            }),
        )
    }

    fn zero(&mut self, name: &'static str) -> Checked {
        let (first, count) = match self.random.percent(50) {
            true => (self.random.below(SLICES) * SLICE_BLOCKS * 8, SLICE_BLOCKS * 8),
            false => self.range(80),
        };
        let discards = self.random.percent(50);
        let (volume, model) = self.volumes.get_mut(name).expect("it is attached");
        model.set(first, count, 0);
        let volume = volume.clone();
        self.beside_reads(
            name,
            Box::pin(async move {
                let (at, len) = (ByteOffset(first * 512), count * 512);
                let done = match discards {
                    true => volume.discard(at, len, WriteFlags::default()).await,
                    false => volume.zero(at, len, ZeroFlags::default()).await,
                };
                done.expect("the pool has room");
            }),
        )
    }

    fn flush(&mut self, name: &'static str) -> Checked {
        let destages = self.random.percent(50);
        let (volume, model) = self.volumes.get_mut(name).expect("it is attached");
        model.flush();
        let volume = volume.clone();
        self.beside_reads(
            name,
            Box::pin(async move {
                let done = if destages { volume.destage_all().await } else { volume.flush().await };
                done.expect("the pool has room");
            }),
        )
    }

    /// A snapshot as the daemon makes it, or `beside_dirty` data: of what the pool has, with the cache left as it is.
    fn snapshot(&mut self, name: &'static str, beside_dirty: bool) -> Checked {
        let label = format!("s{}", self.next_tag);
        self.next_tag += 1;
        let (volume, model) = self.volumes.get_mut(name).expect("it is attached");
        let family = &self.family;
        let (id, content) = family.run(async {
            if !beside_dirty {
                let id = family.snapshot(volume, &label).await;
                model.flush();
                return (id, model.now.clone());
            }
            let number = family.pool.volume_named(name).expect("it exists");
            let id = family.pool.create_snapshot(number, &label, 0).await.expect("sound disks");
            (id, stored(family, id).await)
        });
        self.snapshots.push(Snapshot { id, of: name, content });
        Ok(())
    }

    fn clone_from(&mut self, snapshot: usize, name: &'static str) -> Checked {
        let Snapshot { id, content, .. } = &self.snapshots[snapshot];
        let volume = self.family.run(self.family.clone_of(*id, name));
        self.volumes.insert(name, (volume, Model::new(content.clone())));
        Ok(())
    }

    fn detach(&mut self, name: &'static str) -> Volume<SimSeam> {
        let (volume, _) = self.volumes.remove(name).expect("it is attached");
        self.sibling_read_bytes += volume.stats().sibling_read_bytes;
        volume
    }

    fn roll_back(&mut self, snapshot: usize) -> Checked {
        let Snapshot { id, of, content } = &self.snapshots[snapshot];
        let (id, name, content) = (*id, *of, content.clone());
        let volume = self.detach(name);
        let volume = self.family.run(self.family.roll_back(volume, id));
        self.volumes.insert(name, (volume, Model::new(content)));
        Ok(())
    }

    /// Deletes the snapshots of a clone and the clone, and makes a new one of the same name.
    fn replace_clone(&mut self, name: &'static str) -> Checked {
        self.delete_snapshots(name);
        drop(self.detach(name));
        self.family.run(self.family.delete(name));
        let Some(last) = self.snapshots.len().checked_sub(1) else {
            self.snapshot("master", false)?;
            return self.clone_from(0, name);
        };
        let snapshot = self.random.between(0, last as u64) as usize;
        self.clone_from(snapshot, name)
    }

    fn delete_snapshots(&mut self, name: &str) {
        for snapshot in self.snapshots.iter().filter(|snapshot| snapshot.of == name) {
            self.family.run(self.family.pool.delete_snapshot(snapshot.id)).expect("sound disks");
        }
        self.snapshots.retain(|snapshot| snapshot.of != name);
    }

    fn move_slice(&mut self, name: &'static str) -> Checked {
        let (pool, volume) = (&self.family.pool, self.family.pool.volume_named(name).expect("it exists"));
        let slice = SliceAddress { volume, slice: SliceNo(self.random.below(SLICES) as u32) };
        let Some(group) = pool.group_of(slice) else { return Ok(()) };
        let pool = pool.clone();
        self.beside_reads(
            "none",
            Box::pin(async move {
                // A full tier refuses it.
                drop(pool.move_slice(slice, GroupNo(1 - group.0), unpaced()).await);
            }),
        )
    }

    fn crash(mut self) -> Result<Life, String> {
        let models: Vec<(&'static str, Model)> =
            std::mem::take(&mut self.volumes).into_iter().map(|(name, (_, model))| (name, model)).collect();
        let seed = self.seed * 1_000 + self.next_tag;
        self.family = self.family.crash(seed, self.memory);
        for (name, model) in models {
            let volume = self.family.run(self.family.attach(name));
            let found = self.family.run(read_all(&volume)).map_err(|error| error.to_string())?;
            for (sector, tag) in found.iter().enumerate() {
                let possible = &model.since_flush[sector];
                if !possible.contains(tag) {
                    return Err(format!("after a crash, sector {sector} of {name} has the tag {tag} of {possible:?}"));
                }
            }
            self.volumes.insert(name, (volume, Model::new(found)));
        }
        Ok(self)
    }

    fn check_all(&self) -> Checked {
        for (volume, model) in self.volumes.values() {
            for first in (0..SECTORS).step_by(128) {
                self.family.run(check(volume, &model.now, first, 128.min(SECTORS - first)))?;
            }
        }
        for snapshot in &self.snapshots {
            let found = self.family.run(stored(&self.family, snapshot.id));
            if found != snapshot.content {
                return Err(format!("a snapshot of {} has changed", snapshot.of));
            }
        }
        Ok(())
    }

    fn live(mut self) -> Result<u64, String> {
        for _ in 0..STEPS {
            let name = NAMES[self.random.below(4) as usize];
            match self.random.below(100) {
                0..45 => self.write(name, 16)?,
                45..55 => self.zero(name)?,
                55..65 => self.flush(name)?,
                65..75 if self.snapshots.len() < SNAPSHOTS_MAX => {
                    let beside_dirty = self.random.percent(50);
                    self.snapshot(name, beside_dirty)?;
                }
                75..80 if !self.snapshots.is_empty() => {
                    let snapshot = self.random.below(self.snapshots.len() as u64) as usize;
                    self.roll_back(snapshot)?;
                }
                80..88 if name != "master" => self.replace_clone(name)?,
                88..90 => self.delete_snapshots(name),
                90..95 => self.move_slice(name)?,
                95.. => self = self.crash()?,
                _ => self.check_all()?,
            }
        }
        self.check_all()?;
        // Slots that are being filled, or are released by the next commit, count as leaked.
        self.family.run(async {
            for (volume, _) in self.volumes.values() {
                volume.destage_all().await.expect("the pool has room");
            }
            self.family.pool.commit().await.expect("sound disks");
        });
        let findings = self.family.pool.check_open().findings;
        if !findings.is_empty() {
            return Err(format!("{findings:?}"));
        }
        let attached = self.volumes.values().map(|(volume, _)| volume.stats().sibling_read_bytes);
        Ok(self.sibling_read_bytes + attached.sum::<u64>())
    }
}

async fn read_all(volume: &Volume<SimSeam>) -> Result<Vec<u64>, engine::RequestError> {
    let mut found = Vec::new();
    for first in (0..SECTORS).step_by(128) {
        found.extend(read(volume, first, 128).await?);
    }
    Ok(found)
}

/// Content of a snapshot as the pool stores it.
async fn stored(family: &Family, snapshot: pool::VolumeId) -> Vec<u64> {
    let disk = family.pool.volume(snapshot).expect("it exists");
    let mut found = Vec::new();
    for block in 0..BLOCKS {
        let buffer = loop {
            match family.fixture.seam.alloc() {
                Some(buffer) => break buffer,
                // The cache holds all buffers.
                None => family.fixture.core.with_free_buffers(family.fixture.seam.sleep(Nanos(1))).await,
            }
        };
        let (result, pieces) = disk.read(block * 4096, vec![Piece::whole(buffer)]).await;
        result.expect("sound disks");
        let frozen: Vec<Piece<SimBlock>> =
            pieces.into_iter().map(|piece| Piece::whole(seam::BlockMut::freeze(piece.block))).collect();
        found.extend(tags(&frozen).into_iter().map(|tag| tag.0));
    }
    found
}

fn live(seed: u64, sabotage: Sabotage) -> Result<u64, String> {
    Life::new(seed, sabotage).live()
}

/// Seeds of the lives, from the environment if it has any.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let first = number("HOTSET_CLONE_FIRST_SEED").unwrap_or(0);
    first..first + number("HOTSET_CLONE_SEEDS").unwrap_or(SEEDS)
}

#[test]
fn random_lives_of_clones_keep_the_content_of_each() {
    let mut sibling_read_bytes = 0;
    for seed in seeds() {
        sibling_read_bytes += live(seed, Sabotage::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    assert!(sibling_read_bytes > 0, "no volume was served from the cache of another one");
}

fn assert_caught(sabotage: Sabotage) {
    let caught = seeds().any(|seed| std::panic::catch_unwind(|| live(seed, sabotage)).is_ok_and(|life| life.is_err()));
    assert!(caught, "{sabotage:?} was not caught in {SEEDS} lives");
}

#[test]
fn dirty_content_of_a_sibling_is_caught_by_random_lives() {
    assert_caught(Sabotage::ShareDirtyBlock);
}

#[test]
fn other_content_of_a_sibling_is_caught_by_random_lives() {
    assert_caught(Sabotage::ShareOtherContent);
}
