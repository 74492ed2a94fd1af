//! Requests to members. They end when their device leaves service. While any is in flight, the members are watched for
//! hangs.

use std::cell::Cell;

use seam::{Disk, DiskError, DiskResult, Piece, PieceMut, Seam};

use super::Inner;
use crate::device::{Device, Durability};

/// Requests to members that are in flight.
#[derive(Default)]
pub struct InFlightRequests {
    /// Number of requests in flight.
    request_count: Cell<usize>,
    /// A task watches the members for hangs.
    is_watched: Cell<bool>,
}

impl InFlightRequests {
    /// Ends the watch if no request is in flight: the next request starts another one. Returns true if it has ended.
    pub fn end_watch_if_idle(&self) -> bool {
        let is_idle = self.request_count.get() == 0;
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
        self.0.request_count.set(self.0.request_count.get() - 1);
    }
}

/// The error of a request to a device that was removed from service.
fn out_of_service_error() -> DiskError {
    DiskError::Io("the device is out of service".to_owned())
}

impl<S: Seam> Inner<S> {
    /// Counts a request as in flight until the guard is dropped, and has the members watched meanwhile.
    fn begin_request(&self) -> RequestGuard<'_> {
        self.in_flight_requests.request_count.set(self.in_flight_requests.request_count.get() + 1);
        if !self.in_flight_requests.is_watched.replace(true) {
            (self.tasks.watch_members)(self);
        }
        RequestGuard(&self.in_flight_requests)
    }

    /// Reads from a member. The pieces are returned in any case. If the device was removed meanwhile, they have new
    /// buffers, because the disk keeps the old ones until it responds.
    pub async fn read_from(
        &self,
        device: &Device<S>,
        offset_bytes: u64,
        into: Vec<PieceMut<S::BlockMut>>,
    ) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        let request = self.begin_request();
        let shape: Vec<_> = into.iter().map(|piece| (piece.start(), piece.len())).collect();
        if let Some(read) = device.abort.or_aborted(device.disk.read(offset_bytes, into)).await {
            return read;
        }
        drop(request);
        let mut pieces = Vec::with_capacity(shape.len());
        for (start, len) in shape {
            pieces.push(Piece::new(self.alloc_buffer().await, start, len));
        }
        (Err(out_of_service_error()), pieces)
    }

    /// Writes to a member.
    pub async fn write_to(&self, device: &Device<S>, offset_bytes: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        let _request = self.begin_request();
        device
            .abort
            .or_aborted(device.disk.write(offset_bytes, from))
            .await
            .unwrap_or_else(|| Err(out_of_service_error()))
    }

    /// Writes to a member like [`Device::write_with_retry`].
    pub async fn write_with_retry_to(
        &self,
        device: &Device<S>,
        offset_bytes: u64,
        blocks: Vec<S::Block>,
        durability: Durability,
    ) -> DiskResult<()> {
        let _request = self.begin_request();
        device
            .abort
            .or_aborted(device.write_with_retry(offset_bytes, blocks, durability))
            .await
            .unwrap_or_else(|| Err(out_of_service_error()))
    }

    /// Flushes a member.
    pub async fn flush_member(&self, device: &Device<S>) -> DiskResult<()> {
        let _request = self.begin_request();
        device.abort.or_aborted(device.disk.flush()).await.unwrap_or_else(|| Err(out_of_service_error()))
    }
}
