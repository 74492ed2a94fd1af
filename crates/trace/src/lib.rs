//! Block traces, independent of caches.
//!
//! `open` turns a byte stream into requests, one by one and in bounded memory, whatever the format and the compression.
//! `docs/user/traces.md` describes the formats for users; each format is one file in `formats/`.

mod anonymise;
mod compression;
mod error;
mod formats;
pub mod info;
mod input;
mod position;
mod reader;
mod request;
mod request_sink;
mod text;
mod write;

pub use anonymise::{Anonymiser, EXTENT_BYTES};
pub use compression::Compression;
pub use error::TraceError;
pub use formats::Format;
pub use formats::hotset::Header;
pub use position::Position;
pub use reader::{Reader, open};
pub use request::{DISK_BYTES_MAX, Op, Request, TRANSFER_BYTES_MAX};
pub use write::{Lost, Writer, create};

#[cfg(test)]
mod tests;
