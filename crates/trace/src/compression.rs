//! gzip, xz and zstd are seen by their first bytes and taken off.

use std::io::{self, BufReader, Cursor, Read};

/// What a trace was packed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, of one part or many.
    Gzip,
    /// The xz format, of one stream or many.
    Xz,
    /// RFC 8878, of one frame or many.
    Zstd,
}

/// What a decompressor of xz may take, in bytes: `xz -9` needs 65 MiB. zstd's own limit is a window of 128 MiB.
const XZ_BYTES_MAX: u64 = 256 << 20;
const MAGIC_LEN: usize = 6;

impl Compression {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
            Compression::Zstd => "zstd",
        }
    }

    /// What a file's ending says.
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

/// The stream without its packing, and what that was.
pub fn unpacked(mut input: Box<dyn Read>) -> io::Result<(Box<dyn Read>, Option<Compression>)> {
    let mut magic = Vec::with_capacity(MAGIC_LEN);
    input.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut magic)?;
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
