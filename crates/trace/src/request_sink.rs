//! Receives decoded requests: checks and time normalisation common to all formats.

use std::collections::{BTreeMap, VecDeque};

use crate::request::{DISK_BYTES_MAX, Op, Request, TRANSFER_BYTES_MAX};

/// Maximum number of disks with names; a file with more is in another format.
const NAMES_MAX: usize = 65_536;

/// Error of a record, without its position.
#[derive(Debug, PartialEq, Eq)]
pub struct RecordError(pub String);

impl<T: Into<String>> From<T> for RecordError {
    fn from(message: T) -> Self {
        RecordError(message.into())
    }
}

/// Decoded requests that have not been taken yet.
#[derive(Default)]
pub struct RequestSink {
    pending: VecDeque<Request>,
    names: BTreeMap<Vec<u8>, u32>,
    /// Time of the first request, in the trace's own time.
    started_at_ns: Option<u64>,
    /// Number of records that are not requests.
    pub skipped: u64,
    /// Number of requests that the recorder lost.
    pub dropped: u64,
}

impl RequestSink {
    /// Appends a request; its `time_ns` counts from any moment, the same for the whole trace.
    pub fn put(&mut self, mut request: Request) -> Result<(), RecordError> {
        let Request { op, at, len, .. } = request;
        if matches!(op, Op::Read | Op::Write) {
            if len == 0 {
                self.skipped += 1;
                return Ok(());
            }
            if len > TRANSFER_BYTES_MAX {
                return Err(format!("a request of {len} bytes exceeds the longest transfer").into());
            }
        }
        if at.checked_add(len).is_none_or(|end| end > DISK_BYTES_MAX) {
            return Err(format!("{len} bytes at {at} exceed the size of any disk").into());
        }
        if let Some(time_ns) = request.time_ns {
            request.time_ns = Some(time_ns.saturating_sub(*self.started_at_ns.get_or_insert(time_ns)));
        }
        self.pending.push_back(request);
        Ok(())
    }

    /// Appends a flush, with a time as in [`RequestSink::put`].
    pub fn put_flush(&mut self, time_ns: Option<u64>, device: u32) -> Result<(), RecordError> {
        self.put(Request { time_ns, op: Op::Flush, at: 0, len: 0, device })
    }

    /// Number of a named disk.
    pub fn device(&mut self, name: &[u8]) -> Result<u32, RecordError> {
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

    /// Takes the oldest request.
    pub fn take(&mut self) -> Option<Request> {
        self.pending.pop_front()
    }

    /// Number of requests not yet taken.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Drops the requests not yet taken.
    pub fn clear(&mut self) {
        self.pending.clear();
    }
}
