//! A small NBD client: one connection over a Unix socket, many requests in flight, simple replies.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nbd_protocol::greeting::{GREETING_BYTES, client_flags, decode_greeting};
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::option::push_option;
use nbd_protocol::{
    Command, OptionKind, OptionReplyHeader, OptionReplyKind, ProtocolError, ReplyHeader, Request, Step,
};

/// Length of a simple reply's header.
const REPLY_HEADER_BYTES: usize = 16;

/// A connection to an export.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    /// Encoded requests that are not sent yet.
    send_buffer: Vec<u8>,
    /// Size of the export.
    pub size_bytes: u64,
}

fn invalid_data(error: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Client {
    /// Connects to `export` of the server at `socket`.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let writer = UnixStream::connect(socket)?;
        let reader = BufReader::with_capacity(256 << 10, writer.try_clone()?);
        let mut client = Client { reader, writer, send_buffer: Vec::new(), size_bytes: 0 };
        let mut greeting = [0; GREETING_BYTES];
        client.reader.read_exact(&mut greeting)?;
        let Step::Got(flags, _) = decode_greeting(&greeting).map_err(invalid_data)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        client.send_buffer.extend_from_slice(&client_flags(flags).map_err(invalid_data)?);
        let request =
            InfoRequest { name: export, wants_block_size: false, wants_name: false, wants_description: false };
        push_option(&mut client.send_buffer, OptionKind::Go, &request.encode());
        client.send()?;
        client.size_bytes = client.receive_export_size()?;
        Ok(client)
    }

    /// Reads the replies to NBD_OPT_GO and returns the export's size.
    fn receive_export_size(&mut self) -> io::Result<u64> {
        let mut size = None;
        loop {
            let mut header = [0; OptionReplyHeader::BYTES];
            self.reader.read_exact(&mut header)?;
            let Step::Got(header, _) = OptionReplyHeader::decode(&header).map_err(invalid_data)? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let mut payload = vec![0; header.len as usize];
            self.reader.read_exact(&mut payload)?;
            match header.kind {
                OptionReplyKind::Info => {
                    if let Info::Export { size_bytes, .. } = Info::parse(&payload).map_err(invalid_data)? {
                        size = Some(size_bytes);
                    }
                }
                OptionReplyKind::Ack => return size.ok_or_else(|| io::Error::other("the server sent no export size")),
                _ => return Err(io::Error::other(String::from_utf8_lossy(&payload).into_owned())),
            }
        }
    }

    /// Queues a request for [`Client::send`].
    pub fn queue(&mut self, command: Command, cookie: u64, offset: u64, len: u32, data: &[u8]) {
        self.send_buffer.extend_from_slice(&Request { flags: 0, command, cookie, offset, len }.encode());
        self.send_buffer.extend_from_slice(data);
    }

    /// Sends the queued requests.
    pub fn send(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.send_buffer)?;
        self.send_buffer.clear();
        Ok(())
    }

    /// True if a reply's header is already in the buffer.
    pub fn has_reply(&self) -> bool {
        self.reader.buffer().len() >= REPLY_HEADER_BYTES
    }

    /// Reads the header of the next reply and returns its cookie. The data of a read follows.
    pub fn receive_reply(&mut self) -> io::Result<u64> {
        let mut header = [0; REPLY_HEADER_BYTES];
        self.reader.read_exact(&mut header)?;
        match ReplyHeader::decode(&header).map_err(invalid_data)? {
            Step::Got(ReplyHeader::Simple { cookie, error: None }, _) => Ok(cookie),
            Step::Got(ReplyHeader::Simple { error: Some(error), .. }, _) => {
                Err(io::Error::other(format!("a request failed: {error:?}")))
            }
            _ => Err(io::Error::other("the server sent a reply that was not negotiated")),
        }
    }

    /// Reads the data of a reply into `buffer`.
    pub fn receive_data(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(buffer)
    }
}
