//! Detects and decompresses gzip, xz and zstd.

use std::io::{self, BufReader, Cursor, Read};

/// Compression format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, with one or more members.
    Gzip,
    /// The xz format, with one or more streams.
    Xz,
    /// RFC 8878, with one or more frames.
    Zstd,
}

/// Memory limit of the xz decompressor, in bytes: `xz -9` needs 65 MiB. zstd limits its window to 128 MiB itself.
const XZ_BYTES_MAX: u64 = 256 << 20;
/// Bytes of the longest magic number.
const MAGIC_BYTES_MAX: usize = 6;

impl Compression {
    /// Name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
            Compression::Zstd => "zstd",
        }
    }

    /// Format by the extension of a file name.
    pub fn of_name(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "gz" => Some(Compression::Gzip),
            "xz" => Some(Compression::Xz),
            "zst" => Some(Compression::Zstd),
            _ => None,
        }
    }

    fn of_magic(bytes: &[u8]) -> Option<Self> {
        [
            (&b"\x1f\x8b"[..], Compression::Gzip),
            (b"\xfd7zXZ\0", Compression::Xz),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
        ]
        .into_iter()
        .find_map(|(magic, compression)| bytes.starts_with(magic).then_some(compression))
    }
}

/// Decompresses a stream; returns the plain stream and the format.
pub fn decompress(mut input: Box<dyn Read>) -> io::Result<(Box<dyn Read>, Option<Compression>)> {
    let mut magic = Vec::with_capacity(MAGIC_BYTES_MAX);
    input.by_ref().take(MAGIC_BYTES_MAX as u64).read_to_end(&mut magic)?;
    let compression = Compression::of_magic(&magic);
    let whole = Cursor::new(magic).chain(input);
    let plain: Box<dyn Read> = match compression {
        None => Box::new(whole),
        Some(Compression::Gzip) => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        Some(Compression::Xz) => {
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_BYTES_MAX, liblzma::stream::CONCATENATED)?;
            Box::new(liblzma::read::XzDecoder::new_stream(whole, stream))
        }
        Some(Compression::Zstd) => Box::new(zstd::stream::read::Decoder::with_buffer(BufReader::new(whole))?),
    };
    Ok((plain, compression))
}
