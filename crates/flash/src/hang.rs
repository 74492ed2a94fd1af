//! Members that do not answer: they are taken out, and the wait for their requests ends.
//!
//! While requests are under way, a task looks every [`TICK`] whether the oldest request of each member is still the one
//! of the look before. It counts looks and no time: a process or a machine that stood still answers late for all, and
//! that is no member's fault.
//!
//! A member that has hung for [`PATIENCE`] while a log member answers is out: writers and readers wait no longer than
//! for its mirror. Where no log member answers, [`LAST_PATIENCE`] passes first: as long as Linux gives a command of a
//! SCSI or NVMe disk before it resets the disk, so that a reset that helps is waited for. What is out then fails the
//! store, if it was the last: flushes fail.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Nanos, Piece, PieceMut, Seam};

use crate::device::Device;
use crate::membership::{Failure, take_out};
use crate::slow::GRACE;
use crate::store::Inner;

/// Pause between two looks.
const TICK: Nanos = Nanos::from_millis(250);
/// A member that hangs is given up after so long where another log member answers.
const PATIENCE: Nanos = GRACE;
/// And after so long where none does.
const LAST_PATIENCE: Nanos = Nanos::from_secs(30);
/// A member answers whose oldest request is not older than this.
const ANSWERS_WITHIN: Nanos = Nanos(2 * TICK.0);

/// Requests to members that are under way.
#[derive(Default)]
pub struct Outstanding {
    requests: Cell<usize>,
    is_watched: Cell<bool>,
}

/// A request that is under way, until it is dropped.
struct Request<'a>(&'a Outstanding);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
    }
}

/// Result of a request to a device that was given up.
fn given_up() -> DiskError {
    DiskError::Io("the device is out of service".to_owned())
}

impl<S: Seam> Inner<S> {
    fn begin(&self) -> Request<'_> {
        self.outstanding.requests.set(self.outstanding.requests.get() + 1);
        if !self.outstanding.is_watched.replace(true)
            && let Some(inner) = self.me.upgrade()
        {
            self.seam.spawn(watch(self.seam.clone(), Rc::downgrade(&inner)));
        }
        Request(&self.outstanding)
    }

    /// Reads from a member. The pieces come back in any case; after a device was given up they are other buffers.
    pub async fn read_from(
        &self,
        device: &Device<S>,
        at: u64,
        into: Vec<PieceMut<S::BlockMut>>,
    ) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        let request = self.begin();
        let shape: Vec<_> = into.iter().map(|piece| (piece.start(), piece.len())).collect();
        if let Some(read) = device.abort.or_aborted(device.disk.read(at, into)).await {
            return read;
        }
        drop(request);
        let mut pieces = Vec::with_capacity(shape.len());
        for (start, len) in shape {
            pieces.push(Piece::new(self.buffer().await, start, len));
        }
        (Err(given_up()), pieces)
    }

    /// Writes to a member.
    pub async fn write_to(&self, device: &Device<S>, at: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        let _request = self.begin();
        device.abort.or_aborted(device.disk.write(at, from)).await.unwrap_or_else(|| Err(given_up()))
    }

    /// As [`Device::write_durably`], of a member.
    pub async fn write_durably_to(
        &self,
        device: &Device<S>,
        at: u64,
        blocks: Vec<S::Block>,
        flush: bool,
    ) -> DiskResult<()> {
        let _request = self.begin();
        device.abort.or_aborted(device.write_durably(at, blocks, flush)).await.unwrap_or_else(|| Err(given_up()))
    }

    /// Flushes a member.
    pub async fn flush_of(&self, device: &Device<S>) -> DiskResult<()> {
        let _request = self.begin();
        device.abort.or_aborted(device.disk.flush()).await.unwrap_or_else(|| Err(given_up()))
    }
}

/// How long the oldest request of each member has been the oldest.
#[derive(Default)]
struct Looks(BTreeMap<u32, (Nanos, Nanos)>);

impl Looks {
    /// Takes a look at a member's oldest request in; returns how long it has been that one.
    fn see(&mut self, member: u32, oldest: Option<Nanos>) -> Nanos {
        let Some(oldest) = oldest else {
            self.0.remove(&member);
            return Nanos::ZERO;
        };
        let before = self.0.get(&member).filter(|(known, _)| *known == oldest);
        let hangs = before.map_or(Nanos::ZERO, |(_, hangs)| *hangs + TICK);
        self.0.insert(member, (oldest, hangs));
        hangs
    }
}

/// Looks after the members while requests are under way.
async fn watch<S: Seam>(seam: S, store: std::rc::Weak<Inner<S>>) {
    let mut looks = Looks::default();
    loop {
        seam.sleep(TICK).await;
        let Some(inner) = store.upgrade() else { return };
        if inner.outstanding.requests.get() == 0 {
            inner.outstanding.is_watched.set(false);
            return;
        }
        let failures = hung(&inner, &mut looks);
        if !failures.is_empty() {
            // In a task of its own: a second member may hang while the first one's leaving is written to it.
            seam.spawn(async move {
                // Its outcome shows in the store.
                let _ = take_out(&inner, failures).await;
            });
        }
    }
}

/// Members that have hung for too long. A device that is becoming one is given up at once: the job that fills it fails.
fn hung<S: Seam>(inner: &Inner<S>, looks: &mut Looks) -> Vec<Failure> {
    let members = inner.in_service();
    let hangs: Vec<_> = members
        .iter()
        .map(|device| (device.member, looks.see(device.member, device.disk.oldest_unanswered())))
        .collect();
    let state = inner.state.borrow();
    let answers = |(member, hangs): &(u32, Nanos)| state.superblock.carries_log(*member) && *hangs <= ANSWERS_WITHIN;
    let patience = if hangs.iter().any(answers) { PATIENCE } else { LAST_PATIENCE };
    if let Some(joining) = &state.joining
        && looks.see(joining.member, joining.disk.oldest_unanswered()) >= patience
    {
        joining.abort.abort();
    }
    let late = |(member, hangs): (u32, Nanos)| {
        let error = DiskError::Io(format!("no answer to a request for {patience}"));
        (hangs >= patience).then_some((member, error))
    };
    hangs.into_iter().filter_map(late).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_hangs_while_its_oldest_request_stays_the_same() {
        let (mut looks, at) = (Looks::default(), |ms| Some(Nanos::from_millis(ms)));
        assert_eq!([at(1), at(1), at(1)].map(|oldest| looks.see(0, oldest)), [Nanos::ZERO, TICK, TICK + TICK]);
        assert_eq!(looks.see(0, at(500)), Nanos::ZERO, "another one is the oldest");
        assert_eq!([at(500), None, at(500)].map(|oldest| looks.see(0, oldest)), [TICK, Nanos::ZERO, Nanos::ZERO]);
    }
}
