//! Writing of traces: the Hotset format, and common formats that other tools read.

mod pack;
mod text;

use std::io::{self, Write};

use crate::compression::Compression;
use crate::error::TraceError;
use crate::formats::Format;
use crate::formats::hotset::{Encoder, Header};
use crate::request::Request;

use pack::CompressedOutput;
use text::LineFormatter;

/// Information that a format could not express, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Requests of an unsupported operation.
    pub requests: u64,
    /// Requests rounded to whole sectors.
    pub rounded: u64,
    /// Times.
    pub times: u64,
    /// Writes written as reads.
    pub writes: u64,
    /// Disk numbers other than 0.
    pub devices: u64,
}

/// Writer of a trace. Without [`Writer::finish`] the trace counts as truncated.
pub struct Writer {
    name: String,
    encoder: FormatEncoder,
    lost: Lost,
}

enum FormatEncoder {
    Hotset(Encoder<CompressedOutput>),
    Text(CompressedOutput, LineFormatter),
}

impl Format {
    /// The writable formats.
    pub const WRITABLE: [Format; 5] = [Format::Hotset, Format::Msr, Format::Spc, Format::Iolog, Format::Lis];
}

/// Creates a trace. `name` is used in messages, and its extension gz, xz or zst selects a compression. `header` is used
/// by the Hotset format.
pub fn create(name: &str, out: Box<dyn Write>, format: Format, header: Header) -> Result<Writer, TraceError> {
    let write_failed = |error| TraceError::Unwritten { name: name.to_owned(), error };
    let packed = CompressedOutput::new(out, Compression::of_name(name)).map_err(write_failed)?;
    let encoder = match LineFormatter::of(format) {
        Some(formatter) => FormatEncoder::Text(packed, formatter),
        None if format == Format::Hotset => FormatEncoder::Hotset(Encoder::new(packed, header).map_err(write_failed)?),
        None => return Err(TraceError::Unwritable { format: format.to_string() }),
    };
    let mut writer = Writer { name: name.to_owned(), encoder, lost: Lost::default() };
    writer.write_header()?;
    Ok(writer)
}

impl Writer {
    fn write_header(&mut self) -> Result<(), TraceError> {
        let result = match &mut self.encoder {
            FormatEncoder::Hotset(_) => Ok(()),
            FormatEncoder::Text(out, formatter) => out.write_all(formatter.header()),
        };
        self.with_name(result)
    }

    /// Appends a request.
    pub fn put(&mut self, request: &Request) -> Result<(), TraceError> {
        let result = match &mut self.encoder {
            FormatEncoder::Hotset(encoder) => encoder.put(request),
            FormatEncoder::Text(out, formatter) => out.write_all(formatter.line(request, &mut self.lost).as_bytes()),
        };
        self.with_name(result)
    }

    /// Records that `count` requests were lost here. Only the Hotset format can express it.
    pub fn record_dropped(&mut self, count: u64) -> Result<(), TraceError> {
        let result = match &mut self.encoder {
            FormatEncoder::Hotset(encoder) => encoder.record_dropped(count),
            FormatEncoder::Text(..) => Ok(()),
        };
        self.with_name(result)
    }

    /// Writes buffered data; returns the information that the format could not express.
    pub fn finish(self) -> Result<Lost, TraceError> {
        let write_failed = |error| TraceError::Unwritten { name: self.name.clone(), error };
        match self.encoder {
            FormatEncoder::Hotset(encoder) => {
                encoder.finish().and_then(CompressedOutput::finish).map_err(write_failed)?
            }
            FormatEncoder::Text(out, _) => out.finish().map_err(write_failed)?,
        }
        Ok(self.lost)
    }

    /// Adds the name of the trace to an error.
    fn with_name(&self, result: io::Result<()>) -> Result<(), TraceError> {
        result.map_err(|error| TraceError::Unwritten { name: self.name.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::Op;
    use crate::tests::{read_detected, request};

    #[derive(Clone, Default)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(name: &str, format: Format, requests: &[Request]) -> (Vec<u8>, Lost) {
        let file = Shared::default();
        let mut writer =
            create(name, Box::new(file.clone()), format, Header::default()).expect("the format is writable");
        requests.iter().for_each(|request| writer.put(request).expect("memory accepts writes"));
        let lost = writer.finish().expect("memory accepts writes");
        (file.0.take(), lost)
    }

    const PLAIN: [Request; 3] = [
        Request { time_ns: Some(0), op: Op::Write, at: 512, len: 4_096, device: 0 },
        Request { time_ns: Some(1_500_000), op: Op::Read, at: 1 << 40, len: 65_536, device: 1 },
        Request { time_ns: Some(3_000_000_000), op: Op::Read, at: 0, len: 512, device: 0 },
    ];

    #[test]
    fn expressible_requests_round_trip() {
        for format in [Format::Hotset, Format::Msr, Format::Spc, Format::Iolog] {
            for extension in ["", ".gz", ".xz", ".zst"] {
                let (file, lost) = written(&format!("a{extension}"), format, &PLAIN);
                assert_eq!(
                    (read_detected("a", &file), lost),
                    ((format, PLAIN.to_vec()), Lost::default()),
                    "{format}{extension}"
                );
            }
        }
    }

    #[test]
    fn inexpressible_information_is_counted() {
        let odd = [
            PLAIN[0],
            request(Some(9), Op::Flush, 0, 0, 0),
            request(Some(9), Op::Discard, 0, 512, 0),
            request(Some(9), Op::Read, 700, 100, 2),
        ];
        let (file, lost) = written("a", Format::Lis, &odd);
        assert_eq!(lost, Lost { requests: 2, rounded: 1, times: 2, writes: 1, devices: 1 });
        assert_eq!(file, b"1 8 0 0\n1 1 0 1\n");
        let (file, lost) = written("a", Format::Spc, &odd);
        assert_eq!(lost, Lost { requests: 2, rounded: 1, ..Lost::default() });
        assert_eq!(file, b"0,1,4096,w,0.000000000\n2,1,512,r,0.000000009\n");
        let (file, lost) = written("a", Format::Iolog, &odd);
        assert_eq!(lost, Lost::default());
        assert_eq!(read_detected("a", &file).1.len(), 4);
    }

    #[test]
    fn read_only_format_is_refused_with_the_writable_ones() {
        let error =
            create("a", Box::new(io::sink()), Format::Vscsi, Header::default()).err().expect("vscsi is read-only");
        assert_eq!(error.to_string(), "traces cannot be written in vscsi; write one in hotset, msr, spc, iolog or lis");
    }
}
