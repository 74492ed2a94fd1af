//! Detection of hung members: they are taken out, and the wait for their requests ends.
//!
//! While requests are in flight, a task checks every [`TICK`] whether the oldest request of each member is still the
//! same. It counts checks, not time: after a stall of the process or the machine all members answer late, which is no
//! fault of theirs.
//!
//! A member that has hung for [`PATIENCE`] while a log member answers is taken out, so writers and readers wait only
//! for its mirror. If no log member answers, [`LAST_PATIENCE`] applies. Linux gives a command of a SCSI or NVMe disk as
//! long before it resets the disk, so a reset has time to help. If the last member is taken out, the store fails, and
//! flushes fail.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Nanos, Piece, PieceMut, Seam};

use crate::device::Device;
use crate::membership::{Failure, take_out};
use crate::slow::GRACE;
use crate::store::Inner;

/// Time between two checks.
const TICK: Nanos = Nanos::from_millis(250);
/// Time after which a hung member is taken out while another log member answers.
const PATIENCE: Nanos = GRACE;
/// Time after which a hung member is taken out while no log member answers.
const LAST_PATIENCE: Nanos = Nanos::from_secs(30);
/// A member answers if its oldest request is at most this old.
const ANSWERS_WITHIN: Nanos = Nanos(2 * TICK.0);

/// Requests to members that are in flight.
#[derive(Default)]
pub struct Outstanding {
    requests: Cell<usize>,
    is_watched: Cell<bool>,
}

/// A request in flight, until it is dropped.
struct Request<'a>(&'a Outstanding);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
    }
}

/// The error of a request to a device that was taken out.
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

    /// Reads from a member. The pieces are returned in any case; if the device was taken out, they have new buffers.
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

    /// Writes durably to a member, like [`Device::write_durably`].
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

/// The oldest request of each member, and how long it has been the oldest.
#[derive(Default)]
struct Looks(BTreeMap<u32, (Nanos, Nanos)>);

impl Looks {
    /// Records a check of a member's oldest request. Returns how long this request has been the oldest.
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

/// Checks the members while requests are in flight.
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
            // In its own task: a second member may hang while the store writes the first one's removal to it.
            seam.spawn(async move {
                // The store's state shows the outcome.
                let _ = take_out(&inner, failures).await;
            });
        }
    }
}

/// Members that have hung for too long. A device that is still being filled is aborted at once: its job fails.
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
    fn member_hangs_while_its_oldest_request_stays_the_same() {
        let (mut looks, at) = (Looks::default(), |ms| Some(Nanos::from_millis(ms)));
        assert_eq!([at(1), at(1), at(1)].map(|oldest| looks.see(0, oldest)), [Nanos::ZERO, TICK, TICK + TICK]);
        assert_eq!(looks.see(0, at(500)), Nanos::ZERO, "another request is the oldest");
        assert_eq!([at(500), None, at(500)].map(|oldest| looks.see(0, oldest)), [TICK, Nanos::ZERO, Nanos::ZERO]);
    }
}
