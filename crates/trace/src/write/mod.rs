//! Traces written: our own format, and those of the field that other tools read.

mod pack;
mod text;

use std::io::{self, Write};

use crate::compression::Compression;
use crate::error::TraceError;
use crate::formats::Format;
use crate::formats::hotset::{Encoder, Header};
use crate::request::Request;

use pack::Packed;
use text::Lines;

/// What a format could not say of the requests that it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Requests of a kind that it does not have.
    pub requests: u64,
    /// Requests that were widened to whole sectors.
    pub rounded: u64,
    /// Times that were there.
    pub times: u64,
    /// Writes that became reads.
    pub writes: u64,
    /// Numbers of disks other than 0.
    pub devices: u64,
}

/// A trace on its way out. Without [`Writer::finish`] it counts as cut off.
pub struct Writer {
    name: String,
    kind: Kind,
    lost: Lost,
}

enum Kind {
    Hotset(Encoder<Packed>),
    Lines(Packed, Lines),
}

impl Format {
    /// The formats that can be written.
    pub const WRITTEN: [Format; 5] = [Format::Hotset, Format::Msr, Format::Spc, Format::FioLog, Format::Lis];
}

/// Begins a trace. `name` is for messages; an ending of gz, xz or zst says what to pack it with. `header` goes into our own
/// format.
pub fn create(name: &str, out: Box<dyn Write>, format: Format, header: Header) -> Result<Writer, TraceError> {
    let unwritten = |error| TraceError::Unwritten { name: name.to_owned(), error };
    let packed = Packed::new(out, Compression::of_name(name)).map_err(unwritten)?;
    let kind = match Lines::of(format) {
        Some(lines) => Kind::Lines(packed, lines),
        None if format == Format::Hotset => Kind::Hotset(Encoder::new(packed, header).map_err(unwritten)?),
        None => return Err(TraceError::Unwritable { format }),
    };
    let mut writer = Writer { name: name.to_owned(), kind, lost: Lost::default() };
    writer.begin()?;
    Ok(writer)
}

impl Writer {
    fn begin(&mut self) -> Result<(), TraceError> {
        let result = match &mut self.kind {
            Kind::Hotset(_) => Ok(()),
            Kind::Lines(out, lines) => out.write_all(lines.header()),
        };
        self.checked(result)
    }

    /// Appends a request.
    pub fn put(&mut self, request: &Request) -> Result<(), TraceError> {
        let result = match &mut self.kind {
            Kind::Hotset(encoder) => encoder.put(request),
            Kind::Lines(out, lines) => out.write_all(lines.line(request, &mut self.lost).as_bytes()),
        };
        self.checked(result)
    }

    /// So many requests are missing from here on. Only our own format can say so.
    pub fn dropped(&mut self, count: u64) -> Result<(), TraceError> {
        let result = match &mut self.kind {
            Kind::Hotset(encoder) => encoder.dropped(count),
            Kind::Lines(..) => Ok(()),
        };
        self.checked(result)
    }

    /// Writes what is held back; says what the format could not.
    pub fn finish(self) -> Result<Lost, TraceError> {
        let unwritten = |error| TraceError::Unwritten { name: self.name.clone(), error };
        match self.kind {
            Kind::Hotset(encoder) => encoder.finish().and_then(Packed::finish).map_err(unwritten)?,
            Kind::Lines(out, _) => out.finish().map_err(unwritten)?,
        }
        Ok(self.lost)
    }

    fn checked(&self, result: io::Result<()>) -> Result<(), TraceError> {
        result.map_err(|error| TraceError::Unwritten { name: self.name.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::Op;
    use crate::tests::{recognised, request};

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
        let mut writer = create(name, Box::new(file.clone()), format, Header::default()).expect("it can be written");
        requests.iter().for_each(|request| writer.put(request).expect("memory takes it"));
        let lost = writer.finish().expect("memory takes it");
        (file.0.take(), lost)
    }

    const PLAIN: [Request; 3] = [
        Request { time_ns: Some(0), op: Op::Write, at: 512, len: 4_096, device: 0 },
        Request { time_ns: Some(1_500_000), op: Op::Read, at: 1 << 40, len: 65_536, device: 1 },
        Request { time_ns: Some(3_000_000_000), op: Op::Read, at: 0, len: 512, device: 0 },
    ];

    #[test]
    fn what_a_format_can_say_comes_back_from_it() {
        for format in [Format::Hotset, Format::Msr, Format::Spc, Format::FioLog] {
            for ending in ["", ".gz", ".xz", ".zst"] {
                let (file, lost) = written(&format!("a{ending}"), format, &PLAIN);
                assert_eq!(
                    (recognised("a", &file), lost),
                    ((format, PLAIN.to_vec()), Lost::default()),
                    "{format}{ending}"
                );
            }
        }
    }

    #[test]
    fn what_a_format_cannot_say_is_counted() {
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
        let (file, lost) = written("a", Format::FioLog, &odd);
        assert_eq!(lost, Lost::default());
        assert_eq!(recognised("a", &file).1.len(), 4);
    }

    #[test]
    fn a_format_that_is_only_read_is_refused_with_those_that_are_written() {
        let error = create("a", Box::new(io::sink()), Format::Vscsi, Header::default()).err().expect("it is only read");
        assert_eq!(error.to_string(), "traces are not written in vscsi; write one in hotset, msr, spc, iolog or lis");
    }
}
