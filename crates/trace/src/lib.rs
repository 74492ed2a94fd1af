//! Block traces: a crate of its own that knows nothing of caches.
//!
//! `open` takes a stream of bytes and gives requests, one by one and in bounded memory, whatever the format and the
//! compression. `docs/traces.md` describes the formats for users; each is one file in `formats/`.

mod compression;
mod error;
mod formats;
mod input;
mod out;
mod reader;
mod request;
mod text;

pub use compression::Compression;
pub use error::{Place, TraceError};
pub use formats::Format;
pub use formats::hotset::{Encoder, Header};
pub use reader::{Reader, open};
pub use request::{Op, Request, TRANSFER_BYTES_MAX};

#[cfg(test)]
mod tests;
