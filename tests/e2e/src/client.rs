//! An NBD client for tests, written from the protocol's document. It shares no code with the server, so that one
//! mistake cannot hide in both.
//!
//! It supports simple replies only; requests may be pipelined.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Address of a server.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// Address and port.
    Tcp(String),
}

/// Command of a request, numbered as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocol's terms")]
pub enum Op {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// Request flag: the reply promises durability.
pub const FUA: u16 = 1;
/// Longest time without a reply before a test fails.
const TIMEOUT: Duration = Duration::from_secs(60);
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The option that negotiates an export, and the types of its replies.
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;

trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

/// A connection in the transmission phase.
pub struct Client {
    stream: BufReader<Box<dyn Socket>>,
    /// Size of the export in bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Cookie of the last request.
    cookie: u64,
    /// Length of the data in the reply to each request in flight, by cookie.
    expected: BTreeMap<u64, usize>,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// Cookie of the request.
    pub cookie: u64,
    /// 0, or the protocol's error number.
    pub error: u32,
    /// Data of a read.
    pub data: Vec<u8>,
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Client {
    /// Connects and negotiates `export`.
    pub fn connect(endpoint: &Endpoint, export: &str) -> io::Result<Client> {
        let stream: Box<dyn Socket> = match endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                Box::new(stream)
            }
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                Box::new(stream)
            }
        };
        let mut client = Client {
            stream: BufReader::with_capacity(1 << 18, stream),
            size: 0,
            flags: 0,
            cookie: 0,
            expected: BTreeMap::new(),
        };
        client.negotiate(export)?;
        Ok(client)
    }

    fn negotiate(&mut self, export: &str) -> io::Result<()> {
        let greeting = self.take(18)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(invalid(format!("no greeting: {greeting:?}")));
        }
        // Fixed newstyle, no trailing zeroes.
        let mut out = vec![0, 0, 0, 3];
        out.extend(b"IHAVEOPT");
        out.extend(OPT_GO.to_be_bytes());
        out.extend((export.len() as u32 + 6).to_be_bytes());
        out.extend((export.len() as u32).to_be_bytes());
        out.extend(export.as_bytes());
        out.extend(0u16.to_be_bytes());
        self.stream.get_mut().write_all(&out)?;
        loop {
            let header = self.take(20)?;
            let kind = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
            let len = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
            let body = self.take(len as usize)?;
            match kind {
                REP_ACK => return Ok(()),
                REP_INFO if body.len() >= 12 && body[..2] == [0, 0] => {
                    self.size = u64::from_be_bytes(body[2..10].try_into().expect("eight bytes"));
                    self.flags = u16::from_be_bytes([body[10], body[11]]);
                }
                REP_INFO => {}
                _ => return Err(invalid(format!("export refused: {kind:#x} {}", String::from_utf8_lossy(&body)))),
            }
        }
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a request and returns its cookie. `data` is the payload of a write; for other requests `len` is the
    /// length.
    pub fn send(&mut self, op: Op, flags: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<u64> {
        assert!(op != Op::Write || data.len() == len, "a write of {len} bytes with {}", data.len());
        self.cookie += 1;
        let mut out = Vec::with_capacity(28 + data.len());
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend(flags.to_be_bytes());
        out.extend((op as u16).to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend((len as u32).to_be_bytes());
        out.extend(data);
        if op != Op::Disconnect {
            self.expected.insert(self.cookie, if op == Op::Read { len } else { 0 });
        }
        self.stream.get_mut().write_all(&out)?;
        Ok(self.cookie)
    }

    /// Sends raw bytes, for invalid requests.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Waits for the next reply to any request.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let header = self.take(16)?;
        if header[..4] != SIMPLE_REPLY_MAGIC.to_be_bytes() {
            return Err(invalid(format!("not a simple reply: {header:?}")));
        }
        let error = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let cookie = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
        let len = self.expected.remove(&cookie).ok_or_else(|| invalid(format!("reply to unknown cookie {cookie}")))?;
        let data = if error == 0 { self.take(len)? } else { Vec::new() };
        Ok(Reply { cookie, error, data })
    }

    /// Sends one request and waits for its reply, with no other request in flight.
    pub fn call(&mut self, op: Op, flags: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<Vec<u8>> {
        let cookie = self.send(op, flags, offset, len, data)?;
        let reply = self.receive()?;
        assert_eq!(reply.cookie, cookie, "something else was in flight");
        match reply.error {
            0 => Ok(reply.data),
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }

    /// Reads `len` bytes at `offset`.
    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.call(Op::Read, 0, offset, len, &[])
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call(Op::Write, 0, offset, data.len(), data).map(drop)
    }

    /// Makes all acknowledged writes durable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.call(Op::Flush, 0, 0, 0, &[]).map(drop)
    }

    /// Reads the whole export.
    pub fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut image = Vec::with_capacity(self.size as usize);
        while (image.len() as u64) < self.size {
            let len = (self.size - image.len() as u64).min(1 << 20) as usize;
            image.extend(self.read(image.len() as u64, len)?);
        }
        Ok(image)
    }
}
