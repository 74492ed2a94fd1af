//! Retired records that still keep their segments in use, and their release.

use std::collections::VecDeque;

use seam::Seam;

use super::{Inner, State};
use crate::record::Position;

/// Retired records that still keep their segments in use, by the commit of the map journal that ends this.
#[derive(Default)]
pub struct Retirements(VecDeque<(u64, Vec<Position>)>);

impl Retirements {
    /// Adds positions that keep their segments in use until this commit is durable.
    pub fn push(&mut self, commit: u64, positions: Vec<Position>) {
        self.0.push_back((commit, positions));
    }

    /// True when no retired record keeps its segment in use.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Releases the records whose commit is durable.
pub fn release<S: Seam>(inner: &Inner<S>) {
    let committed = {
        let pages = inner.pages.borrow();
        if pages.is_ready() { pages.journal.commits_done } else { u64::MAX }
    };
    let mut guard = inner.state.borrow_mut();
    let state: &mut State<S> = &mut guard;
    while let Some((_, positions)) = state.retirements.0.pop_front_if(|(commit, _)| *commit <= committed) {
        for position in positions {
            state.lost_blocks.retire(&position);
            let live = &mut state.segments.get_mut(position.segment).live_records;
            *live = live.checked_sub(1).expect("a position is retired once");
        }
    }
}
