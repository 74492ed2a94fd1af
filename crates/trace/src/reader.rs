//! Turns a byte stream into requests: decompression, format detection, decoding, and errors with positions.

use std::io::{self, Read};

use crate::compression::{Compression, decompress};
use crate::error::TraceError;
use crate::formats::{Decoder, Format, detect};
use crate::input::{Chunk, Input, Next};
use crate::position::Position;
use crate::request::Request;
use crate::request_sink::{RecordError, RequestSink};

/// Remedy for an invalid record.
const KEEP_START: &str = "keep what comes before with --lenient, or specify another format with --format";
/// Remedy for a truncated trace.
const COPY_AGAIN: &str = "copy it again, or keep what comes before with --lenient";

/// Iterator over the requests of a trace. It ends after an error.
pub struct Reader {
    name: String,
    format: Format,
    compression: Option<Compression>,
    input: Input,
    decoder: Box<dyn Decoder>,
    out: RequestSink,
    ended: bool,
}

/// Opens a trace. `name` is used in messages, and its extension selects the format if the content does not; a given
/// `format` takes precedence. Memory is bounded: 64 KiB of the trace, and the decompressor's own.
pub fn open(name: &str, input: Box<dyn Read>, format: Option<Format>) -> Result<Reader, TraceError> {
    let unreadable = |error| TraceError::Unreadable { name: name.to_owned(), place: Position::Byte(0), error };
    let (plain, compression) = decompress(input).map_err(unreadable)?;
    let mut input = Input::new(plain);
    let head = input.head();
    if head.is_empty() {
        let error = input.take_error();
        return Err(error.map_or_else(|| TraceError::Empty { name: name.to_owned() }, unreadable));
    }
    let read_detected = format.or_else(|| detect(head)).or_else(|| Format::of_name(name));
    let format =
        read_detected.ok_or_else(|| TraceError::Unrecognised { name: name.to_owned(), formats: Format::names() })?;
    let decoder = format.decoder(head);
    Ok(Reader { name: name.to_owned(), format, compression, input, decoder, out: RequestSink::default(), ended: false })
}

impl Reader {
    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The compression.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Format and compression as text, for example `ARC text (lis), zstd`.
    pub fn description(&self) -> String {
        let packed = self.compression.map_or(String::new(), |compression| format!(", {}", compression.name()));
        format!("{} ({}){packed}", self.format.title(), self.format)
    }

    /// Records skipped so far because they are not requests: other commands and empty transfers.
    pub fn skipped(&self) -> u64 {
        self.out.skipped
    }

    /// Requests lost by the recorder so far.
    pub fn dropped(&self) -> u64 {
        self.out.dropped
    }

    /// Decodes one chunk; returns false at the end.
    fn step(&mut self) -> Result<bool, TraceError> {
        let chunk = self.decoder.next_chunk();
        let (result, remedy, is_counted) = match self.input.next(chunk) {
            Err(error) => return Err(self.unreadable(chunk, error)),
            Ok(Next::Whole(bytes)) => (self.decoder.decode(bytes, &mut self.out), KEEP_START, true),
            Ok(Next::Unended(bytes)) => {
                let result = self.decoder.decode(bytes, &mut self.out);
                (
                    result.map_err(|RecordError(error)| RecordError(format!("the last line is cut short: {error}"))),
                    COPY_AGAIN,
                    true,
                )
            }
            Ok(Next::CutShort(held)) => {
                let error =
                    format!("the file ends within {}, with {held} bytes of it present", self.decoder.chunk_name());
                (Err(error.into()), COPY_AGAIN, false)
            }
            Ok(Next::TooLong) => (Err("the line is longer than 64 KiB".into()), KEEP_START, true),
            Ok(Next::End) => {
                return self
                    .decoder
                    .end()
                    .map(|()| false)
                    .map_err(|error| self.broken(chunk, error, COPY_AGAIN, false));
            }
        };
        result.map(|()| true).map_err(|error| self.broken(chunk, error, remedy, is_counted))
    }

    fn broken(
        &self,
        chunk: Chunk,
        RecordError(error): RecordError,
        remedy: &'static str,
        is_counted: bool,
    ) -> TraceError {
        let place = self.input.position_of(chunk, is_counted);
        TraceError::Broken { name: self.name.clone(), place, error, remedy }
    }

    fn unreadable(&self, chunk: Chunk, error: io::Error) -> TraceError {
        TraceError::Unreadable { name: self.name.clone(), place: self.input.position_of(chunk, false), error }
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(request) = self.out.take() {
                return Some(Ok(request));
            }
            if self.ended {
                return None;
            }
            match self.step() {
                Ok(more) => self.ended = !more,
                Err(error) => {
                    self.ended = true;
                    // Requests of a broken record are dropped.
                    self.out.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}
