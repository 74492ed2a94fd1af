//! What a chain of descriptors asks for: virtio-blk's requests, taken out of the guest's memory once.

use std::mem::take;
use std::rc::Rc;

use engine::WriteSource;
use seam::{Block, BlockMut, Piece, SECTOR_BYTES, Seam};

use crate::config::{RANGE_SECTORS_MAX, RANGES_MAX, SEGMENTS_MAX};
use crate::memory::Memory;
use crate::ring::{Broken, Chain, Segment};

const HEAD_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
/// Zeroes that may be holes.
const UNMAP: u32 = 1;
/// Bytes of the answer to a question for the identity.
pub(crate) const ID_BYTES: usize = 20;

/// How a request ended, as the driver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// A range that is to be released or to read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) may_unmap: bool,
}

/// What is asked for; offsets and lengths in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read {
        at: u64,
        len: usize,
    },
    Write {
        at: u64,
        len: usize,
    },
    Flush,
    Identity,
    Zero(Vec<Range>),
    /// Nothing that can be done; answered so.
    Refused(Status),
}

/// One request, whose buffers stay in the memory that they were found in.
pub(crate) struct Request {
    pub(crate) head: u16,
    pub(crate) kind: Kind,
    pub(crate) buffers: Buffers,
    /// Where its status goes.
    pub(crate) status_at: u64,
}

/// The buffers of a request's data, without its head and status.
#[derive(Clone)]
pub(crate) struct Buffers {
    pub(crate) memory: Rc<Memory>,
    pub(crate) segments: Vec<Segment>,
}

fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Cuts the first `len` bytes off.
fn skip(segments: &mut Vec<Segment>, mut len: u32) {
    let whole = segments.iter().take_while(|segment| {
        let is_whole = segment.len <= len;
        len -= if is_whole { segment.len } else { 0 };
        is_whole
    });
    let gone = whole.count();
    segments.drain(..gone);
    if let Some(first) = segments.first_mut() {
        first.at += u64::from(len);
        first.len -= len;
    }
}

impl Request {
    /// What the chain that begins at `head` asks of a volume of `size_bytes`. Its buffers are in memory.
    pub(crate) fn read(
        memory: &Rc<Memory>,
        head: u16,
        chain: &mut Chain,
        size_bytes: u64,
        read_only: bool,
    ) -> Result<Request, Broken> {
        let Chain { readable, writable } = chain;
        writable.retain(|segment| segment.len > 0);
        let Some(last) = writable.last_mut() else { return Err(Broken::Short) };
        if total(readable) < HEAD_BYTES as u64 {
            return Err(Broken::Short);
        }
        last.len -= 1;
        let status_at = last.at + u64::from(last.len);
        let count = readable.len().max(writable.len()) as u32;
        let mut bytes = [0; HEAD_BYTES];
        copy_out(memory, readable, 0, &mut bytes).map_err(|()| Broken::Short)?;
        // Only what holds data leaves the chain, whose other half serves the next request too.
        let buffers = |segments: &mut Vec<Segment>| Buffers { memory: memory.clone(), segments: take(segments) };
        let none = &mut Vec::new();
        skip(readable, HEAD_BYTES as u32);
        let kind = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let sector = u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"));
        let request = |kind, segments: &mut Vec<Segment>| Request { head, kind, buffers: buffers(segments), status_at };
        // One segment more than announced each way: that of the head, and that of the status.
        if count > SEGMENTS_MAX + 1 {
            return Ok(request(Kind::Refused(Status::Unsupported), none));
        }
        let span = |segments: &[Segment]| {
            let len = total(segments);
            let at = sector.checked_mul(SECTOR_BYTES as u64)?;
            let fits = len.is_multiple_of(SECTOR_BYTES as u64) && at.checked_add(len)? <= size_bytes;
            (fits && len > 0).then_some((at, len as usize))
        };
        Ok(match kind {
            0 => match span(writable) {
                Some((at, len)) => request(Kind::Read { at, len }, writable),
                None => request(Kind::Refused(Status::IoError), none),
            },
            1 => match span(readable) {
                Some((at, len)) if !read_only => request(Kind::Write { at, len }, readable),
                _ => request(Kind::Refused(Status::IoError), none),
            },
            4 => request(Kind::Flush, none),
            8 if total(writable) >= ID_BYTES as u64 => request(Kind::Identity, writable),
            8 => request(Kind::Refused(Status::IoError), none),
            11 | 13 => {
                let ranges = ranges(&buffers(readable), kind == 13, size_bytes);
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

/// The ranges that a discard or a write of zeroes names.
fn ranges(data: &Buffers, zeroes: bool, size_bytes: u64) -> Result<Vec<Range>, Status> {
    let len = total(&data.segments);
    if len > (RANGES_MAX as usize * RANGE_BYTES) as u64 {
        return Err(Status::Unsupported);
    }
    if len == 0 || !len.is_multiple_of(RANGE_BYTES as u64) {
        return Err(Status::IoError);
    }
    let mut bytes = vec![0; len as usize];
    data.read(0, &mut bytes).map_err(|()| Status::IoError)?;
    let (entries, _) = bytes.as_chunks::<RANGE_BYTES>();
    let read = entries.iter().map(|entry| {
        let sector = u64::from_le_bytes(entry[..8].try_into().expect("eight bytes"));
        let sectors = u32::from_le_bytes(entry[8..12].try_into().expect("four bytes"));
        let flags = u32::from_le_bytes(entry[12..].try_into().expect("four bytes"));
        if flags & !(if zeroes { UNMAP } else { 0 }) != 0 {
            return Err(Status::Unsupported);
        }
        let len = u64::from(sectors) * SECTOR_BYTES as u64;
        let at = sector
            .checked_mul(SECTOR_BYTES as u64)
            .filter(|at| at.checked_add(len).is_some_and(|end| end <= size_bytes));
        match at {
            Some(at) if sectors <= RANGE_SECTORS_MAX => Ok(Range { at, len, may_unmap: !zeroes || flags & UNMAP != 0 }),
            _ => Err(Status::IoError),
        }
    });
    read.collect()
}

/// Shows `len` bytes of buffers from byte `from` on: an address, bytes, and how many came before.
fn each(
    segments: &[Segment],
    from: usize,
    len: usize,
    mut show: impl FnMut(u64, usize, usize) -> Result<(), ()>,
) -> Result<(), ()> {
    let (mut start, mut done) = (0, 0);
    for segment in segments {
        let end = start + segment.len as usize;
        if done < len && from + done < end {
            let inside = from + done - start;
            let count = (end - start - inside).min(len - done);
            show(segment.at + inside as u64, count, done)?;
            done += count;
        }
        start = end;
    }
    if done == len { Ok(()) } else { Err(()) }
}

/// Copies bytes of buffers from byte `from` on out of the guest's memory.
fn copy_out(memory: &Memory, segments: &[Segment], from: usize, out: &mut [u8]) -> Result<(), ()> {
    let len = out.len();
    each(segments, from, len, |at, count, done| memory.read(at, &mut out[done..done + count]).map_err(|_| ()))
}

impl Buffers {
    /// Copies bytes from byte `from` on out of the guest's memory.
    pub(crate) fn read(&self, from: usize, out: &mut [u8]) -> Result<(), ()> {
        copy_out(&self.memory, &self.segments, from, out)
    }

    /// Reads a byte of each page of it, so that a page that cannot be had is known before anything is copied.
    pub(crate) fn touch(&self) {
        for segment in &self.segments {
            let touched = self.memory.touch(segment.at, segment.len as usize);
            touched.expect("a request's buffers are in the memory that it holds");
        }
    }

    /// Copies bytes into the guest's memory, tells of each place with `wrote`.
    pub(crate) fn write(&self, from: usize, bytes: &[u8], mut wrote: impl FnMut(u64, usize)) -> Result<(), ()> {
        each(&self.segments, from, bytes.len(), |at, count, done| {
            self.memory.write(at, &bytes[done..done + count]).map_err(|_| ())?;
            wrote(at, count);
            Ok(())
        })
    }

    /// Copies what was read into the guest's memory from byte `from` on.
    pub(crate) fn write_pieces<B: Block>(
        &self,
        mut from: usize,
        pieces: &[Piece<B>],
        mut wrote: impl FnMut(u64, usize),
    ) {
        for piece in pieces {
            let range = piece.start()..piece.start() + piece.len();
            let written = match piece.block.as_bytes() {
                Some(bytes) => self.write(from, &bytes[range], &mut wrote),
                None => {
                    let mut bytes = vec![0; piece.len()];
                    piece.block.read_bytes(piece.start(), &mut bytes);
                    self.write(from, &bytes, &mut wrote)
                }
            };
            written.expect("a request's buffers are in the memory that it holds, and as long as its data");
            from += piece.len();
        }
    }
}

/// The data of a write, copied out of the guest's memory as the engine takes it (R1).
pub(crate) struct Given<'a>(pub(crate) &'a Buffers);

impl<S: Seam> WriteSource<S> for Given<'_> {
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
        read.expect("a request's buffers are in the memory that it holds, and as long as its data");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    const SIZE: u64 = 1 << 20;

    fn memory() -> Rc<Memory> {
        Rc::new(Memory::new(vec![Region::anonymous(0, 0x10000).expect("memory")]).expect("memory"))
    }

    fn head(memory: &Memory, kind: u32, sector: u64) {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        memory.write(0x100, &bytes).expect("there");
    }

    fn read(memory: &Rc<Memory>, readable: &[(u64, u32)], writable: &[(u64, u32)]) -> Result<Request, Broken> {
        let segments = |list: &[(u64, u32)]| list.iter().map(|(at, len)| Segment { at: *at, len: *len }).collect();
        let mut chain = Chain { readable: segments(readable), writable: segments(writable) };
        Request::read(memory, 3, &mut chain, SIZE, false)
    }

    #[test]
    fn a_head_and_a_status_may_lie_anywhere_and_be_split() {
        let memory = memory();
        head(&memory, 0, 8);
        let request = read(&memory, &[(0x100, 5), (0x105, 11)], &[(0x1000, 512), (0x2000, 513)]).expect("a request");
        assert_eq!(request.kind, Kind::Read { at: 4096, len: 1024 });
        assert_eq!(request.status_at, 0x2200);
        let mut places = Vec::new();
        request.buffers.write(510, &[7; 4], |at, len| places.push((at, len))).expect("there");
        assert_eq!(places, [(0x11fe, 2), (0x2000, 2)]);
        head(&memory, 1, 0);
        let request = read(&memory, &[(0x100, 16 + 512)], &[(0x2000, 1)]).expect("a request");
        assert_eq!(request.kind, Kind::Write { at: 0, len: 512 });
        assert_eq!(request.buffers.segments, [Segment { at: 0x110, len: 512 }]);
    }

    #[test]
    fn what_is_outside_or_not_whole_is_an_error_and_what_is_unknown_is_told_so() {
        let memory = memory();
        let kind = |kind, sector, readable: &[(u64, u32)], writable: &[(u64, u32)]| {
            head(&memory, kind, sector);
            read(&memory, readable, writable).expect("a request").kind
        };
        let (error, unsupported) = (Kind::Refused(Status::IoError), Kind::Refused(Status::Unsupported));
        let status = (0x2000, 1);
        assert_eq!(kind(0, SIZE / 512, &[(0x100, 16)], &[(0x1000, 512), status]), error);
        assert_eq!(kind(0, u64::MAX, &[(0x100, 16)], &[(0x1000, 512), status]), error);
        assert_eq!(kind(0, 0, &[(0x100, 16)], &[(0x1000, 511), status]), error);
        assert_eq!(kind(1, 0, &[(0x100, 16)], &[status]), error);
        assert_eq!(kind(7, 0, &[(0x100, 16)], &[status]), unsupported);
        let many = vec![(0x1000, 512); SEGMENTS_MAX as usize + 1];
        assert_eq!(kind(0, 0, &[(0x100, 16)], &[&many[..], &[status]].concat()), unsupported);
        assert_eq!(kind(8, 0, &[(0x100, 16)], &[(0x1000, 20), status]), Kind::Identity);
        assert_eq!(kind(8, 0, &[(0x100, 16)], &[(0x1000, 19), status]), error);
        assert!(matches!(read(&memory, &[(0x100, 15)], &[status]), Err(Broken::Short)));
        assert!(matches!(read(&memory, &[(0x100, 16)], &[(0x2000, 0)]), Err(Broken::Short)));
    }

    #[test]
    fn a_range_is_taken_as_it_is_unless_something_is_wrong_with_it() {
        let memory = memory();
        let kind = |kind, list: &[(u64, u32, u32)]| {
            head(&memory, kind, 0);
            let bytes: Vec<u8> = list
                .iter()
                .flat_map(|(at, len, flags)| [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes()].concat())
                .collect();
            memory.write(0x3000, &bytes).expect("there");
            read(&memory, &[(0x100, 16), (0x3000, bytes.len() as u32)], &[(0x2000, 1)]).expect("a request").kind
        };
        let range = |at, len, may_unmap| Kind::Zero(vec![Range { at, len, may_unmap }]);
        assert_eq!(kind(11, &[(8, 8, 0)]), range(4096, 4096, true));
        assert_eq!(kind(13, &[(8, 8, 1)]), range(4096, 4096, true));
        assert_eq!(kind(13, &[(0, 1, 0)]), range(0, 512, false));
        assert_eq!(kind(11, &[(0, 1, 1)]), Kind::Refused(Status::Unsupported));
        assert_eq!(kind(13, &[(0, 1, 2)]), Kind::Refused(Status::Unsupported));
        assert_eq!(kind(13, &[(SIZE / 512, 1, 0)]), Kind::Refused(Status::IoError));
        assert_eq!(kind(13, &[]), Kind::Refused(Status::IoError));
        assert_eq!(kind(13, &[(0, 1, 0); RANGES_MAX as usize + 1]), Kind::Refused(Status::Unsupported));
    }
}
