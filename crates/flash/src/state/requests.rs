//! Requests to members. They end when their device leaves service. While any is in flight, the members are watched for
//! hangs.

use std::cell::Cell;

use seam::{Disk, DiskError, DiskResult, Piece, PieceMut, Seam};

use super::Inner;
use crate::device::{Device, Durability};

/// Requests to members that are in flight.
#[derive(Default)]
pub struct InFlightRequests {
    requests: Cell<usize>,
    is_watched: Cell<bool>,
}

impl InFlightRequests {
    /// Ends the watch if no request is in flight: the next request starts another one. Returns true if it has ended.
    pub fn end_watch_if_idle(&self) -> bool {
        let is_idle = self.requests.get() == 0;
        if is_idle {
            self.is_watched.set(false);
        }
        is_idle
    }
}

/// Counts a request as in flight, until it is dropped.
struct RequestGuard<'a>(&'a InFlightRequests);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
    }
}

/// The error of a request to a device that was removed from service.
fn out_of_service_error() -> DiskError {
    DiskError::Io("the device is out of service".to_owned())
}

impl<S: Seam> Inner<S> {
    fn begin_request(&self) -> RequestGuard<'_> {
        self.in_flight.requests.set(self.in_flight.requests.get() + 1);
        if !self.in_flight.is_watched.replace(true) {
            (self.tasks.watch_members)(self);
        }
        RequestGuard(&self.in_flight)
    }

    /// Reads from a member. The pieces are returned in any case; if the device was removed, they have new buffers.
    pub async fn read_from(
        &self,
        device: &Device<S>,
        at: u64,
        into: Vec<PieceMut<S::BlockMut>>,
    ) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        let request = self.begin_request();
        let shape: Vec<_> = into.iter().map(|piece| (piece.start(), piece.len())).collect();
        if let Some(read) = device.abort.or_aborted(device.disk.read(at, into)).await {
            return read;
        }
        drop(request);
        let mut pieces = Vec::with_capacity(shape.len());
        for (start, len) in shape {
            pieces.push(Piece::new(self.buffer().await, start, len));
        }
        (Err(out_of_service_error()), pieces)
    }

    /// Writes to a member.
    pub async fn write_to(&self, device: &Device<S>, at: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        let _request = self.begin_request();
        device.abort.or_aborted(device.disk.write(at, from)).await.unwrap_or_else(|| Err(out_of_service_error()))
    }

    /// Writes to a member like [`Device::write_with_retry`].
    pub async fn write_with_retry_to(
        &self,
        device: &Device<S>,
        at: u64,
        blocks: Vec<S::Block>,
        durability: Durability,
    ) -> DiskResult<()> {
        let _request = self.begin_request();
        device
            .abort
            .or_aborted(device.write_with_retry(at, blocks, durability))
            .await
            .unwrap_or_else(|| Err(out_of_service_error()))
    }

    /// Flushes a member.
    pub async fn flush_of(&self, device: &Device<S>) -> DiskResult<()> {
        let _request = self.begin_request();
        device.abort.or_aborted(device.disk.flush()).await.unwrap_or_else(|| Err(out_of_service_error()))
    }
}
