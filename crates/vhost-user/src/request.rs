//! virtio-blk requests, decoded from descriptor chains. Guest memory is read once.

use std::mem::take;
use std::rc::Rc;

use engine::{ByteOffset, WriteSource};
use seam::{Block, BlockMut, Piece, SECTOR_BYTES, Seam};

use crate::config::{RANGE_SECTORS_MAX, RANGES_MAX, SEGMENTS_MAX};
use crate::memory::Memory;
use crate::ring::{Chain, QueueError, Segment};

/// Request types of virtio-blk.
const VIRTIO_BLK_T_IN: u32 = 0;
const VIRTIO_BLK_T_OUT: u32 = 1;
const VIRTIO_BLK_T_FLUSH: u32 = 4;
const VIRTIO_BLK_T_GET_ID: u32 = 8;
const VIRTIO_BLK_T_DISCARD: u32 = 11;
const VIRTIO_BLK_T_WRITE_ZEROES: u32 = 13;

const HEADER_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
/// Flag of write-zeroes: the range may become a hole.
const UNMAP: u32 = 1;
/// Bytes of the reply to a get-ID request.
pub(crate) const ID_BYTES: usize = 20;

/// Status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// A range of a discard or write-zeroes request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Offset in the volume, in bytes.
    pub(crate) offset: ByteOffset,
    /// Length in bytes.
    pub(crate) len: u64,
    pub(crate) may_unmap: bool,
}

/// Type of a request; offsets in the volume and lengths in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read {
        offset: ByteOffset,
        len: usize,
    },
    Write {
        offset: ByteOffset,
        len: usize,
    },
    Flush,
    Identity,
    Zero(Vec<Range>),
    /// An invalid or unsupported request, answered with this status.
    Refused(Status),
}

/// A request with its buffers and the memory that holds them.
pub(crate) struct Request {
    /// Index of the first descriptor of the request's chain.
    pub(crate) head: u16,
    pub(crate) kind: Kind,
    pub(crate) buffers: Buffers,
    /// Guest address of the status byte.
    pub(crate) status_address: u64,
}

/// Data buffers of a request, without header and status.
#[derive(Clone)]
pub(crate) struct Buffers {
    pub(crate) memory: Rc<Memory>,
    pub(crate) segments: Vec<Segment>,
}

/// Length of all segments, in bytes.
fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Removes the first `len` bytes.
fn skip(segments: &mut Vec<Segment>, mut len: u32) {
    let whole = segments.iter().take_while(|segment| {
        let is_whole = segment.len <= len;
        len -= if is_whole { segment.len } else { 0 };
        is_whole
    });
    let whole_count = whole.count();
    segments.drain(..whole_count);
    if let Some(first) = segments.first_mut() {
        first.address += u64::from(len);
        first.len -= len;
    }
}

impl Request {
    /// Decodes the request of a chain, whose buffers are in memory, for a volume of `size_bytes`.
    pub(crate) fn read(
        memory: &Rc<Memory>,
        head: u16,
        chain: &mut Chain,
        size_bytes: u64,
        read_only: bool,
    ) -> Result<Request, QueueError> {
        let Chain { readable, writable } = chain;
        writable.retain(|segment| segment.len > 0);
        let Some(last) = writable.last_mut() else { return Err(QueueError::Short) };
        if total_len(readable) < HEADER_BYTES as u64 {
            return Err(QueueError::Short);
        }
        last.len -= 1;
        let status_address = last.address + u64::from(last.len);
        let segment_count = readable.len().max(writable.len()) as u32;
        let mut header = [0; HEADER_BYTES];
        copy_out(memory, readable, 0, &mut header).map_err(|()| QueueError::Short)?;
        // Data segments move out of the chain; the other vector keeps its capacity for the next request.
        let buffers = |segments: &mut Vec<Segment>| Buffers { memory: memory.clone(), segments: take(segments) };
        let none = &mut Vec::new();
        skip(readable, HEADER_BYTES as u32);
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let request =
            |kind, segments: &mut Vec<Segment>| Request { head, kind, buffers: buffers(segments), status_address };
        // One segment more than announced in each direction: header and status.
        if segment_count > SEGMENTS_MAX + 1 {
            return Ok(request(Kind::Refused(Status::Unsupported), none));
        }
        let span = |segments: &[Segment]| {
            let len = total_len(segments);
            let offset = offset_of(sector)?;
            let fits = len.is_multiple_of(SECTOR_BYTES as u64) && offset.checked_plus(len)?.0 <= size_bytes;
            (fits && len > 0).then_some((offset, len as usize))
        };
        Ok(match kind {
            VIRTIO_BLK_T_IN => match span(writable) {
                Some((offset, len)) => request(Kind::Read { offset, len }, writable),
                None => request(Kind::Refused(Status::IoError), none),
            },
            VIRTIO_BLK_T_OUT => match span(readable) {
                Some((offset, len)) if !read_only => request(Kind::Write { offset, len }, readable),
                _ => request(Kind::Refused(Status::IoError), none),
            },
            VIRTIO_BLK_T_FLUSH => request(Kind::Flush, none),
            VIRTIO_BLK_T_GET_ID if total_len(writable) >= ID_BYTES as u64 => request(Kind::Identity, writable),
            VIRTIO_BLK_T_GET_ID => request(Kind::Refused(Status::IoError), none),
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                let ranges = decode_ranges(&buffers(readable), kind == VIRTIO_BLK_T_WRITE_ZEROES, size_bytes);
                let kind = match ranges {
                    Ok(_) if read_only => Kind::Refused(Status::IoError),
                    Ok(ranges) => Kind::Zero(ranges),
                    Err(status) => Kind::Refused(status),
                };
                request(kind, none)
            }
            _ => request(Kind::Refused(Status::Unsupported), none),
        })
    }
}

/// The offset of a sector's first byte; `None` on overflow.
fn offset_of(sector: u64) -> Option<ByteOffset> {
    sector.checked_mul(SECTOR_BYTES as u64).map(ByteOffset)
}

/// Decodes the ranges of a discard or write-zeroes request.
fn decode_ranges(data: &Buffers, is_write_zeroes: bool, size_bytes: u64) -> Result<Vec<Range>, Status> {
    let len = total_len(&data.segments);
    if len > (RANGES_MAX as usize * RANGE_BYTES) as u64 {
        return Err(Status::Unsupported);
    }
    if len == 0 || !len.is_multiple_of(RANGE_BYTES as u64) {
        return Err(Status::IoError);
    }
    let mut bytes = vec![0; len as usize];
    data.read(0, &mut bytes).map_err(|()| Status::IoError)?;
    let (entries, _) = bytes.as_chunks::<RANGE_BYTES>();
    let ranges = entries.iter().map(|entry| {
        let sector = u64::from_le_bytes(entry[..8].try_into().expect("eight bytes"));
        let sectors = u32::from_le_bytes(entry[8..12].try_into().expect("four bytes"));
        let flags = u32::from_le_bytes(entry[12..].try_into().expect("four bytes"));
        if flags & !(if is_write_zeroes { UNMAP } else { 0 }) != 0 {
            return Err(Status::Unsupported);
        }
        let len = u64::from(sectors) * SECTOR_BYTES as u64;
        let offset = offset_of(sector).filter(|offset| offset.checked_plus(len).is_some_and(|end| end.0 <= size_bytes));
        match offset {
            Some(offset) if sectors <= RANGE_SECTORS_MAX => {
                Ok(Range { offset, len, may_unmap: !is_write_zeroes || flags & UNMAP != 0 })
            }
            _ => Err(Status::IoError),
        }
    });
    ranges.collect()
}

/// Calls `visit` for each piece of the `len` bytes from `from` on: guest address, length, and bytes before it.
fn for_each_piece(
    segments: &[Segment],
    from: usize,
    len: usize,
    mut visit: impl FnMut(u64, usize, usize) -> Result<(), ()>,
) -> Result<(), ()> {
    let (mut start, mut copied) = (0, 0);
    for segment in segments {
        let end = start + segment.len as usize;
        if copied < len && from + copied < end {
            let skipped = from + copied - start;
            let count = (end - start - skipped).min(len - copied);
            visit(segment.address + skipped as u64, count, copied)?;
            copied += count;
        }
        start = end;
    }
    if copied == len { Ok(()) } else { Err(()) }
}

/// Copies bytes of the buffers from offset `from` on out of the guest's memory.
fn copy_out(memory: &Memory, segments: &[Segment], from: usize, out: &mut [u8]) -> Result<(), ()> {
    let len = out.len();
    for_each_piece(segments, from, len, |address, count, copied| {
        memory.read(address, &mut out[copied..copied + count]).map_err(|_| ())
    })
}

impl Buffers {
    /// Copies bytes from offset `from` on out of the guest's memory.
    pub(crate) fn read(&self, from: usize, out: &mut [u8]) -> Result<(), ()> {
        copy_out(&self.memory, &self.segments, from, out)
    }

    /// Reads a byte of each page. A page that the guest's memory file no longer backs thus sets the fault flag before
    /// the copy.
    pub(crate) fn touch(&self) {
        for segment in &self.segments {
            let touched = self.memory.touch(segment.address, segment.len as usize);
            touched.expect("the buffers are in the request's memory");
        }
    }

    /// Copies bytes to the guest's memory and calls `mark_dirty` for each range.
    pub(crate) fn write(&self, from: usize, bytes: &[u8], mut mark_dirty: impl FnMut(u64, usize)) -> Result<(), ()> {
        for_each_piece(&self.segments, from, bytes.len(), |address, count, copied| {
            self.memory.write(address, &bytes[copied..copied + count]).map_err(|_| ())?;
            mark_dirty(address, count);
            Ok(())
        })
    }

    /// Copies pieces to the guest's memory from offset `from` on.
    pub(crate) fn write_pieces<B: Block>(
        &self,
        mut from: usize,
        pieces: &[Piece<B>],
        mut mark_dirty: impl FnMut(u64, usize),
    ) {
        for piece in pieces {
            let range = piece.start()..piece.start() + piece.len();
            let written = match piece.block.as_bytes() {
                Some(bytes) => self.write(from, &bytes[range], &mut mark_dirty),
                None => {
                    let mut bytes = vec![0; piece.len()];
                    piece.block.read_bytes(piece.start(), &mut bytes);
                    self.write(from, &bytes, &mut mark_dirty)
                }
            };
            written.expect("the buffers are in the request's memory and as long as its data");
            from += piece.len();
        }
    }
}

/// Data of a write, copied out of the guest's memory when the engine fetches it (rule R1, docs/rules.md).
pub(crate) struct GuestData<'a>(pub(crate) &'a Buffers);

impl<S: Seam> WriteSource<S> for GuestData<'_> {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        let read = match block.as_bytes_mut() {
            Some(bytes) => self.0.read(from, &mut bytes[at..at + len]),
            None => {
                let mut bytes = vec![0; len];
                let read = self.0.read(from, &mut bytes);
                block.write_bytes(at, &bytes);
                read
            }
        };
        read.expect("the buffers are in the request's memory and as long as its data");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    const VOLUME_BYTES: u64 = 1 << 20;

    fn memory() -> Rc<Memory> {
        Rc::new(Memory::new(vec![Region::anonymous(0, 0x10000).expect("memory")]).expect("memory"))
    }

    fn write_header(memory: &Memory, kind: u32, sector: u64) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        memory.write(0x100, &bytes).expect("in memory");
    }

    fn read(memory: &Rc<Memory>, readable: &[(u64, u32)], writable: &[(u64, u32)]) -> Result<Request, QueueError> {
        let segments =
            |list: &[(u64, u32)]| list.iter().map(|(address, len)| Segment { address: *address, len: *len }).collect();
        let mut chain = Chain { readable: segments(readable), writable: segments(writable) };
        Request::read(memory, 3, &mut chain, VOLUME_BYTES, false)
    }

    #[test]
    fn header_and_status_may_be_split_and_unaligned() {
        let memory = memory();
        write_header(&memory, VIRTIO_BLK_T_IN, 8);
        let request = read(&memory, &[(0x100, 5), (0x105, 11)], &[(0x1000, 512), (0x2000, 513)]).expect("a request");
        assert_eq!(request.kind, Kind::Read { offset: ByteOffset(4096), len: 1024 });
        assert_eq!(request.status_address, 0x2200);
        let mut dirty_ranges = Vec::new();
        request.buffers.write(510, &[7; 4], |address, len| dirty_ranges.push((address, len))).expect("in memory");
        assert_eq!(dirty_ranges, [(0x11fe, 2), (0x2000, 2)]);
        write_header(&memory, VIRTIO_BLK_T_OUT, 0);
        let request = read(&memory, &[(0x100, 16 + 512)], &[(0x2000, 1)]).expect("a request");
        assert_eq!(request.kind, Kind::Write { offset: ByteOffset::ZERO, len: 512 });
        assert_eq!(request.buffers.segments, [Segment { address: 0x110, len: 512 }]);
    }

    #[test]
    fn invalid_requests_are_errors_and_unknown_ones_unsupported() {
        let memory = memory();
        let kind = |kind, sector, readable: &[(u64, u32)], writable: &[(u64, u32)]| {
            write_header(&memory, kind, sector);
            read(&memory, readable, writable).expect("a request").kind
        };
        let (error, unsupported) = (Kind::Refused(Status::IoError), Kind::Refused(Status::Unsupported));
        let status = (0x2000, 1);
        assert_eq!(kind(VIRTIO_BLK_T_IN, VOLUME_BYTES / 512, &[(0x100, 16)], &[(0x1000, 512), status]), error);
        assert_eq!(kind(VIRTIO_BLK_T_IN, u64::MAX, &[(0x100, 16)], &[(0x1000, 512), status]), error);
        assert_eq!(kind(VIRTIO_BLK_T_IN, 0, &[(0x100, 16)], &[(0x1000, 511), status]), error);
        assert_eq!(kind(VIRTIO_BLK_T_OUT, 0, &[(0x100, 16)], &[status]), error);
        assert_eq!(kind(7, 0, &[(0x100, 16)], &[status]), unsupported);
        let many = vec![(0x1000, 512); SEGMENTS_MAX as usize + 1];
        assert_eq!(kind(VIRTIO_BLK_T_IN, 0, &[(0x100, 16)], &[&many[..], &[status]].concat()), unsupported);
        assert_eq!(kind(VIRTIO_BLK_T_GET_ID, 0, &[(0x100, 16)], &[(0x1000, 20), status]), Kind::Identity);
        assert_eq!(kind(VIRTIO_BLK_T_GET_ID, 0, &[(0x100, 16)], &[(0x1000, 19), status]), error);
        assert!(matches!(read(&memory, &[(0x100, 15)], &[status]), Err(QueueError::Short)));
        assert!(matches!(read(&memory, &[(0x100, 16)], &[(0x2000, 0)]), Err(QueueError::Short)));
    }

    #[test]
    fn ranges_are_decoded_and_invalid_ranges_refused() {
        let memory = memory();
        let kind = |kind, list: &[(u64, u32, u32)]| {
            write_header(&memory, kind, 0);
            let bytes: Vec<u8> = list
                .iter()
                .flat_map(|(sector, len, flags)| {
                    [&sector.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes()].concat()
                })
                .collect();
            memory.write(0x3000, &bytes).expect("in memory");
            read(&memory, &[(0x100, 16), (0x3000, bytes.len() as u32)], &[(0x2000, 1)]).expect("a request").kind
        };
        let range = |offset, len, may_unmap| Kind::Zero(vec![Range { offset: ByteOffset(offset), len, may_unmap }]);
        assert_eq!(kind(VIRTIO_BLK_T_DISCARD, &[(8, 8, 0)]), range(4096, 4096, true));
        assert_eq!(kind(VIRTIO_BLK_T_WRITE_ZEROES, &[(8, 8, 1)]), range(4096, 4096, true));
        assert_eq!(kind(VIRTIO_BLK_T_WRITE_ZEROES, &[(0, 1, 0)]), range(0, 512, false));
        assert_eq!(kind(VIRTIO_BLK_T_DISCARD, &[(0, 1, 1)]), Kind::Refused(Status::Unsupported));
        assert_eq!(kind(VIRTIO_BLK_T_WRITE_ZEROES, &[(0, 1, 2)]), Kind::Refused(Status::Unsupported));
        assert_eq!(kind(VIRTIO_BLK_T_WRITE_ZEROES, &[(VOLUME_BYTES / 512, 1, 0)]), Kind::Refused(Status::IoError));
        assert_eq!(kind(VIRTIO_BLK_T_WRITE_ZEROES, &[]), Kind::Refused(Status::IoError));
        assert_eq!(
            kind(VIRTIO_BLK_T_WRITE_ZEROES, &[(0, 1, 0); RANGES_MAX as usize + 1]),
            Kind::Refused(Status::Unsupported)
        );
    }
}
