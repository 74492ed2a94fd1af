//! Where decoders put requests: the checks and the sense of time that all formats share.

use std::collections::{BTreeMap, VecDeque};

use crate::request::{DISK_BYTES_MAX, Op, Request, TRANSFER_BYTES_MAX};

/// Disks that have names instead of numbers, at most; more are no disks but a file in another format.
const NAMES_MAX: usize = 65_536;

/// What is wrong with a record, without its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Complaint(pub String);

impl<T: Into<String>> From<T> for Complaint {
    fn from(what: T) -> Self {
        Complaint(what.into())
    }
}

/// Requests that were decoded and not yet asked for.
#[derive(Default)]
pub struct Out {
    pending: VecDeque<Request>,
    names: BTreeMap<Vec<u8>, u32>,
    /// The trace's own time of its first request.
    begun_ns: Option<u64>,
    /// Records that are no requests.
    pub skipped: u64,
    /// Requests that the recorder had to leave out.
    pub dropped: u64,
}

impl Out {
    /// Puts a request; its `time_ns` counts from any moment, the same for the whole trace.
    pub fn put(&mut self, mut request: Request) -> Result<(), Complaint> {
        let Request { op, at, len, .. } = request;
        if matches!(op, Op::Read | Op::Write) {
            if len == 0 {
                self.skipped += 1;
                return Ok(());
            }
            if len > TRANSFER_BYTES_MAX {
                return Err(format!("a request of {len} bytes is longer than any disk takes").into());
            }
        }
        if at.checked_add(len).is_none_or(|end| end > DISK_BYTES_MAX) {
            return Err(format!("{len} bytes at {at} lie past the end of any disk").into());
        }
        if let Some(time_ns) = request.time_ns {
            request.time_ns = Some(time_ns.saturating_sub(*self.begun_ns.get_or_insert(time_ns)));
        }
        self.pending.push_back(request);
        Ok(())
    }

    /// A flush at a time as in [`Out::put`].
    pub fn put_flush(&mut self, time_ns: Option<u64>, device: u32) -> Result<(), Complaint> {
        self.put(Request { time_ns, op: Op::Flush, at: 0, len: 0, device })
    }

    /// The number of a disk that has a name.
    pub fn device(&mut self, name: &[u8]) -> Result<u32, Complaint> {
        if let Some(device) = self.names.get(name) {
            return Ok(*device);
        }
        let device = self.names.len();
        if device == NAMES_MAX {
            return Err(format!("names more than {NAMES_MAX} disks").into());
        }
        self.names.insert(name.to_vec(), device as u32);
        Ok(device as u32)
    }

    /// The oldest of them.
    pub fn take(&mut self) -> Option<Request> {
        self.pending.pop_front()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.pending.clear();
    }
}
