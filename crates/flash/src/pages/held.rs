//! A map of few pages in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::Seam;

use super::api::{MapLoaded, PAGE_BLOCKS, PagesStats, PutError};

/// Pages that fit.
const PAGES_MAX: usize = 8;
/// Destaged blocks that are remembered.
const RING: usize = 256;

type Key = (u64, u64);

struct Page<S: Seam> {
    blocks: [Option<S::Block>; PAGE_BLOCKS as usize],
    valid: u16,
    /// Being written: its blocks, of which an invalidation takes away.
    putting: u16,
}

/// A `put` under way.
pub struct Putting<S: Seam>(Key, Vec<(u32, S::Block)>);

pub struct Held<S: Seam> {
    pages: BTreeMap<Key, Page<S>>,
    ring: BTreeMap<u64, Vec<(u64, u32)>>,
    loaded: bool,
    abandoned: bool,
}

impl<S: Seam> Default for Held<S> {
    fn default() -> Self {
        Held { pages: BTreeMap::new(), ring: BTreeMap::new(), loaded: false, abandoned: false }
    }
}

impl<S: Seam> Held<S> {
    pub fn loaded(&mut self) -> MapLoaded {
        self.loaded = true;
        MapLoaded::default()
    }

    pub fn abandon(&mut self) {
        self.abandoned = true;
        self.pages.clear();
        self.ring.clear();
    }

    pub fn forget(&mut self, incarnation: u64) {
        self.pages.retain(|(owner, _), _| *owner != incarnation);
        self.ring.remove(&incarnation);
    }

    pub fn valid(&self, incarnation: u64, page: u64) -> u16 {
        self.pages.get(&(incarnation, page)).map_or(0, |page| page.valid)
    }

    pub fn block(&self, incarnation: u64, page: u64, block: u32) -> Option<S::Block> {
        let page = self.pages.get(&(incarnation, page))?;
        (page.valid >> block & 1 == 1).then(|| page.blocks[block as usize].clone())?
    }

    pub fn invalidate(&mut self, incarnation: u64, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let per_page = u64::from(PAGE_BLOCKS);
        let pages = (incarnation, blocks.start / per_page)..=(incarnation, (blocks.end - 1) / per_page);
        for ((_, number), page) in self.pages.range_mut(pages) {
            for block in 0..PAGE_BLOCKS {
                if blocks.contains(&(number * per_page + u64::from(block))) {
                    page.valid &= !(1 << block);
                    page.putting &= !(1 << block);
                    page.blocks[block as usize] = None;
                }
            }
        }
        if let Some(ring) = self.ring.get_mut(&incarnation) {
            ring.retain(|(block, _)| !blocks.contains(block));
        }
    }

    pub fn begin_put(
        &mut self,
        incarnation: u64,
        page: u64,
        blocks: Vec<(u32, S::Block)>,
    ) -> Result<Putting<S>, PutError> {
        if self.abandoned {
            return Err(PutError::Failed("the map of clean pages was given up".to_owned()));
        }
        let key = (incarnation, page);
        if !self.loaded || self.pages.get(&key).is_some_and(|page| page.putting != 0) {
            return Err(PutError::Busy);
        }
        if !self.pages.contains_key(&key) && self.pages.len() >= PAGES_MAX {
            let victim = self.pages.iter().find(|(_, page)| page.putting == 0).map(|(key, _)| *key);
            self.pages.remove(&victim.ok_or(PutError::Hot)?);
        }
        let page = self.pages.entry(key).or_insert_with(|| Page { blocks: Default::default(), valid: 0, putting: 0 });
        page.putting = blocks.iter().fold(0, |mask, (block, _)| mask | 1 << block);
        Ok(Putting(key, blocks))
    }

    pub fn end_put(&mut self, putting: Putting<S>) -> u16 {
        let Some(page) = self.pages.get_mut(&putting.0) else { return 0 };
        let taken = std::mem::take(&mut page.putting);
        for (block, content) in putting.1 {
            if taken >> block & 1 == 1 && page.valid >> block & 1 == 0 {
                page.blocks[block as usize] = Some(content);
                page.valid |= 1 << block;
            }
        }
        taken
    }

    pub fn destaged(&mut self, incarnation: u64, block: u64, checksum: u32) {
        let ring = self.ring.entry(incarnation).or_default();
        ring.retain(|(known, _)| *known != block);
        ring.push((block, checksum));
        if ring.len() > RING {
            ring.remove(0);
        }
    }

    pub fn ring(&self, incarnation: u64) -> Vec<(u64, u32)> {
        self.ring.get(&incarnation).cloned().unwrap_or_default()
    }

    pub fn sample(&self, incarnation: u64, random: u64, count: usize) -> Vec<(u64, u16)> {
        let of_volume = self.pages.range((incarnation, 0)..=(incarnation, u64::MAX));
        let pages: Vec<_> = of_volume.filter(|(_, page)| page.valid != 0).collect();
        let from = if pages.is_empty() { 0 } else { (random % pages.len() as u64) as usize };
        let spread = pages.iter().cycle().skip(from).take(count.min(pages.len()));
        spread.map(|((_, number), page)| (*number, page.valid)).collect()
    }

    pub fn stats(&self) -> PagesStats {
        PagesStats {
            loaded: self.loaded,
            slots: PAGES_MAX as u64,
            pages: self.pages.len() as u64,
            valid_blocks: self.pages.values().map(|page| u64::from(page.valid.count_ones())).sum(),
            free: (PAGES_MAX - self.pages.len()) as u64,
            ..PagesStats::default()
        }
    }
}
