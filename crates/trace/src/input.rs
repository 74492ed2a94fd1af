//! Splits a trace into chunks: lines of text or byte ranges, with their positions.

use std::io::{self, Read};

use crate::position::Position;

/// Bytes of a trace held at once: the longest chunk, and the head for format detection.
pub const BUFFER_BYTES: usize = 64 << 10;

/// A chunk that a decoder requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// A line, without its line end.
    Line,
    /// This many bytes, from 1 to [`BUFFER_BYTES`].
    Bytes(usize),
}

/// Result of reading a chunk.
pub enum Next<'a> {
    /// A complete chunk.
    Whole(&'a [u8]),
    /// A last line without a line end, which may be truncated.
    Unended(&'a [u8]),
    /// The trace ends after this many bytes of the chunk.
    CutShort(usize),
    /// A line exceeds the buffer.
    TooLong,
    /// The trace has ended before the chunk.
    End,
}

/// Sequential reader of a trace.
pub struct Input {
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    /// Range of the buffer that holds unread data.
    start: usize,
    end: usize,
    /// True once the source has ended or failed.
    ended: bool,
    /// A read error; data read before it are still returned.
    error: Option<io::Error>,
    /// Bytes returned by byte chunks so far.
    bytes_returned: u64,
    /// Lines returned so far, with one that is too long.
    lines_returned: u64,
}

impl Input {
    /// A reader at the start of a trace.
    pub fn new(source: Box<dyn Read>) -> Self {
        Input {
            source,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            ended: false,
            error: None,
            bytes_returned: 0,
            lines_returned: 0,
        }
    }

    /// The first [`BUFFER_BYTES`], or fewer if the trace is shorter. Valid only before the first chunk.
    pub fn head(&mut self) -> &[u8] {
        debug_assert_eq!(self.start, 0);
        while self.read_more() {}
        &self.buffer[..self.end]
    }

    /// Takes the read error.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Reads more data if there is room; returns true if it did.
    fn read_more(&mut self) -> bool {
        if self.ended || self.end == self.buffer.len() {
            return false;
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(count) => {
                    self.end += count;
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        self.ended = true;
        false
    }

    /// Moves unread data to the start of the buffer.
    fn compact(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Reads the next chunk.
    pub fn next(&mut self, chunk: Chunk) -> io::Result<Next<'_>> {
        match chunk {
            Chunk::Line => self.next_line(),
            Chunk::Bytes(len) => self.next_bytes(len),
        }
    }

    fn next_bytes(&mut self, len: usize) -> io::Result<Next<'_>> {
        debug_assert!((1..=BUFFER_BYTES).contains(&len));
        if self.end - self.start < len {
            self.compact();
            while self.end < len && self.read_more() {}
        }
        let held = self.end - self.start;
        if held < len {
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            return Ok(if held == 0 { Next::End } else { Next::CutShort(held) });
        }
        let unit_start = self.start;
        self.start += len;
        self.bytes_returned += len as u64;
        Ok(Next::Whole(&self.buffer[unit_start..unit_start + len]))
    }

    fn next_line(&mut self) -> io::Result<Next<'_>> {
        let mut scanned = self.start;
        let line_end = loop {
            if let Some(at) = find_newline(&self.buffer[scanned..self.end]) {
                break Some(scanned + at);
            }
            scanned = self.end;
            if self.end == self.buffer.len() && self.start > 0 {
                scanned -= self.start;
                self.compact();
            }
            if !self.read_more() {
                break None;
            }
        };
        let unit_start = self.start;
        let Some(newline) = line_end else {
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            if unit_start == self.end {
                return Ok(Next::End);
            }
            self.lines_returned += 1;
            if !self.ended {
                return Ok(Next::TooLong);
            }
            self.start = self.end;
            return Ok(Next::Unended(strip_carriage_return(&self.buffer[unit_start..self.end])));
        };
        self.lines_returned += 1;
        self.start = newline + 1;
        Ok(Next::Whole(strip_carriage_return(&self.buffer[unit_start..newline])))
    }

    /// Position of the chunk read last, or, if it is not among the returned ones (`is_counted` false), of where it
    /// would begin.
    pub fn position_of(&self, chunk: Chunk, is_counted: bool) -> Position {
        let (bytes, lines) = (self.bytes_returned, self.lines_returned);
        match chunk {
            Chunk::Line => Position::Line(if is_counted { lines } else { lines + 1 }),
            Chunk::Bytes(len) => Position::Byte(if is_counted { bytes - len as u64 } else { bytes }),
        }
    }
}

/// Removes the carriage return of a Windows line end.
pub fn strip_carriage_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn find_newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte at a time.
    struct Slow(std::vec::IntoIter<u8>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            Ok(self.0.next().map_or(0, |byte| {
                buffer[0] = byte;
                1
            }))
        }
    }

    #[test]
    fn lines_are_numbered_for_any_read_sizes() {
        let text: String = (0..20_000).map(|number| format!("line {number}\r\n")).collect();
        let mut input = Input::new(Box::new(Slow(format!("{text}last").into_bytes().into_iter())));
        for number in 0..20_000 {
            let Ok(Next::Whole(line)) = input.next(Chunk::Line) else { panic!("line {number} is missing") };
            assert_eq!(line, format!("line {number}").as_bytes());
            assert_eq!(input.position_of(Chunk::Line, true), Position::Line(number + 1));
        }
        assert!(matches!(input.next(Chunk::Line), Ok(Next::Unended(b"last"))));
        assert!(matches!(input.next(Chunk::Line), Ok(Next::End)));
    }

    #[test]
    fn endless_line_is_refused() {
        let mut input = Input::new(Box::new(io::repeat(b'x')));
        assert!(matches!(input.next(Chunk::Line), Ok(Next::TooLong)));
    }

    #[test]
    fn truncated_record_reports_its_present_bytes() {
        let mut input = Input::new(Box::new(io::repeat(7).take(70)));
        for record in 0..2 {
            assert!(matches!(input.next(Chunk::Bytes(32)), Ok(Next::Whole(bytes)) if bytes == [7; 32]));
            assert_eq!(input.position_of(Chunk::Bytes(32), true), Position::Byte(record * 32));
        }
        assert!(matches!(input.next(Chunk::Bytes(32)), Ok(Next::CutShort(6))));
        assert_eq!(input.position_of(Chunk::Bytes(32), false), Position::Byte(64));
    }
}
