//! From a stream of bytes to requests: unpacked, recognised, decoded, each error with its place.

use std::io::{self, Read};

use crate::compression::{Compression, unpacked};
use crate::error::{Place, TraceError};
use crate::formats::{Decoder, Format, recognise};
use crate::input::{Input, Next, Unit};
use crate::out::{Complaint, Out};
use crate::request::Request;

const LENIENT: &str = "keep what comes before with --lenient, or name another format with --format";
const CUT_SHORT: &str = "copy it again, or keep what comes before with --lenient";

/// The requests of a trace in their order. After an error it ends.
pub struct Reader {
    name: String,
    format: Format,
    compression: Option<Compression>,
    input: Input,
    decoder: Box<dyn Decoder>,
    out: Out,
    ended: bool,
}

/// Opens a trace. `name` is for messages, and its ending tells the format where the content does not; a `format` that is given
/// is taken as it is. Memory is bounded: 64 KiB of the trace are held, and what the decompressor needs.
pub fn open(name: &str, input: Box<dyn Read>, format: Option<Format>) -> Result<Reader, TraceError> {
    let unreadable = |error| TraceError::Unreadable { name: name.to_owned(), place: Place::Byte(0), error };
    let (plain, compression) = unpacked(input).map_err(unreadable)?;
    let mut input = Input::new(plain);
    let head = input.head();
    if head.is_empty() {
        let error = input.take_error();
        return Err(error.map_or_else(|| TraceError::Empty { name: name.to_owned() }, unreadable));
    }
    let recognised = format.or_else(|| recognise(head)).or_else(|| Format::of_name(name));
    let format = recognised.ok_or_else(|| TraceError::Unrecognised { name: name.to_owned() })?;
    let decoder = format.decoder(head);
    Ok(Reader { name: name.to_owned(), format, compression, input, decoder, out: Out::default(), ended: false })
}

impl Reader {
    /// What it was taken for.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What it was packed with.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Both in words, for example `ARC text (lis), zstd`.
    pub fn description(&self) -> String {
        let packed = self.compression.map_or(String::new(), |compression| format!(", {}", compression.name()));
        format!("{} ({}){packed}", self.format.title(), self.format)
    }

    /// Records that were passed over so far, for they are no requests: other commands, transfers of nothing.
    pub fn skipped(&self) -> u64 {
        self.out.skipped
    }

    /// Requests that whoever recorded the trace had to leave out, so far.
    pub fn dropped(&self) -> u64 {
        self.out.dropped
    }

    /// Decodes one unit; whether there was one.
    fn step(&mut self) -> Result<bool, TraceError> {
        let unit = self.decoder.unit();
        let (result, remedy, taken) = match self.input.next(unit) {
            Err(error) => return Err(self.unreadable(unit, error)),
            Ok(Next::Whole(bytes)) => (self.decoder.decode(bytes, &mut self.out), LENIENT, true),
            Ok(Next::Unended(bytes)) => {
                let result = self.decoder.decode(bytes, &mut self.out);
                (
                    result.map_err(|Complaint(what)| Complaint(format!("the last line is cut short: {what}"))),
                    CUT_SHORT,
                    true,
                )
            }
            Ok(Next::CutShort(held)) => {
                let what =
                    format!("the file ends within {}, of which {held} bytes are there", self.decoder.unit_name());
                (Err(what.into()), CUT_SHORT, false)
            }
            Ok(Next::TooLong) => (Err("a line of more than 64 KiB is no trace".into()), LENIENT, true),
            Ok(Next::End) => {
                return self.decoder.end().map(|()| false).map_err(|what| self.broken(unit, what, CUT_SHORT, false));
            }
        };
        result.map(|()| true).map_err(|what| self.broken(unit, what, remedy, taken))
    }

    fn broken(&self, unit: Unit, Complaint(what): Complaint, remedy: &'static str, taken: bool) -> TraceError {
        let place = self.input.place(unit, taken);
        TraceError::Broken { name: self.name.clone(), place, what, remedy }
    }

    fn unreadable(&self, unit: Unit, error: io::Error) -> TraceError {
        TraceError::Unreadable { name: self.name.clone(), place: self.input.place(unit, false), error }
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
                    // What a broken record gave before its fault is none of the trace.
                    self.out.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}
