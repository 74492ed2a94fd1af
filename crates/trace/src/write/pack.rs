//! Compression of a written trace.

use std::io::{self, BufWriter, Write};

use crate::compression::Compression;

const XZ_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;

/// Output with optional compression.
pub enum CompressedOutput {
    Plain(BufWriter<Box<dyn Write>>),
    Gzip(BufWriter<flate2::write::GzEncoder<Box<dyn Write>>>),
    Xz(BufWriter<liblzma::write::XzEncoder<Box<dyn Write>>>),
    Zstd(BufWriter<zstd::stream::write::Encoder<'static, Box<dyn Write>>>),
}

impl CompressedOutput {
    /// An output that compresses with `compression`.
    pub fn new(out: Box<dyn Write>, compression: Option<Compression>) -> io::Result<Self> {
        Ok(match compression {
            None => CompressedOutput::Plain(BufWriter::new(out)),
            Some(Compression::Gzip) => CompressedOutput::Gzip(BufWriter::new(flate2::write::GzEncoder::new(
                out,
                flate2::Compression::default(),
            ))),
            Some(Compression::Xz) => {
                CompressedOutput::Xz(BufWriter::new(liblzma::write::XzEncoder::new(out, XZ_LEVEL)))
            }
            Some(Compression::Zstd) => {
                let mut encoder = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                CompressedOutput::Zstd(BufWriter::new(encoder))
            }
        })
    }

    /// Writes buffered data and the end of the compressed stream.
    pub fn finish(self) -> io::Result<()> {
        let mut out = match self {
            CompressedOutput::Plain(out) => unbuffered(out)?,
            CompressedOutput::Gzip(out) => unbuffered(out)?.finish()?,
            CompressedOutput::Xz(out) => unbuffered(out)?.finish()?,
            CompressedOutput::Zstd(out) => unbuffered(out)?.finish()?,
        };
        out.flush()
    }

    fn out(&mut self) -> &mut dyn Write {
        match self {
            CompressedOutput::Plain(out) => out,
            CompressedOutput::Gzip(out) => out,
            CompressedOutput::Xz(out) => out,
            CompressedOutput::Zstd(out) => out,
        }
    }
}

fn unbuffered<W: Write>(out: BufWriter<W>) -> io::Result<W> {
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

impl Write for CompressedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out().flush()
    }
}
